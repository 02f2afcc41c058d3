"""Datasets that come as windows do not say which of them share measurements; equal numbers do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FEWEST = 4  # time steps that must be equal: fewer may be so by chance


def found_origins(windows: Array, groups: Array, shifts: Iterable[int] | None = None) -> Array:
    """Where windows ``[n, channels, time]`` were cut from: ``[n, 3]`` recording, first time step, one after the last.

    A window continues the one before it, ``shift`` steps on, if its beginning is the other's end, number by number;
    else it begins a recording of its own. Only neighbours of one group are compared; all shifts unless some are given.

    >>> signal = np.arange(12.0) ** 2
    >>> found_origins(np.stack([signal[None, a : a + 6] for a in (0, 2, 6)]), np.array([0, 0, 0])).tolist()
    [[0, 0, 6], [0, 2, 8], [1, 0, 6]]
    """
    count, _, length = windows.shape
    step = np.full(count, -1)  # from the window before; -1: it shares nothing with it
    neighbours = np.concatenate([[False], groups[1:] == groups[:-1]])
    for shift in range(length - FEWEST + 1) if shifts is None else shifts:
        later = np.flatnonzero(neighbours & (step < 0))
        # one time step tells most of them apart
        later = later[(windows[later - 1, :, shift] == windows[later, :, 0]).all(1)]
        same = windows[later - 1, :, shift:] == windows[later, :, : length - shift]
        step[later[same.all((1, 2))]] = shift
    begins = step < 0
    recording = np.cumsum(begins) - 1
    passed = np.cumsum(np.maximum(step, 0))
    start = passed - passed[begins][recording] if count else passed
    return np.stack([recording, start, start + length], axis=1)
