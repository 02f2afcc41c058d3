"""Train, validation and test of one client, and normalisation fitted on what it trains on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsense.data.cores import on_all_cores
from fedsense.data.windows import Collected
from fedsense.errors import UserError
from fedsense.federation import SPLITS, ClientData, Federation, Samples, in_shares
from fedsense.options import checked, options_of
from fedsense.work import stream

Array = NDArray[Any]
TRAIN, VAL, TEST, DROPPED = 0, 1, 2, -1  # the first three as in SPLITS
Normalise = Literal["channel", "sensor", "feature", "none"]


@dataclass(frozen=True)
class Split:
    """How a client's samples are split; ``test`` and ``val`` are shares of each class.

    - ``chronological``: of every class the client did first, the rest is trained on and the last is tested on. A
      window that shares measurements with one on another side is left out.
    - ``random``: windows at random, as the papers do. Overlapping windows land on both sides, so scores are too good;
      it is here because published numbers use it.
    - ``session``: a client's last session is tested on. A client with one session is split at random, or
      chronologically if its windows overlap.
    - ``official``: as the dataset's authors split it.
    """

    kind: Literal["chronological", "random", "session", "official"] = "chronological"
    test: float = 0.3
    val: float = 0.1

    def __post_init__(self) -> None:
        if not (self.test >= 0 and self.val >= 0 and self.test + self.val < 1):
            raise UserError(
                f"split: test = {self.test:g} and val = {self.val:g}; give shares that leave something to train on",
                about="split",
            )


def parse_split(value: str | Mapping[str, Any] | None, default: Split) -> Split:
    """``"random"`` or ``{kind = "random", test = 0.3, val = 0.1}``; what is not said is as in the default."""
    table = {"kind": value} if isinstance(value, str) else dict(value or {})
    return replace(default, **checked("split", table, options_of(Split)))


def split_client(client: Collected, split: Split, seed: int) -> Array:
    """The side of every sample: ``TRAIN``, ``VAL``, ``TEST``, or ``DROPPED``."""
    rng = stream(seed, "split", client.id)
    if split.kind == "chronological":
        return _chronological(client, split)
    if split.kind in ("official", "session"):
        sessions = np.unique(client.session)
        if len(sessions) > 1 or (split.kind == "official" and len(client.y) and sessions[0] >= 0):
            last = 1 if split.kind == "official" else sessions[-1]  # officially, 0 is train and 1 test
            side = np.where(client.session == last, TEST, TRAIN)
            train = np.flatnonzero(side == TRAIN)
            rest, shares = replace(client, x=client.y).take(train), replace(split, test=0.0)  # x is large, and not used
            side[train] = _chronological(rest, shares) if _overlapping(rest.origin) else _random(rest.y, shares, rng)
            return _apart(side, client.origin)
        if split.kind == "session" and len(client.y) and sessions[-1] < 0:
            raise UserError(
                f"of client '{client.id}' no sessions are known; say split = \"chronological\"", about="split"
            )
        if split.kind == "official" and len(client.y):
            raise UserError(f"client '{client.id}' has no official split; say split = \"chronological\"", about="split")
        if _overlapping(client.origin):
            return _chronological(client, split)
    return _random(client.y, split, rng)


def _random(y: Array, split: Split, rng: np.random.Generator) -> Array:
    side = np.full(len(y), TRAIN)
    for label in np.unique(y):
        places = rng.permutation(np.flatnonzero(y == label))
        test, val = _counts(len(places), split)
        side[places[:test]] = TEST
        side[places[test : test + val]] = VAL
    return side


def _chronological(client: Collected, split: Split) -> Array:
    y, origin = client.y, client.origin
    order = np.lexsort((origin[:, 1], origin[:, 0], client.session, *([] if client.when is None else [client.when])))
    classes = [order[y[order] == label] for label in np.unique(y)]
    side = np.full(len(y), TRAIN)
    for places in classes:
        side[places] = _in_order(len(places), *_counts(len(places), split))
    side = _apart(side, origin)
    short = [places for places in classes if not (side[places] == TRAIN).any()]
    for places in short:  # for what is asked: nothing validated on, then fewer tested on; at last only trained on
        for fewer in range(_counts(len(places), split)[0], -1, -1):
            side[places] = _apart(_in_order(len(places), fewer, 0), origin[places])
            if (side[places] == TRAIN).any():
                break
    return _apart(side, origin) if short else side


def _in_order(count: int, test: int, val: int) -> Array:
    side = np.full(count, TRAIN)
    side[count - test - val :] = VAL
    side[count - test :] = TEST
    return side


def _apart(side: Array, origin: Array) -> Array:
    """An earlier side gives up what it shares with a later one."""
    for later, earlier in ((TEST, (TRAIN, VAL)), (VAL, (TRAIN,))):
        mine = np.flatnonzero(np.isin(side, earlier))
        side[mine[_meeting(origin[mine], origin[side == later])]] = DROPPED
    return side


def _meeting(first: Array, second: Array) -> Array:
    """Which of the first share time steps with one of the second; both are origins."""
    if not len(first) or not len(second):
        return np.zeros(len(first), bool)
    length = max(first[:, 2].max(), second[:, 2].max()) + 1  # recordings one after another, on one axis
    starts, stops = np.sort(second[:, 0] * length + second[:, 1]), np.sort(second[:, 0] * length + second[:, 2])
    start, stop = first[:, 0] * length + first[:, 1], first[:, 0] * length + first[:, 2]
    # spans that begin before mine ends, less those that ended before mine begins
    return np.asarray(np.searchsorted(starts, stop, "left") > np.searchsorted(stops, start, "right"))


def _overlapping(origin: Array) -> bool:
    """Do any two share time steps?"""
    origin = origin[np.lexsort((origin[:, 1], origin[:, 0]))]
    same = origin[1:, 0] == origin[:-1, 0]
    # sorted by beginning, so if any two of a recording overlap, two neighbours do
    return bool((same & (origin[1:, 1] < origin[:-1, 2])).any())


def _counts(total: int, split: Split) -> tuple[int, int]:
    """How many of a class are tested and validated on; one is always trained on, and one tested on if there are two."""
    test = min(max(round(total * split.test), 1 if split.test else 0), total - 1)
    return test, min(round(total * split.val), total - 1 - test)


def client_data(client: Collected, side: Array) -> ClientData:
    """The client with its samples split; bytes (of images) stay bytes, and numbers of samples whole."""
    x = client.x if client.x.ndim == 1 else _in_kind(client.x)
    parts = []
    for number in range(len(SPLITS)):
        index = np.flatnonzero(side == number)
        arrays = (x[index], client.y[index], client.origin[index].astype(np.int64))
        parts.append(Samples(*map(torch.from_numpy, arrays)))
    train, val, test = parts
    return ClientData(client.id, train, val, test, dict(client.traits))


def _in_kind(x: Array) -> Array:
    return x if x.dtype in (np.uint8, np.float32) else x.astype(np.float32)


def with_samples(federation: Federation, pool: Array) -> Federation:
    """A federation of numbers of samples as one of the samples of the ``pool`` themselves."""
    pool = _in_kind(pool)

    def change(client: ClientData) -> ClientData:
        return client.change(lambda _, samples: replace(samples, x=torch.from_numpy(pool[samples.x.numpy()])))

    return federation.change(change)


def in_floats(client: ClientData) -> ClientData:
    """The client with bytes (of images) as shares of 255."""
    return client.change(lambda _, samples: replace(samples, x=in_shares(samples.x)))


def at_most(federation: Federation, samples: int, seed: int) -> Federation:
    """Every client with at most so many training samples: one of each class, then another, and so on."""
    return federation.change(lambda client: _at_most(client, samples, seed))


def _at_most(client: ClientData, samples: int, seed: int) -> ClientData:
    y = client.train.y.numpy()
    mixed = stream(seed, "samples", client.id).permutation(len(y))
    before = np.empty(len(y), np.int64)  # how many of its class come before it
    for label in np.unique(y):
        mine = mixed[y[mixed] == label]
        before[mine] = np.arange(len(mine))
    chosen = np.sort(mixed[np.argsort(before[mixed], kind="stable")][:samples])
    return replace(client, train=client.train.take(chosen))


def normalised(federation: Federation, how: Normalise) -> Federation:
    """Every client's samples shifted and scaled by mean and deviation of its own training part.

    ``channel``: each channel by its own; ``sensor``: the axes of a sensor by one, so that directions stay; ``feature``:
    every value of a sample by its own, for samples that are features of something and no signals.
    """
    if how == "none":
        return federation
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a channel that is missing altogether
        return federation.change(lambda client: _normalised(in_floats(client), how), on_all_cores)


def _normalised(client: ClientData, how: Normalise) -> ClientData:
    """With numpy: torch's threads get in each other's way on a busy machine, for nothing."""
    x = client.train.x.numpy()
    if not len(x):
        return client
    flat = x.reshape(len(x), -1, 1) if how == "feature" else x.reshape(*x.shape[:2], -1)  # [n, channels, time]
    average = np.mean
    if not np.isfinite(flat.sum()):  # what is missing is dealt with later, and counts for nothing
        flat, average = np.where(np.isfinite(flat), flat, np.nan), np.nanmean
    mean: Array = np.asarray(average(flat, axis=(0, 2), dtype=np.float64))
    square: Array = np.asarray(average((flat - mean.astype(np.float32)[:, None]) ** 2, axis=(0, 2), dtype=np.float64))
    if how == "sensor":
        for group in _sensors(client):
            square[group] = square[group].mean() + mean[group].var()  # within channels + between them
            mean[group] = mean[group].mean()
    deviation = np.sqrt(square)
    deviation[deviation <= 1e-6 * np.abs(mean)] = 1  # a channel that stands still is only shifted
    shape = (1, *x.shape[1:]) if how == "feature" else (1, -1, *[1] * (x.ndim - 2))
    shift, scale = (values.astype(np.float32).reshape(shape) for values in (mean, deviation))

    def scaled(_: str, samples: Samples) -> Samples:
        values = samples.x.numpy() - shift
        values /= scale
        return replace(samples, x=torch.from_numpy(values))

    return client.change(scaled)


def _sensors(client: ClientData) -> list[list[int]]:
    """Numbers of the channels of each sensor: ``acc_x``, ``acc_y`` and ``acc_z`` are one."""
    channels = client.traits.get("channels") or [str(i) for i in range(client.train.x.shape[1])]
    sensors = [name.rpartition("_")[0] or name for name in channels]
    return [[i for i, s in enumerate(sensors) if s == sensor] for sensor in dict.fromkeys(sensors)]


def shared(first: Tensor | None, second: Tensor | None) -> int:
    """How many samples of the first share time steps with one of the second; both are origins."""
    if first is None or second is None or not len(first) or not len(second):
        return 0
    return int(_meeting(first.numpy(), second.numpy()).sum())
