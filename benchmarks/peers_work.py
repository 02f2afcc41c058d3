"""What every system of benchmarks/peers.py has to do: the workloads, their data, their count of operations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20240601


@dataclass(frozen=True)
class Workload:
    """FedAvg; with ``head_epochs`` heads stay with their clients and train first, then bodies, which are averaged."""

    name: str
    clients: int
    samples: int  # of each client
    shape: tuple[int, ...]
    classes: int
    cohort: int  # clients in a round
    rounds: int
    batch: int
    epochs: int  # of the whole network, or of the body where heads are personal
    optimiser: str  # starts afresh with every phase of every round
    lr: float
    body_macs: int  # multiplications of one sample's forward pass; see the networks in peers_loop.py
    head_macs: int
    features: int
    head_epochs: int = 0

    @property
    def personal_heads(self) -> bool:
        return self.head_epochs > 0


CNN_MACS = 6 * 32 * 5 * 124 + 32 * 64 * 5 * 58 + 64 * 64 * 5 * 25 + 1600 * 128, 128 * 6
MLP_MACS = 30 * 64 + 64 * 64 + 64 * 64, 64 * 20
WORKLOADS = {
    w.name: w
    for w in (
        Workload("W1", 100, 128, (6, 128), 6, 10, 20, 32, 5, "sgd", 0.01, *CNN_MACS, features=128),
        Workload("W2", 20, 256, (6, 128), 6, 20, 5, 64, 2, "sgd", 0.01, *CNN_MACS, features=128),
        Workload("W3", 100, 500, (30,), 20, 10, 20, 100, 1, "adam", 0.001, *MLP_MACS, features=64, head_epochs=9),
    )
}


def operations(work: Workload) -> int:
    """Floating-point operations of one round, two a multiplication; optimiser, averaging and the rest count nothing.

    Forward and backward are three forward passes. Of a frozen body there is the forward pass alone; of a frozen head
    the forward pass and the gradient of what comes in, but none of its weights.
    """
    if work.personal_heads:
        of_head_epoch = work.body_macs + 3 * work.head_macs
        of_body_epoch = 3 * work.body_macs + 2 * work.head_macs
        macs = work.head_epochs * of_head_epoch + work.epochs * of_body_epoch
    else:
        macs = work.epochs * 3 * (work.body_macs + work.head_macs)
    return 2 * macs * work.cohort * work.samples


def arrays(work: Workload) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Samples [clients, samples, …] and labels: noise about a template of the class, so that there is some learning."""
    rng = np.random.default_rng(SEED)
    y = rng.integers(work.classes, size=(work.clients, work.samples))
    x = rng.standard_normal((*y.shape, *work.shape), dtype=np.float32)
    templates = rng.standard_normal((work.classes, *work.shape), dtype=np.float32)
    x += 3 / math.sqrt(math.prod(work.shape)) * templates[y]
    return x, y


@dataclass
class Outcome:
    """What a system's run tells. ``loss`` is the mean over the last round's steps, where heads are personal over those
    of the bodies; ``moved`` is how far the averaged parameters have come from where they started."""

    times: list[float]  # of the clock on the wall: when the first round began, when each round ended
    loss: float
    moved: float
    versions: dict[str, str]

    def measured(self, started: float, work: Workload) -> dict[str, Any]:
        took = np.diff(self.times)
        seconds = float(np.median(took[1:] if len(took) > 1 else took))  # the first round warms up
        return {
            "seconds_per_round": seconds,
            "gflops": operations(work) / seconds / 1e9,
            "startup_s": self.times[0] - started,
            "first_round_s": float(took[0]),
            "rounds": len(took),
            "loss": self.loss,
            "moved": self.moved,
            "versions": self.versions,
        }
