"""Runs compared: the numbers of ``fedsense compare`` and ``fedsense.compare``, from results to verdicts.

Why it is done like this: docs/adr/0012-comparing.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedsense.engine.record import read_lines, totals, without_nan
from fedsense.errors import UserError, nearest
from fedsense.evaluation.comparing import Overall, Pair, Score, Trial, pairs, scores
from fedsense.evaluation.metrics import LOWER_IS_BETTER
from fedsense.evaluation.ranks import Ranks, rank
from fedsense.evaluation.reaching import Cost, Course, Reached, frontier, reach
from fedsense.evaluation.summary import Row, check_selection, curve
from fedsense.evaluation.worth import Worth, worth
from fedsense.experiment import find_experiments
from fedsense.result import Result, Spread, each_dataset, fingerprint, same_clients, tell_apart

LAST_INSTEAD = (
    "the recipe shows the round that is best on test data, which is no fair test; here the last round counts "
    "(--summary best-on-test if you want the other)"
)


@dataclass(frozen=True)
class Comparison:
    """What may be said of several runs."""

    results: list[Result] = field(repr=False)
    view: str
    metric: str
    selection: str | None  # None is what each run's recipe says
    against: str | None
    weighted: bool
    spread: Spread  # what the deviations of the table of scores are over
    scores: list[Score]
    pairs: list[Pair]
    overall: list[Overall]
    ranks: Ranks
    reached: list[Reached]
    costs: list[Cost]
    worth: list[Worth]
    notes: list[str]
    same_clients: Mapping[str, bool]  # dataset → whether clients are the same in all seeds

    @property
    def wins(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.verdict == "win"]

    def as_dict(self) -> dict[str, Any]:
        document = {
            "view": self.view,
            "metric": self.metric,
            "against": self.against,
            "weighted": self.weighted,
            "same_clients": dict(self.same_clients),
            "scores": [asdict(score) for score in self.scores],
            "pairs": [asdict(pair) for pair in self.pairs],
            "overall": [asdict(pair) for pair in self.overall],
            "ranks": asdict(self.ranks),
            "reached": [asdict(one) for one in self.reached],
            "frontier": [asdict(cost) for cost in self.costs],
            "worth": [one.as_dict() for one in self.worth],
            "notes": self.notes,
        }
        return without_nan(document)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        from fedsense.report.tables import plain

        return plain(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fedsense.report.tables import tables

        return "".join(f"<h4>{title}</h4>{grid._repr_html_()}" for title, grid in tables(self))


def read(folders: Sequence[Path], lines: Callable[[Path], list[dict[str, Any]]] = read_lines) -> list[Result]:
    """The runs of experiments, single ones, or all that lie in a folder of experiments; each once."""
    found = {run.resolve(): run for folder in folders for run in find_experiments(folder)}
    return [Result.read(run, lines) for run in found.values()]


def compare_results(
    results: Sequence[Result],
    selection: str | None = None,
    weighted: bool = False,
    view: str | None = None,
    metric: str | None = None,
    against: str | None = None,
    target: str | float | None = None,
    spread: Spread = "clients",
) -> Comparison:
    """Methods × datasets × seeds, in one view and metric."""
    if selection is not None:
        check_selection(selection)
    if spread not in get_args(Spread):
        raise UserError(f"there is no spread over '{spread}'; {nearest(spread, get_args(Spread))}")
    results = tell_apart(results)
    as_shown = selection is None and {result.summary for result in results} == {"best-on-test"}
    selection = "final" if as_shown else selection
    rows = {id(result): result.rows(selection) for result in results}
    view, metric, notes = _choose(results, rows, view, metric)
    lower = metric in LOWER_IS_BETTER
    methods = list(dict.fromkeys(r.method for r in results))
    if against is not None and against not in methods:
        raise UserError(f"there is no method '{against}' among these runs; {nearest(against, methods)}")
    _refuse_differing_data(results)
    notes += [LAST_INSTEAD] * as_shown + _notes(results, rows)
    same = {dataset: same_clients(of) for dataset, of in each_dataset(results).items()}
    alone = {r.method for r in results if r.algorithm == "local"}
    done = [result for result in results if result.finished]
    trials = sorted(_trials(done, rows, view, metric, weighted), key=lambda trial: trial.method not in alone)
    if against is not None and not any(trial.method == against for trial in trials):
        ended = any(r.method == against and r.finished for r in results)
        why = f"has no {view} {metric} to compare with" if ended else "has no finished run to compare with"
        raise UserError(f"--against {against}: it {why}; name another method" + ", or another --view" * ended)
    means = scores(trials)
    found, overall = pairs(trials, same, against, lower)
    of_dataset: dict[str, dict[str, float]] = {}
    for score in means:
        of_dataset.setdefault(score.dataset, {})[score.method] = score.mean
    targets = _targets(target, against, of_dataset, lower)
    if target is not None:
        notes += [f"{d}: {against} was not run there, so there is no target" for d in of_dataset if d not in targets]
    central = {r.method for r in results if r.algorithm == "centralized"}  # recordings travel, and are not counted
    seen = {(trial.dataset, trial.method, trial.seed) for trial in trials}
    paid = [result for result in done if (result.dataset, result.method, result.seed) in seen]
    costs = [_cost(paid, score) for score in means if score.method not in central]
    return Comparison(
        results,
        view,
        metric,
        selection,
        against,
        weighted,
        spread,
        means,
        found,
        overall,
        rank(of_dataset, lower),
        reach(_courses(done, view, metric), targets, against, lower) if targets else [],
        frontier(costs, lower),
        _worth(done, rows, metric, weighted, same),
        notes,
        same,
    )


def _choose(
    results: Sequence[Result], rows: Mapping[int, list[Row]], view: str | None, metric: str | None
) -> tuple[str, str, list[str]]:
    """One view and metric to compare in: as asked, or the first that all methods have, personal before others."""
    views = list(dict.fromkeys(row.view for of in rows.values() for row in of))
    if not views:
        return view or "personal", metric or "accuracy", ["nothing was scored in these runs"]
    if view is None:
        everywhere = [v for v in views if all(any(row.view == v for row in of) for of in rows.values() if of)]
        view = "personal" if "personal" in everywhere else (everywhere or views)[0]
    elif view not in views:
        raise UserError(f"no run was scored in view '{view}'; {nearest(view, views)}")
    metrics = list(dict.fromkeys(row.metric for of in rows.values() for row in of if row.view == view))
    if metric is not None and metric not in metrics:
        raise UserError(f"no run was scored by '{metric}' in view '{view}'; {nearest(metric, metrics)}")
    if metric is None:
        have = [{row.metric for row in of if row.view == view} for of in rows.values()]
        metric = next((m for m in metrics if all(m in of for of in have if of)), metrics[0])
    has = {id(r): any((row.view, row.metric) == (view, metric) and row.clients for row in rows[id(r)]) for r in results}
    some = {r.method for r in results if has[id(r)]}
    without = [f"{r.method} seed {r.seed}" if r.method in some else r.method for r in results if not has[id(r)]]
    missing = ", ".join(dict.fromkeys(without))
    return view, metric, [f"without a {view} {metric}: {missing}"] if missing else []


def _notes(results: Sequence[Result], rows: Mapping[int, list[Row]]) -> list[str]:
    """What one should know before believing any of it."""
    kinds = {row.selection for of in rows.values() for row in of}
    if len(kinds) > 1:
        raise UserError(
            f"the recipes of these runs summarise them differently ({', '.join(sorted(kinds))}); "
            "say one for all: --summary final"
        )
    notes = []
    if "best-on-test" in kinds:
        notes.append("rounds were chosen on test data, as asked: scores are too high, and nothing here is a fair test")
    unfinished = [f"{r.method} seed {r.seed} ({r.done} of {r.rounds} rounds)" for r in results if not r.finished]
    if unfinished:
        notes.append(f"unfinished, and left out: {', '.join(unfinished)}")
    for dataset, of in each_dataset([result for result in results if result.finished]).items():
        ends = sorted({r.done for r in of})
        if len(ends) > 1:
            notes.append(f"{dataset}: runs end after different numbers of rounds ({', '.join(map(str, ends))})")
        if not any(r.algorithm == "local" for r in of):
            notes.append(f"{dataset}: local was not run, so what clients gain over learning alone is not known")
        if len({json.dumps(r.setup.get(" model"), sort_keys=True) for r in of}) > 1:
            notes.append(f"{dataset}: runs had different networks, which may be what makes the difference")
        seeds = {m: tuple(sorted(r.seed for r in of if r.method == m)) for m in dict.fromkeys(r.method for r in of)}
        if len(set(seeds.values())) > 1:
            notes.append(f"{dataset}: methods were not run with the same seeds; two are compared on those they share")
    return notes


def _refuse_differing_data(results: Sequence[Result]) -> None:
    """Methods are compared client by client: with one seed they must have had the same data."""
    for dataset, of in each_dataset(results).items():
        first: dict[int, Result] = {}
        for result in of:
            other = first.setdefault(result.seed, result)
            ours, theirs = set(result.test_sizes), set(other.test_sizes)
            names = " and ".join(str(r.folder or r.method) for r in (other, result))
            if ours != theirs:
                only = min(ours ^ theirs)
                raise UserError(f"{names} have different clients ('{only}' is in one only); compare runs of the same "
                                "data, or each with its own")  # fmt: skip
            if fingerprint(result) != fingerprint(other) and fingerprint(result) and fingerprint(other):
                raise UserError(f"{names} are both of '{dataset}' with seed {result.seed}, but their data differ; "
                                "compare runs of the same data")  # fmt: skip


def _trials(
    results: Sequence[Result], rows: Mapping[int, list[Row]], view: str, metric: str, weighted: bool
) -> list[Trial]:
    found = []
    for result in results:
        for row in rows[id(result)]:
            if (row.view, row.metric) == (view, metric) and row.clients:
                sizes = result.sizes(view) if weighted else {}
                weights = {c: float(sizes.get(c, 1)) for c in row.clients}
                found.append(Trial(result.dataset, result.method, result.seed, row.clients, weights))
    return found


def _targets(
    target: str | float | None, against: str | None, means: Mapping[str, Mapping[str, float]], lower: bool
) -> dict[str, float]:
    """A score, or a share of the reference's: dataset → score."""
    if target is None:
        return {}
    share = re.fullmatch(r"\s*([\d.]+)\s*%\s*", str(target))
    try:
        number = float(share.group(1)) / 100 if share else float(target)
    except ValueError as error:
        raise UserError(f"--target {target}: give a score, as in 0.8, or a share of the reference's, as in 95%") from (
            error
        )
    if not math.isfinite(number) or number < 0:
        raise UserError(f"--target {target}: give a score, as in 0.8, or a share of the reference's, as in 95%")
    if not share and not lower and number > 1:
        raise UserError(f"--target {target}: scores are between 0 and 1; say {number / 100:g} for {number:g} %")
    if not share:
        return dict.fromkeys(means, number)
    if against is None:
        raise UserError(f"--target {target} is a share of a reference's score; name the reference, as in "
                        "--against fedavg")  # fmt: skip
    if number == 0:
        raise UserError("--target 0% is reached before the first round; give a share above zero")
    found = {d: of[against] / number if lower else of[against] * number for d, of in means.items() if against in of}
    if not lower and found and min(found.values()) > 1:
        least = 100 * min(found.values())
        raise UserError(f"--target {target} of {against}'s score is {least:.1f} %, and no score is above 100 %; give a "
                        "smaller share")  # fmt: skip
    return found


