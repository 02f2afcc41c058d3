"""Ours beside the published: measured from the folders of runs, in a table and as a document."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsense.engine.checkpoint import is_packed
from fedsense.engine.folder import RUN_FILE, read_json, write_atomically, write_json
from fedsense.engine.record import totals, without_nan
from fedsense.evaluation.metrics import LOWER_IS_BETTER
from fedsense.evaluation.summary import curve
from fedsense.experiment import reopen, run_name
from fedsense.reproduce.cards import Card, Cell, Entry
from fedsense.reproduce.plan import Experiment, Plan, Scale, computed, reference
from fedsense.reproduce.standing import Standing, standings, table
from fedsense.result import Grid, Result

if TYPE_CHECKING:
    from torch import Tensor

Runs = Mapping[str, Sequence[Result]]  # method → its runs, a seed each


@dataclass(frozen=True)
class Line:
    """A number published, and ours."""

    row: str
    column: str
    published: float | None
    published_std: float | None
    ours: float | None
    ours_std: float | None
    seeds: int  # ours is a mean over so many
    dataset: str
    difference: float | None  # none where the data is another one
    published_on: str = ""  # the paper's dataset, where ours is another one
    tried: int = 0  # seeds that were run; not all need reach a target

    def our(self) -> str:
        """Our number, and of how many seeds where not all have one."""
        number = shown(self.ours, self.ours_std)
        return f"{number}, {self.seeds} of {self.tried} seeds" if 0 < self.seeds < self.tried else number

    @property
    def run(self) -> int:
        """With how many seeds it was run, as far as that was counted."""
        return max(self.seeds, self.tried)

    def said(self) -> str:
        """The published number, with its dataset where ours is another."""
        number = shown(self.published, self.published_std)
        return number if self.published is None or not self.published_on else f"{number} ({self.published_on})"


@dataclass(frozen=True)
class Outcome:
    """What came of an item."""

    id: str
    title: str
    figure: bool
    unit: str
    lines: list[Line] = field(default_factory=list)
    lacking: list[dict[str, str]] = field(default_factory=list)  # dataset, how to get it, the nearest that is there
    runs: list[dict[str, Any]] = field(default_factory=list)  # what ours was run on
    pictures: list[str] = field(default_factory=list)
    shows: str = ""
    note: str = ""
    standings: list[Standing] = field(default_factory=list)  # how the paper's method stands, if that can be said
    summaries: list[str] = field(default_factory=list)  # which rounds its scores are of
    instead: list[list[str]] = field(default_factory=list)  # a dataset of ours, and the paper's

    def with_pictures(self, names: list[str]) -> Outcome:
        return replace(self, pictures=names)

    @property
    def has_numbers(self) -> bool:
        """Whether there is anything to put in a table; some figures are only to be looked at."""
        return any(line.ours is not None or line.published is not None for line in self.lines)

    def grid(self) -> Grid:
        """Row, column, published, ours, difference; where nothing is published, only ours."""
        if all(line.published is None for line in self.lines):
            rows = [[line.row, line.column, line.our()] for line in self.lines]
            return Grid(["row", "column", "ours"], rows, self.caption())
        body = [
            [
                line.row,
                line.column,
                line.said(),
                line.our(),
                "" if line.difference is None else f"{line.difference:+.2f}",
            ]
            for line in self.lines
        ]
        return Grid(["row", "column", "published", "ours", "difference"], body, self.caption())

    def caption(self) -> str:
        seeds = {line.run for line in self.lines if line.seeds}
        count = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds, default=0)}"
        numbers = [self.unit and f"in {self.unit}", *([f"{count} seed{'s' * (count != '1')}"] if seeds else [])]
        numbers += map(_rounds_of, self.summaries)
        parts = [*(numbers if self.has_numbers else []), *self._run_on(), self.note]
        return "; ".join(filter(None, parts))

    def _run_on(self) -> Iterator[str]:
        """A dataset each; runs of it may differ in size."""
        about = [run for run in self.runs if "dataset" in run]
        for dataset in dict.fromkeys(run["dataset"] for run in about):
            clients, samples, done, rounds = (
                _span([run[what] for run in about if run["dataset"] == dataset])
                for what in ("clients", "samples", "done", "rounds")
            )
            yield f"on {dataset}: {clients} clients, {samples} samples to train on, {done} of {rounds} rounds"


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _rounds_of(summary: str) -> str:
    words = {
        "final": "scores of the last round",
        "validation": "scores of the round best on validation data",
        "best-on-test": "scores of each run's best round on test data, which is too high, as the paper's",
    }
    return words.get(summary, f"means of the last {summary.removeprefix('last-')} scored rounds")


def collect(plan: Plan, paper: str, folder: Path, lacking: list[dict[str, str]]) -> Outcome:
    """The numbers of an item as far as there are runs; ``paper`` is what its method is called."""
    item = plan.item
    runs = {experiment.name: read_runs(experiment, folder) for experiment in plan.runs}
    entries = [] if item.draw == "counts" else computed(item)
    lines = [_line(plan, entry, runs) for entry in entries if not plan.of(entry.cell).lacking]
    about = [_about(experiment, result) for experiment in plan.runs
             for results in runs[experiment.name].values() for result in results]  # fmt: skip
    scores = all(entry.cell.measure in ("score", "drop") for entry in entries)
    unit = item.unit if scores or item.unit != "%" else ""
    note = item.note or item.why
    return Outcome(
        *(item.id, item.title, item.is_figure, unit, lines, lacking, about, [], item.shows, note),
        standings=standings(plan, paper, runs),
        summaries=list(dict.fromkeys(e.cell.summary for e in entries if e.cell.measure in ("score", "drop"))),
        instead=[list(pair) for pair in dict.fromkeys((e.datasets, e.instead) for e in plan.ready if e.instead)],
    )


def read_runs(experiment: Experiment, folder: Path) -> dict[str, list[Result]]:
    """Method → its runs, as far as they are there and have a score."""
    found: dict[str, list[Result]] = {}
    for label in experiment.recipe.methods():
        for seed in experiment.recipe.seeds:
            place = folder / experiment.name / run_name(label, seed)
            if (place / RUN_FILE).is_file() and (result := Result.read(place)).ledger:
                found.setdefault(label, []).append(result)
    return found


def _line(plan: Plan, entry: Entry, runs: Mapping[str, Runs]) -> Line:
    experiment = plan.of(entry.cell)
    before: Runs = {}
    if entry.cell.measure == "drop":
        other = plan.of(reference(plan.item, entry.cell))
        before = runs.get(other.name, {})
    values, std = measured(entry.cell, runs[experiment.name], before)
    mean = statistics.fmean(values) if values else None
    row, column = _named(entry, experiment, plan.item.methods_are_columns)
    elsewhere = experiment.instead
    difference = None if mean is None or entry.value is None or elsewhere else mean - entry.value
    return Line(
        row,
        column,
        entry.value,
        entry.std,
        mean,
        std,
        len(values),
        experiment.datasets,
        difference,
        published_on=elsewhere,
        tried=len(runs[experiment.name].get(entry.cell.method, ())),
    )


def _named(entry: Entry, experiment: Experiment, methods_are_columns: bool) -> tuple[str, str]:
    """Row and column; where the data is another, its name in place of the paper's, or before what is no method."""
    if not experiment.instead:
        return entry.row, entry.heading
    places = [_renamed(text, experiment) for text in (entry.row, entry.group, entry.column)]
    row, group, column = (new or old for new, old in zip(places, (entry.row, entry.group, entry.column), strict=True))
    heading = " ".join(filter(None, (group, column)))
    if any(places):
        return row, heading
    prefix = f"{experiment.datasets}: "
    return (prefix + row, heading) if methods_are_columns else (row, prefix + heading)


