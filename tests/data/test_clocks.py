"""Two sensors brought to the same times."""

import numpy as np

from fedsense.data.clocks import at_times, in_order


def test_straight_lines_between_readings_and_nothing_beyond_them():
    other = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0], [40.0, 1.0]], np.float32)
    found = at_times(np.array([-0.1, 0.0, 0.1, 0.25, 0.4, 0.8, 1.4, 1.5]), np.array([0.0, 0.2, 0.4, 1.4]), other)
    np.testing.assert_allclose(found[1:5], [[0, 1], [1, 1], [2.5, 1], [4, 1]], rtol=1e-6)
    assert np.isnan(found[[0, 5, 7]]).all()  # before the first, in a gap of a second, after the last


def test_no_or_one_reading():
    assert np.isnan(at_times(np.arange(3.0), np.zeros(0), np.zeros((0, 2)))).all()
    found = at_times(np.array([0.9, 1.0, 1.1]), np.array([1.0]), np.array([[5.0]]))
    assert np.isnan(found[[0, 2]]).all()
    assert found[1, 0] == 5


def test_in_order_keeps_the_first_of_a_stamp():
    times, values = in_order(np.array([2.0, 1.0, 2.0]), np.array([10, 20, 30]))
    assert times.tolist() == [1, 2]
    assert values.tolist() == [20, 10]
