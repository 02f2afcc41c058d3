"""Methods ranked on several datasets: Friedman's test and Nemenyi's critical difference (Demšar, JMLR 2006)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from fedsense.evaluation.statistics import ALPHA


@dataclass(frozen=True)
class Ranks:
    """Average ranks, 1 the best; with ``why_not`` there are none."""

    datasets: tuple[str, ...] = ()
    ranks: Mapping[str, float] | None = None  # method → average rank, the best first
    friedman: float = math.nan  # chi-square
    p: float = math.nan
    iman_davenport: float = math.nan  # F, less conservative than chi-square; NaN where all datasets agree
    p_iman_davenport: float = math.nan
    critical_difference: float = math.nan
    cliques: tuple[tuple[str, ...], ...] = ()  # methods whose ranks differ by less; largest groups only
    left_out: tuple[str, ...] = ()  # methods that are not on all datasets
    why_not: str = ""


def critical_difference(methods: int, datasets: int, alpha: float = ALPHA) -> float:
    """CD = q √(k(k + 1)/(6N)), q the studentised range with infinite freedom, over √2."""
    q = stats.studentized_range.isf(alpha, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * datasets)))


def rank(scores: Mapping[str, Mapping[str, float]], lower_is_better: bool = False) -> Ranks:
    """``scores``: dataset → method → score."""
    everywhere = set.intersection(*(set(of) for of in scores.values())) if scores else set()
    methods = [m for m in dict.fromkeys(m for of in scores.values() for m in of) if m in everywhere]
    left_out = tuple(dict.fromkeys(m for of in scores.values() for m in of if m not in everywhere))
    if len(scores) < 2:
        return Ranks(tuple(scores), left_out=left_out, why_not="ranks are over datasets, and there is only one")
    if len(methods) < 3:
        why = f"ranks need three methods that are on all {len(scores)} datasets; there are {len(methods)}"
        return Ranks(tuple(scores), left_out=left_out, why_not=why)
    table = np.array([[of[m] for m in methods] for of in scores.values()])
    sign = 1 if lower_is_better else -1
    average = stats.rankdata(np.round(sign * table, 12), axis=1).mean(0)
    n, k = table.shape
    chi, p = (0.0, 1.0) if _all_tie(table) else stats.friedmanchisquare(*np.round(sign * table, 12).T)
    rest = n * (k - 1) - chi
    f = (n - 1) * chi / rest if rest > 1e-9 else math.nan  # all datasets agree: F has no end, however few they are
    order = np.argsort(average, kind="stable")
    ranks = {methods[i]: float(average[i]) for i in order}
    difference = critical_difference(k, n)
    return Ranks(
        tuple(scores),
        ranks,
        float(chi),
        float(p),
        float(f),
        float(stats.f.sf(f, k - 1, (k - 1) * (n - 1))),
        difference,
        cliques(ranks, difference),
        left_out,
    )


def _all_tie(table: np.ndarray[Any, Any]) -> bool:
    return bool((np.ptp(table, axis=1) < 1e-12).all())


def cliques(ranks: Mapping[str, float], difference: float) -> tuple[tuple[str, ...], ...]:
    """The largest groups of methods whose ranks lie within the critical difference."""
    names: Sequence[str] = sorted(ranks, key=lambda name: ranks[name])
    found: list[tuple[str, ...]] = []
    for start, name in enumerate(names):
        group = tuple(other for other in names[start:] if ranks[other] - ranks[name] <= difference)
        if len(group) > 1 and not (found and set(group) <= set(found[-1])):
            found.append(group)
    return tuple(found)