def _renamed(text: str, experiment: Experiment) -> str:
    """``HHAR`` → ``hapt``, ``CIFAR100, 20 clients`` → ``cifar10, 20 clients``; nothing if it names no dataset."""
    first, rest = re.match(r"([\w-]*)(.*)", text, re.S).groups()  # type: ignore[union-attr]
    return f"{experiment.datasets}{rest}" if first and _letters(first) == _letters(experiment.instead) else ""


def _letters(name: str) -> str:
    return re.sub(r"\W", "", name).lower()


def measured(cell: Cell, runs: Runs, before: Runs | None = None) -> tuple[list[float], float | None]:
    """A cell's value of every seed that has one; and what stands after ±."""
    each = MEASURES[cell.measure]
    values = []
    for result in runs.get(cell.method, ()):
        others = {r.seed: r for r in (before or {}).get(cell.method, ())} if cell.measure == "drop" else {
            r.seed: r for r in runs.get(cell.of, ())}  # fmt: skip
        value = each(cell, result, others.get(result.seed))
        if value is not None and math.isfinite(value):
            values.append(value)
    if cell.spread == "clients" and cell.measure == "score":
        return values, _over_clients(cell, runs.get(cell.method, ()))
    return values, statistics.stdev(values) if len(values) > 1 else None


