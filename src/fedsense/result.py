"""What a run gave: scores with their rounds, what it cost, and each client's personal model."""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsense.engine.folder import RUN_FILE
from fedsense.engine.record import read_lines, totals, without_nan
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import NEW_CLIENT
from fedsense.errors import UserError
from fedsense.evaluation.metrics import LOWER_IS_BETTER
from fedsense.evaluation.summary import POOLED, Row, summarise
from fedsense.personal import PersonalModel, described

Spread = Literal["clients", "seeds"]  # what a standard deviation is over
WORDS = ("method", "dataset", "over", "harmed", "verdict")  # columns of tables that hold no numbers


@dataclass(frozen=True)
class Grid:
    """A small table that prints as text and shows itself in a notebook."""

    header: list[str]
    rows: list[list[str]]
    caption: str = ""

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in self._all(widths)]
        return "\n".join(line.rstrip() for line in [*lines, *([self.caption] if self.caption else [])])

    __repr__ = __str__

    def _all(self, widths: list[int]) -> list[list[str]]:
        return [self.header, ["─" * w for w in widths], *self.rows]

    def markdown(self) -> str:
        """The table and, below it, its caption."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"{body}\n\n{self.caption}".rstrip()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        return f"<table><caption>{html.escape(self.caption)}</caption><tr>{head}</tr>{body}</table>"


@dataclass
class Result:
    """One method, one seed."""

    method: str  # its label
    seed: int
    rounds: int
    test_sizes: dict[str, int] = field(repr=False)
    history: list[dict[str, Any]] = field(
        repr=False
    )  # an entry for every evaluated round: view → split → metric → client → value
    ledger: list[dict[str, Any]] = field(
        repr=False
    )  # an entry for every round: bytes, seconds and memory of every client that took part
    held_out_sizes: dict[str, int] = field(default_factory=dict, repr=False)
    new_sizes: dict[str, int] = field(default_factory=dict, repr=False)  # test samples of people who join
    observations: list[dict[str, Any]] = field(
        default_factory=list, repr=False
    )  # an entry for every evaluated round: what the method has to show (FedAPA: who learns from whom)
    synthetic: bool = False
    summary: str = "final"
    folder: Path | None = None
    engine: Engine | None = field(default=None, repr=False)
    algorithm: str = ""  # the method's own name, whatever its label
    dataset: str = ""
    data: str = field(default="", repr=False)  # the recipe's data tables; runs with the same are of one dataset
    fingerprint: str = field(default="", repr=False)  # of the data themselves, where it was taken
    setup: dict[str, Any] = field(default_factory=dict, repr=False)  # hyper-parameters and network

    @staticmethod
    def of(engine: Engine, label: str, summary: str = "final") -> Result:
        """The result of a run that has just ended."""
        return Result(
            method=label,
            seed=engine.settings.seed,
            rounds=engine.settings.rounds,
            test_sizes={c.id: len(c.test) for c in engine.federation},
            held_out_sizes={c.id: sum(map(len, c.splits)) for c in engine.federation.newcomers},
            new_sizes={c.id: len(c.test) for c in engine.federation.newcomers},
            history=engine.record.scores,
            ledger=engine.record.ledger,
            observations=engine.record.observations,
            synthetic=engine.federation.synthetic,
            summary=summary,
            folder=engine.folder,
            engine=engine,
            algorithm=engine.method.name,
            dataset=engine.federation.name,
            data=_data_of(engine.about),
            fingerprint=engine.federation.fingerprint if engine.folder else "",
            setup=_setup_of(asdict(engine.method), engine.model.about(), engine.settings.participation),
        )

    @staticmethod
    def read(folder: Path, lines: Callable[[Path], list[dict[str, Any]]] = read_lines) -> Result:
        """A run's result from its folder; ``lines`` reads a record file."""
        try:
            about = json.loads((folder / RUN_FILE).read_bytes())
            return Result(
                method=about.get("label", about["method"]),
                seed=about["seed"],
                rounds=about["settings"]["rounds"],
                test_sizes={c: sizes["test"] for c, sizes in about["clients"].items()},
                held_out_sizes={c: sizes["samples"] for c, sizes in about.get("newcomers", {}).items()},
                new_sizes={c: sizes.get("test", 0) for c, sizes in about.get("newcomers", {}).items()},
                history=lines(folder / "scores.jsonl"),
                ledger=lines(folder / "ledger.jsonl"),
                observations=lines(path) if (path := folder / "observations.jsonl").exists() else [],
                synthetic=about["synthetic"],
                summary=about.get("summary", "final"),
                folder=folder,
                algorithm=about["method"],
                dataset=about.get("federation", ""),
                data=_data_of(about),
                fingerprint=about.get("fingerprint", ""),
                setup=_setup_of(
                    about.get("parameters", {}), about.get("model"), about["settings"].get("participation")
                ),
            )._checked()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder} is not a whole run folder ({type(error).__name__}: {error})") from error

    def _checked(self) -> Result:
        """Fails, as whoever reads them would later, if the records are not what a run writes."""
        for line in self.history:
            int(line["round"]), [splits["test"].values() for splits in line["scores"].values()]
        for line in self.ledger:
            int(line["round"]), line["clients"].values()
        for line in self.observations:
            line.items()
        return self

    @property
    def done(self) -> int:
        """Rounds done so far."""
        return min(self.ledger[-1]["round"], self.rounds) if self.ledger else 0  # the last line may be of finishing

    def rows(self, selection: str | None = None) -> list[Row]:
        of_view = {NEW_CLIENT: self.sizes(NEW_CLIENT)}
        return summarise(self.method, self.seed, self.history, self.sizes(), selection or self.summary, of_view)

    def sizes(self, view: str = "") -> dict[str, int]:
        """How many samples each client is scored on; all people held out, pooled, are one."""
        return self.new_sizes if view == NEW_CLIENT else {POOLED: 1} | self.test_sizes | self.held_out_sizes

    @property
    def finished(self) -> bool:
        return self.done >= self.rounds

    @property
    def own_name(self) -> str:
        """The method without the dataset it was told apart by."""
        return self.method.removesuffix(f" · {self.dataset}")

    @property
    def cost(self) -> dict[str, Any]:
        return {"method": self.method, "seed": self.seed, **totals(self.ledger)}

    def table(self, selection: str | None = None) -> Grid:
        """Mean ± standard deviation over clients of every view and metric."""
        return comparison([self], selection)

    def personal_model(self, client_id: str) -> PersonalModel:
        """A client's own model as the run left it."""
        engine = self.engine or self._reopen()
        client = engine.site.client(engine.federation[client_id].id)
        task, seed = engine.federation.task, engine.settings.seed
        architecture = engine.site.architecture(client_id)
        about = described(task, engine.method, engine.model, architecture, client.data.input_shape, seed)
        return PersonalModel.of(client, engine.method, engine.personal_parameters(client_id), about)

    def _reopen(self) -> Engine:
        from fedsense.experiment import reopen

        assert self.folder is not None
        self.engine = reopen(self.folder)
        return self.engine


