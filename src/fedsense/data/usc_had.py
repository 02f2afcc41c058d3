"""USC-HAD: twelve daily activities with one inertial unit at the hip."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files
from fedsense.data.matlab import matrix, read_mat
from fedsense.data.tables import side_by_side
from fedsense.data.windows import Recording

ACTIVITIES = (
    "walking-forward", "walking-left", "walking-right", "walking-upstairs", "walking-downstairs", "running-forward",
    "jumping-up", "sitting", "standing", "sleeping", "elevator-up", "elevator-down",
)  # fmt: skip
CHANNELS = tuple(f"{sensor}_{axis}" for sensor in ("acc", "gyro") for axis in "xyz")
NAME = re.compile(r"subject(\d+)/a(\d+)t(\d+)\.mat", re.IGNORECASE)


def read(files: Files) -> Iterator[Recording]:
    """One recording a trial: accelerometer (g) and gyroscope (degrees/s), 100 Hz; a session is a trial's number."""
    yield from side_by_side(_recording, files.all("Subject*/a*t*.mat"))


def _recording(file: File) -> Recording:
    match = NAME.fullmatch(f"{file.folder}/{file.base}")
    if match is None:
        raise file.wrong("the name gives no activity and trial; expected a name like Subject1/a1t1.mat")
    subject, activity, trial = (int(number) for number in match.groups())
    if not 1 <= activity <= len(ACTIVITIES):
        raise file.wrong(f"activity {activity} is none of 1 to {len(ACTIVITIES)}")
    variables = read_mat(file)
    signal = matrix(file, variables, "sensor_readings", len(CHANNELS)).astype(np.float32)
    inside = _activity_inside(variables)
    if inside is not None and inside != activity:
        # the README defines the name; what is inside was typed by hand, down to the name of the field
        warnings.warn(
            f"{file.place} says activity {inside} inside and {activity} by its name, which is followed", stacklevel=2
        )
    traits = {"person": f"s{subject:02d}", "device": "MotionNode", "placement": "front-right-hip"}
    labels = np.full(len(signal), activity - 1)
    return Recording(f"s{subject:02d}", signal, labels, 100.0, CHANNELS, session=trial - 1, traits=traits)


def _activity_inside(variables: Mapping[str, Any]) -> int | None:
    """The number inside, usually text; some files misspell the field. None if there is none that can be read."""
    for name in ("activity_number", "activity_numbr"):
        values = np.asarray(variables.get(name, ())).ravel()
        text = str(values[0]).strip() if len(values) else ""
        if text.isdigit():
            return int(text)
    return None


DATASET = Signals(
    card=Card(
        name="usc-had",
        title="USC-HAD",
        what="one MotionNode at the front right hip; twelve activities; accelerometer (g, ±6 g) and gyroscope "
        "(degrees/s, ±500), 100 Hz",
        who="14 people, 7 women and 7 men",
        licence="unknown: no terms were found with the data; ask the authors before other use than research",
        citation="M. Zhang, A. A. Sawchuk, 'USC-HAD: a daily activity dataset for ubiquitous activity recognition "
        "using wearable sensors', UbiComp 2012 workshop SAGAware",
        address="https://sipi.usc.edu/had/",
        layout="Subject1/a1t1.mat to Subject14/a12t5.mat (a: activity, t: trial)",
        sizes="14 people, 12 activities, five trials of each",
        client="a person (14)",
        paper="ProtoHAR (100 Hz, windows of 512 without overlap)",
        notes="Activity and trial are taken from the file's name and the person from the folder's; the number inside "
        "is text, in some files under the misspelled name activity_numbr, and is compared: where it differs the name "
        "is followed, with a warning. A client's sessions are the numbers of its trials.",
        downloads=(Download("https://sipi.usc.edu/had/USC-HAD.zip", "usc-had.zip"),),
    ),
    read=read,
    wanted=("Subject*/a*t*.mat",),
    classes=ACTIVITIES,
    rate=100.0,
    window=512,
    overlap=0.0,
)
