"""Pictures of results, drawn without a screen."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsense.evaluation.summary import curve
from fedsense.federation import SPLITS, Federation
from fedsense.result import Result

# Okabe and Ito's colours, told apart with any kind of colour vision
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B6914")
TITLES = {
    "personal": "Personal: own model, own test data",
    "generalisation": "Generalisation: own model, everyone's test data",
    "global": "Global: the server's model",
}


def curves(results: Sequence[Result]) -> Figure:
    """A panel a view: the first metric over rounds (a band over seeds), and each client's final personal score."""
    shown = [r for r in results if r.history and r.history[-1]["scores"]]
    views = list(dict.fromkeys(view for r in shown for view in r.history[-1]["scores"]))
    metric = next(iter(shown[0].history[-1]["scores"][views[0]]["test"])) if shown else ""
    methods = list(dict.fromkeys(r.method for r in shown))
    figure = Figure(figsize=(4.1 * (len(views) + 1), 3.5), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(views) + 1, sharey=True))
    for axes, view in zip(panels, views, strict=False):
        for method, colour in zip(methods, _colours(methods), strict=True):
            _line(
                axes, [r for r in shown if r.method == method and view in r.history[-1]["scores"]], view, metric, colour
            )
        axes.set_title(TITLES[view], fontsize=9)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if views:
        panels[0].set_ylabel(f"{metric}, mean over clients")
        panels[0].legend(fontsize=8, frameon=False)
        _strip(panels[-1], shown, methods, views[0], metric)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    if any(r.synthetic for r in results):
        figure.suptitle("synthetic data", fontsize=9, color="#666666", ha="right", x=0.99)
    return figure


def class_counts(federation: Federation) -> Figure:
    """Clients across, classes down: the darker, the more samples (all splits), with the number where there is room."""
    counts = np.array([sum(np.array(federation.class_counts(s)[c]) for s in SPLITS) for c in federation.ids]).T
    classes, clients = counts.shape
    figure = Figure(figsize=(min(2.5 + 0.34 * clients, 22), 1.6 + 0.3 * classes), layout="constrained")
    axes = figure.subplots()
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.2, 1, 256)))  # the fewest are still blue; none is white
    norm = LogNorm(1, max(int(counts.max()), 10))
    image = axes.imshow(np.ma.masked_equal(counts, 0), cmap=blues, aspect="auto", norm=norm)
    axes.set_yticks(range(classes), federation.task.classes, fontsize=8)
    shown = range(0, clients, max(1, clients // 60))
    axes.set_xticks(shown, [federation.ids[i] for i in shown], fontsize=7, rotation=90)
    if clients <= 40:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if norm(count) > 0.55 else "black"
                axes.text(column, row, str(count), ha="center", va="center", fontsize=6, color=colour)
    figure.colorbar(image, ax=axes, label="samples", shrink=0.8, format="%d")
    synthetic = " (synthetic data)" if federation.synthetic else ""
    axes.set_title(f"{federation.name}{synthetic}: {clients} clients, {counts.sum():,} samples", fontsize=10)
    return figure


def svg(figure: Figure) -> str:
    """The figure as an SVG element to stand in a page."""
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "fedsense"}):  # the same picture is the same file
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def _line(axes: Axes, results: Sequence[Result], view: str, metric: str, colour: str) -> None:
    if not results:
        return
    lines = [dict(curve(r.history, view, metric)) for r in results]
    rounds = sorted(set.intersection(*(set(line) for line in lines)))
    values = np.array([[line[r] for r in rounds] for line in lines])
    axes.plot(rounds, values.mean(0), color=colour, label=results[0].method, marker="o" if len(rounds) == 1 else "")
    if len(lines) > 1:
        axes.fill_between(rounds, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)


def _strip(axes: Axes, results: Sequence[Result], methods: Sequence[str], view: str, metric: str) -> None:
    """One dot a client."""
    for place, (method, colour) in enumerate(zip(methods, _colours(methods), strict=True)):
        rows = [
            row for r in results if r.method == method for row in r.rows() if (row.view, row.metric) == (view, metric)
        ]
        values = np.array([value for row in rows for value in row.clients.values()])
        across = place + 0.28 * (np.arange(len(values)) % 7 - 3) / 3
        axes.scatter(across, values, s=12, color=colour, alpha=0.6, linewidths=0)
        if len(values):
            axes.hlines(values.mean(), place - 0.36, place + 0.36, color=colour)
    axes.set_xticks(range(len(methods)), methods, fontsize=8)
    axes.set_title(f"Every client: {view} {metric}", fontsize=9)


def _colours(methods: Sequence[str]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(len(methods))]
