"""Which method is better, and how sure that is: from every client's scores of every run to verdicts in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from fedsense.evaluation.statistics import (
    ALPHA,
    ENOUGH_SEEDS,
    Differences,
    bootstrap,
    holm,
    interval,
    over_seeds_and_clients,
    rank_biserial,
    seeds_needed,
    wilcoxon,
)
from fedsense.evaluation.summary import POOLED

Verdict = Literal["win", "not shown", "too few seeds", "too few clients", "not comparable"]
FEWEST_CLIENTS = 6  # of five, all on one side, the signed-rank test says p = 0.0625


@dataclass(frozen=True)
class Trial:
    """One run: every client's score, as summarised."""

    dataset: str
    method: str
    seed: int
    scores: Mapping[str, float]
    weights: Mapping[str, float]  # of the clients in a mean


@dataclass(frozen=True)
class Score:
    """A method on a dataset."""

    dataset: str
    method: str
    seeds: int
    clients: int
    mean: float
    std_clients: float  # over clients (population), mean over seeds
    std_seeds: float  # of the seeds' means (sample); NaN of one seed


@dataclass(frozen=True)
class Pair:
    """Two methods on one dataset. A gain is in favour of the first, whether high or low scores are good."""

    dataset: str
    first: str
    second: str
    seeds: int
    clients: int
    gain: float
    low: float  # 95 % interval of the gain
    high: float
    interval_over: str
    effect: float  # matched-pairs rank-biserial over clients
    gaining: int  # clients for whom the first is better
    losing: int
    p_clients: float  # Wilcoxon's signed-rank test
    p_clients_holm: float
    p_seeds_and_clients: float
    p: float  # the larger of the two
    p_holm: float
    verdict: Verdict
    winner: str | None
    seeds_needed: int | None
    says: str
    pooled: bool = False  # one score for all people together, which is no client's: seeds alone judge it

    @property
    def blocked_by_clients(self) -> bool:
        """What is lacking is not seeds: too few clients agree."""
        return not self.pooled and (self.p_clients > self.p_seeds_and_clients or self.gain * self.effect <= 0)


@dataclass(frozen=True)
class Overall:
    """Two methods over all datasets, each counting the same."""

    first: str
    second: str
    datasets: int
    gain: float
    low: float
    high: float


def scores(trials: Sequence[Trial]) -> list[Score]:
    found = []
    for dataset, method in dict.fromkeys((t.dataset, t.method) for t in trials):
        runs = [t for t in trials if (t.dataset, t.method) == (dataset, method) and t.scores]
        if not runs:
            continue
        means = [mean_of(run) for run in runs]
        spread = float(np.mean([np.std(list(run.scores.values())) for run in runs]))
        between = float(np.std(means, ddof=1)) if len(runs) > 1 else math.nan
        clients = max(len(run.scores) for run in runs)
        found.append(Score(dataset, method, len(runs), clients, float(np.mean(means)), spread, between))
    return found


def mean_of(run: Trial) -> float:
    weights = np.array([run.weights[c] for c in run.scores])
    return float(np.array(list(run.scores.values())) @ weights / weights.sum())


def differences(
    first: Sequence[Trial], second: Sequence[Trial], same: bool, lower_is_better: bool = False
) -> tuple[Differences | None, list[int], list[str]]:
    """The gains of the first method, with the seeds both have and the clients of the columns."""
    ours, theirs = {t.seed: t for t in first}, {t.seed: t for t in second}
    seeds = [seed for seed in ours if seed in theirs]
    sign = -1.0 if lower_is_better else 1.0
    clients = [[c for c in ours[s].scores if c in theirs[s].scores] for s in seeds]
    if not seeds or not all(clients):
        return None, seeds, []
    if same:  # whoever took part in some seed has a column
        everyone = list(dict.fromkeys(c for of in clients for c in of))
        clients, names = [everyone] * len(seeds), everyone
    else:
        names = [f"{c} of seed {s}" for s, of in zip(seeds, clients, strict=True) for c in of]
    nan = math.nan
    rows, weights = [], []
    for s, of in zip(seeds, clients, strict=True):
        rows.append([sign * (ours[s].scores.get(c, nan) - theirs[s].scores.get(c, nan)) for c in of])
        weights.append([ours[s].weights.get(c, 0.0) for c in of])
    return Differences.of(rows, weights, same), seeds, names


def pairs(
    trials: Sequence[Trial],
    same: Mapping[str, bool],
    against: str | None = None,
    lower_is_better: bool = False,
) -> tuple[list[Pair], list[Overall]]:
    """Every two methods of a dataset, or every one with the reference; corrected for all that are tested at once.

    ``same``: dataset → whether a client is the same in all seeds.
    """
    found: list[Pair] = []
    draws: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    gains: dict[tuple[str, str], list[float]] = {}
    tested: list[tuple[Pair, Differences]] = []
    for first, second in _couples(list(dict.fromkeys(t.method for t in trials)), against):
        for dataset in dict.fromkeys(t.dataset for t in trials):
            of = [[t for t in trials if (t.dataset, t.method) == (dataset, m)] for m in (first, second)]
            if not all(of):
                continue
            pooled = all(trial.scores.keys() == {POOLED} for runs in of for trial in runs)
            d, seeds, _ = differences(of[0], of[1], same[dataset] or pooled, lower_is_better)
            if d is None:
                found.append(_not_comparable(dataset, first, second, seeds))
                continue
            over_seeds = len(seeds) >= ENOUGH_SEEDS
            draw = bootstrap(d, over_seeds, seed=17 * len(draws.setdefault((first, second), [])))
            draws[first, second].append(draw)
            gains.setdefault((first, second), []).append(d.mean)
            tested.append((replace(_measured(dataset, first, second, d, draw, over_seeds), pooled=pooled), d))
    found += _judged(tested)
    overall = [
        Overall(*names, len(of), float(np.mean(gains[names])), *interval(np.mean(of, axis=0)))
        for names, of in draws.items()
        if len(of) > 1
    ]
    return found, overall


