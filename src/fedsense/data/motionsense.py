"""MotionSense: an iPhone in the front trouser pocket, six activities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files, only_known
from fedsense.data.tables import read_table, side_by_side, stacked
from fedsense.data.windows import Recording
from fedsense.errors import UserError

ACTIVITIES = {
    "dws": "downstairs", "ups": "upstairs", "wlk": "walking", "jog": "jogging", "std": "standing", "sit": "sitting",
}  # fmt: skip
AXES = ("x", "y", "z")
RATE = 50.0  # Hz
FIRST_SHORT = 10  # trials 1 to 9 are the long ones (2 to 3 minutes), 11 to 16 the short ones
Acceleration = Literal["total", "user", "raw"]
OTHER_PARTS = ("b_accelerometer_data", "c_gyroscope_data")


def read(files: Files, acceleration: Acceleration = "total") -> Iterator[Recording]:
    """One recording a trial: accelerometer (g) and, unless ``raw``, gyroscope (rad/s).

    ``total``: userAcceleration + gravity of the device motion, which is what the accelerometer feels; ``user``: without
    gravity; ``raw``: the accelerometer's own recordings (B_Accelerometer_data), which were taken apart.
    """
    raw = acceleration == "raw"
    chosen = [file for file in files.some("*_*/sub_*.csv") if raw == (OTHER_PARTS[0] in _part(file))]
    chosen = [file for file in chosen if OTHER_PARTS[1] not in _part(file)]
    if not chosen:
        part = "B_Accelerometer_data" if raw else "A_DeviceMotion_data"
        raise UserError(
            f"{files.root} holds no file '{part}/*_*/sub_*.csv'; acceleration = \"{acceleration}\" needs it"
        )
    yield from sorted(side_by_side(lambda file: _recording(file, acceleration), chosen), key=lambda r: r.client)


def _part(file: File) -> str:
    return file.place.lower()


def _recording(file: File, acceleration: Acceleration) -> Recording:
    subject = re.fullmatch(r"sub_(\d+)\.csv", file.base, re.IGNORECASE)
    trial = re.fullmatch(r"([a-z]+)_(\d+)", file.folder, re.IGNORECASE)
    if not subject or not trial:
        raise file.wrong("its path is not of the form dws_1/sub_1.csv")
    code = only_known(file, trial[1].lower(), ACTIVITIES, "activity")
    if acceleration == "raw":
        signal = stacked(read_table(file, dict.fromkeys(AXES, float)), AXES)
    else:
        user, gravity, turn = (
            [f"{name}.{axis}" for axis in AXES] for name in ("userAcceleration", "gravity", "rotationRate")
        )
        table = read_table(file, dict.fromkeys([*user, *gravity, *turn], float))
        moved = stacked(table, user)
        if acceleration == "total":
            moved += stacked(table, gravity)
        signal = np.concatenate([moved, stacked(table, turn)], axis=1)
    channels = tuple(f"{sensor}_{axis}" for sensor in ("acc", "gyro") for axis in AXES)[: signal.shape[1]]
    who = f"s{int(subject[1]):02d}"
    labels = np.full(len(signal), list(ACTIVITIES).index(code))
    return Recording(
        who, signal, labels, RATE, channels, session=int(int(trial[2]) >= FIRST_SHORT), traits={"person": who}
    )


DATASET = Signals(
    card=Card(
        name="motionsense",
        title="MotionSense",
        what="an iPhone 6s in the front trouser pocket; stairs down and up, walking, jogging, standing, sitting; "
        "device motion (acceleration, gravity, rotation), 50 Hz",
        who="24 people (10 women, 14 men) of 18 to 46 years, 48 to 102 kg, 15 trials each",
        licence="MIT (the repository's LICENSE file)",
        citation="M. Malekzadeh, R. G. Clegg, A. Cavallaro, H. Haddadi, 'Protecting sensory data against sensitive "
        "inferences', W-P2DS, 2018",
        address="https://github.com/mmalekzadeh/motion-sense",
        layout="A_DeviceMotion_data/{dws,ups,wlk,jog,std,sit}_N/sub_N.csv",
        sizes="360 files: 15 trials of 24 people",
        client="a person (24)",
        paper='FedCoad: accelerometer only (channels = ["acc"]), windows of 200 with half overlap; one of FedAli\'s '
        "pre-training sets",
        notes="Acceleration is userAcceleration + gravity, in g, in Apple's sign: a phone lying face up reads z = -1 "
        '(on Android it is +1 g). acceleration = "user" leaves gravity out; "raw" reads B_Accelerometer_data, three '
        'channels. Session 0 is the long trials (1 to 9), session 1 the short ones (11 to 16): split = "session" tests '
        "on these.",
        downloads=(
            Download(
                "https://github.com/mmalekzadeh/motion-sense/raw/master/data/A_DeviceMotion_data.zip",
                "A_DeviceMotion_data.zip",
            ),
        ),
    ),
    read=read,
    wanted=("*_*/sub_*.csv",),
    classes=tuple(ACTIVITIES.values()),
    rate=RATE,
    window=200,
)
