"""Tests, effect sizes and intervals for paired differences of two methods. Numbers in, numbers out.

The differences d[seed, client] of two methods are not independent: all clients of a run share what one seed led to,
and a client is the same person in every run. See docs/adr/0012-comparing.md for what follows from that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

ALPHA, POWER = 0.05, 0.8
ENOUGH_SEEDS = 5  # with fewer, nobody knows how much runs differ
DRAWS = 4_000  # of a bootstrap
MOST_SEEDS = 1000  # that one would ever ask for
Array = NDArray[np.float64]


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p₍ᵢ₎ · (m − i + 1), i = 1 for the smallest; never falling, never above one."""
    corrected, highest = [1.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        highest = max(highest, min(1.0, p[i] * (len(p) - place)))
        corrected[i] = highest
    return corrected


def wilcoxon(differences: ArrayLike) -> float:
    """Two-sided p of the signed-rank test; zeros are left out.

    Exact also where differences tie: all signs are equally likely, so the distribution of R⁺ is the product of
    (1 + x^rank)/2 over the ranks, here doubled to be whole.
    """
    d = _not_zero(differences)
    if not len(d):
        return 1.0
    if len(d) > 200:
        return float(stats.wilcoxon(d, method="approx").pvalue)
    ranks = np.rint(2 * stats.rankdata(np.abs(d))).astype(int)
    ways = np.zeros(ranks.sum() + 1)
    ways[0] = 1.0
    for rank in ranks:
        ways[rank:] += ways[:-rank].copy()
        ways /= 2
    above = int(ranks[d > 0].sum())
    return float(min(1.0, 2 * min(ways[: above + 1].sum(), ways[above:].sum())))


def rank_biserial(differences: ArrayLike) -> float:
    """Matched-pairs rank-biserial correlation (R⁺ − R⁻)/(R⁺ + R⁻): 1 if everyone gains, −1 if everyone loses."""
    d = _not_zero(differences)
    if not len(d):
        return 0.0
    ranks = stats.rankdata(np.abs(d))
    return float((ranks * np.sign(d)).sum() / ranks.sum())


def _not_zero(differences: ArrayLike) -> Array:
    d = np.asarray(differences, dtype=float)
    d = np.round(d, 12)  # 0.8 − 0.7 and 0.9 − 0.8 shall tie
    return np.asarray(d[d != 0])


@dataclass(frozen=True)
class Differences:
    """d[seed, client] of two methods on one dataset.

    ``same``: a column is the same client in all seeds; where it took no part, its weight and its difference are zero.
    Else every seed has clients of its own (data drawn with the seed), and rows may differ in length.
    """

    rows: tuple[Array, ...]
    weights: tuple[Array, ...]  # of the clients; each row sums to one
    same: bool = True

    @staticmethod
    def of(rows: Sequence[ArrayLike], weights: Sequence[ArrayLike] | None = None, same: bool = True) -> Differences:
        """Where clients are the same, a difference that is NaN is one that there is not."""
        values = [np.asarray(row, dtype=float) for row in rows]
        given = [np.ones(len(row)) for row in values] if weights is None else [np.asarray(w, float) for w in weights]
        if same:  # a client weighs the same wherever it takes part
            there = ~np.isnan(values)
            given = list(there * (np.sum(given * there, axis=0) / np.maximum(there.sum(0), 1)))
            values = list(np.nan_to_num(values))
        return Differences(tuple(values), tuple(w / w.sum() for w in given), same)

    @property
    def seeds(self) -> Array:
        """Every seed's mean over clients."""
        return np.array([w @ row for w, row in zip(self.weights, self.rows, strict=True)])

    @property
    def clients(self) -> Array:
        """Every client's mean over its seeds; of clients that differ from seed to seed all of them."""
        if not self.same:
            return np.concatenate(self.rows)
        there = np.array(self.weights) > 0
        return np.asarray(np.sum(self.rows, axis=0) / there.sum(0))

    @property
    def mean(self) -> float:
        return float(self.seeds.mean())

    @property
    def seed_variance(self) -> float:
        """Var d̄ₛ, of one seed."""
        return float(self.seeds.var(ddof=1)) if len(self.rows) > 1 else math.nan

    @property
    def client_variance(self) -> float:
        """Σ w²(d̄_c − d̄)² · C/(C − 1): the part of the mean's variance that is due to who the clients are.

        None of its own where clients differ from seed to seed: the seeds' means then vary with them. Where some of the
        same people take part in each seed, part of it is counted twice, which errs on the safe side.
        """
        n = len(self.rows[0])
        if not self.same or n < 2:
            return 0.0
        return float((np.mean(self.weights, axis=0) ** 2) @ (self.clients - self.mean) ** 2 * n / (n - 1))


def over_seeds_and_clients(d: Differences) -> float:
    """Two-sided p that the mean is zero, for other seeds and other clients than these.

    t = d̄ / √(Vₛ + V_c) with the variances of the mean over seeds and over clients: both are random, so both count
    (Clark's min F′). Its p is the mean of those with S − 1 and C − 1 degrees of freedom, weighted by the variances
    (Cochran's way with two unequal variances), which errs on the safe side.
    """
    if len(d.rows) < 2:
        return math.nan
    by_seeds, by_clients = d.seed_variance / len(d.rows), d.client_variance
    both = by_seeds + by_clients
    if both < 1e-24:
        return 1.0 if abs(d.mean) < 1e-12 else 0.0
    t = abs(d.mean) / math.sqrt(both)
    p = by_seeds * stats.t.sf(t, len(d.rows) - 1)
    if by_clients:
        p += by_clients * stats.t.sf(t, len(d.rows[0]) - 1)
    return float(2 * p / both)


def seeds_needed(
    mean: float,
    seed_variance: float,
    client_variance: float = 0.0,
    clients: int = 2,
    alpha: float = ALPHA,
    power: float = POWER,
) -> int | None:
    """Seeds with which a difference like this is found significant with this power; None if no number of them would do.

    By the noncentral t distribution; ``client_variance`` is that of the mean and does not shrink with more seeds.
    """
    if mean == 0 or not math.isfinite(seed_variance):
        return None
    for n in np.split(np.arange(2, MOST_SEEDS + 1), [40]):  # mostly, few do
        by_seeds = np.maximum(seed_variance, 1e-24) / n
        both = by_seeds + client_variance
        of_seeds, of_clients = stats.t.isf(alpha / 2, n - 1), stats.t.isf(alpha / 2, max(clients - 1, 1))
        critical = (by_seeds * of_seeds + client_variance * of_clients) / both
        freedom = both**2 / (by_seeds**2 / (n - 1) + client_variance**2 / max(clients - 1, 1))
        away = np.minimum(abs(mean) / np.sqrt(both), 35.0)  # beyond, there is no doubt, and scipy no number
        enough = np.flatnonzero(stats.nct.sf(critical, freedom, away) >= power)
        if len(enough):
            return int(n[enough[0]])
    return None


def bootstrap(d: Differences, over_seeds: bool, seed: int = 0) -> Array:
    """Means of resampled clients and, if so asked, seeds, as far from the mean as few seeds make it uncertain.

    The same clients in all seeds are resampled beside the seeds. Clients that every seed has of its own come and go
    with their seed, or if seeds stay, are resampled within it. Resampling few values gives too little variance and
    knows nothing of the doubt about it: the means are moved out so that 95 % of them are as wide as those of the test
    above, t · √V to either side, or to one more than to the other. The same numbers every time.
    """
    seeds = len(d.rows)
    parts: list[tuple[float, int]] = []  # a variance of the mean, and from how many values it is known
    if over_seeds:
        by_seed = _shares(seeds, seed)
        parts.append((d.seed_variance / seeds, seeds))
    else:
        by_seed = np.full((1, seeds), 1 / seeds)
    if d.same:
        by_client, weights = _shares(len(d.rows[0]), seed + 1), np.array(d.weights)
        sums, weight = (((by_seed @ each) * by_client).sum(1) for each in (weights * np.array(d.rows), weights))
        means = np.where(weight > 0, sums / np.maximum(weight, 1e-12), d.mean)
        parts.append((d.client_variance, len(d.rows[0])))
    elif over_seeds:
        means = by_seed @ d.seeds
    else:
        means = np.zeros(DRAWS)
        for number, (row, weights) in enumerate(zip(d.rows, d.weights, strict=True)):
            by_client = _shares(len(row), seed + number) * weights
            means += by_client @ row / by_client.sum(1) / seeds
            spread = float(weights**2 @ (row - weights @ row) ** 2) * len(row) / max(len(row) - 1, 1)
            parts.append((spread / seeds**2, len(row)))
    return np.asarray(d.mean + (means - d.mean) * _widening(means, parts))


def interval(draws: Array) -> tuple[float, float]:
    low, high = np.quantile(draws, [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def _widening(means: Array, parts: Sequence[tuple[float, int]]) -> float:
    """What makes the interval 2 t √V wide; t as in the test above."""
    parts = [(v, n) for v, n in parts if n > 1 and v > 0]
    whole = sum(v for v, _ in parts)
    low, high = interval(means)
    if whole < 1e-24 or high - low < 1e-12:
        return 1.0
    critical = sum(v * stats.t.isf(ALPHA / 2, n - 1) for v, n in parts) / whole
    return float(2 * critical * math.sqrt(whole) / (high - low))


@lru_cache(maxsize=32)
def _shares(of: int, seed: int) -> Array:
    """How often each of so many is drawn, as a share; a row a draw."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.multinomial(of, np.full(of, 1 / of), DRAWS) / of)
