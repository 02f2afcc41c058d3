"""UniMiB-SHAR: daily activities and falls with the accelerometer of a phone, in windows as its authors cut them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Read
from fedsense.data.files import File, Files, only_known
from fedsense.data.matlab import matrix, read_mat, variable
from fedsense.data.overlaps import found_origins
from fedsense.data.tables import Array
from fedsense.data.windows import UNLABELLED, Collected

DAILY = {
    "StandingUpFS": "standing-up-from-sitting",
    "StandingUpFL": "standing-up-from-lying",
    "Walking": "walking",
    "Running": "running",
    "GoingUpS": "going-upstairs",
    "Jumping": "jumping",
    "GoingDownS": "going-downstairs",
    "LyingDownFS": "lying-down",
    "SittingDown": "sitting-down",
}
FALLS = {
    "FallingForw": "falling-forward",
    "FallingRight": "falling-right",
    "FallingBack": "falling-back",
    "HittingObstacle": "hitting-obstacle",
    "FallingWithPS": "falling-with-protection",
    "FallingBackSC": "falling-back-sitting-chair",
    "Syncope": "syncope",
    "FallingLeft": "falling-left",
}
NAMES = {"acc": DAILY | FALLS, "adl": DAILY, "fall": FALLS}  # how the files begin → the authors' name → ours
STEMS = {"all": "acc", "daily": "adl", "falls": "fall"}
Part = Literal["all", "daily", "falls"]
AXES, LENGTH, PEOPLE = 3, 151, 30


def classes(part: Part) -> tuple[str, ...]:
    return tuple(NAMES[STEMS[part]].values())


def read(files: Files, part: Part = "all") -> Iterator[Collected]:
    """One client a person: windows of 151 samples of acceleration with gravity (m/s²)."""
    stem = STEMS[part]
    data, labels = (files.one(f"{stem}_{kind}.mat") for kind in ("data", "labels"))
    # a row is 151 x, then 151 y, then 151 z
    windows = matrix(data, read_mat(data), f"{stem}_data", AXES * LENGTH).reshape(-1, AXES, LENGTH).astype(np.float32)
    if not np.isfinite(windows).all():
        raise data.wrong(f"row {np.flatnonzero(~np.isfinite(windows).all((1, 2)))[0] + 1} is not finite")
    about = matrix(labels, read_mat(labels), f"{stem}_labels", 3)
    if len(about) != len(windows):
        raise labels.wrong(f"has {len(about)} rows, and {data.base} {len(windows)}; get both again")
    number = _numbering(files.one(f"{stem}_names.mat"), stem)
    y = number[_checked(labels, about[:, 0], "class", len(number)) - 1]
    person = _checked(labels, about[:, 1], "subject", PEOPLE)
    for who in np.unique(person):
        mine = np.flatnonzero(person == who)
        mine = mine[np.argsort(about[mine, 2], kind="stable")]  # trial after trial
        yield _client(int(who), windows[mine], y[mine], about[mine, 2])


def _client(who: int, x: Array, y: Array, trial: Array) -> Collected:
    # windows lie around peaks, so those of one trial may overlap by any number of samples
    group = y + len(DAILY | FALLS) * trial
    origin = found_origins(x, group)
    traits = {
        "person": f"s{who:02d}",
        "device": "Samsung Galaxy Nexus",
        "placement": "trouser-pocket",
        "channels": ["acc_x", "acc_y", "acc_z"],
    }
    return Collected(f"s{who:02d}", x, y, origin, np.full(len(y), UNLABELLED), traits, _progress(group))


def _progress(group: Array) -> Array:
    """How far into its trial each window is, from 0 to 1.

    The phone was in the right pocket in the first trials of an activity and in the left in the last ones. In order of
    trials, a split would train on one pocket and test on the other; in this order it tests on the end of every trial.
    """
    far = np.empty(len(group))
    for number in np.unique(group):
        mine = np.flatnonzero(group == number)
        far[mine] = np.arange(len(mine)) / len(mine)
    return far


def _numbering(file: File, stem: str) -> Array:
    """Our number of each of the authors' classes, by the short names in their file (its second row)."""
    names = variable(file, read_mat(file), f"{stem}_names")
    known = NAMES[stem]
    if names.shape != (2, len(known)):
        size = " × ".join(str(length) for length in names.shape)
        raise file.wrong(f"'{stem}_names' is {size}, expected 2 × {len(known)} (descriptions, short names)")
    places = list(known)
    short = ["".join(str(part) for part in np.ravel(name)).strip() for name in names[1]]
    return np.array([places.index(only_known(file, name, known, "class")) for name in short])


def _checked(file: File, values: Array, what: str, largest: int) -> Array:
    wrong = np.flatnonzero(~((values >= 1) & (values <= largest) & (values == np.round(values))))
    if len(wrong):
        raise file.wrong(f"row {wrong[0] + 1}: {what} {values[wrong[0]]:g} is none of 1 to {largest}")
    return values.astype(np.int64)


DATASET = Read(
    card=Card(
        name="unimib-shar",
        title="UniMiB-SHAR",
        what="a phone in a trouser pocket; nine daily activities, eight kinds of falls; accelerometer with gravity "
        "(m/s²), 50 Hz, in windows of 151 samples (3 s)",
        who="30 people of 18 to 60 years",
        licence="unknown: no terms were found with the data; ask the authors before other use than research",
        citation="D. Micucci, M. Mobilio, P. Napoletano, 'UniMiB SHAR: a dataset for human activity recognition using "
        "acceleration data from smartphones', Applied Sciences 7(10), 2017",
        address="http://www.sal.disco.unimib.it/technologies/unimib-shar/",
        layout="data/acc_data.mat, acc_labels.mat and acc_names.mat; adl_*.mat and fall_*.mat for one part only",
        sizes="11,771 windows: 7,579 of daily activities, 4,192 of falls",
        client="a person (30)",
        paper="ProtoHAR (windows of 151, 17 classes)",
        notes='part = "daily" or "falls" reads only that part. Classes are numbered by the names in the files. The '
        "authors cut windows around peaks, so windows of one trial overlap, and do not say by how much: one whose "
        "beginning equals the end of the one before (at least 4 samples) continues its recording, and the "
        "chronological split keeps them on one side. It tests on the end of every trial: the first trials were of the "
        "right pocket, the last of the left. The Dropbox link may answer with a page "
        "instead of the archive; then fetch it by hand.",
        downloads=(Download("https://www.dropbox.com/s/x2fpfqj0bpf8ep6/UniMiB-SHAR.zip?dl=1", "unimib-shar.zip"),),
    ),
    read=read,
    wanted=tuple(f"{stem}_{kind}.mat" for stem in NAMES for kind in ("data", "labels", "names")),
    classes=classes,
    normalise="channel",
)
