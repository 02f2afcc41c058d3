"""CIFAR-10 and CIFAR-100: small colour photographs, in the layout for Python or in the binary one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Read
from fedsense.data.files import File, Files
from fedsense.data.safepickle import read_pickle
from fedsense.data.splits import Split
from fedsense.data.windows import Collected, one_pool

Array = NDArray[Any]
SHAPE = (3, 32, 32)
PIXELS = 3072

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COARSE = (
    "aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables", "household_electrical_devices",
    "household_furniture", "insects", "large_carnivores", "large_man-made_outdoor_things",
    "large_natural_outdoor_scenes", "large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates",
    "people", "reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2",
)  # fmt: skip
FINE = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest",
    "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard",
    "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine", "possum",
    "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper",
    "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf",
    "woman", "worm",
)  # fmt: skip

Labels = Literal["fine", "coarse"]


def read10(files: Files, part: bool = True) -> list[Collected]:
    """One pool; session 0 is the official training part, 1 the test part. Without ``part`` all of it is needed."""
    ending = ".bin" if files.some("data_batch_[1-5].bin") else ""
    names = [f"data_batch_{number}{ending}" for number in range(1, 6)]
    trains = [files.one(name) for name in names if not part or files.some(name)]
    batches = [(file, 10_000, 0) for file in (trains or [files.one(names[0])])]
    batches.append((files.one(f"test_batch{ending}"), 10_000, 1))
    return _pool(batches, ("labels",), 0, len(CLASSES), part)


def read100(files: Files, labels: Labels = "fine", part: bool = True) -> list[Collected]:
    """As CIFAR-10, with the 100 fine classes or the 20 coarse ones."""
    ending = ".bin" if files.some("train.bin") else ""
    batches = [(files.one(f"train{ending}"), 50_000, 0), (files.one(f"test{ending}"), 10_000, 1)]
    keys, classes = ("coarse_labels", "fine_labels"), (len(COARSE), len(FINE))
    place = 0 if labels == "coarse" else 1
    return _pool(batches, keys, place, classes[place], part)


def _pool(
    batches: Sequence[tuple[File, int, int]], keys: tuple[str, ...], place: int, classes: int, part: bool
) -> list[Collected]:
    """``keys`` are the labels an image has in a file; the one at ``place`` is wanted."""
    parts, sessions = [], []
    for file, expected, session in batches:
        binary = file.base.lower().endswith(".bin")
        x, y = _binary(file, len(keys), place) if binary else _pickled(file, keys[place])
        if len(y) != expected and not part:
            raise file.wrong(f"holds {len(y)} images, expected {expected}; get it again, or leave part = true")
        if len(y) and not 0 <= y.min() <= y.max() < classes:
            row = int(np.argmax((y < 0) | (y >= classes)))
            raise file.wrong(f"label {y[row]} of image {row} is none of 0 to {classes - 1}")
        parts.append((x.reshape(-1, *SHAPE), y))
        sessions.append(session)
    return one_pool(parts, sessions)


def _binary(file: File, labels: int, place: int) -> tuple[Array, Array]:
    """A record is one byte a label, then the red, green and blue plane."""
    data, record = file.read(), labels + PIXELS
    if len(data) % record:
        raise file.wrong(f"has {len(data)} bytes, no multiple of {record}: it is cut short; get it again")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return rows[:, labels:], rows[:, place].astype(np.int64)


def _pickled(file: File, key: str) -> tuple[Array, Array]:
    batch = read_pickle(file)
    for name in ("data", key):
        if name not in batch:
            raise file.wrong(f"holds no '{name}'; is it a batch of CIFAR?")
    x, y = batch["data"], batch[key]
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != PIXELS:
        raise file.wrong(f"'data' is no array of bytes [n, {PIXELS}]")
    if not isinstance(y, list) or len(y) != len(x) or not all(isinstance(label, int) for label in y):
        raise file.wrong(f"'{key}' is no list of {len(x)} whole numbers")
    return x, np.array(y, np.int64)


PAGE = "https://www.cs.toronto.edu/~kriz/"
NOTES = (
    "Pixels stay bytes, which a model takes as shares of 255. "
    "The official test part is tested on, a tenth of the training part is for validation. "
    "Python's batches are pickles; they are read without running anything in them. Where batches are "
    "missing or short of images, what there is is taken; part = false refuses that. FedAli does not say how its "
    "clients' test images are dealt; here each class goes to clients in proportion to who trains on it."
)


def _card(name: str, classes: int, sizes: str, layout: str, download: Download) -> Card:
    return Card(
        name=name,
        title=name.upper().replace("CIFAR", "CIFAR-"),
        what=f"colour photographs of objects and animals, 32 × 32, {classes} classes",
        who="photographs found on the web, labelled by paid students",
        licence="none stated",
        citation="A. Krizhevsky, 'Learning multiple layers of features from tiny images', technical report, "
        "University of Toronto, 2009",
        address=f"{PAGE}cifar.html",
        layout=layout,
        sizes=sizes,
        client="one of 20 (or 50) to whom the pool is dealt, each class by Dirichlet(0.3)",
        paper="FedAli, Table 2: 20 and 50 clients",
        notes=NOTES,
        downloads=(download,),
    )


CIFAR10 = Read(
    card=_card(
        "cifar10",
        10,
        "50,000 training and 10,000 test images of 10 classes",
        "data_batch_1 to data_batch_5 and test_batch (for Python), or the same names with .bin (binary); part = true "
        "takes fewer",
        Download(
            f"{PAGE}cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            bytes=170_498_071,
            md5="c58f30108f718f92721af3b95e74349a",
        ),
    ),
    read=read10,
    wanted=("data_batch_[1-5]", "test_batch", "data_batch_[1-5].bin", "test_batch.bin"),
    classes=CLASSES,
    split=Split("official", val=0.1),
    partition={"kind": "dirichlet", "alpha": 0.3},
    clients=20,
)

CIFAR100 = Read(
    card=_card(
        "cifar100",
        100,
        "50,000 training and 10,000 test images of 100 fine classes, in 20 coarse ones",
        "train and test (for Python), or train.bin and test.bin (binary)",
        Download(
            f"{PAGE}cifar-100-python.tar.gz",
            "cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
        ),
    ),
    read=read100,
    wanted=("train", "test", "train.bin", "test.bin"),
    classes=lambda labels: COARSE if labels == "coarse" else FINE,
    split=Split("official", val=0.1),
    partition={"kind": "dirichlet", "alpha": 0.3},
    clients=20,
)