def _data_of(about: Mapping[str, Any]) -> str:
    """What a recipe says of its data, wherever the files are."""
    recipe = about.get("recipe", {})
    tables = recipe.get("data")
    tables = [tables] if isinstance(tables, dict) else tables or []
    plain = [{key: value for key, value in table.items() if key != "root"} for table in tables]
    return json.dumps([plain, recipe.get("classes")], sort_keys=True, default=str)


def _setup_of(parameters: Mapping[str, Any], model: Any, participation: Any) -> dict[str, Any]:
    whole = {**parameters, " model": model, " participation": participation}
    found: dict[str, Any] = json.loads(json.dumps(whole, default=str))
    return found


def _same_setup(one: Result, other: Result) -> bool:
    """A hyper-parameter only one of them has came with a later version."""
    return all(one.setup[key] == other.setup[key] for key in one.setup.keys() & other.setup.keys())


def tell_apart(results: Sequence[Result]) -> list[Result]:
    """Runs of the same method, seed and data in several experiments are named after their folders, too.

    So are methods of one name with other hyper-parameters, and datasets of one name whose recipes say different things
    of them. Runs that are still alike are numbered.
    """
    names = experiment_names(results)
    kinds: dict[str, dict[str, str]] = {}  # dataset → data → the experiment it is first in
    for result in results:
        kinds.setdefault(result.dataset, {}).setdefault(result.data, names[_place(result)])
    apart = [
        replace(result, dataset=f"{result.dataset} ({of[result.data]})") if len(of) > 1 else replace(result)
        for result in results
        for of in [kinds[result.dataset]]
    ]
    seen = Counter((result.dataset, result.method, result.seed) for result in apart)
    twice = {dataset for (dataset, _, _), count in seen.items() if count > 1}
    firsts: dict[tuple[str, str], Result] = {}
    others: set[tuple[str, str]] = set()
    for result in apart:
        named = (result.dataset, result.method)
        if not _same_setup(result, firsts.setdefault(named, result)):
            others.add(named)
    count = Counter[tuple[str, str, int]]()
    for result in apart:
        if (result.dataset in twice or (result.dataset, result.method) in others) and result.folder is not None:
            result.method = f"{names[_place(result)]}/{result.method}"
        count[key := (result.dataset, result.method, result.seed)] += 1
        if count[key] > 1:
            result.method = f"{result.method} ({count[key]})"
    return apart


