"""The figures of the papers, from runs: not their looks, but what they show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsense.engine.folder import write_atomically
from fedsense.evaluation.summary import curve
from fedsense.experiment import reopen
from fedsense.federation import Samples
from fedsense.report.figures import COLOURS, Moment, class_counts, embeddings, svg
from fedsense.reproduce.cards import Entry, Item
from fedsense.reproduce.outcome import Line, Runs, read_runs
from fedsense.reproduce.plan import Plan, computed
from fedsense.result import Result

MOST = 600  # samples in a picture of representations


def draw(plan: Plan, folder: Path, lines: Sequence[Line]) -> list[str]:
    """The pictures of an item as far as there are runs, written into the folder; their names."""
    item = plan.item
    entries = [entry for entry in computed(item) if not plan.of(entry.cell).lacking]
    if not entries or item.draw is None:
        return []
    if item.draw == "counts":
        return [
            _write(folder, f"{item.id}-{_plain(e.column)}", f"{item.title}: {e.column}", _counts(plan, e))
            for e in entries
        ]
    figure: Figure | None
    if item.draw == "lines":
        figure = _lines(item, entries, lines)
    else:
        runs = {each.name: read_runs(each, folder) for each in plan.ready}
        figure = {"curves": _curves, "clients": _clients, "embedding": _embedding, "confusion": _confusion}[item.draw](
            plan, entries, runs
        )
    return [_write(folder, item.id, item.title, figure)] if figure else []


def _write(folder: Path, name: str, title: str, figure: Figure) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.svg", svg(figure, title).encode())
    return f"{name}.svg"


def _plain(name: str) -> str:
    return re.sub(r"[^\w+-]+", "-", name)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.1 * count, 3.5), layout="constrained")
    panels: list[Axes] = list(np.atleast_1d(figure.subplots(1, count, sharey=True)))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    return figure, panels


def _title(plan: Plan, entry: Entry) -> str:
    experiment = plan.of(entry.cell)
    return f"{experiment.datasets} (not {experiment.instead})" if experiment.instead else entry.heading


def _results(runs: Mapping[str, Runs], plan: Plan, entry: Entry) -> Sequence[Result]:
    return runs[plan.of(entry.cell).name].get(entry.cell.method, ())


def _curves(plan: Plan, entries: Sequence[Entry], runs: Mapping[str, Runs]) -> Figure:
    """A panel a column: scores over rounds, a line a row, the mean over seeds."""
    columns = list(dict.fromkeys(e.heading for e in entries))
    figure, panels = _panels(len(columns))
    for axes, heading in zip(panels, columns, strict=True):
        mine = [e for e in entries if e.heading == heading]
        for number, entry in enumerate(mine):
            found = [dict(curve(r.history, entry.cell.view, entry.cell.metric))
                     for r in _results(runs, plan, entry) if r.history]  # fmt: skip
            rounds = sorted(set.intersection(*map(set, found))) if found else []
            means = [np.mean([line[r] for line in found]) for r in rounds]
            style = "-" if number < len(COLOURS) else "--"
            axes.plot(rounds, means, label=entry.row, color=COLOURS[number % len(COLOURS)], linestyle=style)
        axes.set_title(_title(plan, mine[0]), fontsize=9)
        axes.set_xlabel("round")
    panels[0].set_ylabel(entries[0].cell.metric)
    panels[-1].legend(fontsize=7, frameon=False)
    return figure


def _lines(item: Item, entries: Sequence[Entry], lines: Sequence[Line]) -> Figure:
    """A panel a group: ours over the columns, a line a row."""
    groups = list(dict.fromkeys(e.group for e in entries))
    figure, panels = _panels(len(groups))
    for axes, group in zip(panels, groups, strict=True):
        both = [(e, line) for e, line in zip(entries, lines, strict=True) if e.group == group]
        for number, row in enumerate(dict.fromkeys(line.row for _, line in both)):
            mine = [(e, line) for e, line in both if line.row == row]
            heights = [np.nan if line.ours is None else line.ours for _, line in mine]
            axes.errorbar([e.column for e, _ in mine], heights, [line.ours_std or 0 for _, line in mine],
                          color=COLOURS[number % len(COLOURS)], marker="o", capsize=2, label=row)  # fmt: skip
        data = ", ".join(dict.fromkeys(line.dataset for _, line in both))
        axes.set_title(f"{group} ({data})" if group else data, fontsize=9)
    unit = item.unit if item.measure == "score" else f"{item.measure}, {item.unit}"
    panels[0].set_ylabel(f"{entries[0].cell.metric}, {unit}" if item.measure == "score" else unit)
    panels[0].legend(fontsize=8, frameon=False)
    figure.supxlabel(item.axis or item.title, fontsize=9)
    return figure


def _clients(plan: Plan, entries: Sequence[Entry], runs: Mapping[str, Runs]) -> Figure:
    """Bars of every client, one a row, the mean over seeds."""
    figure, (axes,) = _panels(1)
    figure.set_size_inches(9, 3.5)
    for number, entry in enumerate(entries):
        each = [row.clients for r in _results(runs, plan, entry) for row in r.rows(entry.cell.summary)
                if (row.view, row.metric) == (entry.cell.view, entry.cell.metric)]  # fmt: skip
        names = sorted(set().union(*each))
        heights = [np.mean([clients[name] for clients in each if name in clients]) for name in names]
        width = 0.8 / len(entries)
        places = np.arange(len(names)) + (number - (len(entries) - 1) / 2) * width
        axes.bar(places, heights, width, color=COLOURS[number % len(COLOURS)], label=entry.row)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_title(_title(plan, entries[0]), fontsize=9)
    axes.set_ylabel(entries[0].cell.metric)
    figure.legend(fontsize=8, frameon=False, ncols=len(entries), loc="outside lower center")
    return figure


def _counts(plan: Plan, entry: Entry) -> Figure:
    recipe = plan.of(entry.cell).recipe
    return class_counts(recipe.federation(recipe.seeds[0]))


def _embedding(plan: Plan, entries: Sequence[Entry], runs: Mapping[str, Runs]) -> Figure | None:
    """A panel a row: test samples' features in the plane, by t-SNE; the first seed's run, after its last round."""
    from sklearn.manifold import TSNE

    moments: list[Moment] = []
    classes: tuple[str, ...] = ()
    for entry in entries:
        for result in _results(runs, plan, entry)[:1]:
            features, _, labels, who, classes = _said(result, plan.item.classes)
            few = min(30.0, max(1.0, (len(features) - 1) / 3))
            points = TSNE(2, perplexity=few, init="pca", random_state=0).fit_transform(features)
            title = f"{entry.row}, {_title(plan, entry)}"
            moments.append(Moment(title, points, labels, who, np.zeros((0, 2)), ()))
    return embeddings(moments, classes) if moments else None


def _confusion(plan: Plan, entries: Sequence[Entry], runs: Mapping[str, Runs]) -> Figure | None:
    """A panel a column: of each true class, which share was taken for which; the first seed's run."""
    found = [(entry, _results(runs, plan, entry)[0]) for entry in entries if _results(runs, plan, entry)]
    if not found:
        return None
    figure = Figure(figsize=(4.4 * len(found), 4.2), layout="constrained")
    for axes, (entry, result) in zip(np.atleast_1d(figure.subplots(1, len(found))), found, strict=True):
        _, said, truth, _, classes = _said(result, (), most=None)
        counts = np.zeros((len(classes), len(classes)))
        np.add.at(counts, (truth, said), 1)
        seen = np.flatnonzero(counts.sum(0) + counts.sum(1))  # a dataset may have classes that nobody here has
        counts, classes = counts[np.ix_(seen, seen)], tuple(classes[i] for i in seen)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (i, j), share in np.ndenumerate(shares):
            if counts[i, j]:
                colour = "white" if share > 0.6 else "black"
                axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=6, color=colour)
        axes.set_xticks(range(len(classes)), classes, rotation=90, fontsize=7)
        axes.set_yticks(range(len(classes)), classes, fontsize=7)
        axes.set_title(f"{entry.row}, {_title(plan, entry)}", fontsize=9)
        axes.set_xlabel("predicted, in % of the true class", fontsize=8)
    return figure


