"""HARBOX: five activities on the phones of 121 people, each phone another model, in windows as its authors cut them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Read
from fedsense.data.files import File, Files
from fedsense.data.overlaps import found_origins
from fedsense.data.tables import SPACES, Array, read_table, side_by_side, stacked
from fedsense.data.windows import UNLABELLED, Collected

ACTIVITIES = ("call", "hop", "typing", "walk", "wave")
CHANNELS = tuple(f"{sensor}_{axis}" for sensor in ("acc", "gyro", "mag") for axis in "xyz")
LENGTH = 100


def read(files: Files) -> Iterator[Collected]:
    """One client a person: accelerometer, gyroscope and magnetometer of the own phone, 50 Hz, windows of 2 s."""
    people: dict[int, dict[int, File]] = {}
    for file in files.all("*/*_train.txt"):
        name = file.base[: -len("_train.txt")].lower()
        if not file.folder.isdigit() or name not in ACTIVITIES:
            raise file.wrong("the name gives no person and activity; expected a name like 1/Call_train.txt")
        if people.setdefault(int(file.folder), {}).setdefault(ACTIVITIES.index(name), file) is not file:
            raise file.wrong(f"there is another {file.folder}/{file.base}; keep one")
    for who, parts in sorted(people.items()):
        labels = sorted(parts)
        windows = side_by_side(_windows, [parts[label] for label in labels])
        y = np.repeat(labels, [len(part) for part in windows])
        x = np.concatenate(windows)
        traits = {"person": f"u{who:03d}", "channels": list(CHANNELS)}
        # the authors speak of a sliding window and not of its step, so overlaps are looked for
        yield Collected(f"u{who:03d}", x, y, found_origins(x, y), np.full(len(y), UNLABELLED), traits)


def _windows(file: File) -> Array:
    """``[windows, 9, 100]``: a hundred rows are a window; the first column is a time or counter and is left out."""
    table = read_table(file, dict.fromkeys(("time", *CHANNELS), float), header=False, sep=SPACES)
    signal = stacked(table, CHANNELS)
    if len(signal) % LENGTH:
        raise file.wrong(f"has {len(signal)} rows, expected a multiple of {LENGTH} (a window each)")
    return np.ascontiguousarray(signal.reshape(-1, LENGTH, len(CHANNELS)).swapaxes(1, 2))


DATASET = Read(
    card=Card(
        name="harbox",
        title="HARBOX",
        what="people's own phones; phone call, hopping, typing, walking, waving; a 9-axis inertial unit, brought to "
        "50 Hz, in windows of 100 samples (2 s)",
        who="121 people of 17 to 55 years with 77 models of phones, who labelled their own recordings",
        licence="MIT (the authors' repository)",
        citation="X. Ouyang, Z. Xie, J. Zhou, J. Huang, G. Xing, 'ClusterFL: a similarity-aware federated learning "
        "system for human activity recognition', MobiSys 2021",
        address="https://github.com/xmouyang/FL-Datasets-for-HAR",
        layout="large_scale_HARBox/1/Call_train.txt, Hop_train.txt, typing_train.txt, Walk_train.txt, Wave_train.txt, "
        "and so on to folder 121",
        sizes="121 people, up to five files each; the number of windows is not published",
        client="a person (121)",
        paper="ProtoHAR (120 of the 121 people; it does not say which)",
        notes="A file has ten columns. The first is a time or counter that everybody leaves out; the other nine are "
        "the inertial unit, which no source names: here accelerometer, gyroscope, magnetometer, each x, y, z, as the "
        "papers list them. A hundred rows in a row are one window (900 values, time step after time step), so a sample "
        "is 9 channels of 100. Whether windows overlap is not published: one whose beginning equals the end of the one "
        "before (at least 4 samples) continues its recording. Someone who did not do an activity has no file of it. "
        "The checksum is the one in the authors' repository; GitHub may refuse the download when the repository's "
        "quota is used up, and then it must be fetched by hand.",
        downloads=(
            Download(
                "https://media.githubusercontent.com/media/xmouyang/FL-Datasets-for-HAR/main/datasets/HARBox/large_scale_HARBox.zip",
                "harbox.zip",
                bytes=131_571_985,
                sha256="4fdf91e26f698e2b5e349be2af08fb41a5ccd86e2254b4bd3b81eaf77959d12f",
            ),
        ),
    ),
    read=read,
    wanted=("*/*_train.txt",),
    classes=ACTIVITIES,
    normalise="channel",
)
