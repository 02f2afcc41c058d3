"""sp-sw-har: phone and watch at once, short walks between chairs (GeoTec, Universitat Jaume I)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files
from fedsense.data.tables import Array, numbered, read_tables, stacked
from fedsense.data.windows import LONGEST_GAP, Recording
from fedsense.errors import nearest

LABELS = {
    "SEATED": "seated",
    "STANDING_UP": "standing-up",
    "WALKING": "walking",
    "TURNING": "turning",
    "SITTING_DOWN": "sitting-down",
}
COLUMNS = ("x_acc", "y_acc", "z_acc", "x_gyro", "y_gyro", "z_gyro")
CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
DEVICES = {"sp": "phone", "sw": "watch"}
PLACEMENTS = {"sp": "pocket", "sw": "wrist"}
RATE = 100.0  # Hz asked of the devices; they gave 102 (phone) and 104 (watch)


def read(files: Files, device: Literal["phone", "watch", "both"] = "both") -> Iterator[Recording]:
    """One recording an execution and device: accelerometer (m/s²) and gyroscope (rad/s)."""
    recordings = files.all("s*_*_s?.csv")
    columns = dict.fromkeys(COLUMNS, float) | {"timestamp": int, "label": str}
    for file, table in zip(recordings, read_tables(recordings, columns), strict=True):
        yield _recording(file, table)


def _wanted(device: str) -> tuple[str, ...]:
    return tuple(f"s*_*_{short}.csv" for short, name in DEVICES.items() if device in ("both", name))


def _recording(file: File, table: dict[str, Array]) -> Recording:
    name = re.fullmatch(r"s(\d+)_(\d+)_(s[pw])\.csv", file.base, re.IGNORECASE)
    if not name:
        raise file.wrong("its name is not of the form sNN_NN_sp.csv or sNN_NN_sw.csv")
    subject, execution, device = int(name[1]), int(name[2]), name[3].lower()
    labels = numbered(table["label"], list(LABELS))
    if (labels < 0).any():
        row = int(np.argmin(labels))
        label = table["label"][row]
        raise file.wrong(f"line {row + 2}, column 'label': '{label}' is unknown; {nearest(label, LABELS)}")
    return Recording(
        f"s{subject:02d}-{DEVICES[device]}",
        stacked(table, COLUMNS),
        labels,
        RATE,
        CHANNELS,
        even_clock(table["timestamp"] / 1000),
        session=execution - 1,
        traits={"person": f"s{subject:02d}", "device": DEVICES[device], "placement": PLACEMENTS[device]},
    )


def even_clock(stamps: Array) -> Array:
    """When the readings were taken: evenly, on the straight line nearest to the stamps.

    The stamps say when a reading arrived at the app: several come in one millisecond after a pause of up to 0.2 s. No
    reading is lost: the earliest arrivals of every stretch stay within 8 ms of the line. Across a longer pause readings
    may be missing; such stamps are taken as they are.
    """
    if len(stamps) < 2 or np.abs(np.diff(stamps)).max() > LONGEST_GAP:
        return stamps
    place = np.arange(len(stamps)) - (len(stamps) - 1) / 2
    since = stamps - stamps[0]
    slope = (place @ since) / (place @ place)  # least squares
    return np.asarray(since.mean() + slope * place)


DATASET = Signals(
    card=Card(
        name="sp-sw-har",
        title="sp-sw-har",
        what="a phone in the pocket and a watch at the wrist, worn together; getting up, walking, turning, sitting "
        "down; accelerometer and gyroscope, about 100 Hz",
        who="23 subjects, 6 to 11 executions each of one sequence of activities",
        licence="CC BY 4.0 (data), Apache 2.0 (the authors' code)",
        citation="M. Matey-Sanz, S. Casteleyn, C. Granell, 'Dataset of inertial measurements of smartphones and "
        "smartwatches for human activity recognition', Data in Brief, 2023, 109809",
        address="https://doi.org/10.5281/zenodo.8398688",
        layout="DATA/sNN/sNN_NN_sp.csv (phone) and DATA/sNN/sNN_NN_sw.csv (watch)",
        sizes="446 files (223 executions, two devices), 521,766 rows, 5 activities",
        client="a person's device (46)",
        paper="none of the five papers uses it",
        notes="An activity lasts about a second, so windows are half a second at 100 Hz. Stamps tell when readings "
        "arrived, in bursts; readings are placed evenly on the line nearest to the stamps. SEATED is a state, "
        "STANDING_UP and SITTING_DOWN are the movements; all rows are labelled. Sessions are executions. "
        'device = "phone" or "watch" takes one.',
        downloads=(
            Download("https://github.com/GeoTecINIT/sp-sw-har-dataset/archive/refs/heads/main.zip", "sp-sw-har.zip"),
        ),
    ),
    read=read,
    wanted=_wanted,
    classes=tuple(LABELS.values()),
    rate=RATE,
    window=50,
)
