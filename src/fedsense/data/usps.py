"""USPS: handwritten digits of 16 × 16 pixels, from envelopes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Read
from fedsense.data.files import Files
from fedsense.data.splits import Split
from fedsense.data.tables import SPACES, read_numbers, side_by_side
from fedsense.data.windows import Collected, one_pool

Array = NDArray[Any]
DIGITS = tuple(str(digit) for digit in range(10))
SIDE = 16
PIXELS = tuple(f"pixel {row + 1},{column + 1}" for row in range(SIDE) for column in range(SIDE))


def read(files: Files) -> list[Collected]:
    """One pool: grey values from 0 (paper) to 1 (ink); session 0 is the official training part, 1 the test part."""
    return one_pool(side_by_side(lambda name: _part(files, name), ("zip.train", "zip.test")))


def _part(files: Files, name: str) -> tuple[Array, Array]:
    file = files.one(name if files.some(name) else f"{name}.gz")
    content = file.unzipped()
    cells = len(content.split(b"\n", 1)[0].split())
    if cells != 1 + len(PIXELS):
        raise file.wrong(f"line 1 has {cells} cells, expected {1 + len(PIXELS)}: a label and {SIDE} × {SIDE} values")
    columns = ("label", *PIXELS)
    table = read_numbers(file, columns, sep=SPACES, text=content)
    y, grey = table[:, 0], table[:, 1:]
    if (wrong := ~np.isin(y, np.arange(10))).any():
        row = int(np.argmax(wrong))
        raise file.wrong(f"line {row + 1}, column 1 ('label'): {y[row]:g} is none of 0 to 9")
    if (beyond := np.abs(grey) > 1).any():
        row, column = np.argwhere(beyond)[0]
        raise file.wrong(f"line {row + 1}, column {column + 2}: {grey[row, column]:g} is not within -1 and 1")
    return ((grey + 1) / 2).reshape(-1, 1, SIDE, SIDE), y.astype(np.int64)


ADDRESS = "https://hastie.su.domains/ElemStatLearn/datasets/"
DOWNLOADS = tuple(Download(ADDRESS + name, name) for name in ("zip.train.gz", "zip.test.gz"))

DATASET = Read(
    card=Card(
        name="usps",
        title="USPS",
        what="grey images of handwritten digits, 16 × 16",
        who="unknown writers of envelopes that passed through the US Postal Service",
        licence="none stated; distributed for research with 'The Elements of Statistical Learning'",
        citation="Y. Le Cun et al., 'Handwritten digit recognition with a back-propagation network', NIPS 2, 1990",
        address="https://hastie.su.domains/ElemStatLearn/",
        layout="zip.train and zip.test, each as text or as .gz: a line is a label and 256 values from -1 to 1",
        sizes="7,291 training and 2,007 test images of 10 classes",
        client="one of 100 to whom the pool is dealt at random; who wrote an image is not recorded",
        paper="FLIC, together with MNIST: see digits",
        notes="Values v from -1 to 1 become (v + 1) / 2: 0 is paper, 1 ink, as in MNIST. The test part is known to be "
        "harder than the training part. The source publishes no checksums.",
        downloads=DOWNLOADS,
    ),
    read=read,
    wanted=("zip.train", "zip.test", "zip.train.gz", "zip.test.gz"),
    classes=DIGITS,
    split=Split("official", val=0.1),
    partition="iid",
    clients=100,
)
