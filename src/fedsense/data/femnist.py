"""FEMNIST: handwritten digits and letters by writer, as LEAF prepares them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense.data.card import Card
from fedsense.data.dataset import Read
from fedsense.data.files import File, Files
from fedsense.data.splits import Split
from fedsense.data.windows import Collected, collected
from fedsense.errors import UserError

Array = NDArray[Any]
CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SIDE = 28
Part = tuple[Array, Array, int]  # images, labels, session


def read(files: Files, writers: int | None = None, min_samples: int = 1) -> Iterator[Collected]:
    """One client a writer; session 0 is LEAF's training part, 1 its test part, all 0 if it made no parts.

    ``writers`` takes the first so many, in the order of the files, of those who have ``min_samples`` images (to train
    on, if there are parts); files that are not needed for them are not read.
    """
    if writers is not None and writers < 1:
        raise UserError(f"dataset 'femnist': writers = {writers}; give at least 1", about="writers")
    split = bool(files.some("train/*.json"))
    found: dict[str, list[Part]] = {}
    for file in files.all("train/*.json" if split else "all_data/*.json"):
        for writer, x, y in _writers(file):
            if len(y) >= min_samples:
                found.setdefault(writer, []).append((x, y, 0))
        if writers is not None and len(found) >= writers:
            break
    if len(found) < (writers or 1):
        raise UserError(
            f"dataset 'femnist': {len(found)} writers in {files.root} have {min_samples} images or more, and "
            f"{writers or 1} are wanted; ask for fewer writers, or a lower min_samples",
            about="writers",
        )
    chosen = dict(islice(found.items(), writers))
    if split:
        _add_tests(files, chosen)
    for writer, parts in chosen.items():
        yield _client(writer, parts)


def _add_tests(files: Files, chosen: dict[str, list[Part]]) -> None:
    missing = set(chosen)
    for file in files.all("test/*.json"):
        for writer, x, y in _writers(file):
            if writer in chosen:
                chosen[writer].append((x, y, 1))
                missing.discard(writer)
        if not missing:
            return
    if len(missing) == len(chosen):
        raise UserError(
            f"dataset 'femnist': test/ in {files.root} holds none of the writers of train/; let LEAF split by sample "
            "(-t sample), or give all_data alone"
        )


def _client(writer: str, parts: list[Part]) -> Collected:
    images = [x for x, _, _ in parts]
    if any(x.dtype != np.uint8 for x in images):
        images = [x.astype(np.float32) / 255 if x.dtype == np.uint8 else x for x in images]
    sessions = np.concatenate([np.full(len(y), session) for _, y, session in parts])
    y = np.concatenate([y for _, y, _ in parts])
    return collected(writer, np.concatenate(images), y, sessions, writer=writer)


def _writers(file: File) -> Iterator[tuple[str, Array, Array]]:
    try:
        content = json.loads(file.read())
    except (ValueError, RecursionError) as error:  # text that is no JSON, or no text
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise file.wrong(f"is no whole JSON{line}; make it again with LEAF") from error
    data = content.get("user_data") if isinstance(content, dict) else None
    users = content.get("users") if isinstance(content, dict) else None
    if not isinstance(data, dict) or not isinstance(users, list):
        raise file.wrong("lacks 'users' or 'user_data'; is it a file of LEAF?")
    for user in users:
        held = data.get(str(user))
        if not isinstance(held, dict) or "x" not in held or "y" not in held:
            raise file.wrong(f"writer '{user}' has no 'x' and 'y' in 'user_data'")
        yield str(user), *_arrays(file, str(user), held)


def _arrays(file: File, user: str, held: dict[str, Any]) -> tuple[Array, Array]:
    try:
        x, y = np.asarray(held["x"], np.float32), np.asarray(held["y"])
    except (ValueError, TypeError) as error:
        raise file.wrong(f"writer '{user}': an image of 'x' is no list of {SIDE * SIDE} numbers") from error
    if not len(y):
        return np.zeros((0, 1, SIDE, SIDE), np.uint8), np.zeros(0, np.int64)
    if y.ndim != 1 or x.shape != (len(y), SIDE * SIDE):
        raise file.wrong(
            f"writer '{user}': 'x' has shape {list(x.shape)} and 'y' {list(y.shape)}, "
            f"expected [n, {SIDE * SIDE}] and [n]"
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(CLASSES):
        wrong = next(label for label in held["y"] if label not in range(len(CLASSES)))
        raise file.wrong(f"writer '{user}': label {wrong!r} is none of 0 to {len(CLASSES) - 1}")
    if not (x.min() >= 0 and x.max() <= 1):
        raise file.wrong(f"writer '{user}': a pixel is not within 0 and 1")
    return _as_bytes(x.reshape(-1, 1, SIDE, SIDE)), y.astype(np.int64)


def _as_bytes(x: Array) -> Array:
    """LEAF's pixels are whole shares of 255, a fourth of the memory as bytes; others stay as they are."""
    scaled = x * 255
    whole = np.rint(scaled)
    return whole.astype(np.uint8) if np.abs(scaled - whole).max() < 1e-3 else x


DATASET = Read(
    card=Card(
        name="femnist",
        title="FEMNIST",
        what="grey images of handwritten digits and letters, 28 × 28, 62 classes",
        who="about 3,550 writers of NIST's Special Database 19",
        licence="NIST Special Database 19 is a publication of the US government; LEAF's code is under a BSD licence",
        citation="S. Caldas, S. M. K. Duddu, P. Wu, T. Li, J. Konečný, H. B. McMahan, V. Smith, A. Talwalkar, "
        "'LEAF: a benchmark for federated settings', arXiv:1812.01097, 2018",
        address="https://leaf.cmu.edu",
        layout="LEAF's data/train/*.json and data/test/*.json, or else data/all_data/*.json",
        sizes="LEAF's page says 3,550 writers and 805,263 images; what its scripts make today is a little more",
        client="a writer",
        paper="FLIC, Table S2: 50 and 150 writers, the ten digits (writers = 50, classes = 0 to 9)",
        notes="Pixels go from 0 to 1 as LEAF made them: paper is light, ink dark, the reverse of MNIST. Where LEAF "
        "made a training and a test part (its split by sample), these are kept; else a tenth of each writer's images, "
        "drawn at random, is tested on. Writers are taken in the order of the files. Reading all of them takes "
        "minutes, once; of fewer writers, only as much as is needed.",
        by_hand="LEAF publishes no files of its own: run its data/femnist/preprocess.sh, which fetches NIST's images, "
        "and give the folder data",
    ),
    read=read,
    wanted=("train/*.json", "test/*.json", "all_data/*.json"),
    classes=CLASSES,
    split=Split("session", test=0.1, val=0.1),
)
