"""RealWorld 2016 (Mannheim): seven devices on the body at once, eight activities outdoors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.clocks import at_times, in_order
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files, only_known
from fedsense.data.tables import Array, read_table, side_by_side, stacked
from fedsense.data.windows import Recording

ACTIVITIES = {
    "climbingdown": "climbing-down", "climbingup": "climbing-up", "jumping": "jumping", "lying": "lying",
    "running": "running", "sitting": "sitting", "standing": "standing", "walking": "walking",
}  # fmt: skip
PLACEMENTS = ("chest", "forearm", "head", "shin", "thigh", "upperarm", "waist")
WATCH = "forearm"  # the other six are phones of one model
VALUES = ("attr_x", "attr_y", "attr_z")
CHANNELS = ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
RATE = 50.0  # Hz
NAME = re.compile(r"(acc|gyroscope)_([a-z]+)(?:_(\d+))?_([a-z]+)\.csv", re.IGNORECASE)


class Part(NamedTuple):
    """What a file holds, as its name says; a long recording was made in numbered parts."""

    subject: int
    placement: str
    activity: str
    number: int


def read(files: Files) -> Iterator[Recording]:
    """One recording a file of the accelerometer (m/s², gravity included), with the gyroscope (rad/s) at its times."""
    accelerations: dict[Part, File] = {}
    for file in files.all("acc_*_*.csv"):
        part = _part(file)
        if part in accelerations:
            raise file.wrong(f"the same recording as {accelerations[part].place}; keep one")
        accelerations[part] = file
    gyros: dict[tuple[int, str, str], list[File]] = {}
    for file in files.some("Gyroscope_*_*.csv"):
        gyros.setdefault(_part(file)[:3], []).append(file)
    yield from side_by_side(
        lambda part: _recording(part, accelerations[part], gyros.get(part[:3], [])), sorted(accelerations)
    )


def _part(file: File) -> Part:
    name = NAME.fullmatch(file.base)
    subjects = re.findall(r"proband(\d+)", file.place, re.IGNORECASE)
    if not name or not subjects:
        raise file.wrong("its path is not of the form proband1/data/acc_walking_csv.zip/acc_walking_chest.csv")
    activity = only_known(file, name[2].lower(), ACTIVITIES, "activity")
    placement = only_known(file, name[4].lower(), PLACEMENTS, "position")
    return Part(int(subjects[-1]), placement, activity, int(name[3] or 1))


def _recording(part: Part, acc: File, gyros: list[File]) -> Recording:
    times, signal = _sensor([acc])
    # The numbers of gyroscope parts do not always go with the accelerometer's, the clock does.
    turn = at_times(times, *_sensor(gyros))
    who = f"s{part.subject:02d}"
    return Recording(
        f"{who}-{part.placement}",
        np.concatenate([signal, turn], axis=1),
        np.full(len(signal), list(ACTIVITIES).index(part.activity)),
        RATE,
        CHANNELS,
        times,
        traits={
            "person": who,
            "device": "watch" if part.placement == WATCH else "phone",
            "placement": part.placement,
        },
    )


def _sensor(files: list[File]) -> tuple[Array, Array]:
    """Times in seconds, in order, and values."""
    tables = [read_table(file, {"attr_time": int} | dict.fromkeys(VALUES, float)) for file in files]
    times = np.concatenate([np.zeros(0), *(table["attr_time"] / 1000 for table in tables)])
    return in_order(times, np.concatenate([np.zeros((0, 3), np.float32), *(stacked(t, VALUES) for t in tables)]))


DATASET = Signals(
    card=Card(
        name="realworld",
        title="RealWorld",
        what="six phones and a watch at seven places of the body at once; climbing stairs down and up, jumping, lying, "
        "running, sitting, standing, walking, outdoors; accelerometer and gyroscope, 50 Hz",
        who="15 subjects (8 men, 7 women), about 10 minutes an activity, jumping about 1.7",
        licence="not stated in what we know; see the page",
        citation="T. Sztyler, H. Stuckenschmidt, 'On-body localization of wearable devices: an investigation of "
        "position-aware activity recognition', PerCom, 2016",
        address="https://www.uni-mannheim.de/dws/research/projects/activity-recognition/dataset/dataset-realworld/",
        layout="probandN/data/acc_walking_csv.zip with acc_walking_chest.csv in it, gyr_walking_csv.zip with "
        "Gyroscope_walking_chest.csv",
        sizes="15 subjects, 7 positions, 8 activities, 18 hours; the zip has about 3.5 GB",
        client="a person's device at its position (105)",
        paper="FedAli: 105 clients, windows of 128 with half overlap, one mean and deviation a sensor",
        notes="Sensors have stamps of their own: the gyroscope is brought to the accelerometer's by straight lines; "
        'what has no gyroscope within 0.5 s has no label (channels = ["acc"] keeps it). Some recordings are '
        "in numbered parts, in archives one level deeper; each part is a recording. Subject 2 climbing up "
        "(forearm) and subject 6 jumping (thigh) are missing. Magnetometer, light, sound and position are not "
        "read.",
        downloads=(
            Download(
                "http://wifo5-14.informatik.uni-mannheim.de/sensor/dataset/realworld2016/realworld2016_dataset.zip",
                "realworld2016_dataset.zip",
            ),
        ),
    ),
    read=read,
    wanted=("acc_*_*.csv", "Gyroscope_*_*.csv"),
    classes=tuple(ACTIVITIES.values()),
    rate=RATE,
    normalise="sensor",
)
