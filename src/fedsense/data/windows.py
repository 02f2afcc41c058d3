"""From recordings to windows: gaps, one common rate, and windows that never mix two activities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedsense.errors import UserError

Array = NDArray[Any]
UNLABELLED = -1
FASTEST = 20  # times its own rate that a recording may be brought to
SAME_RATE = 0.0025  # clocks are no better than that
LONGEST_GAP = 0.5  # seconds that may be bridged by a straight line; longer gaps cut a recording in two


@dataclass(frozen=True)
class Recording:
    """One recording of one client, as it was measured.

    ``signal`` is ``[time, channels]``; ``labels`` ``[time]`` are class numbers, -1 where there is none. Channels are
    named sensor_axis (``acc_x``). ``times``, in seconds, are given where samples did not come evenly. Recordings of a
    client that have a ``clock`` in common were made side by side: their times count from one zero. ``session`` counts a
    client's sessions from 0, where that is known (or says the official split: 0 train, 1 test).
    """

    client: str
    signal: Array
    labels: Array
    rate: float
    channels: tuple[str, ...]
    times: Array | None = None
    session: int = UNLABELLED
    traits: Mapping[str, Any] = field(default_factory=dict)
    clock: str = ""
    began: float = 0.0  # on that clock


@dataclass(frozen=True)
class Collected:
    """One client's samples before they are split: ``x`` ``[n, …]``, ``y`` ``[n]``, where each came from.

    ``origin`` ``[n, 3]`` is recording, first time step, one after the last; ``session`` ``[n]`` as in a recording.
    ``when`` ``[n]`` says what counts as later, where that is not the order of sessions, recordings and time steps.
    """

    id: str
    x: Array
    y: Array
    origin: Array
    session: Array
    traits: Mapping[str, Any] = field(default_factory=dict)
    when: Array | None = None

    def take(self, index: Array) -> Collected:
        names = ("x", "y", "origin", "session", *(["when"] if self.when is not None else []))
        return replace(self, **{name: getattr(self, name)[index] for name in names})


def collected(client: str, x: Array, y: Array, session: Array | int = UNLABELLED, **traits: Any) -> Collected:
    """Samples that share no measurements with one another (images, trials), in the order they were taken."""
    places = np.arange(len(x))
    origin = np.stack([np.zeros_like(places), places, places + 1], axis=1)
    return Collected(
        client,
        x,
        np.asarray(y, np.int64),
        origin,
        np.broadcast_to(np.asarray(session, np.int64), len(x)).copy(),
        traits,
    )


def one_pool(parts: Sequence[tuple[Array, Array]], sessions: Sequence[int] = (0, 1)) -> list[Collected]:
    """Samples whose clients nobody knows: one client "all"; a session each, officially 0 to train and 1 to test on."""
    x, y = (np.concatenate([part[i] for part in parts]) for i in range(2))
    return [collected("all", x, y, np.repeat(sessions, [len(y) for _, y in parts]))]


def cut(recordings: Sequence[Recording], rate: float | None, window: int, overlap: float) -> list[Collected]:
    """Windows ``[n, channels, window]`` of every client's recordings, brought to ``rate`` first."""
    if window < 1:
        raise UserError(f"window = {window}; give at least 1 sample", about="window")
    if not 0 <= overlap < 1:
        raise UserError(f"overlap = {overlap:g}; give a share from 0 up to, not including, 1", about="overlap")
    if rate is not None and rate <= 0:
        raise UserError(f"rate = {rate:g}; give a rate above 0 Hz", about="rate")
    step = max(1, round(window * (1 - overlap)))
    clients: dict[str, list[tuple[Array, Array, Array, Recording]]] = {}
    numbers: dict[str, dict[Any, int]] = {}
    for recording in recordings:
        for piece in even(recording):
            at_rate = resampled(piece, rate or piece.rate)
            mine = numbers.setdefault(piece.client, {})
            number = mine.setdefault(piece.clock or len(mine), len(mine))
            starts, labels = window_starts(at_rate.labels, window, step)
            x = windows_at(at_rate.signal, starts, window)
            starts = starts + round(piece.began * at_rate.rate)
            origin = np.stack([np.full_like(starts, number), starts, starts + window], axis=1)
            clients.setdefault(piece.client, []).append((x, labels, origin, at_rate))
    return [_joined(client, parts) for client, parts in clients.items()]


def _joined(client: str, parts: Sequence[tuple[Array, Array, Array, Recording]]) -> Collected:
    first = parts[0][3]
    for *_, recording in parts:
        if recording.channels != first.channels:
            raise UserError(
                f"client '{client}' has recordings with channels {', '.join(first.channels)} and with "
                f"{', '.join(recording.channels)}; a client has one set of channels"
            )
    x, y, origin = (np.concatenate([part[i] for part in parts]) for i in range(3))
    session = np.concatenate([np.full(len(part[1]), part[3].session) for part in parts])
    return Collected(client, x, y, origin, session, {**first.traits, "channels": list(first.channels)})


