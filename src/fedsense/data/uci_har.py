"""UCI HAR: human activity recognition using smartphones, in windows of 2.56 s as its authors cut them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Read
from fedsense.data.files import File, Files
from fedsense.data.overlaps import found_origins
from fedsense.data.tables import SPACES, Array, read_table, side_by_side
from fedsense.data.windows import UNLABELLED, Collected

ACTIVITIES = ("walking", "walking-upstairs", "walking-downstairs", "sitting", "standing", "laying")
PARTS = ("train", "test")
LENGTH = 128
HALF = LENGTH // 2
PEOPLE = 30
SENSORS = {"total_acc": "acc", "body_gyro": "gyro", "body_acc": "body_acc"}  # file → channel


def read(files: Files, body_acc: bool = False) -> Iterator[Collected]:
    """One client a person: accelerometer (g) and gyroscope (rad/s); ``body_acc`` adds acceleration without gravity."""
    sensors = tuple(SENSORS)[: 3 if body_acc else 2]
    names = [f"{sensor}_{axis}" for sensor in sensors for axis in "xyz"]
    where: dict[int, File] = {}
    for part in PARTS:
        activity = _numbers(files.one(f"{part}/y_{part}.txt"), "activity", len(ACTIVITIES))
        people = files.one(f"{part}/subject_{part}.txt")
        person = _numbers(people, "subject", PEOPLE)
        tables = [files.one(f"Inertial Signals/{name}_{part}.txt") for name in names]
        signals = side_by_side(_windows, tables)
        for table, found in [(people, person), *zip(tables, signals, strict=True)]:
            if len(found) != len(activity):
                raise table.wrong(f"has {len(found)} rows, and y_{part}.txt {len(activity)}; get both again")
        for number in np.unique(person):
            if int(number) in where:
                raise people.wrong(f"subject {number} is also in {where[int(number)].base}; the parts share nobody")
            where[int(number)] = people
            mine = np.flatnonzero(person == number)
            x = np.stack([signal[mine] for signal in signals], axis=1)
            yield _client(int(number), x, activity[mine] - 1, part, sensors)


def _client(number: int, x: Array, y: Array, part: str, sensors: tuple[str, ...]) -> Collected:
    # half of a window is in the next, unless a bout ended between them
    origin = found_origins(x[:, :3], np.zeros(len(x)), shifts=(HALF,))
    traits = {
        "person": f"s{number:02d}",
        "device": "Samsung Galaxy S II",
        "placement": "waist",
        "official": part,
        "channels": [f"{SENSORS[sensor]}_{axis}" for sensor in sensors for axis in "xyz"],
    }
    return Collected(f"s{number:02d}", x, y, origin, np.full(len(y), UNLABELLED), traits)


def _windows(file: File) -> Array:
    columns = dict.fromkeys((str(i) for i in range(1, LENGTH + 1)), float)
    table = read_table(file, columns, header=False, sep=SPACES)
    return np.stack(list(table.values()), axis=1).astype(np.float32)


def _numbers(file: File, name: str, largest: int) -> Array:
    numbers = read_table(file, {name: int}, header=False, sep=SPACES)[name]
    wrong = np.flatnonzero((numbers < 1) | (numbers > largest))
    if len(wrong):
        raise file.wrong(f"line {wrong[0] + 1}: {name} {numbers[wrong[0]]} is none of 1 to {largest}")
    return numbers


DATASET = Read(
    card=Card(
        name="uci-har",
        title="UCI HAR",
        what="a phone at the waist; six activities; accelerometer (g) and gyroscope (rad/s), 50 Hz, "
        "in windows of 128 samples with half overlap",
        who="30 volunteers of 19 to 48 years",
        licence="CC BY 4.0 (UCI Machine Learning Repository); the README inside forbids commercial use",
        citation="D. Anguita, A. Ghio, L. Oneto, X. Parra, J. L. Reyes-Ortiz, 'A public domain dataset for human "
        "activity recognition using smartphones', ESANN 2013",
        address="https://archive.ics.uci.edu/dataset/240",
        layout="{train,test}/Inertial Signals/{total_acc,body_gyro,body_acc}_{x,y,z}_{train,test}.txt, "
        "{train,test}/y_{train,test}.txt and {train,test}/subject_{train,test}.txt",
        sizes="10,299 windows: 7,352 of 21 people in train, 2,947 of 9 people in test",
        client="a person (30)",
        paper="one of FedAli's pre-training sets",
        notes="The authors split by person, so each client's trait 'official' says train or test; to hold out the test "
        'people: held_out = ["s02", "s04", "s09", "s10", "s12", "s13", "s18", "s20", "s24"]. The files do not say '
        "which windows overlap: a window whose first half equals the second half of the one before continues its "
        "recording, and the chronological split keeps such windows on one side. The 561 features are not read. "
        "For raw recordings of the same people see 'hapt'.",
        downloads=(
            Download(
                "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                "uci-har.zip",
            ),
        ),
    ),
    read=read,
    wanted=("Inertial Signals/*_t*.txt", "train/y_train.txt", "test/y_test.txt", "t*/subject_t*.txt"),
    classes=ACTIVITIES,
    normalise="channel",
)
