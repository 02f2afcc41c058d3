"""MobiAct: daily activities, scenarios and falls with a phone in the trouser pocket, labelled sample by sample."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np

from fedsense.data.card import Card
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files
from fedsense.data.tables import Array, read_table, side_by_side, stacked
from fedsense.data.windows import UNLABELLED, Recording
from fedsense.errors import nearest

DAILY = {
    "STD": "standing",
    "WAL": "walking",
    "JOG": "jogging",
    "JUM": "jumping",
    "STU": "stairs-up",
    "STN": "stairs-down",
    "SCH": "stand-to-sit",
    "SIT": "sitting",
    "CHU": "sit-to-stand",
    "CSI": "car-step-in",
    "CSO": "car-step-out",
    "LYI": "lying",
}
FALLS = {"FOL": "forward-lying", "FKL": "front-knees-lying", "BSC": "back-sitting-chair", "SDL": "sideward-lying"}
CODES = DAILY | FALLS
CHANNELS = tuple(f"{sensor}_{axis}" for sensor in ("acc", "gyro") for axis in "xyz")
NAME = re.compile(r"[a-z]{3}_(\d+)_\d+_annotated\.csv", re.IGNORECASE)
Activities = Literal["daily", "all"]


def classes(activities: Activities) -> tuple[str, ...]:
    return tuple((DAILY if activities == "daily" else CODES).values())


def read(files: Files, activities: Activities = "daily") -> Iterator[Recording]:
    """One recording a trial: accelerometer with gravity (m/s²) and gyroscope (rad/s), about 200 Hz.

    Trials of falls are read in any case: standing before and lying after a fall are daily activities.
    """
    count = len(classes(activities))
    yield from side_by_side(lambda file: _recording(file, count), files.all("*_annotated.csv"))


def _recording(file: File, count: int) -> Recording:
    match = NAME.fullmatch(file.base)
    if match is None:
        raise file.wrong("the name gives no activity, person and trial; expected a name like WAL_1_1_annotated.csv")
    person = f"s{int(match[1]):02d}"
    table = read_table(file, {"timestamp": float, **dict.fromkeys(CHANNELS, float), "label": str})
    times = (table["timestamp"] - table["timestamp"][:1]) * 1e-9  # ns
    labels = _labels(file, table["label"], count)
    traits = {"person": person, "device": "Samsung Galaxy S3", "placement": "trouser-pocket"}
    return Recording(person, stacked(table, CHANNELS), labels, 200.0, CHANNELS, times, traits=traits)


def _labels(file: File, codes: Array, count: int) -> Array:
    import pandas

    number, found = pandas.factorize(codes)
    for code in found:
        if code not in CODES:
            line = np.flatnonzero(codes == code)[0] + 2
            raise file.wrong(f"line {line}, column 'label': '{code}' is unknown; {nearest(code, CODES)}")
    places = [list(CODES).index(code) for code in found]
    return np.array([place if place < count else UNLABELLED for place in places], np.int8)[number]


DATASET = Signals(
    card=Card(
        name="mobiact",
        title="MobiAct v2.0",
        what="a phone in the trouser pocket, any way round; twelve daily activities, four kinds of falls, five "
        "scenarios of daily life; accelerometer (m/s², with gravity) and gyroscope (rad/s), about 200 Hz",
        who="67 people; 66 fell, 59 did nine daily activities, 19 did eleven and the scenarios",
        licence="for research, on request from the Biomedical Informatics and eHealth Laboratory (BMI), Heraklion",
        citation="C. Chatzaki, M. Pediaditis, G. Vavoulas, M. Tsiknakis, 'Human daily activity and fall recognition "
        "using a smartphone's acceleration sensor', CCIS 736, 2017; "
        "G. Vavoulas et al., 'The MobiAct dataset', ICT4AWE 2016",
        address="https://bmi.hmu.gr/the-mobifall-and-mobiact-datasets-2/",
        layout="Annotated Data/WAL/WAL_1_1_annotated.csv (activity, person, trial), and so on",
        sizes="67 people; the number of samples is not published in what was found",
        client="a person (67)",
        paper="one of FedAli's pre-training sets",
        notes='activities = "all" adds the four falls to the twelve daily activities; otherwise samples of a fall have '
        "no label. Labels are those of each sample, not of the folder: a trial of a fall begins with standing and ends "
        "with lying, and scenarios are made of daily activities. Samples come unevenly and are brought to one rate by "
        "their time stamps (ns). The orientation (azimuth, pitch, roll) and the folder Raw Data are not read.",
        by_hand="The authors give it on request only: write to them as their page says, unpack the archive (a .rar is "
        "not read), and give the folder as root.",
    ),
    read=read,
    wanted=("*_annotated.csv",),
    classes=classes,
)