def _couples(methods: Sequence[str], against: str | None) -> list[tuple[str, str]]:
    if against is None:
        return [(second, first) for first, second in combinations(methods, 2)]  # recipes begin with the plainest
    return [(method, against) for method in methods if method != against]


def _not_comparable(dataset: str, first: str, second: str, seeds: Sequence[int]) -> Pair:
    nan = math.nan
    why = "no client has a score in both" if seeds else "no seed in common"
    return Pair(dataset, first, second, len(seeds), 0, nan, nan, nan, "", nan, 0, 0, nan, nan, nan, nan, nan,
                "not comparable", None, None, why)  # fmt: skip


def _measured(
    dataset: str, first: str, second: str, d: Differences, draw: np.ndarray[Any, Any], over_seeds: bool
) -> Pair:
    clients = len(d.clients)
    nothing = clients == 1 and not over_seeds  # one number
    low, high = (math.nan, math.nan) if nothing else interval(draw)
    p_clients = wilcoxon(d.clients) if clients > 1 else math.nan
    p_both = over_seeds_and_clients(d)
    known = [p for p in (p_clients, p_both) if not math.isnan(p)]
    return Pair(
        dataset,
        first,
        second,
        len(d.rows),
        clients,
        d.mean,
        low,
        high,
        "" if nothing else "seeds and clients" if over_seeds else "clients, these seeds only",
        rank_biserial(d.clients),
        int((d.clients > 1e-12).sum()),
        int((d.clients < -1e-12).sum()),
        p_clients,
        math.nan,
        p_both,
        max(known, default=math.nan),
        math.nan,
        "not shown",
        None,
        None,
        "",
    )


def _judged(tested: Sequence[tuple[Pair, Differences]]) -> list[Pair]:
    """Holm's correction over all of them, and what may then be said.

    One family: a pair with too few seeds wins nothing, and counts as compared all the same.
    """
    over_clients = holm([1.0 if math.isnan(pair.p_clients) else pair.p_clients for pair, _ in tested])
    over_both = holm([pair.p if pair.seeds >= ENOUGH_SEEDS and _can_win(pair) else 1.0 for pair, _ in tested])
    left = len(tested) - sum(p <= ALPHA for p in over_both)  # what Holm's procedure corrects the others for
    found = []
    for i, (pair, d) in enumerate(tested):
        needed = seeds_needed(d.mean, d.seed_variance, d.client_variance, len(d.rows[0]), ALPHA / max(len(tested), 1))
        if needed is not None:
            needed = max(needed, ENOUGH_SEEDS)
        pair = replace(
            pair,
            p_clients_holm=math.nan if math.isnan(pair.p_clients) else over_clients[i],
            p_holm=over_both[i] if pair.seeds >= ENOUGH_SEEDS else math.nan,
            seeds_needed=needed,
        )
        verdict, says = _verdict(pair, left)
        better = pair.first if pair.gain > 0 else pair.second
        found.append(replace(pair, verdict=verdict, says=says, winner=better if verdict == "win" else None))
    return found


def _can_win(pair: Pair) -> bool:
    return pair.pooled or pair.clients > 1


def _verdict(pair: Pair, together: int) -> tuple[Verdict, str]:
    ahead = pair.first if pair.gain > 0 else pair.second
    if pair.seeds < ENOUGH_SEEDS:
        seeds = "one seed" if pair.seeds == 1 else f"{pair.seeds} seeds"
        if pair.p == 1.0 and abs(pair.gain) < 1e-12:
            return "too few seeds", f"no verdict: {seeds}, and no difference in them"
        if pair.seeds_needed is None and pair.seeds > 1:
            return "too few seeds", f"no verdict: {seeds}; {ahead} is ahead on these only, needs more clients too"
        least = pair.seeds_needed or ENOUGH_SEEDS
        about = "at least" if least == ENOUGH_SEEDS else "about"
        return "too few seeds", f"no verdict: {seeds}; {ahead} is ahead on these only, needs {about} {least}"
    if pair.p_holm <= ALPHA and (pair.pooled or pair.gain * pair.effect > 0):
        return "win", f"{ahead} is better"
    if not pair.pooled and 2.0 ** (1 - pair.clients) * together > ALPHA:
        if pair.clients < FEWEST_CLIENTS:
            clients = "one client" if pair.clients == 1 else f"{pair.clients} clients"
            return "too few clients", f"no verdict: {clients}; {FEWEST_CLIENTS} are the fewest"
        return "too few clients", f"no verdict: {pair.clients} clients are too few for {together} pairs at once"
    if abs(pair.gain) < 1e-12:
        return "not shown", "no difference"
    if pair.blocked_by_clients:
        better = [f"{pair.first} is better for {pair.gaining}", f"{pair.second} for {pair.losing}"]
        return "not shown", f"no difference shown: {' and '.join(better)} of {pair.clients} clients"
    if pair.seeds_needed is None:
        return "not shown", "no difference shown; clients differ too much for more seeds to help"
    more = max(pair.seeds_needed, pair.seeds + 1)
    return "not shown", f"no difference shown; one this large takes about {more} seeds"