Ints = NDArray[np.int64]


def _said(
    result: Result, only: Sequence[str], most: int | None = MOST
) -> tuple[NDArray[np.float32], Ints, Ints, Ints, tuple[str, ...]]:
    """Features, predictions, classes and clients of samples: of people held out, with the model for all; else of every
    client's test data, with its own model. Of ``only`` these classes, if the data has any of them."""
    assert result.folder is not None
    engine = reopen(result.folder)
    classes = engine.federation.task.classes
    shared = engine.method.global_model(engine.server) if engine.federation.newcomers else None
    people = engine.federation.clients if shared is None else engine.federation.newcomers
    wanted = [i for i, name in enumerate(classes) if name in only] or list(range(len(classes)))
    parts = []
    for number, person in enumerate(people):
        samples = person.test if shared is None else Samples.join(person.splits)
        keep = np.isin(samples.y.numpy(), wanted)
        if not keep.any():
            continue
        client = engine.site.client(person.id)
        params = engine.personal_parameters(person.id) if shared is None else shared
        out = client.model.infer(params, samples.x[keep].to(client.device))
        label, said = samples.y.numpy()[keep], out.logits.argmax(1).cpu().numpy()
        parts.append((out.features.cpu().numpy(), said, label, np.full(len(label), number)))
    features, answers, labels, who = (np.concatenate(column) for column in zip(*parts, strict=True))
    chosen = np.arange(len(labels))
    if most is not None and len(labels) > most:
        chosen = np.sort(np.random.default_rng(0).choice(len(labels), most, replace=False))
    return features[chosen], answers[chosen], labels[chosen], who[chosen], classes
