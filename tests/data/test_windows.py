"""Recordings to windows: resampling against sines worked out by hand, windows and gaps against slow references."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsense.data.windows import (
    LONGEST_GAP,
    UNLABELLED,
    Recording,
    bridged,
    collected,
    cut,
    even,
    resampled,
    window_starts,
    windows_at,
)
from fedsense.errors import UserError


def recording(signal, labels=None, rate=50.0, **more):
    signal = np.asarray(signal, np.float32)
    signal = signal[:, None] if signal.ndim == 1 else signal
    labels = np.zeros(len(signal), np.int64) if labels is None else np.asarray(labels)
    channels = tuple(f"acc_{'xyz'[i]}" for i in range(signal.shape[1]))
    return Recording("anna", signal, labels, rate, channels, **more)


# ---------------------------------------------------------------- windows

labels_of_runs = st.lists(st.tuples(st.integers(-1, 3), st.integers(1, 12)), max_size=8).map(
    lambda runs: np.repeat([label for label, _ in runs], [count for _, count in runs]).astype(np.int64)
)


def slow_windows(labels, window, step):
    """Run by run, window by window."""
    found, begin = [], 0
    while begin < len(labels):
        end = begin
        while end < len(labels) and labels[end] == labels[begin]:
            end += 1
        if labels[begin] >= 0:
            found += [(start, labels[begin]) for start in range(begin, end - window + 1, step)]
        begin = end
    return found


@given(labels_of_runs, st.integers(1, 9), st.integers(1, 9))
def test_windows_are_those_of_a_slow_reference(labels, window, step):
    starts, classes = window_starts(labels, window, step)
    assert list(zip(starts.tolist(), classes.tolist(), strict=True)) == slow_windows(labels, window, step)
    for start, label in zip(starts, classes, strict=True):
        assert (labels[start : start + window] == label).all()


@given(labels_of_runs, st.integers(1, 9), st.sampled_from([0.0, 0.3, 0.5, 0.75, 0.99]))
def test_cut_takes_the_values_its_origin_says(labels, window, overlap):
    signal = np.arange(2 * len(labels), dtype=np.float32).reshape(-1, 2)
    clients = cut([recording(signal, labels), recording(signal + 0.5, labels)], None, window, overlap)
    if not len(labels):
        assert clients == []
        return
    (client,) = clients
    step = max(1, round(window * (1 - overlap)))
    assert len(client.y) == 2 * len(slow_windows(labels, window, step))
    assert client.x.shape == (len(client.y), 2, window)
    assert client.x.dtype == np.float32
    for x, (number, start, stop) in zip(client.x, client.origin, strict=True):
        assert stop - start == window
        np.testing.assert_array_equal(x, signal[start:stop].T + 0.5 * number)


def test_windows_longer_than_the_recording():
    (client,) = cut([recording(np.zeros((10, 3)))], None, 11, 0.5)
    assert client.x.shape == (0, 3, 11)
    assert len(client.y) == len(client.origin) == len(client.session) == 0
    assert windows_at(np.zeros((3, 2)), np.zeros(0, int), 5).shape == (0, 2, 5)


def test_clients_sessions_and_traits():
    first = recording(np.zeros(10), session=0, traits={"age": 30})
    parts = [first, replace(first, session=1), replace(first, client="ben", session=4, traits={})]
    anna, ben = cut(parts, None, 5, 0.0)
    assert (anna.id, ben.id) == ("anna", "ben")
    assert anna.session.tolist() == [0, 0, 1, 1]
    assert anna.origin.tolist() == [[0, 0, 5], [0, 5, 10], [1, 0, 5], [1, 5, 10]]
    assert ben.origin[:, 0].tolist() == [0, 0]  # counted anew for each client
    assert anna.traits == {"age": 30, "channels": ["acc_x"]}
    other = anna.take(np.array([3, 0]))
    assert other.session.tolist() == [1, 0]
    assert other.origin.tolist() == [[1, 5, 10], [0, 0, 5]]


def test_a_client_has_one_set_of_channels():
    with pytest.raises(UserError, match=r"client 'anna' has recordings with channels acc_x and with acc_x, acc_y"):
        cut([recording(np.zeros(10)), recording(np.zeros((10, 2)))], None, 5, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((50.0, 0, 0.5), "window = 0; give at least 1 sample"),
        ((50.0, 10, 1.0), "overlap = 1; give a share from 0 up to, not including, 1"),
        ((50.0, 10, -0.1), "overlap = -0.1; give a share from 0 up to, not including, 1"),
        ((0.0, 10, 0.5), "rate = 0; give a rate above 0 Hz"),
        ((-5.0, 10, 0.5), "rate = -5; give a rate above 0 Hz"),
    ],
)
def test_options_are_checked_without_recordings(options, message):
    with pytest.raises(UserError) as error:
        cut([], *options)
    assert str(error.value) == message


def test_collected():
    client = collected("anna", np.zeros((3, 2)), [1, 0, 1], age=3)
    assert client.origin.tolist() == [[0, 0, 1], [0, 1, 2], [0, 2, 3]]
    assert client.session.tolist() == [UNLABELLED] * 3
    assert client.traits == {"age": 3}
    assert client.y.dtype == np.int64
    assert collected("anna", np.zeros((2, 2)), [1, 0], session=[0, 1]).session.tolist() == [0, 1]


# ---------------------------------------------------------------- one rate

RATES = [(100.0, 50.0), (200.0, 50.0), (20.0, 50.0), (99.7, 50.0), (64.0, 50.0), (33.3, 50.0), (50.0, 20.0)]


def times(count, rate):
    return np.arange(count) / rate


@pytest.mark.parametrize(("old", "new"), RATES)
def test_a_slow_sine_stays_as_it_is(old, new):
    """Amplitude and phase: the new samples lie on the very sine, evaluated at the new times."""
    hertz = 0.2 * min(old, new)  # 40 % of the lower Nyquist frequency
    before = times(int(10 * old), old)
    after = resampled(recording(np.sin(2 * np.pi * hertz * before + 0.3), rate=old), new)
    assert after.rate == new
    assert abs(len(after.signal) - 10 * new) <= 2
    now = times(len(after.signal), new)
    middle = slice(int(new), -int(new))  # beyond the ends nothing is known
    error = after.signal[middle, 0] - np.sin(2 * np.pi * hertz * now + 0.3)[middle]
    assert np.abs(error).max() < 0.006


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new in RATES if old > 1.5 * new])
def test_a_fast_sine_is_not_folded_back(old, new):
    """More than 40 dB down from 1.25 times the new Nyquist frequency on."""
    for hertz in np.linspace(1.25 * new / 2, 0.98 * old / 2, 7):
        signal = np.sin(2 * np.pi * hertz * times(int(20 * old), old))
        middle = resampled(recording(signal, rate=old), new).signal[int(new) : -int(new)]
        assert np.sqrt(2 * np.mean(middle**2)) < 0.01


@pytest.mark.parametrize(("old", "new"), RATES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 64])
def test_what_stands_still_or_moves_evenly_does_not_ring(old, new, count):
    still = resampled(recording(np.full((count, 2), 9.81), rate=old), new)
    np.testing.assert_allclose(still.signal, 9.81, rtol=1e-5)
    assert len(still.signal) == len(still.labels)
    if count > 20:
        ramp = resampled(recording(9.81 + times(count, old), rate=old), new).signal[:, 0]
        np.testing.assert_allclose(ramp, 9.81 + times(len(ramp), new), atol=0.02)


@pytest.mark.parametrize(("old", "new"), RATES)
def test_labels_stay_with_their_moment(old, new):
    """Each label is that of the old sample nearest in time."""
    labels = np.repeat([0, 1, -1, 2], [int(old), int(2.3 * old), int(0.7 * old), int(old)])
    after = resampled(recording(np.zeros(len(labels)), labels, rate=old), new)
    before, now = times(len(labels), old), times(len(after.labels), new)
    distance = np.abs(now[:, None] - before)
    nearest = labels[distance.argmin(1)]
    second = labels[np.argsort(distance, axis=1)[:, 1]]
    same = after.labels == nearest
    assert (same | (after.labels == second)).all()  # a tie may go to either
    assert same.mean() > 0.98


@given(st.sampled_from(RATES), st.integers(1, 300))
def test_a_new_length_is_the_old_times_the_ratio(rates, count):
    old, new = rates
    after = resampled(recording(np.zeros(count), rate=old), new)
    assert len(after.signal) == len(after.labels)
    assert abs(len(after.signal) - count * new / old) < 1.01


def test_the_same_rate_changes_nothing():
    one = recording(np.arange(5.0))
    assert resampled(one, 50.0) is one
    assert resampled(one, 50.1) is one  # no clock is that good
    assert resampled(one, 50.2) is not one


def test_rates_far_apart():
    after = resampled(recording(np.full(6000, 3.0), rate=1000.0), 0.7)
    assert len(after.signal) in (4, 5)
    np.testing.assert_allclose(after.signal, 3.0, rtol=1e-5)
    assert len(resampled(recording(np.zeros(300), rate=1.0), 1 / 300).signal) == 1


def test_channels_are_resampled_apart():
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(200, 3)).astype(np.float32)
    both = resampled(recording(signal, rate=100.0), 50.0).signal
    for channel in range(3):
        alone = resampled(recording(signal[:, channel], rate=100.0), 50.0).signal[:, 0]
        np.testing.assert_allclose(both[:, channel], alone, atol=1e-6)


# ---------------------------------------------------------------- uneven times, gaps, missing values


def test_uneven_times_are_made_even():
    moments = np.array([0.0, 0.03, 0.04, 0.055, 0.1])
    (piece,) = even(recording(10 * moments, [0, 0, 1, 1, 2], times=moments + 5))
    assert piece.times is None
    np.testing.assert_allclose(piece.signal[:, 0], [0, 0.2, 0.4, 0.6, 0.8, 1.0], atol=1e-6)  # every 0.02 s
    assert piece.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_times_may_be_unsorted_and_twice():
    order = np.array([3, 0, 2, 1, 2, 0])
    one = recording(order * 1.0, order, times=order / 50)
    one = replace(one, signal=np.array([[3], [0], [2], [1], [99], [99]], np.float32))  # of two, the first counts
    (piece,) = even(one)
    np.testing.assert_allclose(piece.signal[:, 0], [0, 1, 2, 3], atol=1e-5)
    assert piece.labels.tolist() == [0, 1, 2, 3]


def test_times_that_are_no_numbers_are_left_out():
    moments = np.array([0, np.nan, 0.02, np.inf, 0.04])
    (piece,) = even(recording([0, 7, 1, 7, 2], times=moments))
    np.testing.assert_allclose(piece.signal[:, 0], [0, 1, 2], atol=1e-6)
    assert list(even(recording([1.0], times=np.array([np.nan])))) == []
    assert list(even(recording(np.zeros((0, 1)), times=np.zeros(0)))) == []
    assert list(even(recording(np.zeros((0, 1))))) == []


def test_long_gaps_cut_and_short_ones_are_bridged():
    moments = np.concatenate([np.arange(10) / 50, 0.6 + np.arange(5) / 50, 2 + np.arange(3) / 50])
    pieces = list(even(recording(moments, times=moments)))
    assert [len(piece.signal) for piece in pieces] == [35, 3]  # 0 … 0.68 s, 2 … 2.04 s
    np.testing.assert_allclose(pieces[0].signal[:, 0], np.arange(35) / 50, atol=1e-6)
    (client,) = cut([recording(moments, times=moments)], 50.0, 3, 0.0)
    assert client.origin[-1].tolist() == [1, 0, 3]


def test_clocks_that_count_from_1970():
    moments = 1.4e9 + np.arange(1000) / 50
    (piece,) = even(recording(np.arange(1000.0), times=moments))
    np.testing.assert_allclose(piece.signal[:, 0], np.arange(1000), atol=1e-3)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40))
def test_whatever_the_times_no_piece_bridges_a_long_gap(moments):
    moments = np.array(moments)
    pieces = list(even(recording(moments, np.arange(len(moments)), times=moments)))
    ordered = np.unique(moments)
    assert len(pieces) == 1 + (np.diff(ordered) > LONGEST_GAP).sum()
    for piece in pieces:
        assert len(piece.signal) == len(piece.labels) > 0
        values = piece.signal[:, 0]
        np.testing.assert_allclose(np.diff(values), 0.02, atol=1e-5)  # the signal is the time itself


def test_missing_values_are_bridged_by_a_straight_line():
    one = recording([[0, 5], [np.nan, 5], [np.nan, np.inf], [3, 5], [np.nan, 5]])
    filled = bridged(one)
    np.testing.assert_allclose(filled.signal, [[0, 5], [1, 5], [2, 5], [3, 5], [3, 5]])
    assert filled.labels.tolist() == [0] * 5
    assert np.isnan(one.signal).any()  # the given one is as it was


@pytest.mark.parametrize(("missing", "left"), [(25, 100), (26, 74)])
def test_long_missing_runs_have_no_label(missing, left):
    signal = np.ones((100, 2), np.float32)
    signal[40 : 40 + missing, 1] = np.nan
    filled = bridged(recording(signal))
    assert np.isfinite(filled.signal).all()
    assert (filled.labels >= 0).sum() == left
    if left < 100:
        assert (filled.labels[40:66] == UNLABELLED).all()


def test_a_channel_that_is_missing_altogether():
    filled = bridged(recording(np.full((5, 1), np.nan)))
    assert filled.signal.tolist() == [[0]] * 5
    assert (filled.labels == UNLABELLED).all()


def test_huge_values_do_not_warn():
    one = recording(np.full(10, 3e38))
    assert bridged(one) is one
    filled = bridged(recording([np.inf, -np.inf, 1.0]))
    assert filled.signal[:, 0].tolist() == [1, 1, 1]


@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_missing_runs_of_a_slow_reference(missing):
    rate = 8.0  # a gap of up to 4 samples is bridged
    signal = np.where(missing, np.nan, 1.0)
    filled = bridged(recording(signal, rate=rate))
    expected = []
    for gone, run in itertools.groupby(missing):
        count = len(list(run))
        expected += [UNLABELLED if gone and count > 4 else 0] * count
    if all(missing):
        expected = [UNLABELLED] * len(missing)
    assert filled.labels.tolist() == expected


def test_recordings_with_a_clock_in_common_share_their_time():
    """Two phones in one pouch, the second switched on a second later: what they measured at once overlaps."""
    times = np.arange(20) / 10
    both = [
        Recording("a", np.zeros((20, 1), np.float32), np.zeros(20, int), 10.0, ("v",), times + late, clock="pouch")
        for late in (5.0, 6.0)
    ]
    (client,) = cut(both, None, 10, 0.0)
    assert client.origin.tolist() == [[0, 50, 60], [0, 60, 70], [0, 60, 70], [0, 70, 80]]