def _courses(results: Sequence[Result], view: str, metric: str) -> list[Course]:
    found = []
    for result in results:
        known = [line for line in result.history if metric in line["scores"].get(view, {}).get("test", {})]
        points = [(r, value) for r, value in curve(known, view, metric) if math.isfinite(value)]
        left, spent = list(result.ledger), np.zeros(2)
        costs = []
        for number, _ in points:
            while left and left[0]["round"] <= number:
                cost = totals([left.pop(0)])
                spent = spent + np.array([(cost["bytes_up"] + cost["bytes_down"]) / 1e6, cost["seconds"]])
            costs.append(spent.tolist())
        if not points:
            continue  # it has no such score, and so never the target's
        rounds, values = [number for number, _ in points], [value for _, value in points]
        megabytes, seconds = [c[0] for c in costs], [c[1] for c in costs]
        found.append(Course(result.dataset, result.method, result.seed, rounds, values, megabytes, seconds))
    return found


def _cost(results: Sequence[Result], score: Score) -> Cost:
    each = [r.cost for r in results if (r.dataset, r.method) == (score.dataset, score.method)]
    megabytes = float(np.mean([c["bytes_up"] + c["bytes_down"] for c in each])) / 1e6
    return Cost(score.dataset, score.method, score.mean, megabytes, float(np.mean([c["seconds"] for c in each])))


