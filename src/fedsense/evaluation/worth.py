"""Is federation worth it? What each client gains over learning alone, and over one model for all; losers first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedsense.evaluation.comparing import Trial, differences
from fedsense.evaluation.statistics import ALPHA, ENOUGH_SEEDS, Differences, holm


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
        p = _over_seeds(d, names)
        each = [
            ClientGain(name, gain, p.get(name, math.nan)) for name, gain in zip(names, d.clients.tolist(), strict=True)
        ]
        found.append(
            Worth(dataset, method, name, len(seeds), d.mean, tuple(sorted(each, key=lambda c: (c.gain, c.client))))
        )
    return found


def _over_seeds(d: Differences, names: Sequence[str]) -> dict[str, float]:
    """Of every client that took part in enough seeds, whether it gains or loses beyond what seeds do."""
    if not d.same:
        return {}
    columns = [column[there > 0] for column, there in zip(np.array(d.rows).T, np.array(d.weights).T, strict=True)]
    known = {name: column for name, column in zip(names, columns, strict=True) if len(column) >= ENOUGH_SEEDS}
    return dict(zip(known, holm([_p(column) for column in known.values()]), strict=True))


def _p(values: np.ndarray[Any, Any]) -> float:
    spread = float(values.std(ddof=1))
    if spread < 1e-12:
        return 1.0 if abs(values.mean()) < 1e-12 else 0.0
    t = abs(values.mean()) / spread * math.sqrt(len(values))
    return float(2 * stats.t.sf(t, len(values) - 1))
