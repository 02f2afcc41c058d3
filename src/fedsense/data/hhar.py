"""HHAR: the same activities felt by phones and watches of many makes (Heterogeneity Activity Recognition)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Literal

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.clocks import at_times, in_order
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files, only_known
from fedsense.data.tables import Array, read_table, side_by_side, stacked
from fedsense.data.windows import UNLABELLED, Recording
from fedsense.errors import UserError, nearest

ACTIVITIES = {
    "bike": "biking", "sit": "sitting", "stand": "standing", "walk": "walking", "stairsup": "stairs-up",
    "stairsdown": "stairs-down",
}  # fmt: skip
RATES = {"nexus4": 200.0, "s3": 150.0, "s3mini": 100.0, "samsungold": 50.0, "gear": 100.0, "lgwatch": 200.0}  # Hz
AXES = ("x", "y", "z")
CHANNELS = tuple(f"{sensor}_{axis}" for sensor in ("acc", "gyro") for axis in AXES)
COLUMNS: dict[str, type] = {"Arrival_Time": int, "Creation_Time": int} | dict.fromkeys(AXES, float) | {
    "User": str, "Device": str, "gt": str,
}  # fmt: skip
BLOCK = 48 << 20  # bytes parsed at once: files have up to 1.4 GB
JUMP = 1.0  # seconds by which a clock that was set differs from one that drifts


@dataclass(frozen=True)
class Sensor:
    """Rows of one sensor: stamps, values, and what the text columns say, by number."""

    arrival: Array  # ms since 1970, when the app got the reading
    creation: Array  # the device's own clock
    signal: Array
    source: Array  # place in ``sources``
    label: Array
    sources: list[tuple[str, str]]  # user, device


def read(
    files: Files,
    devices: Literal["phones", "watches"] = "phones",
    client: Literal["model", "device"] = "model",
    complete: bool = False,
    no_gyro: Literal["zeros", "leave-out"] = "zeros",
) -> Iterator[Recording]:
    """One recording a user and device: accelerometer (m/s², gravity included), gyroscope (rad/s) at its times.

    Clients are a user's devices of one ``model``, or each ``device``; with ``complete`` only those that did all six
    activities. ``no_gyro`` says what becomes of a device that recorded no gyroscope at all.
    """
    kind = "Phones" if devices == "phones" else "Watch"
    pair = [files.one(f"{kind}_accelerometer.csv"), files.one(f"{kind}_gyroscope.csv")]
    acc, gyro = side_by_side(_sensor, pair)
    mine, theirs = _by_source(acc), _by_source(gyro)
    owners: dict[str, list[tuple[str, str]]] = {}
    for user, device in sorted(mine):
        model = only_known(pair[0], device.rpartition("_")[0] or device, RATES, "model")
        owners.setdefault(f"{user}-{model if client == 'model' else device}", []).append((user, device))
    for name, sources in owners.items():
        done = {int(label) for source in sources for label in np.unique(acc.label[mine[source]])} - {UNLABELLED}
        if complete and len(done) < len(ACTIVITIES):
            continue
        for source in sources:
            turn = theirs.get(source)
            if turn is None and no_gyro == "leave-out":
                continue
            yield _recording(name, source, acc, mine[source], gyro, turn)


def _recording(
    name: str, source: tuple[str, str], acc: Sensor, rows: Array, gyro: Sensor, turn: Array | None
) -> Recording:
    user, device = source
    model = device.rpartition("_")[0] or device
    seconds, offsets = clock(acc.arrival[rows], acc.creation[rows], [])
    times, order = in_order(seconds, np.arange(len(rows)))
    rows = rows[order]
    if turn is None:
        turned = np.zeros((len(rows), len(AXES)), np.float32)
    else:
        theirs, _ = clock(gyro.arrival[turn], gyro.creation[turn], offsets)
        turned = at_times(times, *in_order(theirs, gyro.signal[turn]))
    return Recording(
        name,
        np.concatenate([acc.signal[rows], turned], axis=1),
        acc.label[rows],
        RATES[model],
        CHANNELS,
        times,
        traits={"person": user, "device": model, "gyro": turn is not None},
        clock="pouch",  # two phones of a model were in it at once
    )


def clock(arrival: Array, creation: Array, offsets: list[float]) -> tuple[Array, list[float]]:
    """Seconds at which readings were taken, and by how much the device's clock was behind the app's.

    Creation times are finer than arrival times but have no common zero or unit: some count from 1970, some from when
    the device was switched on, and a clock may be set while it runs. So: the unit is the power of ten by which the
    clock goes with the app's; rows are cut where the two clocks part by more than a second; each piece is moved by its
    own offset. Offsets nearer than a second are one and the same clock, also that of the other sensor (``offsets``).
    A clock that does not go at all is replaced by the app's.
    """
    order = np.argsort(arrival, kind="stable")
    seconds = arrival[order] / 1000
    unit = _unit(arrival[order], creation[order])
    if unit is None:
        return arrival / 1000, offsets
    zero = int(creation.min())
    own = (creation[order] - zero) / unit
    behind = seconds - own
    known = [offset + zero / unit for offset in offsets]
    shift = np.empty_like(own)
    for piece in np.split(np.arange(len(own)), np.flatnonzero(np.abs(np.diff(behind)) > JUMP) + 1):
        middle = float(np.median(behind[piece]))
        near = [offset for offset in known if abs(offset - middle) <= JUMP]
        if not near:
            known.append(middle)
        shift[piece] = near[0] if near else middle
    result = np.empty_like(own)
    result[order] = own + shift
    return result, [offset - zero / unit for offset in known]


def _unit(arrival: Array, creation: Array) -> float | None:
    """Ticks of the device's clock in a second: the power of ten nearest to its speed; None if there is no such."""
    far = max(1, min(1000, len(arrival) // 2))
    passed, ticks = arrival[far:] - arrival[:-far], creation[far:] - creation[:-far]
    there = passed > 0
    speed = float(np.median(ticks[there] / passed[there])) * 1000 if there.any() else 0.0
    if speed < 1:
        return None
    unit = 10.0 ** round(np.log10(speed))
    return unit if abs(speed / unit - 1) < 0.3 else None


def _by_source(sensor: Sensor) -> dict[tuple[str, str], Array]:
    """User and device → its rows, in the file's order."""
    order = np.argsort(sensor.source, kind="stable")
    borders = np.searchsorted(sensor.source[order], np.arange(len(sensor.sources) + 1))
    return {source: order[borders[i] : borders[i + 1]] for i, source in enumerate(sensor.sources)}


def _sensor(file: File) -> Sensor:
    """A whole file, parsed block by block so that its text is never in memory at once."""
    parts: list[tuple[Array, ...]] = []
    sources: dict[tuple[str, str], int] = {}
    with file.open() as stream:
        header, before = stream.readline(), 1
        while lines := _lines(stream):
            table = _block(file, header, lines, before)
            labels = _labels(file, table["gt"], before)
            where = _sources(table["User"], table["Device"], sources)
            parts.append((table["Arrival_Time"], table["Creation_Time"], stacked(table, AXES), where, labels))
            before += lines.count(b"\n")
    if not parts:
        raise file.wrong("holds no rows")
    arrival, creation, signal, source, label = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Sensor(arrival, creation, signal, source, label, list(sources))


def _lines(stream: IO[bytes]) -> bytes:
    return stream.read(BLOCK) + stream.readline()


def _block(file: File, header: bytes, lines: bytes, before: int) -> dict[str, Array]:
    """``null`` in a cell of text is read as nothing."""
    try:
        return read_table(file, COLUMNS, missing=True, text=header + lines)
    except UserError:
        read_table(file, COLUMNS, missing=True, text=header + b"\n" * (before - 1) + lines)  # its line in the file
        raise


def _labels(file: File, labels: Array, before: int) -> Array:
    import pandas

    places, known = pandas.factorize(labels)
    names = list(ACTIVITIES)
    for number, label in enumerate(known):
        if label and label not in ACTIVITIES:
            line = before + 1 + int(np.argmax(places == number))
            raise file.wrong(f"line {line}, column 'gt': '{label}' is unknown; {nearest(label, [*names, 'null'])}")
    return np.array([names.index(label) if label else UNLABELLED for label in known], np.int8)[places]


def _sources(users: Array, devices: Array, sources: dict[tuple[str, str], int]) -> Array:
    """The number of each row's user and device; those not seen before are added."""
    import pandas

    (user, users), (device, devices) = pandas.factorize(users), pandas.factorize(devices)
    pairs, place = np.unique(user * len(devices) + device, return_inverse=True)
    numbers = []
    for pair in pairs:
        source = (str(users[pair // len(devices)]), str(devices[pair % len(devices)]))
        numbers.append(sources.setdefault(source, len(sources)))
    return np.array(numbers, np.int16)[place]


DATASET = Signals(
    card=Card(
        name="hhar",
        title="HHAR",
        what="eight phones in a pouch at the waist and four watches at the arms, of six models, each as fast as it "
        "can (50 to 200 Hz); biking, sitting, standing, walking, stairs up and down; accelerometer and "
        "gyroscope",
        who="9 users (a to i) of 25 to 30 years, five minutes an activity",
        licence="CC BY 4.0 (UCI Machine Learning Repository), doi 10.24432/C5689X; cite the authors",
        citation="A. Stisen, H. Blunck, S. Bhattacharya, T. S. Prentow, M. B. Kjærgaard, A. Dey, T. Sonne, M. M. "
        "Jensen, 'Smart devices are different: assessing and mitigating mobile sensing heterogeneities for "
        "activity recognition', SenSys, 2015",
        address="https://archive.ics.uci.edu/dataset/344",
        layout="Activity recognition exp/Phones_accelerometer.csv, Phones_gyroscope.csv, Watch_accelerometer.csv, "
        "Watch_gyroscope.csv",
        sizes="43.9 million rows, 13 million of them of the phones' accelerometers",
        client='a user\'s phones of one model (36), or each phone (72, client = "device")',
        paper="FedAli: phones, 36 clients = 9 users and 4 models, windows of 128 at 50 Hz with half overlap, one "
        'mean and deviation a sensor; FedCoad: accelerometer (channels = ["acc"]), windows of 200',
        notes="Rows without a class (null) have no label. The gyroscope is brought to the accelerometer's times by "
        "straight lines; FedAli's code pairs rows by number. Times are Creation_Time (ns); as its zero and "
        "unit differ between devices and clocks jump, it is tied to Arrival_Time (ms). A device without any "
        'gyroscope reads zeros (no-gyro = "leave-out" drops it). complete = true keeps clients with all six '
        "activities, as FedAli's code does; user h has very little sitting.",
        downloads=(
            Download(
                "https://archive.ics.uci.edu/static/public/344/heterogeneity+activity+recognition.zip", "hhar.zip"
            ),
        ),
    ),
    read=read,
    wanted=("Phones_accelerometer.csv", "Phones_gyroscope.csv", "Watch_accelerometer.csv", "Watch_gyroscope.csv"),
    classes=tuple(ACTIVITIES.values()),
    normalise="sensor",
)
