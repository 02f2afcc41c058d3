"""WISDM 2019: phone in the pocket and watch at the wrist, eighteen activities of daily life."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.clocks import at_times, in_order
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files
from fedsense.data.tables import Array, stacked
from fedsense.data.windows import Recording
from fedsense.data.wisdm import AXES, read_records

ACTIVITIES = {
    "A": "walking", "B": "jogging", "C": "stairs", "D": "sitting", "E": "standing", "F": "typing",
    "G": "brushing-teeth", "H": "eating-soup", "I": "eating-chips", "J": "eating-pasta", "K": "drinking",
    "L": "eating-sandwich", "M": "kicking", "O": "catching", "P": "dribbling", "Q": "writing", "R": "clapping",
    "S": "folding-clothes",
}  # fmt: skip
RATE = 20.0  # Hz
PLACEMENTS = {"phone": "pocket", "watch": "wrist"}


class Rows(NamedTuple):
    """What one file holds; ``time``, in seconds, is None where the file has no stamps."""

    file: File
    activity: Array
    time: Array | None
    signal: Array


def read(files: Files, device: Literal["phone", "watch", "both"] = "both") -> Iterator[Recording]:
    """Recordings of one activity each: accelerometer (m/s², gravity included), and gyroscope (rad/s) where it is."""
    gyros = {file.base.lower(): file for file in files.some("data_*_gyro_*.txt")}
    for accel in files.all("data_*_accel_*.txt"):
        gyro = gyros.get(accel.base.lower().replace("accel", "gyro", 1))
        yield from _recordings(accel, files.made(accel), files.made(gyro) if gyro else None, with_gyro=bool(gyros))


def _wanted(device: str) -> tuple[str, ...]:
    devices = PLACEMENTS if device == "both" else [device]
    return tuple(f"data_*_{sensor}_{name}.txt" for sensor in ("accel", "gyro") for name in devices)


def _recordings(accel: File, mine: Rows, turn: Rows | None, with_gyro: bool) -> list[Recording]:
    name = re.fullmatch(r"data_(\d+)_accel_(phone|watch)\.txt", accel.base, re.IGNORECASE)
    if not name:
        raise accel.wrong("its name is not of the form data_1600_accel_phone.txt")
    person, device = name[1], name[2].lower()
    sensors = ("acc", "gyro") if with_gyro else ("acc",)
    channels = tuple(f"{sensor}_{axis}" for sensor in sensors for axis in AXES)
    traits = {"person": person, "device": device, "placement": PLACEMENTS[device]}
    found = []
    for rows in _pieces(mine):
        code = mine.activity[rows[0]]
        time, signal = None, mine.signal[rows]
        if mine.time is not None:
            time, signal = in_order(mine.time[rows], signal)
        if with_gyro:
            signal = np.concatenate([signal, _turning(mine, turn, rows, time)], axis=1)
        labels = np.full(len(signal), code)
        found.append(Recording(f"{person}-{device}", signal, labels, RATE, channels, time, traits=traits))
    return found


def _pieces(rows: Rows) -> list[Array]:
    """The rows of each recording, all of one activity.

    With stamps, a recording is all that was done of an activity: some files repeat stretches or go back in time, and
    sorting by stamp undoes both. Without, it is what stands together.
    """
    if rows.time is not None:
        order = np.argsort(rows.activity, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(rows.activity[order])) + 1)
    return np.split(np.arange(len(rows.activity)), np.flatnonzero(np.diff(rows.activity)) + 1)


def _turning(accel: Rows, gyro: Rows | None, rows: Array, time: Array | None) -> Array:
    """The gyroscope at the accelerometer's times; NaN where there is none."""
    if gyro is None:
        return np.full((len(rows) if time is None else len(time), len(AXES)), np.nan, np.float32)
    if time is not None and gyro.time is not None:
        same = gyro.activity == accel.activity[rows[0]]
        return at_times(time, *in_order(gyro.time[same], gyro.signal[same]))
    if time is None and gyro.time is None and np.array_equal(gyro.activity, accel.activity):
        return np.asarray(gyro.signal[rows])  # no stamps: row by row
    raise gyro.file.wrong(
        f"its rows do not go with those of {accel.file.base}, and not both have stamps; get both again"
    )


def _rows(file: File) -> Rows:
    columns: dict[str, type] = {"subject": int, "activity": str, "time": int} | dict.fromkeys(AXES, float)
    with file.open() as stream:
        first = stream.read(1000).split(b";")[0]
    stamped = first.count(b",") != 4  # a reduced form of the dataset has no stamps
    if not stamped:
        columns.pop("time")
    table = read_records(file, columns, tuple(ACTIVITIES))
    return Rows(file, table["activity"], table["time"] / 1e9 if stamped else None, stacked(table, AXES))


DATASET = Signals(
    card=Card(
        name="wisdm2019",
        title="WISDM 2019",
        what="a phone in the pocket and a watch at the dominant hand's wrist; 18 activities (walking, eating, ball "
        "games, desk work); accelerometer and gyroscope, 20 Hz",
        who="51 subjects (1600 to 1650), three minutes an activity",
        licence="CC BY 4.0 (UCI Machine Learning Repository); cite the authors",
        citation="G. M. Weiss, K. Yoneda, T. Hayajneh, 'Smartphone and smartwatch-based biometrics using activities of "
        "daily living', IEEE Access 7, 2019",
        address="https://archive.ics.uci.edu/dataset/507",
        layout="raw/{phone,watch}/{accel,gyro}/data_NNNN_accel_phone.txt, records subject,code,time,x,y,z;",
        sizes="51 subjects, two devices, two sensors, 18 activities",
        client="a person's device (102)",
        paper="FedCoad links to it, but describes and uses WISDM v1.1 (`wisdm`)",
        notes='Phone and watch have unrelated clocks, so they are separate clients; device = "phone" or "watch" '
        "takes one. The gyroscope is brought to the accelerometer's stamps; without gyroscope files there are "
        "three channels; where a person's file of it lacks an activity, that activity is left out "
        '(channels = ["acc"] keeps it). Repeated stamps are read once, rows are sorted by stamp. Files without '
        "stamps are read too, as 20 Hz. Windows are 10 s long, as the dataset's authors cut them.",
        downloads=(
            Download(
                "https://archive.ics.uci.edu/static/public/507/wisdm+smartphone+and+smartwatch+activity+and+biometrics+dataset.zip",
                "wisdm2019.zip",
            ),
        ),
    ),
    read=read,
    ahead=_rows,
    wanted=_wanted,
    classes=tuple(ACTIVITIES.values()),
    rate=RATE,
    window=200,
)
