"""How generated samples are shared among classes and splits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense.errors import UserError

Array = NDArray[Any]


def check_samples(name: str, samples: int, classes: int, val: float, test: float, remedy: str = "") -> None:
    """Are there enough for the training part to hold each class?"""
    least = int(np.ceil(classes / (1 - val - test) - 1e-9))
    if samples < least:
        raise UserError(
            f"{name}: samples = {samples}; give at least {least}, so that train holds each of {classes}{remedy}"
        )


def split_counts(samples: int, classes: int, val: float, test: float, rng: np.random.Generator) -> Array:
    """How many samples of each class go to each split, ``[SPLITS, classes]``; train gets one of each class at least.

    Samples are shared evenly among the classes, and each split draws evenly on the classes that can spare one.
    """
    each = np.full(classes, samples // classes)
    each[rng.permutation(classes)[: samples % classes]] += 1
    spare = np.concatenate([rng.permutation(np.flatnonzero(each > layer)) for layer in range(1, each.max() + 1)])
    last_test = min(max(round(samples * test), int(np.ceil(test))), len(spare))
    last_val = min(last_test + round(samples * val), len(spare))
    for_test = np.bincount(spare[:last_test], minlength=classes)
    for_val = np.bincount(spare[last_test:last_val], minlength=classes)
    return np.stack([each - for_test - for_val, for_val, for_test])