def _over_clients(cell: Cell, results: Sequence[Result]) -> float | None:
    stds = [row.std * _scale(cell) for result in results for row in _rows(cell, result) if len(row.clients) > 1]
    return statistics.fmean(stds) if stds else None


def _rows(cell: Cell, result: Result) -> list[Any]:
    rows = result.rows(cell.summary) if result.history else []
    return [row for row in rows if (row.view, row.metric) == (cell.view, cell.metric)]


def _scale(cell: Cell) -> float:
    return 1.0 if cell.metric in LOWER_IS_BETTER else 100.0


def _score(cell: Cell, result: Result, _: Result | None) -> float | None:
    for row in _rows(cell, result):
        return _scale(cell) * float(row.weighted_mean if cell.weighted else row.mean)
    return None


def _rounds(cell: Cell, result: Result, other: Result | None) -> float | None:
    """The first scored round that is as good as the other's best, or last."""
    if other is None or not other.history or cell.view not in result.history[-1]["scores"]:
        return None
    sign = -1 if cell.metric in LOWER_IS_BETTER else 1
    goal = [sign * value for _, value in curve(other.history, cell.view, cell.metric)]
    if not goal:
        return None
    wanted = goal[-1] if cell.target == "final" else max(goal)
    reached = [r for r, value in curve(result.history, cell.view, cell.metric) if sign * value >= wanted]
    return float(reached[0]) if reached else None


def _speedup(cell: Cell, result: Result, other: Result | None) -> float | None:
    mine = _rounds(cell, result, other)
    theirs = None if other is None else _rounds(cell, other, other)
    return None if mine is None or theirs is None else theirs / mine


def _drop(cell: Cell, result: Result, other: Result | None) -> float | None:
    now, then = _score(cell, result, None), None if other is None else _score(cell, other, None)
    return None if now is None or then is None else then - now


def _traffic(cell: Cell, result: Result, other: Result | None) -> float | None:
    return _relative(cell, result, other, _kilobytes)


def _time(cell: Cell, result: Result, other: Result | None) -> float | None:
    return _relative(cell, result, other, lambda r: float(r.cost["seconds"]))


def _holds(cell: Cell, result: Result, other: Result | None) -> float | None:
    if any(r is not None and r.folder is not None and is_packed(r.folder) for r in (result, other)):
        return None  # there are no models to look at
    return _relative(cell, result, other, lambda r: 0.0 if r.folder is None else _megabytes(r.folder, r.done))


@lru_cache(64)
def _megabytes(folder: Path, done: int) -> float:
    """What the first client has after so many rounds: its model, and of its state what is not in the model already."""
    engine = reopen(folder)
    client = engine.trainees[0]
    model = engine.personal_parameters(client)
    state = engine.states.get(client, {})
    kept = [t for values in state.values() for name, t in values.items() if not _same(t, model.get(name))]
    return sum(t.numel() * t.element_size() for t in (*model.values(), *kept)) / 1e6


