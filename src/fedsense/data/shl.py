"""SHL preview: the Sussex-Huawei Locomotion dataset, three people on the move with four phones each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, Literal

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files, damage_is_told
from fedsense.data.tables import SPACES, Array, read_table, stacked
from fedsense.data.windows import UNLABELLED, Recording
from fedsense.errors import UserError

ACTIVITIES = ("still", "walking", "run", "bike", "car", "bus", "train", "subway")  # the authors' 1 to 8; 0 is none
Position = Literal["hand", "hips", "torso", "bag"]
POSITIONS: tuple[Position, ...] = ("hand", "hips", "torso", "bag")
SENSORS = ("acc", "gyro", "mag")
MOTION = (
    "time",
    *(f"{sensor}_{axis}" for sensor in SENSORS for axis in "xyz"),
    *(f"orientation_{part}" for part in "wxyz"),
    *(f"{sensor}_{axis}" for sensor in ("gravity", "linear") for axis in "xyz"),
    "pressure", "altitude", "temperature",
)  # fmt: skip
LABEL = ("time", "coarse", "fine", "road", "traffic", "tunnels", "social", "food")
RATE = 100.0
BLOCK = 1 << 26  # bytes read at a time: a day of one phone is a gigabyte of text
DAY = re.compile(r"(\d\d)(\d\d)(\d\d)")


def read(files: Files, positions: tuple[Position, ...] = POSITIONS, magnetometer: bool = False) -> Iterator[Recording]:
    """One recording a phone and day: acceleration (m/s²), gyroscope (rad/s) and perhaps magnetometer (µT), 100 Hz."""
    if not positions or len(set(positions)) < len(positions):
        raise UserError(f"positions = {list(positions)}; name at least one, and each once", about="positions")
    channels = MOTION[1:10] if magnetometer else MOTION[1:7]
    for user, days in _days(files).items():
        for session, day in enumerate(days):
            label = files.one(f"{user}/{day}/Label.txt")
            truth = _truth(label)
            for position in positions:
                motion = files.one(f"{user}/{day}/{position}_Motion.txt")
                yield _recording(motion, truth, channels, position, session)


def _days(files: Files) -> dict[str, list[str]]:
    """The days of every user, in the order of time; a folder is named by day, month, year."""
    days: dict[str, dict[str, str]] = {}
    for file in files.all("User*/*/Label.txt"):
        user, day = file.name.split("/")[-3:-1]
        match = DAY.fullmatch(day)
        if match is None or not user[4:].isdigit():
            raise file.wrong("the path gives no user and day; expected one like User1/220617/Label.txt")
        days.setdefault(user, {})["".join(reversed(match.groups()))] = day
    return {user: [found[date] for date in sorted(found)] for user, found in days.items()}


def _truth(file: File) -> tuple[Array, Array]:
    """Times (ms) in order, and the label from each."""
    times, coarse = _columns(file, LABEL, ("coarse",))
    wrong = np.flatnonzero(~np.isin(coarse[:, 0], range(len(ACTIVITIES) + 1)))
    if len(wrong):
        raise file.wrong(
            f"line {wrong[0] + 1}, column 2 ('coarse'): {coarse[wrong[0], 0]:g} is none of 0 to {len(ACTIVITIES)}"
        )
    order = np.argsort(times, kind="stable")
    return times[order], coarse[order, 0].astype(np.int8) - 1


def _recording(
    file: File, truth: tuple[Array, Array], channels: tuple[str, ...], position: str, session: int
) -> Recording:
    times, signal = _columns(file, MOTION, channels)
    labels = _labels_at(times, *truth)
    kept = _near(labels != UNLABELLED, round(RATE))  # half of a day has no label
    person = f"u{file.name.split('/')[-3][4:]}"
    traits = {"person": person, "device": "Huawei Mate 9", "placement": position}
    return Recording(
        f"{person}-{position}", signal[kept], labels[kept], RATE, channels, times[kept] / 1000, session, traits
    )


def _columns(file: File, names: tuple[str, ...], chosen: tuple[str, ...]) -> tuple[Array, Array]:
    """Times, and the chosen columns ``[rows, chosen]``, parsed piece by piece to spare memory."""
    kinds = dict.fromkeys(names, float)
    times, values = [], []
    for text in _pieces(file):
        try:
            table = read_table(file, kinds, header=False, sep=SPACES, missing=True, text=text)
        except UserError:
            read_table(file, kinds, header=False, sep=SPACES, missing=True)  # counts lines from the file's first
            raise
        times.append(table["time"])
        values.append(stacked(table, chosen))
    if not times:
        raise file.wrong("the file is empty")
    time, value = np.concatenate(times), np.concatenate(values)
    if len(gone := np.flatnonzero(np.isnan(time))):
        raise file.wrong(f"line {gone[0] + 1}, column 1 ('time'): it is missing")
    return time, value


def _pieces(file: File) -> Iterator[bytes]:
    """The text in pieces of whole lines."""
    rest = b""
    with file.open() as stream:
        while piece := _told(file, stream):
            whole, newline, rest = (rest + piece).rpartition(b"\n")
            if newline:
                yield whole + newline
    if rest.strip():
        yield rest


def _told(file: File, stream: IO[bytes]) -> bytes:
    with damage_is_told(file.place):
        return stream.read(BLOCK)


def _labels_at(times: Array, known: Array, labels: Array) -> Array:
    """The label nearest in time, if there is one within half a sample: label and motion files differ in length."""
    middles = (known[1:] + known[:-1]) / 2
    nearest = np.searchsorted(middles, times)
    return np.where(np.abs(known[nearest] - times) <= 500 / RATE, labels[nearest], np.int8(UNLABELLED))


def _near(flags: Array, reach: int) -> Array:
    """Where a flag is set within ``reach`` places."""
    before = np.concatenate([[0], np.cumsum(flags)])
    here = np.arange(len(flags))
    last, first = np.minimum(here + reach + 1, len(flags)), np.maximum(here - reach, 0)
    return np.asarray(before[last] > before[first])


DATASET = Signals(
    card=Card(
        name="shl",
        title="SHL preview",
        what="four phones at once (hand, hips, torso, bag); eight ways of moving and travelling; accelerometer (m/s²), "
        "gyroscope (rad/s), magnetometer (µT), 100 Hz",
        who="three people, three days each",
        licence="for research, by the terms on the authors' page; cite the authors",
        citation="H. Gjoreski, M. Ciliberto, L. Wang, F. J. Ordonez Morales, S. Mekki, S. Valentin, D. Roggen, 'The "
        "University of Sussex-Huawei locomotion and transportation dataset for multimodal analytics with mobile "
        "devices', IEEE Access 6, 2018",
        address="http://www.shl-dataset.org/download/",
        layout="User1/220617/Hand_Motion.txt, Hips_Motion.txt, Torso_Motion.txt, Bag_Motion.txt and Label.txt, "
        "and so on for three days of User1, User2 and User3",
        sizes="three archives of 2.7, 2.3 and 2.1 GB",
        client="a phone: a person and a position (12)",
        paper="one of FedAli's pre-training sets",
        notes="The coarse labels are used; where it is 0, or Label.txt has no line within 5 ms, there is no label, and "
        "samples more than a second from any label are left out. Days are a client's sessions, in the order of time. "
        "The four phones of a person recorded the same moments. Missing values (NaN) are bridged up to 0.5 s. "
        'positions = ["hips"] reads only those; magnetometer = true adds it. Orientation, gravity, linear '
        "acceleration, pressure and all other files are not read.",
        downloads=tuple(
            Download(
                f"http://www.shl-dataset.org/wp-content/uploads/SHLDataset_preview_v1_part{part}.zip",
                f"SHLDataset_preview_v1_part{part}.zip",
            )
            for part in (1, 2, 3)
        ),
    ),
    read=read,
    wanted=("User*/*/*_Motion.txt", "User*/*/Label.txt"),
    classes=ACTIVITIES,
)