def window_starts(labels: Array, window: int, step: int) -> tuple[Array, Array]:
    """First time step and label of every window that lies whole within one run of one label.

    >>> window_starts(np.array([0, 0, 0, 0, 0, 1, 1, -1, 1]), window=2, step=1)
    (array([0, 1, 2, 3, 5]), array([0, 0, 0, 0, 1]))
    """
    if not len(labels):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    borders = np.flatnonzero(np.diff(labels)) + 1
    begins, ends = np.concatenate([[0], borders]), np.concatenate([borders, [len(labels)]])
    counts = np.where(labels[begins] < 0, 0, np.maximum(0, (ends - begins - window) // step + 1))
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(begins, counts) + within * step
    return starts, labels[starts].astype(np.int64)


def windows_at(signal: Array, starts: Array, window: int) -> Array:
    """``[windows, channels, window]`` float32, cut from ``[time, channels]``."""
    if not len(starts):
        return np.zeros((0, signal.shape[1], window), np.float32)
    return np.ascontiguousarray(sliding_window_view(signal, window, axis=0)[starts], np.float32)


def even(recording: Recording) -> Iterator[Recording]:
    """Pieces sampled evenly at the recording's rate, without missing values; cut where a gap is too long to bridge."""
    if recording.times is not None:
        for times, signal, labels in _unbroken(recording):
            count = int(np.floor((times[-1] - times[0]) * recording.rate + 1e-6)) + 1
            grid = times[0] + np.arange(count) / recording.rate
            nearest = np.searchsorted((times[1:] + times[:-1]) / 2, grid)
            values = np.stack([np.interp(grid, times, column) for column in signal.T], axis=1).astype(np.float32)
            yield bridged(
                replace(
                    recording,
                    signal=values,
                    labels=labels[nearest],
                    times=None,
                    began=float(times[0]) if recording.clock else 0.0,
                )
            )
    elif len(recording.signal):
        yield bridged(recording)


def _unbroken(recording: Recording) -> Iterator[tuple[Array, Array, Array]]:
    times, keep = np.unique(np.asarray(recording.times, np.float64), return_index=True)  # in order, each time once
    times, keep = times[np.isfinite(times)], keep[np.isfinite(times)]
    signal, labels = recording.signal[keep], recording.labels[keep]
    breaks = np.flatnonzero(np.diff(times) > max(LONGEST_GAP, 2.5 / recording.rate)) + 1
    for part in np.split(np.arange(len(times)), breaks):
        if len(part):
            yield times[part], signal[part], labels[part]


def bridged(recording: Recording) -> Recording:
    """Missing values replaced by a straight line; where more than ``LONGEST_GAP`` seconds are missing, no label."""
    signal = recording.signal
    with np.errstate(all="ignore"):  # a sum is finite unless something in it is not, or it is too large
        if np.isfinite(signal.sum()) or np.isfinite(signal).all():
            return recording
    signal, labels = signal.copy(), recording.labels.copy()
    now = np.arange(len(signal))
    for column in signal.T:
        there = np.isfinite(column)
        if not there.any():
            column[:] = 0
            labels[:] = UNLABELLED
            continue
        column[~there] = np.interp(now[~there], now[there], column[there])
        labels[_long_runs(~there, LONGEST_GAP * recording.rate)] = UNLABELLED
    return replace(recording, signal=signal, labels=labels)


def _long_runs(flags: Array, longest: float) -> Array:
    """Where a run of True is longer than ``longest``."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]])))
    begins, ends = edges[::2], edges[1::2]
    long = np.zeros(len(flags) + 1, np.int64)
    chosen = ends - begins > longest
    np.add.at(long, begins[chosen], 1)
    np.add.at(long, ends[chosen], -1)
    return np.cumsum(long)[:-1] > 0


def resampled(recording: Recording, rate: float) -> Recording:
    """The recording at another rate, low-pass filtered so that nothing is folded back; a label is the nearest one's."""
    if abs(rate / recording.rate - 1) < SAME_RATE:
        return recording
    if rate > FASTEST * recording.rate:
        raise UserError(
            f"client '{recording.client}' was recorded at {recording.rate:g} Hz; rate = {rate:g} is more than "
            f"{FASTEST} times as much, and makes nothing new; is the recording's rate (or its time-unit) right?",
            about="rate",
        )
    ratio = Fraction(rate / recording.rate)
    ratio = ratio.limit_denominator(max(1000, round(1000 / ratio)))  # small numbers, off by less than 1 in 1000
    from scipy.signal import resample_poly  # takes a second to import, and most loads need it not

    level = recording.signal.mean(0, dtype=np.float64).astype(np.float32)  # the filter would make a constant ripple
    signal = resample_poly(
        recording.signal - level,
        ratio.numerator,
        ratio.denominator,
        axis=0,
        padtype="line" if len(recording.signal) > 1 else "mean",  # what is assumed before the beginning, after the end
    )
    signal = signal.astype(np.float32) + level
    nearest = np.ceil(np.arange(len(signal)) / float(ratio) - 0.5).astype(np.int64)  # of two as near, the earlier
    labels = recording.labels[np.clip(nearest, 0, len(recording.labels) - 1)]
    return replace(recording, signal=signal, labels=labels, rate=rate)
