"""Who takes part in a round, where not everyone does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


def draw_diverse(likeness: Array, age: Array, load: Array, count: int, rng: np.random.Generator) -> list[int]:
    """``count`` of the clients, one after another, each with a chance in proportion to the product of

    - novelty: 1 − its largest ``likeness`` ``[N, N]`` to a client chosen before it,
    - age: rounds since it was last heard of, plus one, so that nobody is left out for good,
    - capability: 1, or for a device that needs longer than the median one, median ``load`` / its load.
    """
    capability = np.minimum(1.0, np.median(load) / load)
    novelty = np.ones(len(load))
    chosen: list[int] = []
    for _ in range(count):
        chance = novelty * (1.0 + age) * capability
        chance[chosen] = 0.0
        if not chance.any():  # all that are left are copies of chosen ones
            chance = np.ones(len(load))
            chance[chosen] = 0.0
        chosen.append(int(rng.choice(len(load), p=chance / chance.sum())))
        novelty = np.minimum(novelty, np.clip(1 - likeness[chosen[-1]], 0, 1))
    return sorted(chosen)
