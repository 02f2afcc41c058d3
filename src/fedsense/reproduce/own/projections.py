"""Figure 3 of FLIC: classes of 20 clients in one plane, each client's samples projected by themselves.

The toy problem of noisy features made easy, as the caption has it: three classes, all on every client, their means
drawn with a standard deviation of 3. By t-SNE (from a random beginning) and by multi-dimensional scaling; of each
client all samples, for itself, as nobody sees another's. In numbers, which the paper does not have: how often a
sample's nearest neighbour in the plane has its class, among the samples of its own client and among all others'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fedsense.data.projections import How, projected
from fedsense.reproduce.own import Found, Job, Shown

WAYS: dict[How, str] = {"t-sne": "t-SNE", "mds": "MDS"}
DRAWN = 10  # samples of a client and class in the picture
TONES = ("Blues", "Oranges", "Greens", "Purples", "Reds", "Greys")


def measure(job: Job, seed: int) -> dict[str, Any]:
    federation = job.recipe.federation(seed)
    label = np.concatenate([client.train.y.numpy() for client in federation])
    owner = np.concatenate([np.full(len(client.train), number) for number, client in enumerate(federation)])
    shown = np.concatenate([_first(client.train.y.numpy()) for client in federation])
    found: dict[str, Any] = {"classes": list(federation.task.classes), "clients": len(federation)}
    for how in WAYS:
        job.tell(f"  {WAYS[how]} of {len(federation)} clients")
        flat = projected(federation, how, width=2, seed=seed)
        points = np.concatenate([client.train.x.numpy() for client in flat])
        own, others = nearest_alike(points, label, owner)
        found[how] = {"points": points[shown].astype(float).round(3).tolist(), "own": 100 * own, "others": 100 * others}
    return {**found, "label": label[shown].tolist(), "client": owner[shown].tolist()}


def _first(label: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The first so many of each class; they were drawn in no order."""
    chosen = np.zeros(len(label), bool)
    for one in np.unique(label):
        chosen[np.flatnonzero(label == one)[:DRAWN]] = True
    return chosen


def nearest_alike(
    points: NDArray[np.floating], label: NDArray[np.int64], owner: NDArray[np.int64]
) -> tuple[float, float]:
    """How often the nearest neighbour has one's class: among one's own client's samples, and among the others'."""
    apart = cdist(points, points)
    np.fill_diagonal(apart, np.inf)
    same = owner[:, None] == owner[None, :]
    shares = [float(np.mean(label[np.where(among, apart, np.inf).argmin(1)] == label)) for among in (same, ~same)]
    return shares[0], shares[1]


def show(job: Job, found: Mapping[int, Found]) -> Shown:
    each = list(found.values())
    lines = [
        job.line(name, column, [one[how][key] for one in each])
        for how, name in WAYS.items()
        for key, column in (("own", "among the client's own"), ("others", "among other clients'"))
    ]
    return lines, {"": _drawn(each[0])}


def _drawn(one: Found) -> Figure:
    """A panel a projection: a colour a class, a tone a client."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    label, client = np.array(one["label"]), np.array(one["client"])
    tones = np.linspace(0.4, 0.95, one["clients"])
    maps = [colormaps[TONES[number % len(TONES)]] for number in range(len(one["classes"]))]
    colours = np.array([maps[y](tones[who]) for y, who in zip(label, client, strict=True)])
    for axes, (how, name) in zip(figure.subplots(1, len(WAYS)), WAYS.items(), strict=True):
        axes.scatter(*np.array(one[how]["points"]).T, c=colours, s=14, alpha=0.8, linewidths=0)
        said = f"{one[how]['own']:.0f} % / {one[how]['others']:.0f} %"
        axes.set_title(f"{name}; nearest neighbour of the same class, own client / others: {said}", fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    for number, name in enumerate(one["classes"]):
        figure.axes[0].scatter([], [], color=maps[number](0.7), s=20, label=f"class {name}")
    figure.legend(loc="outside lower center", ncols=len(maps), fontsize=8, frameon=False)
    return figure
