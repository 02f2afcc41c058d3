"""Who is chosen: chances worked out by hand, and what holds whatever the numbers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsense.ops.selection import draw_diverse
from fedsense.work import stream


def shares(times, **given):
    """How often each client is drawn."""
    many = len(given["age"])
    found = np.zeros(many)
    for i in range(times):
        found[draw_diverse(rng=stream("selection", i), **given)] += 1
    return found / times


def test_a_slow_device_is_chosen_less_and_an_old_one_more():
    """Loads 1, 1, 4 give capabilities 1, 1, ¼; ages 0, 1, 3 give 1, 2, 4: chances 1, 2, 1 of 4."""
    found = shares(4000, likeness=np.eye(3), age=np.array([0.0, 1.0, 3.0]), load=np.array([1.0, 1.0, 4.0]), count=1)
    np.testing.assert_allclose(found, [0.25, 0.5, 0.25], atol=0.03)


def test_a_copy_of_a_chosen_client_is_not_chosen_while_there_are_others():
    alike = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for i in range(100):
        chosen = draw_diverse(alike, np.zeros(3), np.ones(3), 2, stream("copies", i))
        assert 2 in chosen


def test_among_copies_only_anyone_will_do():
    assert draw_diverse(np.ones((3, 3)), np.zeros(3), np.ones(3), 3, stream("all")) == [0, 1, 2]


@settings(max_examples=100)
@given(st.integers(1, 8), st.data())
def test_always_so_many_different_clients(many, data):
    count = data.draw(st.integers(1, many))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    likeness, age, load = rng.uniform(-1, 1, (many, many)), rng.integers(0, 9, many), rng.uniform(0.1, 9, many)
    chosen = draw_diverse(likeness, age.astype(float), load, count, rng)
    assert len(set(chosen)) == count == len(chosen)
    assert chosen == sorted(chosen)
