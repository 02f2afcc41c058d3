"""What a score costs: rounds, megabytes and seconds until a target, and who is cheapest for how good it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Course:
    """One run over time: its score at evaluated rounds, and what it had cost by then."""

    dataset: str
    method: str
    seed: int
    rounds: list[int]
    scores: list[float]  # mean over clients
    megabytes: list[float]  # up and down, all clients, from the beginning
    seconds: list[float]  # of local training, all clients


@dataclass(frozen=True)
class Reached:
    """A method on its way to a target; means over the seeds that got there."""

    dataset: str
    method: str
    target: float
    seeds: int
    reached: int  # seeds that did
    rounds: float
    megabytes: float
    seconds: float
    speed_up: float = math.nan  # rounds of the reference to rounds of this one, where every seed got there


@dataclass(frozen=True)
class Cost:
    """A method on a dataset: how good, and for how much; means over seeds."""

    dataset: str
    method: str
    score: float
    megabytes: float
    seconds: float
    frontier_megabytes: bool = False  # nobody is as good for less, or better for as much
    frontier_seconds: bool = False


def reach(
    courses: Sequence[Course],
    targets: Mapping[str, float],
    reference: str | None = None,
    lower_is_better: bool = False,
) -> list[Reached]:
    """Until the first evaluated round whose mean score is the target or better; ``targets`` by dataset that has one."""
    found = []
    for dataset, method in dict.fromkeys((c.dataset, c.method) for c in courses if c.dataset in targets):
        runs = [c for c in courses if (c.dataset, c.method) == (dataset, method)]
        target = targets[dataset]
        places = [_first(run.scores, target, lower_is_better) for run in runs]
        there = [
            (run.rounds[place], run.megabytes[place], run.seconds[place])
            for run, place in zip(runs, places, strict=True)
            if place is not None
        ]
        rounds, megabytes, seconds = np.mean(there, axis=0).tolist() if there else [math.nan] * 3
        found.append(Reached(dataset, method, target, len(runs), len(there), rounds, megabytes, seconds))
    base = {r.dataset: r for r in found if r.method == reference and r.reached == r.seeds}
    return [
        replace(r, speed_up=base[r.dataset].rounds / r.rounds)
        if r.dataset in base and r.reached == r.seeds and r.rounds
        else r
        for r in found
    ]


def _first(scores: Sequence[float], target: float, lower_is_better: bool) -> int | None:
    sign = -1 if lower_is_better else 1
    return next((i for i, score in enumerate(scores) if sign * score >= sign * target - 1e-12), None)


def frontier(costs: Sequence[Cost], lower_is_better: bool = False) -> list[Cost]:
    """With marks for those no other method beats in score and in cost."""
    return [
        replace(
            mine,
            frontier_megabytes=not any(_beats(c, mine, "megabytes", lower_is_better) for c in costs),
            frontier_seconds=not any(_beats(c, mine, "seconds", lower_is_better) for c in costs),
        )
        for mine in costs
    ]


def _beats(one: Cost, other: Cost, cost: str, lower_is_better: bool) -> bool:
    if one.dataset != other.dataset or math.isnan(one.score) or math.isnan(other.score):
        return False
    better = (other.score - one.score) if lower_is_better else (one.score - other.score)
    cheaper = getattr(other, cost) - getattr(one, cost)
    return bool(better >= 0 and cheaper >= 0 and (better > 0 or cheaper > 0))
