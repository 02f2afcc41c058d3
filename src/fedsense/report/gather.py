"""Run folders → the plain data a page shows. What needs models or recordings is in :mod:`fedsense.report.deep`."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense import __version__
from fedsense.engine.folder import RUN_FILE, read_json
from fedsense.engine.record import whole_lines, without_nan
from fedsense.errors import UserError
from fedsense.evaluation.metrics import LOWER_IS_BETTER
from fedsense.evaluation.summary import POOLED, Row
from fedsense.report.words import TITLES, client_gains, summary
from fedsense.result import Result, by_dataset, comparison, costs, each_dataset, same_clients

Matrix = NDArray[np.float64]  # client, evaluated round
Document = dict[str, Any]
MOST_CELLS = 1_200_000  # of all heat maps together: 3.2 MB; beyond, rounds are left out
MANY = 65_534  # levels of a cell; one more says that it is empty
# Groups of prototypes in words
GROUPS = {"proto": "prototypes", "table": "clients' prototypes", "padding": "mean prototypes"}
LONG_FILE = 20_000_000  # bytes; of longer observations only the last line is read


@dataclass(frozen=True)
class Run:
    """A result with what its run.json says, and the rows of its summary."""

    result: Result
    about: Mapping[str, Any]
    rows: Sequence[Row]

    @property
    def method(self) -> str:
        return self.result.method


def document(
    name: str, results: Sequence[Result], recipe: Any = None, live: bool = False, selection: str | None = None
) -> Document:
    """All a page shows, but for what needs models or recordings; ``selection`` is None for what each recipe says."""
    if len({(r.method, r.dataset) for r in results}) > len({r.method for r in results}):
        results = by_dataset(results)
    abouts = [read_json(r.folder / RUN_FILE) if r.folder else {} for r in results]
    given = _own_people(list(zip(results, abouts, strict=True)))
    runs = [Run(result, about, _rows(result, selection)) for result, about in given]
    scored = [run for run in runs if run.rows]
    people = _people(scored)
    cubes = _cubes(scored, people)
    text = summary([(run.result, run.about, run.rows) for run in runs], selection)
    tables = [_table("Scores", comparison([run.result for run in scored], selection))] if scored else []
    tables += [_table(*grid) for grid in text.grids]
    if any(run.result.ledger for run in runs):
        tables.append(_table("What it cost", costs([run.result for run in runs if run.result.ledger])))
    found: Document = {
        "name": name,
        "version": __version__,
        "live": live,
        "synthetic": any(run.result.synthetic for run in runs),
        "facts": text.facts,
        "summary": text.paragraphs,
        "verdict": text.verdict,
        "tables": tables,
        "progress": [
            {"method": run.method, "seed": run.result.seed, "done": run.result.done, "rounds": run.result.rounds}
            for run in runs
        ],
        "methods": list(dict.fromkeys(run.method for run in runs)),
        "dataset": {run.method: run.result.dataset for run in runs},
        "best": text.best,
        "local": text.local,
        "views": {view: TITLES.get(view, view) for view in people},
        "metrics": list(dict.fromkeys(row.metric for run in scored for row in run.rows)),
        "lower": sorted(LOWER_IS_BETTER),
        "people": people,
        "about": _about(runs),
        "curves": _nest({key: _band(seeds) for key, seeds in cubes.items()}),
        "final": _nest({key: _numbers(values) for key, values in _final(scored, people).items()}),
        "gain": _nest({key: _numbers(values) for key, values in _gains(scored, people, text.local).items()}),
        "heat": _nest(_heat(cubes)),
        "bytes": _each(runs, _bytes),
        "time": _each(runs, _time),
        "recipe": recipe,
        "left_out": [],
    }
    found |= _observed(runs)
    _say_what_is_missing(found, runs)
    return without_nan(found)  # type: ignore[no-any-return]


def light_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a record file; of very long observations the last. A run that has just begun has none."""
    if not path.exists():
        return []
    data = path.read_bytes()
    if path.name.startswith("observations") and len(data) > LONG_FILE:
        data = data[data.rfind(b"\n", 0, data.rfind(b"\n")) + 1 :]
    return whole_lines(data)


