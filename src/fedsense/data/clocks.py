"""Sensors of one device that were read at different moments, brought to the same moments."""

from __future__ import annotations

import numpy as np

from fedsense.data.windows import LONGEST_GAP, Array


def in_order(times: Array, signal: Array) -> tuple[Array, Array]:
    """Sorted by time, each moment once: of several readings with one stamp the first is kept."""
    times, first = np.unique(times, return_index=True)
    return times, signal[first]


def at_times(times: Array, other_times: Array, other: Array) -> Array:
    """``other`` ``[rows, channels]``, read at ``other_times`` (in order), on straight lines at ``times``.

    NaN before its first reading, after its last, and in a gap too long to bridge.
    """
    result = np.full((len(times), other.shape[1]), np.nan, np.float32)
    if not len(other_times):
        return result
    after = np.clip(np.searchsorted(other_times, times), 1, max(len(other_times) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(other_times) - 1)
    within = (times >= other_times[0]) & (times <= other_times[-1])
    within &= (other_times[after] - other_times[before]) <= LONGEST_GAP
    for channel in range(other.shape[1]):
        result[within, channel] = np.interp(times[within], other_times, other[:, channel])
    return result