def each_dataset(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.dataset, []).append(result)
    return found


def fingerprint(result: Result) -> str:
    return result.fingerprint or (result.engine.federation.fingerprint if result.engine else "")


def same_clients(results: Sequence[Result]) -> bool:
    """Whether a client's name is the same person in all seeds, and not one drawn anew; it need not be in each."""
    if len({fingerprint(r) for r in results}) == 1:
        return True
    return not any(r.synthetic or '"partition"' in r.data or _is_dealt(r) for r in results)


def _is_dealt(result: Result) -> bool:
    """Whether the dataset has no people of its own, and none was asked for."""
    from fedsense.data import DATASETS, find_dataset

    tables = json.loads(result.data)[0] if result.data else []
    return any(find_dataset(table["name"]).dealt for table in tables if table.get("name") in DATASETS)


def experiment_names(results: Iterable[Result]) -> dict[Path, str]:
    """Folders of experiments by name, with as much of the path as tells them apart."""
    places = list(dict.fromkeys(map(_place, results)))
    many = 1
    while len({path.parts[-many:] for path in places}) < len(places):
        many += 1
    return {path: "/".join(path.parts[-many:]) for path in places}


def _place(result: Result) -> Path:
    return result.folder.resolve().parent if result.folder else Path("here")


def by_dataset(results: Sequence[Result]) -> list[Result]:
    """Where there are several datasets, methods with the dataset in their names: nothing of two is averaged then."""
    if len({result.dataset for result in results}) < 2:
        return list(results)
    return [replace(result, method=f"{result.own_name} · {result.dataset}") for result in results]


def comparison(
    results: Sequence[Result], selection: str | None = None, weighted: bool = False, spread: Spread = "clients"
) -> Grid:
    """Methods (on datasets, if there are several) by views and metrics; several seeds of a method are averaged."""
    used = _by_method(results)
    of = {id(run): run.rows(selection) for _, runs in used for run in runs}
    rows = [row for mine in of.values() for row in mine]
    columns = list(dict.fromkeys((row.view, row.metric) for row in rows))
    body = []
    for names, runs in used:
        mine = [row for run in runs for row in of[id(run)]]
        cells = [[r for r in mine if (r.view, r.metric) == column] for column in columns]
        body.append(
            [*names, *(_cell(c, metric, weighted, spread) for c, (_, metric) in zip(cells, columns, strict=True))]
        )
    scored = [run for _, runs in used for run in runs if any(row.clients for row in of[id(run)])]
    caption = _caption(scored, rows, weighted, spread)
    return Grid([*_first_columns(results), *(f"{view} {metric}" for view, metric in columns)], body, caption)


