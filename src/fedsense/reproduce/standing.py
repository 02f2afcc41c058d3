"""How the paper's method stands in a table of ours: `fedsense compare`'s verdicts, where there are seeds enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedsense.comparing import compare_results
from fedsense.evaluation.comparing import Pair
from fedsense.evaluation.metrics import LOWER_IS_BETTER
from fedsense.evaluation.statistics import ENOUGH_SEEDS
from fedsense.reproduce.cards import Cell
from fedsense.reproduce.plan import Plan, computed
from fedsense.result import Grid, Result


@dataclass
class Standing:
    """The paper's method on one dataset, by one metric: rows of the table it is better than, worse than, or neither."""

    row: str  # what the table calls it
    dataset: str
    metric: str
    summary: str
    better: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = {"better than": self.better, "worse than": self.worse, "not shown to differ from": self.not_shown}
        told = "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names)
        return f"{self.dataset}, {self.metric} ({self.summary}): {self.row} is {told}"


def standings(plan: Plan, paper: str, runs: Mapping[str, Mapping[str, Sequence[Result]]]) -> list[Standing]:
    """Of every score a table has; none of a figure, nor where pairs have fewer than five seeds in common."""
    scores: dict[tuple[str, str, str, bool], dict[tuple[str, str], str]] = {}  # what is scored → whose runs → row
    for entry in [] if plan.item.is_figure or plan.item.own else computed(plan.item):
        cell = entry.cell
        if cell.measure == "score" and not plan.of(cell).lacking:
            scores.setdefault(_scored(cell), {})[plan.of(cell).name, cell.method] = entry.row
    found = []
    for (view, metric, summary, weighted), rows in scores.items():
        of = {method: row for (_, method), row in rows.items()}
        results = [result for name, method in rows for result in runs[name].get(method, ()) if result.finished]
        if not any(result.method == paper for result in results):
            continue
        compared = compare_results(results, summary, weighted, view, metric, against=paper)
        enough = [pair for pair in compared.pairs if pair.seeds >= ENOUGH_SEEDS]
        for dataset in dict.fromkeys(pair.dataset for pair in enough):
            mine = [pair for pair in enough if pair.dataset == dataset]
            found.append(_judged(Standing(of[paper], dataset, metric, summary), paper, mine, of))
    return found


def _scored(cell: Cell) -> tuple[str, str, str, bool]:
    """View, metric, summary, weighted; a round that is chosen on test data can judge nobody, so the last one does."""
    return cell.view, cell.metric, "final" if cell.summary == "best-on-test" else cell.summary, cell.weighted


def _judged(found: Standing, paper: str, pairs: Sequence[Pair], rows: Mapping[str, str]) -> Standing:
    scale, digits = (1.0, 3) if found.metric in LOWER_IS_BETTER else (100.0, 1)
    for pair in pairs:  # gains are the other's over the paper's
        text = f"{rows.get(pair.first, pair.first)} {-pair.gain * scale:+.{digits}f}".replace("-", "−")
        where = found.not_shown if pair.winner is None else found.better if pair.winner == paper else found.worse
        where.append(text)
    return found


def table(standings: Sequence[Standing]) -> Grid:
    """A line a dataset and metric."""
    header = [standings[0].row, "is better than", "is worse than", "no difference shown"]
    body = [
        [f"{one.dataset} {one.metric}", *(", ".join(names) or "–" for names in (one.better, one.worse, one.not_shown))]
        for one in standings
    ]
    rounds = ", ".join(dict.fromkeys(one.summary for one in standings))
    return Grid(header, body, f"with its gain in points; as `fedsense compare` judges; scores: {rounds}")
