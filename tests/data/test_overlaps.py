"""Where windows were cut from is found again by their numbers alone."""

import numpy as np

from fedsense.data.overlaps import found_origins
from fedsense.work import stream


def windows(starts, length=20, signal=None):
    signal = stream("overlaps").normal(size=(2, 400)) if signal is None else signal
    return np.stack([signal[:, start : start + length] for start in starts])


def test_any_shift_is_found_and_what_shares_nothing_begins_anew():
    origin = found_origins(windows([5, 8, 24, 60, 60, 76, 93, 300]), np.zeros(8))
    assert origin.tolist() == [
        [0, 0, 20],
        [0, 3, 23],
        [0, 19, 39],  # 4 steps shared: the fewest that count
        [1, 0, 20],
        [1, 0, 20],  # the same once more
        [1, 16, 36],
        [2, 0, 20],  # 3 steps shared: too few to be sure
        [3, 0, 20],
    ]


def test_groups_are_not_compared():
    assert found_origins(windows([0, 10, 20]), np.array([0, 1, 1]))[:, 0].tolist() == [0, 1, 1]


def test_only_the_shifts_that_are_asked_for():
    origin = found_origins(windows([0, 10, 15]), np.zeros(3), shifts=(10,))
    assert origin.tolist() == [[0, 0, 20], [0, 10, 30], [1, 0, 20]]


def test_no_windows():
    assert found_origins(np.zeros((0, 3, 20)), np.zeros(0)).shape == (0, 3)
