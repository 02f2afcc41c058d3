"""Randomness is an argument: every random number comes from a stream named by what it is for.

``stream(seed, round, client, purpose)`` gives the same numbers wherever and whenever it is asked, so any executor, any
number of workers and any interruption give the same result. No global generator is read anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


def seed_of(*key: object) -> int:
    """A 63-bit number named by ``key``."""
    text = "\x1f".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def stream(*key: object) -> np.random.Generator:
    """A generator of random numbers of its own for ``key``."""
    return np.random.Generator(np.random.Philox(seed_of(*key)))


class Step(NamedTuple):
    """One optimiser step: which samples, and the seed of what is random in the forward pass (dropout)."""

    samples: NDArray[np.int64]
    noise: int


class Steps(NamedTuple):
    """All steps of a schedule: rows of samples ``[steps, batch]``, of which the first ``sizes`` count, and seeds."""

    samples: NDArray[np.int64]
    sizes: NDArray[np.int64]
    noise: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Schedule:
    """A number of epochs over a client's training data, in minibatches; see :meth:`Work.epochs`."""

    key: tuple[object, ...]
    count: int
    batch: int

    def table(self, samples: int) -> Steps:
        """The steps for a client with so many samples; a last, smaller minibatch is kept, and filled up with zeros."""
        width, many = min(self.batch, samples), -(-samples // self.batch)
        rng = stream(*self.key)
        rows = np.zeros((self.count, many * width), np.int64)
        rows[:, :samples] = np.arange(samples)
        rng.permuted(rows[:, :samples], axis=1, out=rows[:, :samples])
        noise = rng.integers(2**63, size=self.count * many)
        sizes = np.minimum(self.batch, samples - self.batch * np.arange(many))
        return Steps(rows.reshape(self.count * many, width), np.tile(sizes, self.count), noise)

    def steps(self, samples: int) -> Iterator[Step]:
        """The same one by one."""
        for rows, size, noise in zip(*self.table(samples), strict=True):
            yield Step(rows[:size], int(noise))


@dataclass(frozen=True)
class Work:
    """What one client may draw on in one round: minibatches and streams that belong to (seed, round, client)."""

    seed: int
    round: int
    client: str
    batch: int = 32

    def rng(self, *purpose: object) -> np.random.Generator:
        """Random numbers for a purpose of the method's own."""
        return stream(self.seed, self.round, self.client, *purpose)

    def epochs(self, count: int, purpose: str = "train") -> Schedule:
        """``count`` epochs of minibatches; give phases that follow one another purposes of their own."""
        return Schedule((self.seed, self.round, self.client, purpose), count, self.batch)