def _own_people(runs: Sequence[tuple[Result, Document]]) -> list[tuple[Result, Document]]:
    """Where every seed draws clients of its own, a name means somebody else in each: they are named with their seed."""
    data = each_dataset([result for result, _ in runs])
    anew = {name for name, of in data.items() if len({r.seed for r in of}) > 1 and not same_clients(of)}
    return [(_with_seed(r), _about_with_seed(about, r.seed)) if r.dataset in anew else (r, about) for r, about in runs]


def _about_with_seed(about: Document, seed: int) -> Document:
    return about | {kind: _named(about[kind], seed) for kind in ("clients", "newcomers") if kind in about}


def _with_seed(result: Result) -> Result:
    seed = result.seed
    history = [
        line | {"scores": {view: {split: {metric: _named(values, seed) for metric, values in metrics.items()}
                                  for split, metrics in splits.items()} for view, splits in line["scores"].items()}}
        for line in result.history
    ]  # fmt: skip
    return replace(
        result,
        history=history,
        test_sizes=_named(result.test_sizes, seed),
        held_out_sizes=_named(result.held_out_sizes, seed),
        new_sizes=_named(result.new_sizes, seed),
    )


def _named(clients: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {who if who == POOLED else f"{who} of seed {seed}": value for who, value in clients.items()}


def _rows(result: Result, selection: str | None) -> list[Row]:
    """The summary that is asked for, or else the recipe's; where that cannot be had yet, the last evaluation."""
    if not result.history or not result.history[-1]["scores"]:
        return []
    if selection is not None:
        return result.rows(selection)
    try:
        return result.rows()
    except UserError:
        return result.rows("final")


People = dict[str, dict[str, list[str]]]  # view → dataset → clients: one name may be two people, of two datasets


def _people(runs: Iterable[Run]) -> People:
    """Who is scored in each view."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for run in runs:
        for view, splits in run.result.history[-1]["scores"].items():
            who = found.setdefault(view, {}).setdefault(run.result.dataset, {})
            for values in splits["test"].values():
                who.update(dict.fromkeys(values))
    return {view: {name: list(who) for name, who in data.items()} for view, data in found.items()}


Key = tuple[str, str, str]  # view, metric, method
Seeds = list[tuple[list[int], Matrix]]  # of each seed: the evaluated rounds, and what every client had in them


def _cubes(runs: Iterable[Run], people: People) -> dict[Key, Seeds]:
    found: dict[Key, Seeds] = {}
    for run in runs:
        for view, splits in run.result.history[-1]["scores"].items():
            lines = [line for line in run.result.history if view in line["scores"]]
            everyone = people[view][run.result.dataset]
            for metric in splits["test"]:
                each = [line["scores"][view]["test"].get(metric, {}) for line in lines]
                matrix = np.array([[values.get(who) for values in each] for who in everyone], dtype=float)
                matrix = matrix.reshape(len(everyone), len(lines))  # also if nobody is scored
                found.setdefault((view, metric, run.method), []).append(([line["round"] for line in lines], matrix))
    return found


def _common(seeds: Seeds) -> tuple[list[int], list[Matrix]]:
    """The rounds that were evaluated with every seed, and their columns."""
    rounds = sorted(set.intersection(*(set(of) for of, _ in seeds)))
    return rounds, [matrix[:, [of.index(r) for r in rounds]] for of, matrix in seeds]


def _band(seeds: Seeds) -> Document:
    """Mean over clients, then over seeds; with the least and the most of the seeds."""
    rounds, each = _common(seeds)
    return _over_seeds(rounds, [[_mean(column) for column in matrix.T] for matrix in each])


def _over_seeds(rounds: Sequence[int], lines: Sequence[Sequence[float]]) -> Document:
    values = np.array(lines, dtype=float).reshape(len(lines), len(rounds))
    found: Document = {"round": list(rounds), "mean": _numbers(values.mean(0))}
    if len(lines) > 1:
        found |= {"low": _numbers(values.min(0)), "high": _numbers(values.max(0))}
    return found


def _final(runs: Iterable[Run], people: People) -> dict[Key, list[float]]:
    """Every client's score as the summary counts it, mean over the seeds that are finished, or else over all."""
    each: dict[Key, list[list[float]]] = {}
    for run in (run for same in _by_method(runs).values() for run in _finished(same) or same):
        for row in run.rows:
            values = [row.clients.get(who, math.nan) for who in people[row.view][run.result.dataset]]
            each.setdefault((row.view, row.metric, run.method), []).append(values)
    return {key: [_mean(of) for of in zip(*seeds, strict=True)] for key, seeds in each.items()}


def _gains(runs: Iterable[Run], people: People, local: Mapping[str, str | None]) -> dict[Key, list[float]]:
    """What every client gains over Local, of finished runs, with the seeds both were run with."""
    given = [(run.result, run.about, run.rows) for run in _finished(runs)]
    found: dict[Key, list[float]] = {}
    data = {result.method: result.dataset for result, _, _ in given}
    for view, metric in dict.fromkeys((row.view, row.metric) for _, _, rows in given for row in rows):
        for method, alone in local.items():
            if alone and (gain := client_gains(given, method, alone, view, metric)):
                found[view, metric, method] = [gain.get(who, math.nan) for who in people[view][data[method]]]
    return found


def _heat(cubes: Mapping[Key, Seeds]) -> dict[Key, Document]:
    """Client × round, mean over seeds, in two bytes a cell, row after row."""
    ready = {key: _common(seeds) for key, seeds in cubes.items() if len(seeds[0][1]) > 1}
    cells = sum(len(rounds) * len(each[0]) for rounds, each in ready.values())
    step = max(1, math.ceil(cells / MOST_CELLS))
    found = {}
    for key, (rounds, each) in ready.items():
        kept = list(range(len(rounds) - 1, -1, -step))[::-1]  # always the last
        stack = np.stack([matrix[:, kept] for matrix in each])
        known = np.isfinite(stack).sum(0)
        mean = np.where(known > 0, np.nansum(stack, 0) / np.maximum(known, 1), np.nan)
        low, high = (float(f(mean)) for f in (np.nanmin, np.nanmax)) if known.any() else (0.0, 1.0)
        levels = np.round((mean - low) / ((high - low) or 1.0) * MANY)
        data = np.where(np.isfinite(mean), levels, MANY + 1).astype("<u2").tobytes()
        found[key] = {
            "round": [rounds[i] for i in kept],
            "low": low,
            "high": high,
            "step": step,
            "cells": base64.b64encode(data).decode(),
        }
    return found


def _bytes(runs: Sequence[Run]) -> Document:
    """A whole run's bytes by group, mean over seeds."""
    found: Document = {}
    for way in ("down", "up"):
        each = [run.result.cost[f"groups_{way}"] for run in runs]
        groups = dict.fromkeys(group for groups in each for group in groups)
        found[way] = {group: round(float(np.mean([of.get(group, 0) for of in each]))) for group in groups}
    return found


def _time(runs: Sequence[Run]) -> Document:
    """Seconds of local training of every round, summed over clients, and memory of the largest process."""
    each = [
        {line["round"]: sum(entry["seconds"] for entry in line["clients"].values()) for line in run.result.ledger}
        for run in runs
    ]
    rounds = sorted(set.intersection(*(set(of) for of in each)))
    total = [run.result.cost for run in runs]
    return {
        **_over_seeds(rounds, [[of[r] for r in rounds] for of in each]),
        "seconds": _mean([of["seconds"] for of in total]),
        "peak": _mean([of["peak_memory_bytes"] for of in total]),
    }


def _observed(runs: Sequence[Run]) -> Document:
    """What methods say of themselves: who learns from whom, groups, how far prototypes moved."""
    graphs, groups = [], []
    drift: Document = {}
    for method, same in _by_method(runs).items():
        last = next((run.result.observations[-1] for run in same if run.result.observations), {})
        about = {"method": method, "seed": same[0].result.seed, "round": last.get("round")}
        if weights := last.get("collaboration"):
            graphs.append(about | _graph(weights, same[0].about))
        if last.get("groups"):
            groups.append(about | {"groups": last["groups"]})
        moved = [
            {line["round"]: line["prototypes moved"] for line in run.result.observations if "prototypes moved" in line}
            for run in same
        ]
        for layer in dict.fromkeys(layer for of in moved for layers in of.values() for layer in layers):
            known = [{r for r, layers in of.items() if layer in layers} for of in moved]
            rounds = sorted(set.intersection(*known))
            band = _over_seeds(rounds, [[of[r][layer] for r in rounds] for of in moved])
            if rounds:
                drift.setdefault(method, {})[GROUPS.get(layer, layer)] = band
    return {"collaboration": graphs, "groups": groups, "drift": drift}


def _graph(weights: Mapping[str, Any], about: Mapping[str, Any]) -> Document:
    """``[learner, teacher, weight]`` of every class, and of all: each learner's mean over the classes it holds."""
    by_class = isinstance(next(iter(next(iter(weights.values()), {}).values()), None), dict)
    classes = about.get("task", {}).get("classes", [])
    layers: dict[str, Mapping[str, Mapping[str, float]]] = {}
    if by_class:
        layers = {classes[int(c)] if int(c) < len(classes) else c: of for c, of in weights.items() if of}
    else:
        layers = {"": weights}
    who = sorted({name for of in layers.values() for i, row in of.items() for name in (i, *row)})
    place = {name: i for i, name in enumerate(who)}
    edges: dict[str, list[tuple[int, int, float]]]
    edges = {c: [(place[i], place[j], w) for i, row in of.items() for j, w in row.items()] for c, of in layers.items()}
    if by_class:
        total: dict[tuple[int, int], float] = {}
        for of in edges.values():
            for i, j, w in of:
                total[i, j] = total.get((i, j), 0.0) + w
        held = [sum(name in of for of in layers.values()) for name in who]
        edges = {"": [(i, j, round(w / held[i], 5)) for (i, j), w in sorted(total.items())], **edges}
    return {"who": who, "edges": edges}


def _about(runs: Sequence[Run]) -> dict[str, dict[str, Document]]:
    """Of every dataset and client how much it has, and its traits in words."""
    every: dict[str, dict[str, Document]] = {}
    for run in runs:
        found = every.setdefault(run.result.dataset, {})
        for who, traits in run.about.get("clients", {}).items():
            words = [str(v) for k, v in traits.items() if k not in ("train", "val", "test") and isinstance(v, str)]
            words = [word for word in words if word not in who]  # its name may say it all
            found.setdefault(who, {"train": traits["train"], "test": traits["test"], "traits": ", ".join(words)})
        for who, traits in run.about.get("newcomers", {}).items():
            found.setdefault(who, {"train": 0, "test": traits.get("test", 0), "traits": "took no part"})
    return every


def _say_what_is_missing(found: Document, runs: Sequence[Run]) -> None:
    left = found["left_out"]
    if not found["curves"]:
        left.append(["Scores", "nothing has been evaluated yet"])
    elif not any(found["local"].values()):
        left.append(["Gain over Local", _why_no_gain(runs)])
    if not found["collaboration"]:
        left.append(["Who learns from whom", "only fedapa and fedamp record it"])
    if not found["drift"]:
        left.append(
            ["How far prototypes moved", "no method here has prototypes, or the runs are too old to have recorded it"]
        )


def _why_no_gain(runs: Sequence[Run]) -> str:
    alone = [run for run in runs if run.result.algorithm == "local"]
    others = [run for run in runs if run.result.algorithm != "local"]
    if not alone:
        return "no run of the method local is among these"
    if not others:
        return "there is nothing to compare Local with"
    if not _finished(alone) or not _finished(others):
        return "a run of Local and one to compare with it must be finished first"
    return "no method has a run of Local on the same data, with the same seed, beside it"


def _finished(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.result.finished]


def _by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(run)
    return found


def _each(runs: Sequence[Run], of: Any) -> Document:
    begun = _by_method(run for run in runs if run.result.ledger)
    return {method: of(same) for method, same in begun.items()}


def _nest(flat: Mapping[Key, Any]) -> Document:
    found: Document = {}
    for (view, metric, method), value in flat.items():
        found.setdefault(view, {}).setdefault(metric, {})[method] = value
    return found


def _table(title: str, grid: Any) -> Document:
    return {"title": title, "header": grid.header, "rows": grid.rows, "caption": grid.caption}


def _mean(values: Iterable[float]) -> float:
    known = [v for v in values if math.isfinite(v)]
    return float(np.mean(known)) if known else math.nan


def _numbers(values: Iterable[float]) -> list[float]:
    return [round(float(v), 5) for v in values]
