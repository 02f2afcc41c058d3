"""Is federation worth it? What each client gains over learning alone, and over one model for all; losers first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedsense.evaluation.comparing import Trial, differences
from fedsense.evaluation.statistics import ALPHA, ENOUGH_SEEDS, holm


@dataclass(frozen=True)
class ClientGain:
    client: str
    gain: float  # mean over seeds; above zero is good
    p_holm: float  # paired t-test over this client's seeds, Holm's correction over the clients; NaN with few seeds

    @property
    def beyond_noise(self) -> bool | None:
        """Whether it is more than what seeds do; None if there are too few of them to know."""
        return None if math.isnan(self.p_holm) else self.p_holm <= ALPHA


@dataclass(frozen=True)
class Worth:
    """What a method brings the clients of a dataset over something else."""

    dataset: str
    method: str
    over: str  # "local", or "the global model of fedavg"
    seeds: int
    mean: float
    clients: tuple[ClientGain, ...]  # the most harmed first

    @property
    def harmed(self) -> list[ClientGain]:
        return [c for c in self.clients if c.gain < -1e-12]

    @property
    def gained(self) -> list[ClientGain]:
        return [c for c in self.clients if c.gain > 1e-12]

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "clients": [{**asdict(c), "beyond_noise": c.beyond_noise} for c in self.clients],
            "harmed": [c.client for c in self.harmed],
            "gained": len(self.gained),
        }


def worth(
    trials: Sequence[Trial],
    over: Sequence[Trial],
    name: str,
    same: Mapping[str, bool],
    lower_is_better: bool = False,
) -> list[Worth]:
    """Every method's gains over the runs ``over``, which ``name`` says what they are."""
    found = []
    for dataset, method in dict.fromkeys((t.dataset, t.method) for t in trials):
        ours = [t for t in trials if (t.dataset, t.method) == (dataset, method)]
        theirs = [t for t in over if t.dataset == dataset]
        d, seeds, names = differences(ours, theirs, same[dataset], lower_is_better)
        if d is None:
            continue
        known = d.same and len(seeds) >= ENOUGH_SEEDS
        p = holm([_p(column) for column in np.array(d.rows).T]) if known else [math.nan] * len(names)
        each = [ClientGain(*entry) for entry in zip(names, d.clients.tolist(), p, strict=True)]
        found.append(
            Worth(dataset, method, name, len(seeds), d.mean, tuple(sorted(each, key=lambda c: (c.gain, c.client))))
        )
    return found


def _p(values: np.ndarray[Any, Any]) -> float:
    spread = float(values.std(ddof=1))
    if spread < 1e-12:
        return 1.0 if abs(values.mean()) < 1e-12 else 0.0
    t = abs(values.mean()) / spread * math.sqrt(len(values))
    return float(2 * stats.t.sf(t, len(values) - 1))