def _worth(
    results: Sequence[Result],
    rows: Mapping[int, list[Row]],
    metric: str,
    weighted: bool,
    same: Mapping[str, bool],
) -> list[Worth]:
    """Personal scores beside those of `local`, and of one model for all: FedAvg's, or else the method's own."""
    personal = _trials(results, rows, "personal", metric, weighted)
    shared = _trials(results, rows, "global", metric, weighted)
    lower = metric in LOWER_IS_BETTER
    found: list[Worth] = []
    for dataset, of in each_dataset(results).items():
        alone = _the(of, "local")
        federated = [r.method for r in of if r.algorithm not in ("local", "centralized")]
        mine = [t for t in personal if t.dataset == dataset and t.method in federated]
        if alone:
            found += worth(mine, [t for t in personal if t.method == alone], alone, same, lower)
        average = _the(of, "fedavg")
        average = average if any((t.dataset, t.method) == (dataset, average) for t in shared) else None
        for method in dict.fromkeys(t.method for t in mine):
            whose = average or method
            ours = [t for t in mine if t.method == method]
            theirs = [t for t in shared if (t.dataset, t.method) == (dataset, whose)]
            found += worth(ours, theirs, f"the global model of {whose}", same, lower)
    return found


def _the(results: Sequence[Result], algorithm: str) -> str | None:
    """The method's label: its own name if there are several variants."""
    labels = [r.method for r in results if r.algorithm == algorithm]
    return algorithm if algorithm in labels else next(iter(labels), None)