def _by_method(results: Sequence[Result]) -> list[tuple[list[str], list[Result]]]:
    """The names of each row, the dataset's if there are several, and its runs.

    Those that are finished; where none is, all, and the name says how far they are.
    """
    several = len(_first_columns(results)) > 1
    found = []
    for dataset, method in dict.fromkeys((result.dataset, result.method) for result in results):
        runs = [r for r in results if (r.dataset, r.method) == (dataset, method)]
        done = [r for r in runs if r.finished]
        name = method.removesuffix(f" · {dataset}") if several else method
        name += "" if done else f" ({min(r.done for r in runs)}/{runs[0].rounds})"
        found.append(([*([dataset] if several else []), name], done or runs))
    return found


def _first_columns(results: Sequence[Result]) -> list[str]:
    return ["dataset", "method"] if len({result.dataset for result in results}) > 1 else ["method"]


def costs(results: Sequence[Result]) -> Grid:
    """What each method cost: a run's mean over the seeds."""
    units = {"MB down": ("bytes_down", 1e6), "MB up": ("bytes_up", 1e6), "training s": ("seconds", 1.0)}
    units["peak MB"] = ("peak_memory_bytes", 1e6)
    body = []
    for names, runs in _by_method(results):
        body.append([*names, *(f"{np.mean([r.cost[key] for r in runs]) / unit:.1f}" for key, unit in units.values())])
    header = [*_first_columns(results), *units]
    return Grid(header, body, "a whole run: bytes as serialised, local training, memory of the largest process")


def report_json(results: Sequence[Result], folder: Path | None, selection: str | None = None) -> dict[str, Any]:
    """The document ``--json`` prints."""
    document = {
        "results": [
            {"dataset": result.dataset, **row.as_dict()} for result in results for row in result.rows(selection)
        ],
        "cost": [{"dataset": result.dataset, **result.cost} for result in results],
        "folder": str(folder) if folder else None,
    }
    return without_nan(document)  # type: ignore[no-any-return]


def _cell(rows: Sequence[Row], metric: str, weighted: bool, spread: Spread) -> str:
    if not rows or not all(math.isfinite(r.mean) for r in rows):
        return "–"
    scale, digits = (1, 2) if metric in LOWER_IS_BETTER else (100, 1)
    means = [r.weighted_mean if weighted else r.mean for r in rows]
    if spread == "seeds":
        std = float(np.std(means, ddof=1)) if len(rows) > 1 else None
    else:  # weights have none, and of one client there is nothing to spread over
        std = None if weighted or all(len(r.clients) == 1 for r in rows) else float(np.mean([r.std for r in rows]))
    mean = f"{scale * float(np.mean(means)):.{digits}f}"
    return mean if std is None else f"{mean}±{scale * std:.{digits}f}"


def _caption(scored: Sequence[Result], rows: Sequence[Row], weighted: bool, spread: Spread) -> str:
    which = sorted({f"{row.selection} (round {row.round})" for row in rows})
    each = Counter((result.dataset, result.method) for result in scored).values()
    few, many = min(each, default=0), max(each, default=0)
    seeds = {result.seed for result in scored}
    what = "mean weighted by clients' test samples" if weighted else "mean"
    if spread == "seeds":
        what += " ± standard deviation over seeds" * (many > 1)
    elif not weighted and any(len(row.clients) > 1 for row in rows):
        what += " ± standard deviation over clients" + " of a seed" * (many > 1)
    parts = [
        what,
        "in %" if not any(row.metric in LOWER_IS_BETTER for row in rows) else "in %, errors in their own units",
        "; ".join(which[:3]) + (" …" if len(which) > 3 else ""),
        f"averaged over {few} to {many} seeds" if few < many else f"averaged over {many} seeds" * (many > 1),
        f"seed {min(seeds)}" if len(seeds) == 1 else "",
        "in brackets: rounds done by who is not finished" * any(not result.finished for result in scored),
        "SYNTHETIC data" * any(result.synthetic for result in scored),
    ]
    return "; ".join(part for part in parts if part)
