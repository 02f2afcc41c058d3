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


@dataclass(frozen=True)
class Schedule:
    """A number of epochs over a client's training data, in minibatches; see :meth:`Work.epochs`."""

    key: tuple[object, ...]
    count: int
    batch: int

    def steps(self, samples: int) -> Iterator[Step]:
        """The steps for a client with so many samples; a last, smaller minibatch is kept."""
        for epoch in range(self.count):
            rng = stream(*self.key, epoch)
            order = rng.permutation(samples)
            for start in range(0, samples, self.batch):
                yield Step(order[start : start + self.batch], int(rng.integers(2**63)))


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