def _same(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and bool((one == other).all())


def _relative(cell: Cell, result: Result, other: Result | None, of: Callable[[Result], float]) -> float | None:
    if not cell.of:
        return of(result)
    return of(result) / of(other) if other is not None and of(other) else None


def _kilobytes(result: Result) -> float:
    """Of a client in the last round, down and up: in the first some methods have nothing to send yet."""
    last = [line for line in result.ledger if line["round"] == result.done]
    spent = totals(last)
    return float(spent["bytes_down"] + spent["bytes_up"]) / max(sum(len(line["clients"]) for line in last), 1) / 1000


MEASURES: dict[str, Callable[[Cell, Result, Result | None], float | None]] = {
    "score": _score,
    "rounds": _rounds,
    "speedup": _speedup,
    "drop": _drop,
    "traffic": _traffic,
    "time": _time,
    "holds": _holds,
}


def _about(experiment: Experiment, result: Result) -> dict[str, Any]:
    """What a run was run on."""
    assert result.folder is not None
    clients = read_json(result.folder / RUN_FILE)["clients"]
    return {
        "folder": str(result.folder),
        "dataset": experiment.datasets,
        "clients": len(clients),
        "samples": sum(sizes.get("train", 0) for sizes in clients.values()),
        "done": result.done,
        "rounds": result.rounds,
    }


def keep(outcome: Outcome, card: Card, scale: Scale, folder: Path) -> None:
    """The item's document, and ``reproduced.md``: all items that were reproduced in this folder so far."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{outcome.id}.json", as_json(outcome))
    parts = [f"# {card.paper}: published and ours\n\n{card.title}. {about_scale(scale)}\n"]
    parts += [_markdown(known) for item in card.items if (known := kept(item.id, folder))]
    write_atomically(folder / "reproduced.md", "\n".join(parts).encode())


def kept(item: str, folder: Path) -> Outcome | None:
    """What came of an item when it was last reproduced in a folder."""
    if not (path := folder / f"{item}.json").is_file():
        return None
    known = _fields_of(Outcome, read_json(path))
    known["lines"] = [Line(**_fields_of(Line, line)) for line in known["lines"]]
    known["standings"] = [Standing(**_fields_of(Standing, one)) for one in known.get("standings", ())]
    return Outcome(**known)


def _fields_of(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """What of a document this version knows: another one may have written it."""
    return {field.name: document[field.name] for field in fields(kind) if field.name in document}


def as_json(outcome: Outcome) -> dict[str, Any]:
    return without_nan(asdict(outcome))  # type: ignore[no-any-return]


def about_scale(scale: Scale) -> str:
    if scale == "paper":
        return "Run with the paper's own settings."
    return (
        "Run small: fewer rounds, samples and seeds than the paper's, and most networks far from trained, so "
        "differences say little."
    )


def _markdown(outcome: Outcome) -> str:
    text = [f"## {outcome.id}: {outcome.title}\n"]
    if outcome.shows:
        text.append(f"The paper's shows {outcome.shows}.\n")
    if not outcome.has_numbers and outcome.caption():
        text.append(f"{outcome.caption()}\n")
    for lack in outcome.lacking:
        text.append(f"Not run, for want of {lack['dataset']}: {lack['how']}\n")
    text += [f"![{outcome.title}]({name})\n" for name in outcome.pictures]
    if outcome.has_numbers:
        text.append(f"{outcome.grid().markdown()}\n")
    if outcome.standings:
        text.append(f"{table(outcome.standings).markdown()}\n")
    return "\n".join(text)


def shown(value: float | None, std: float | None) -> str:
    """Two decimals; of what would be 0.00 so, two digits."""
    if value is None:
        return "–"
    numbers = [value] if std is None else [value, std]
    small = 0 < abs(value) < 0.01
    return " ± ".join(f"{n:.1e}" if small else f"{n:.2f}" for n in numbers)
