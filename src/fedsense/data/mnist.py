"""MNIST: handwritten digits of 28 × 28 pixels."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Read
from fedsense.data.files import File, Files
from fedsense.data.splits import Split
from fedsense.data.tables import side_by_side
from fedsense.data.windows import Collected, one_pool

Array = NDArray[Any]
DIGITS = tuple(str(digit) for digit in range(10))
SIDE = 28
BYTES = 0x0800  # first half of an idx file's magic number: the values are unsigned bytes


def read(files: Files) -> list[Collected]:
    """One pool: bytes, 0 is paper and 255 ink; session 0 is the official training part, 1 the test part."""
    return one_pool(side_by_side(lambda name: _part(files, name), ("train", "t10k")))


def _part(files: Files, name: str) -> tuple[Array, Array]:
    images, labels = (_either(files, f"{name}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
    x, y = read_idx(images, (SIDE, SIDE)), read_idx(labels, ())
    if len(x) != len(y):
        raise labels.wrong(f"holds {len(y)} labels, and {images.base} {len(x)} images; get both again")
    if len(y) and y.max() >= len(DIGITS):
        place = int(np.argmax(y >= len(DIGITS)))
        raise labels.wrong(f"label {y[place]} of image {place} is none of 0 to 9")
    return x[:, None], y


def _either(files: Files, name: str) -> File:
    """The file as it is or as .gz; torchvision leaves both in its folder."""
    return files.one(name if files.some(name) else f"{name}.gz")


def read_idx(file: File, shape: tuple[int, ...]) -> Array:
    """The bytes ``[n, *shape]`` of an idx file: big-endian magic number, count and shape, then the values."""
    data, numbers = file.unzipped(), 2 + len(shape)
    if len(data) < 4 * numbers:
        raise file.wrong(f"is cut short: {len(data)} bytes, and its header alone has {4 * numbers}; get it again")
    magic, count, *sides = struct.unpack(f">{numbers}I", data[: 4 * numbers])
    if magic != BYTES + 1 + len(shape):
        raise file.wrong(f"begins with {magic}, expected {BYTES + 1 + len(shape)}; is it an idx file of MNIST?")
    if tuple(sides) != shape:
        raise file.wrong(f"images are {sides[0]} × {sides[1]}, expected {shape[0]} × {shape[1]}")
    values = len(data) - 4 * numbers
    if values != count * math.prod(shape):
        raise file.wrong(f"has {values} bytes of values, expected {count * math.prod(shape)}; get it again")
    return np.frombuffer(data, np.uint8, offset=4 * numbers).reshape(count, *shape)


ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
DOWNLOADS = tuple(
    Download(f"{ADDRESS}{name}-ubyte.gz", f"{name}-ubyte.gz", bytes=size, md5=md5)
    for name, size, md5 in (
        ("train-images-idx3", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    )
)

DATASET = Read(
    card=Card(
        name="mnist",
        title="MNIST",
        what="grey images of handwritten digits, 28 × 28",
        who="employees of the US Census Bureau and high-school students; no writer is named",
        licence="the files state none; CC BY-SA 3.0 is often given for them, which was not confirmed",
        citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, 'Gradient-based learning applied to document "
        "recognition', Proceedings of the IEEE 86, 1998",
        address="http://yann.lecun.com/exdb/mnist/",
        layout="train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, "
        "each as it is or as .gz",
        sizes="60,000 training and 10,000 test images of 10 classes",
        client="one of 100 to whom the pool is dealt at random; who wrote an image is not recorded",
        paper="FLIC, together with USPS: see digits",
        notes="Pixels stay bytes, which a model takes as shares of 255 (1 is ink). "
        "The official test part is tested on, a tenth of the "
        "training part is for validation.",
        downloads=DOWNLOADS,
    ),
    read=read,
    wanted=tuple(
        f"{part}-{what}-ubyte{ending}"
        for part in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
        for ending in ("", ".gz")
    ),
    classes=DIGITS,
    split=Split("official", val=0.1),
    partition="iid",
    clients=100,
)
