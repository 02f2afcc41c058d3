"""PAMAP2: physical activity monitoring with three inertial units at hand, chest and ankle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files
from fedsense.data.tables import SPACES, Array, read_table, stacked
from fedsense.data.windows import UNLABELLED, Recording
from fedsense.errors import UserError

Placement = Literal["hand", "chest", "ankle"]
Sensor = Literal["acc", "acc6", "gyro", "mag"]

PROTOCOL = {
    1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling", 7: "nordic-walking",
    12: "ascending-stairs", 13: "descending-stairs", 16: "vacuum-cleaning", 17: "ironing", 24: "rope-jumping",
}  # fmt: skip
OPTIONAL = {
    9: "watching-tv", 10: "computer-work", 11: "car-driving", 18: "folding-laundry", 19: "house-cleaning",
    20: "playing-soccer",
}  # fmt: skip
NUMBERS = {number: place for place, number in enumerate([*PROTOCOL, *OPTIONAL])}  # the authors' → ours
TRANSIENT = 0  # between two activities; not to be used, say the authors
PLACEMENTS: tuple[Placement, ...] = ("hand", "chest", "ankle")
UNIT = (
    "temperature",
    *(f"{sensor}_{axis}" for sensor in ("acc", "acc6", "gyro", "mag") for axis in "xyz"),
    *(f"orientation_{i}" for i in range(4)),
)  # the 17 columns of an inertial unit; the orientation is invalid, say the authors
COLUMNS = ("time", "activity", "heart_rate", *(f"{place}_{column}" for place in PLACEMENTS for column in UNIT))
RATE = 100.0


def classes(optional: bool) -> tuple[str, ...]:
    return (*PROTOCOL.values(), *OPTIONAL.values()) if optional else tuple(PROTOCOL.values())


def read(
    files: Files,
    placements: tuple[Placement, ...] = PLACEMENTS,
    sensors: tuple[Sensor, ...] = ("acc", "gyro", "mag"),
    heart_rate: bool = False,
    optional: bool = False,
) -> Iterator[Recording]:
    """One recording a file: accelerometer (``acc`` ±16 g, ``acc6`` ±6 g; m/s²), gyroscope (rad/s), magnetometer (µT).

    ``optional`` adds the six activities that only some people did.
    """
    for name, chosen in (("placements", placements), ("sensors", sensors)):
        if not chosen or len(set(chosen)) < len(chosen):
            raise UserError(f"{name} = {list(chosen)}; name at least one, and each once", about=name)
    channels = [f"{place}_{sensor}_{axis}" for place in placements for sensor in sensors for axis in "xyz"]
    channels += ["heart_rate"] if heart_rate else []
    parts = ("Protocol", "Optional") if optional else ("Protocol",)
    for part in parts:
        # one at a time: a file is up to 200 MB of text
        for file in files.all(f"{part}/subject*.dat"):
            yield _recording(file, channels, len(classes(optional)))


def _recording(file: File, channels: Sequence[str], count: int) -> Recording:
    number = file.base[len("subject") : -len(".dat")]
    if not number.isdigit():
        raise file.wrong("the name gives no number; expected a name like subject101.dat")
    kinds = dict.fromkeys(COLUMNS, float) | {"activity": int}
    table = read_table(file, kinds, header=False, sep=SPACES, missing=True)
    if np.isnan(table["time"]).any():
        raise file.wrong(f"line {np.flatnonzero(np.isnan(table['time']))[0] + 1}, column 1 ('time'): it is missing")
    traits = {"person": f"s{number}", "device": "Colibri wireless IMU"}
    labels = _labels(file, table["activity"], count)
    signal = stacked(table, channels)
    return Recording(f"s{number}", signal, labels, RATE, tuple(channels), table["time"], traits=traits)


def _labels(file: File, activity: Array, count: int) -> Array:
    known = np.full(max(NUMBERS) + 2, UNLABELLED - 1)  # the last is for every number out of range
    known[TRANSIENT] = UNLABELLED
    for number, label in NUMBERS.items():
        known[number] = label if label < count else UNLABELLED
    labels = known[np.where((activity >= 0) & (activity <= max(NUMBERS)), activity, max(NUMBERS) + 1)]
    strange = np.flatnonzero(labels < UNLABELLED)
    if len(strange):
        listed = ", ".join(str(n) for n in sorted([TRANSIENT, *NUMBERS]))
        raise file.wrong(f"line {strange[0] + 1}, column 2 ('activity'): {activity[strange[0]]} is none of {listed}")
    return labels.astype(np.int8)


DATASET = Signals(
    card=Card(
        name="pamap2",
        title="PAMAP2",
        what="three inertial units (dominant wrist, chest, dominant ankle), 100 Hz: acceleration (m/s²), "
        "gyroscope (rad/s), magnetometer (µT); a heart-rate monitor, about 9 Hz; 12 protocol and 6 optional activities",
        who="nine volunteers",
        licence="CC BY 4.0 (UCI Machine Learning Repository); cite the authors",
        citation="A. Reiss, D. Stricker, 'Introducing a new benchmarked dataset for activity monitoring', ISWC 2012",
        address="https://archive.ics.uci.edu/dataset/231",
        layout="Protocol/subject101.dat to subject109.dat, and Optional/subject*.dat",
        sizes="9 files in Protocol, a row of 54 numbers every 10 ms",
        client="a person (9)",
        paper="ProtoHAR (33.3 Hz, windows of 171, 12 protocol activities); one of FedAli's pre-training sets "
        '(50 Hz, windows of 128: sensors = ["acc", "gyro"])',
        notes="Neither ProtoHAR's channels nor its overlap are published; here all three units without heart rate, and "
        "half overlap. The ±6 g accelerometer saturates in running, so it is used only if asked for (acc6). Activity "
        "0, between two activities, has no label. Samples lost on the radio are NaN: gaps up to 0.5 s are bridged, "
        "longer ones lose their label. subject109 did almost nothing but rope jumping. optional = true reads the "
        "folder Optional too, and has 18 classes. Temperature and orientation are not read.",
        downloads=(
            Download(
                "https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip", "pamap2.zip"
            ),
        ),
    ),
    read=read,
    wanted=("Protocol/subject*.dat", "Optional/subject*.dat"),
    classes=classes,
    rate=100 / 3,
    window=171,
)
