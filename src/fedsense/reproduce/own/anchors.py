"""Figures 5 and S4 of FLIC: a few clients' samples in the common space, and their classes' anchors, at three moments.

The toy problem of linear maps; of its clients three who have five classes between them. Their embeddings are
pre-trained for 10, 50 and 100 epochs; samples and anchors go to the plane by t-SNE together, each moment for itself.
Figure S4 has a second row, in which samples the embeddings were not trained on go along. In numbers, which t-SNE has
no part in: how many samples are nearer to the anchor of their class than to those of the other four.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch

from fedsense.engine.site import Site
from fedsense.federation import Federation, Samples
from fedsense.methods import Flic
from fedsense.report.figures import Moment, embeddings
from fedsense.reproduce.own import Found, Job, Shown
from fedsense.work import Work, stream

EPOCHS, CLIENTS, CLASSES = (10, 50, 100), 3, 5
MOST = 150  # samples of a client, of each split
AMONG = 30  # clients of which they are chosen


def measure(job: Job, seed: int) -> dict[str, Any]:
    federation = job.recipe.federation(seed)
    chosen, labels = _chosen(federation)
    flic = job.recipe.methods()["flic"]
    assert isinstance(flic, Flic)
    moments = []
    for epochs in EPOCHS:
        job.tell(f"  {epochs} epochs of alignment")
        site = Site(federation, replace(flic, pretrain=epochs), job.recipe.model_spec(), seed)
        moments.append(_moment(site, chosen, labels, seed))
    return {"classes": labels, "clients": chosen, "moments": dict(zip(map(str, EPOCHS), moments, strict=True))}


def _chosen(federation: Federation) -> tuple[list[str], list[int]]:
    """Clients who have as many classes between them as the paper's, and these classes."""
    held = {client.id: set(client.train.y.tolist()) for client in federation}
    groups = combinations(sorted(held)[:AMONG], CLIENTS)
    chosen = min(groups, key=lambda ids: abs(len(set.union(*(held[i] for i in ids))) - CLASSES))
    return list(chosen), sorted(set.union(*(held[i] for i in chosen)))


def _moment(site: Site, chosen: list[str], labels: list[int], seed: int) -> dict[str, Any]:
    """Where samples and anchors are: in the plane, without and with test samples; and whether they are well placed."""
    anchors = site.first_server["anchors"]["anchors.mean"][labels]
    parts, label, owner, tested = [], list[int](), list[int](), list[bool]()
    for number, who in enumerate(chosen):
        client = site.client(who)
        work = Work(seed, 0, who, site.method.batch)
        state = site.method.init_client(client, client.initial, site.first_server, work)
        for split, samples in (("train", client.data.train), ("test", client.data.test)):
            some = _some(samples, seed, who, split)
            latent = client.model.predict(client.initial | state["head"], some.x).latent
            assert latent is not None
            parts.append(latent)
            label += [labels.index(y) for y in some.y.tolist()]
            owner += [number] * len(latent)
            tested += [split == "test"] * len(latent)
    points, truth, new = torch.cat(parts), torch.tensor(label), torch.tensor(tested)
    right = torch.cdist(points, anchors).argmin(1) == truth
    rows = {"train": ~new, "all": torch.ones_like(new)}
    flat = {name: _flat(torch.cat([points[mine], anchors]), seed) for name, mine in rows.items()}
    return {
        "points": {name: where[: -len(labels)] for name, where in flat.items()},
        "anchors": {name: where[-len(labels) :] for name, where in flat.items()},
        "label": label,
        "client": owner,
        "tested": tested,
        "right": {"train": 100 * float(right[~new].float().mean()), "test": 100 * float(right[new].float().mean())},
    }


def _some(samples: Samples, seed: int, who: str, split: str) -> Samples:
    """At most so many, of all classes: they stand in order of class."""
    return samples.take(np.sort(stream(seed, "picture", who, split).permutation(len(samples))[:MOST]))


def _flat(points: torch.Tensor, seed: int) -> list[list[float]]:
    from sklearn.manifold import TSNE

    flat = TSNE(random_state=seed, init="pca").fit_transform(points.numpy()).astype(float)
    rounded: list[list[float]] = flat.round(2).tolist()
    return rounded


def show(job: Job, found: Mapping[int, Found]) -> Shown:
    each = list(found.values())
    lines = [
        job.line(f"{epochs} epochs", column, [one["moments"][epochs]["right"][split] for one in each])
        for epochs in each[0]["moments"]
        for split, column in (("train", "training samples"), ("test", "test samples"))
    ]
    rows = ("train", "all") if job.item.own == "anchors-tested" else ("train",)
    moments = [_drawn(epochs, one, row) for row in rows for epochs, one in each[0]["moments"].items()]
    figure = embeddings(moments, [f"class {label}" for label in each[0]["classes"]], rows=len(rows))
    return lines, {"": figure}


def _drawn(epochs: str, one: Mapping[str, Any], row: str) -> Moment:
    tested = np.array(one["tested"])
    mine = np.ones_like(tested) if row == "all" else ~tested
    label, client = (np.array(one[name])[mine] for name in ("label", "client"))
    title = f"after {epochs} epochs of alignment" + (", and test samples (rings)" if row == "all" else "")
    anchors = np.array(one["anchors"][row])
    return Moment(title, np.array(one["points"][row]), label, client, anchors, range(len(anchors)), rings=tested[mine])
