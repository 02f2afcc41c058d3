"""How the paper's method stands in a table or figure: `fedsense compare`'s verdicts, where there are seeds enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedsense.comparing import Comparison, compare_results
from fedsense.errors import UserError
from fedsense.evaluation.comparing import Pair
from fedsense.evaluation.statistics import ENOUGH_SEEDS
from fedsense.report.tables import signed
from fedsense.reproduce.cards import Cell, Entry, Item
from fedsense.reproduce.plan import Plan, computed
from fedsense.result import Grid, Result


@dataclass
class Standing:
    """The paper's method on one dataset, in one view and metric: rows it is better than, worse than, or neither."""

    row: str  # what the table calls the method
    dataset: str
    metric: str
    summary: str
    better: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=list)
    view: str = ""

    def __str__(self) -> str:
        kinds = {"better than": self.better, "worse than": self.worse, "not shown to differ from": self.not_shown}
        told = "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names)
        return f"{self.dataset}, {self.score} ({self.summary}): {self.row} is {told}"

    @property
    def score(self) -> str:
        return f"{self.view} {self.metric}".strip()


def standings(plan: Plan, paper: str, runs: Mapping[str, Mapping[str, Sequence[Result]]]) -> list[Standing]:
    """Of every score a table or figure has; none where pairs have fewer than five seeds in common."""
    item = plan.item
    entries = [] if item.own else computed(item)
    scored = [e for e in entries if e.cell.measure == "score" and not plan.of(e.cell).lacking]
    names = {_name_and_place(item, e)[0]: e.cell.method for e in scored}
    ours = [name for name, method in names.items() if method == paper]
    if not ours or len(ours) == len(names):  # it is not there, or there is nothing but it, in several settings
        return []
    found = []
    for kind in dict.fromkeys(_scored(e.cell) for e in scored):
        view, metric, summary, weighted = kind
        results = _renamed(plan, [e for e in scored if _scored(e.cell) == kind], runs)
        if not any(result.method == ours[0] for result in results):
            continue
        try:
            compared = compare_results(results, summary, weighted, view, metric, against=ours[0])
        except UserError:  # the table is worth having where its runs cannot be compared
            continue
        enough = [pair for pair in compared.pairs if pair.seeds >= ENOUGH_SEEDS]
        for dataset in dict.fromkeys(pair.dataset for pair in enough):
            mine = [pair for pair in enough if pair.dataset == dataset]
            found.append(_judged(Standing(ours[0], dataset, metric, summary, view=view), mine, compared))
    return found


def _name_and_place(item: Item, entry: Entry) -> tuple[str, str]:
    """What a table calls a method, and where it is compared with others: methods may be rows, or columns."""
    if item.methods_are_columns:
        return entry.column, " ".join(filter(None, (entry.row, entry.group)))
    settings = any({"setting", "set"} & column.model_fields_set for column in item.columns)
    return entry.row, " ".join(filter(None, (entry.group, entry.column if settings else "")))


def _renamed(plan: Plan, entries: Sequence[Entry], runs: Mapping[str, Mapping[str, Sequence[Result]]]) -> list[Result]:
    """Runs by the table's names, once each; a dataset that is in several places of it has theirs, too."""
    found: dict[tuple[str, str], list[Result]] = {}  # place, name → its runs
    names: dict[tuple[str, str], str] = {}  # experiment, method → what the table calls it first
    for entry in entries:
        name, place = _name_and_place(plan.item, entry)
        if names.setdefault((plan.of(entry.cell).name, entry.cell.method), name) != name:
            continue
        finished = [r for r in runs[plan.of(entry.cell).name].get(entry.cell.method, ()) if r.finished]
        found.setdefault((place, name), finished)
    places: dict[str, set[str]] = {}
    for (place, _), results in found.items():
        for result in results:
            places.setdefault(result.dataset, set()).add(place)
    return [
        replace(result, method=name, dataset=result.dataset + f" ({place})" * (len(places[result.dataset]) > 1))
        for (place, name), results in found.items()
        for result in results
    ]


def _scored(cell: Cell) -> tuple[str, str, str, bool]:
    """View, metric, summary, weighted; a round that is chosen on test data can judge nobody, so the last one does."""
    return cell.view, cell.metric, "final" if cell.summary == "best-on-test" else cell.summary, cell.weighted


def _judged(found: Standing, pairs: Sequence[Pair], compared: Comparison) -> Standing:
    for pair in pairs:  # gains are the other's over the paper's
        where = found.not_shown if pair.winner is None else found.better if pair.winner == found.row else found.worse
        where.append(f"{pair.first} {signed(compared, -pair.gain)}")
    return found


def table(standings: Sequence[Standing]) -> Grid:
    """A line a dataset and metric."""
    header = [standings[0].row, "is better than", "is worse than", "no difference shown"]
    body = [
        [f"{one.dataset} {one.score}", *(", ".join(names) or "–" for names in (one.better, one.worse, one.not_shown))]
        for one in standings
    ]
    rounds = ", ".join(dict.fromkeys(one.summary for one in standings))
    return Grid(header, body, f"with its gain in points; as `fedsense compare` judges; scores: {rounds}")
