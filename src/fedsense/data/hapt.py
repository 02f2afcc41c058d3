"""HAPT: smartphone-based recognition of human activities and postural transitions, the raw version of UCI HAR."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files
from fedsense.data.tables import SPACES, Array, read_table, stacked
from fedsense.data.windows import UNLABELLED, Recording

ACTIVITIES = (
    "walking", "walking-upstairs", "walking-downstairs", "sitting", "standing", "laying",
    "stand-to-sit", "sit-to-stand", "sit-to-lie", "lie-to-sit", "stand-to-lie", "lie-to-stand",
)  # fmt: skip
AXES = ("x", "y", "z")
LABELS = "labels.txt"
SEGMENT = ("experiment", "user", "activity", "first", "last")


def read(files: Files) -> Iterator[Recording]:
    """One recording an experiment: accelerometer (g) and gyroscope (rad/s) of a phone at the waist, 50 Hz."""
    labels = files.one(f"RawData/{LABELS}")
    segments = files.made(labels)
    sessions: dict[int, int] = {}
    for acc in files.all("RawData/acc_exp*_user*.txt"):
        gyro = files.one(f"RawData/{acc.base.replace('acc', 'gyro', 1)}")
        signal = _signal(acc, files.made(acc), files.made(gyro))
        experiment, user = (int(word) for word in acc.base[len("acc_exp") : -len(".txt")].split("_user"))
        mine = np.flatnonzero(segments["experiment"] == experiment)
        activity = np.full(len(signal), UNLABELLED)
        for row in mine:
            first, last, number = (int(segments[name][row]) for name in ("first", "last", "activity"))
            if not 1 <= number <= len(ACTIVITIES):
                raise labels.wrong(f"line {row + 1}, column 3 ('activity'): {number} is none of 1 to {len(ACTIVITIES)}")
            if not 0 <= first <= last < len(signal):
                raise labels.wrong(
                    f"line {row + 1}: rows {first} to {last}, but {acc.base} has rows 0 to {len(signal) - 1}"
                )
            activity[first : last + 1] = number - 1  # 0-based, the last row included
        channels = tuple(f"{sensor}_{axis}" for sensor in ("acc", "gyro") for axis in AXES)
        session = sessions[user] = sessions.get(user, -1) + 1
        yield Recording(f"s{user:02d}", signal, activity, 50.0, channels, session=session)


def _table(file: File) -> dict[str, Array]:
    columns = dict.fromkeys(SEGMENT, int) if file.base.lower() == LABELS else dict.fromkeys(AXES, float)
    return read_table(file, columns, header=False, sep=SPACES)


def _signal(file: File, acc: dict[str, Array], gyro: dict[str, Array]) -> Array:
    parts = [stacked(table, AXES) for table in (acc, gyro)]
    if len(parts[0]) != len(parts[1]):
        raise file.wrong(f"has {len(parts[0])} rows, and its gyroscope file {len(parts[1])}; get both again")
    return np.concatenate(parts, axis=1)


DATASET = Signals(
    card=Card(
        name="hapt",
        title="HAPT",
        what="a phone at the waist; six basic activities, six postural transitions; accelerometer and gyroscope, 50 Hz",
        who="30 volunteers of 19 to 48 years, each recorded twice in a laboratory (one three times)",
        licence="CC BY 4.0 (UCI Machine Learning Repository); cite the authors",
        citation="J.-L. Reyes-Ortiz, L. Oneto, A. Samà, X. Parra, D. Anguita, "
        "'Transition-aware human activity recognition using smartphones', Neurocomputing 171, 2016",
        address="https://archive.ics.uci.edu/dataset/341",
        layout="RawData/acc_expNN_userNN.txt, RawData/gyro_expNN_userNN.txt and RawData/labels.txt",
        sizes="61 recordings, 1,122,772 rows, 1,214 labelled segments; 10,929 windows of 128 with half overlap",
        client="a person (30)",
        paper="UCI HAR, of which this is the raw form, is one of FedAli's pre-training sets",
        downloads=(
            Download(
                "https://archive.ics.uci.edu/static/public/341/smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
                "hapt.zip",
            ),
        ),
    ),
    read=read,
    ahead=_table,
    wanted=("RawData/acc_exp*_user*.txt", "RawData/gyro_exp*_user*.txt", f"RawData/{LABELS}"),
    classes=ACTIVITIES,
)
