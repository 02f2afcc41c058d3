"""Pictures of a comparison: ranks with their critical difference (Demšar, JMLR 2006), and scores over their cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsense.evaluation.metrics import LOWER_IS_BETTER
from fedsense.evaluation.ranks import Ranks
from fedsense.evaluation.reaching import Cost
from fedsense.report.figures import COLOURS, SMALL

STEP = 0.24  # inches between two names
GREY = "#666666"


def critical_difference(r: Ranks) -> Figure:
    """Methods on a scale of ranks, the best on the left; a bar joins those the ranks do not tell apart."""
    assert r.ranks is not None
    methods, ranks = list(r.ranks), list(r.ranks.values())
    k, half = len(methods), (len(methods) + 1) // 2
    left, right = (
        0.8 + 0.57 * 9 / 72 * max(map(len, of)) for of in (methods[:half], methods[half:])
    )  # of names, inches
    scale = max(0.55 * k, 3.2)  # inches from rank 1 to rank k
    bars = 0.13 * len(r.cliques) + 0.1
    high = 0.75 + bars + STEP * half + 0.1
    figure = Figure(figsize=(left + scale + right, high))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, left + scale + right)
    axes.set_ylim(high, 0)  # inches, downwards
    axes.axis("off")

    def x(rank: float) -> float:
        return left + (rank - 1) / (k - 1) * scale

    line = 0.75
    _scale_line(axes, x, k, line)
    length = x(1 + r.critical_difference) - x(1)
    _critical_bar(axes, left, min(length, scale), 0.25, f"CD {r.critical_difference:.2f}", length > scale)
    for number, clique in enumerate(r.cliques):
        y = line + 0.14 + 0.13 * number
        ends = [x(r.ranks[clique[0]]) - 0.05, x(r.ranks[clique[-1]]) + 0.05]
        axes.plot(ends, [y, y], color=COLOURS[0], linewidth=3.2, solid_capstyle="round")
    for number, (method, rank) in enumerate(zip(methods, ranks, strict=True)):
        on_left = number < half
        place = number if on_left else k - 1 - number
        y = line + bars + STEP * (place + 0.6)
        side = left - 0.15 if on_left else left + scale + 0.15
        axes.plot([x(rank), x(rank), side], [line, y, y], color="black", linewidth=0.8)
        text = f"{method}  {rank:.2f}" if on_left else f"{rank:.2f}  {method}"
        axes.text(side + (-0.05 if on_left else 0.05), y, text, fontsize=9, va="center", parse_math=False,
                  ha="right" if on_left else "left")  # fmt: skip
    return figure


def _scale_line(axes: Axes, x: object, k: int, y: float) -> None:
    assert callable(x)
    axes.plot([x(1), x(k)], [y, y], color="black", linewidth=1)
    for rank in range(1, k + 1):
        axes.plot([x(rank)] * 2, [y - 0.07, y], color="black", linewidth=1)
        axes.text(x(rank), y - 0.1, str(rank), fontsize=SMALL, ha="center", va="bottom")


def _critical_bar(axes: Axes, start: float, length: float, y: float, text: str, beyond: bool) -> None:
    axes.plot([start, start + length], [y, y], color=GREY, linewidth=1.2)
    for end in [start] if beyond else [start, start + length]:
        axes.plot([end, end], [y - 0.05, y + 0.05], color=GREY, linewidth=1.2)
    more = " (more than the scale)" if beyond else ""
    axes.text(start + length / 2, y - 0.06, text + more, fontsize=SMALL, color=GREY, ha="center", va="bottom")


def costs(found: Sequence[Cost], view: str, metric: str) -> Figure:
    """A row a dataset: mean score over megabytes and over seconds; filled and joined: who is best for its cost."""
    datasets = list(dict.fromkeys(one.dataset for one in found))
    methods = list(dict.fromkeys(one.method for one in found))
    figure = Figure(figsize=(9.2, 3.5 * max(len(datasets), 1)), layout="constrained")
    panels = np.atleast_2d(figure.subplots(max(len(datasets), 1), 2, sharey="row"))
    for row, dataset in zip(panels, datasets, strict=True):
        of = [one for one in found if one.dataset == dataset]
        for axes, what, title in zip(row, ("megabytes", "seconds"), ("MB up and down", "s of training"), strict=True):
            _cost_panel(axes, of, methods, what)
            axes.set_xlabel(title)
        better = "lower is better" if metric in LOWER_IS_BETTER else "mean over clients"
        row[0].set_ylabel(f"{view} {metric}, {better}")
        row[0].set_title(dataset if len(datasets) > 1 else "", fontsize=9, loc="left", parse_math=False)
    for number, method in enumerate(methods):
        colour, marker = _mark(number)
        panels[0][0].scatter([], [], s=34, color=colour, marker=marker, label=method.replace("$", r"\$"))
    figure.legend(loc="outside right upper", fontsize=SMALL, frameon=False)
    return figure


def _mark(number: int) -> tuple[str, str]:
    return COLOURS[number % len(COLOURS)], "os^DvP"[number // len(COLOURS) % 6]


def _cost_panel(axes: Axes, found: Sequence[Cost], methods: Sequence[str], what: str) -> None:
    best = sorted((one for one in found if getattr(one, f"frontier_{what}")), key=lambda one: float(getattr(one, what)))
    axes.step([getattr(one, what) for one in best], [one.score for one in best], where="post", color=GREY,
              linewidth=1, zorder=1)  # fmt: skip
    for one in found:
        colour, marker = _mark(methods.index(one.method))
        fill = colour if one in best else "white"
        axes.scatter(getattr(one, what), one.score, s=34, color=fill, marker=marker, edgecolors=colour, zorder=2)
    costs = [getattr(one, what) for one in found if getattr(one, what) > 0]
    if costs and max(costs) > 30 * min(costs):
        axes.set_xscale("symlog", linthresh=min(costs))
    axes.margins(x=0.18, y=0.1)
    if axes.get_xlim()[0] < 0:
        axes.set_xlim(left=-0.03 * max(costs, default=1.0) if axes.get_xscale() == "linear" else -0.3 * min(costs))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
