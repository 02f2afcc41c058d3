"""Pictures of results, drawn without a screen."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedsense.evaluation.summary import curve
from fedsense.federation import SPLITS, Federation
from fedsense.joining import Joined
from fedsense.report.words import TITLES
from fedsense.result import Result

# Okabe and Ito's colours, told apart with any kind of colour vision
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
MANY_COLOURS = tuple(to_hex(colormaps["tab20"](i)) for i in (*range(0, 20, 2), *range(1, 20, 2)))  # the strong first
BLUES = ListedColormap(colormaps["Blues"](np.linspace(0.25, 1, 256)))  # the fewest are still blue; none is white
SMALL = 8  # points, of names
WIDEST = 10.5  # inches, of a grid; with names and colour bar it is a page across
ROUND: list[int] = [first * 10**power for power in range(10) for first in (1, 2, 5)]
Counts = NDArray[np.int64]  # class, client


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


def learning_curves(joined: Sequence[Joined]) -> Figure:
    """A panel a run: the first metric over the number of labelled samples, joined and alone, clients' means."""
    figure = Figure(figsize=(4.1 * len(joined), 3.5), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(joined), sharey=True))
    for axes, one in zip(panels, joined, strict=True):
        metric = next(iter(one.points[0].joined))
        curve_of = one.curve(metric)
        names = ["all" if n == 0 else str(n) for n in curve_of]
        for place, (label, colour) in enumerate((("joined", COLOURS[0]), ("alone", COLOURS[1]))):
            axes.plot(names, [point[place] for point in curve_of.values()], color=colour, marker="o", label=label)
        axes.set_title(one.method, fontsize=9)
        axes.set_xlabel("labelled samples of its own")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        panels[0].set_ylabel(f"{metric}, mean over {len(one.models)} clients")
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def embeddings(moments: Sequence[Moment], classes: Sequence[str], rows: int = 1) -> Figure:
    """A panel a moment: samples by class (colour) and client (marker), and the anchors of the classes as stars."""
    across = len(moments) // rows
    figure = Figure(figsize=(3.6 * across, 0.3 + 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, across, squeeze=False).ravel()
    colours = COLOURS if len(classes) <= len(COLOURS) else MANY_COLOURS * (1 + len(classes) // len(MANY_COLOURS))
    for axes, moment in zip(panels, moments, strict=True):
        for client in np.unique(moment.client):
            marker = "o^sDvP"[int(client) % 6]
            for ring in (False, True):
                mine = (moment.client == client) & (moment.rings == ring)
                shades = [colours[label] for label in moment.label[mine]]
                look = {"facecolors": "none", "edgecolors": shades} if ring else {"c": shades, "linewidths": 0}
                axes.scatter(*moment.points[mine].T, s=11, marker=marker, alpha=0.55, **look)
        for place, label in zip(moment.anchors, moment.anchor_labels, strict=True):
            axes.scatter(*place, s=170, marker="*", color=colours[label], edgecolors="black", linewidths=0.8, zorder=3)
        axes.set_title(moment.title, fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    seen = sorted({int(label) for m in moments for label in (*m.label, *m.anchor_labels)})
    for label in seen:
        panels[0].scatter([], [], color=colours[label], s=20, label=classes[label])
    names = [classes[label] for label in seen]
    room = int(figure.get_figwidth() / (_inches(names) + 0.45))  # beside a name are its mark and a gap
    figure.legend(loc="outside lower center", ncols=max(1, min(room, len(names))), fontsize=SMALL, frameon=False)
    return figure


@dataclass(frozen=True)
class Moment:
    """Points of a plane at one moment of a training, and what they are."""

    title: str
    points: NDArray[np.floating]  # [n, 2]
    label: NDArray[np.int64]
    client: NDArray[np.int64]
    anchors: NDArray[np.floating]  # [anchors, 2]
    anchor_labels: Sequence[int]
    rings: NDArray[np.bool_] | Literal[False] = False  # which are drawn hollow


def class_counts(federation: Federation) -> Figure:
    """Clients across, classes down: the darker, the more samples (all splits), with the number where there is room."""
    counts = np.sum([[*federation.class_counts(split).values()] for split in SPLITS], axis=0).T
    clients, classes = [_short(name) for name in federation.ids], [_short(name) for name in federation.task.classes]
    title = _title(federation, counts)
    wide, high = _cell(len(clients), len(classes))
    lying = _inches(clients) < wide  # names stand on end unless there is room for them to lie
    across = wide * len(clients) + _inches(classes) + 1.4  # with the colour bar
    down = high * len(classes) + (0.2 if lying else _inches(clients)) + 0.8
    figure = Figure(figsize=(max(across, _inches([title], 10) + 0.3), down), layout="constrained")
    figure.suptitle(title, fontsize=10, parse_math=False)
    axes, scale = figure.subplots(), _Scale.of(counts)
    image = axes.imshow(
        np.ma.masked_equal(counts, 0), cmap=BLUES, aspect="auto", norm=scale.norm, interpolation="nearest"
    )
    named, listed = range(0, len(clients), _step(wide, 0.24)), range(0, len(classes), _step(high, 0.14))
    axes.set_xticks(named, [clients[i] for i in named], fontsize=SMALL, rotation=0 if lying else 90, parse_math=False)
    axes.set_yticks(listed, [classes[i] for i in listed], fontsize=SMALL, parse_math=False)
    axes.set_xlabel("" if named.step == 1 else f"client (one in {named.step} is named)", fontsize=SMALL)
    if min(wide, high) > 0.1:
        _part_cells(axes, *counts.shape)
    if _inches([str(counts.max())], 7) < wide and high > 0.12:
        _write_numbers(axes, counts, scale)
    _draw_scale(figure, image, scale, high * len(classes))
    return figure


def _title(federation: Federation, counts: Counts) -> str:
    clients = counts.shape[1]
    synthetic = " (synthetic data)" if federation.synthetic else ""
    return (
        f"{_short(federation.name, 60)}{synthetic}: {clients:,} client{'s' * (clients != 1)}, {counts.sum():,} samples"
    )


def _short(name: str, most: int = 28) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _inches(texts: Sequence[str], points: float = SMALL) -> float:
    """About how wide the widest of them is, with a little space: a letter of this font is 0.6 of its height."""
    return max(map(len, texts)) * 0.6 * points / 72 + 0.08


def _cell(clients: int, classes: int) -> tuple[float, float]:
    """Width and height in inches: large where there are few, and small enough for all to be in one picture."""
    return min(max(6 / clients, 0.36), 0.9, WIDEST / clients), min(max(3 / classes, 0.27), 0.6, WIDEST / classes)


def _step(side: float, room: float) -> int:
    """Every how manyth name has room, in steps that are easily counted."""
    return next(step for step in ROUND if step * side > room)


@dataclass(frozen=True)
class _Scale:
    """Which count has which colour, by its logarithm."""

    fewest: int
    most: int

    @staticmethod
    def of(counts: Counts) -> _Scale:
        """From the fewest to the most, and no less than fourfold: 7 and 8 samples should look much the same."""
        most = max(int(counts.max()), 2)
        fewest = int(counts[counts > 0].min(initial=most))
        return _Scale(max(min(fewest, most // 4), 1), most)

    @property
    def norm(self) -> LogNorm:
        return LogNorm(self.fewest, self.most)

    def place(self, count: int) -> float:
        """From 0, the palest, to 1."""
        return math.log(count / self.fewest) / math.log(self.most / self.fewest)


def _part_cells(axes: Axes, rows: int, columns: int) -> None:
    """White lines, so that equal neighbours can be counted."""
    axes.set_xticks(np.arange(1, columns) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, rows) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    axes.tick_params(which="minor", length=0)


def _write_numbers(axes: Axes, counts: Counts, scale: _Scale) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if scale.place(int(count)) > 0.62 else "black"  # where these blues are as far from either
            axes.text(column, row, str(count), ha="center", va="center", fontsize=7, color=colour)


def _draw_scale(figure: Figure, image: AxesImage, scale: _Scale, height: float) -> None:
    """The colour bar, with a number at both ends and round ones between as far as there is room."""
    bar = figure.colorbar(image, ax=image.axes, aspect=height / 0.15, pad=0.02)
    ticks = [scale.fewest, scale.most]
    for tick in sorted(ROUND, key=lambda tick: str(tick)[0] != "1"):  # powers of ten first
        nearest = min(abs(scale.place(tick) - scale.place(other)) for other in ticks)
        if scale.fewest < tick < scale.most and nearest * height > 0.2:
            ticks.append(tick)
    bar.set_ticks(ticks, labels=[f"{tick:,}" for tick in ticks], fontsize=SMALL)
    bar.ax.minorticks_off()
    bar.set_label("samples (white: none)" if height > 1.4 else "samples", fontsize=SMALL)


def svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element to stand in a page; the title is what is read aloud of it."""
    text = io.StringIO()
    with rc_context({"svg.hashsalt": "fedsense"}):  # the same picture is the same file
        figure.savefig(text, format="svg", metadata={"Date": None, "Title": title})
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
