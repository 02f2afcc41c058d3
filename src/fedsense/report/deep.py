"""What needs a run's models and recordings: who holds which classes, what is taken for what, where samples lie.

A run is opened from its last checkpoint, its data from its recipe. Whatever cannot be had is left out, with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense.bundle import Bundle
from fedsense.engine.checkpoint import is_packed
from fedsense.engine.folder import RUN_FILE, read_json
from fedsense.engine.rounds import Engine
from fedsense.errors import FedsenseError, UserError
from fedsense.experiment import reopen
from fedsense.federation import SPLITS, Federation
from fedsense.report.gather import Document
from fedsense.result import Result
from fedsense.work import stream

CLIENTS, SAMPLES = 10, 480  # at most, of a picture of embeddings
PERPLEXITY = 30.0  # scikit-learn's default; a third of the points where there are fewer than 91
Array = NDArray[np.floating]


def deepen(found: Document, results: Sequence[Result], tell: Callable[[str], None] = lambda text: None) -> None:
    """Add to a page's data what needs models and recordings; of every method the first seed."""
    firsts: dict[str, Result] = {}
    for result in results:
        firsts.setdefault(result.method, result)
    known: dict[Any, Federation] = {}
    reasons: dict[str, dict[str, str]] = {}
    for method, result in firsts.items():
        try:
            engine = _open(result, known, tell)
        except Exception as error:  # whatever became of models or recordings: a page without them is better than none
            reasons.setdefault("Confusion matrices, class × client, embeddings", {})[method] = _why(error)
            continue
        for part, add in (("Class × client", _counts), ("Confusion matrix", _confusion), ("Embeddings", _embedding)):
            try:
                add(found, engine, method)
            except Exception as error:
                reasons.setdefault(part, {})[method] = _why(error)
    for part, of in reasons.items():
        for reason in dict.fromkeys(of.values()):
            who = [method for method, why in of.items() if why == reason]
            found["left_out"].append([part if len(who) == len(firsts) else f"{part} of {', '.join(who)}", reason])


def _open(result: Result, known: dict[Any, Federation], tell: Callable[[str], None]) -> Engine:
    if result.folder is None:
        raise UserError("the run was not kept in a folder")
    if is_packed(result.folder):
        raise UserError("packed without models; they are where it was run")
    tell(f"{result.method}: models and recordings")
    key = (result.folder.parent, result.seed)
    engine = reopen(result.folder, known.get(key))
    known[key] = engine.federation
    if not engine.round:
        raise UserError("there is no checkpoint yet")
    if engine.federation.fingerprint != read_json(result.folder / RUN_FILE).get("fingerprint"):
        raise UserError("the recordings are not those it ran on")
    return engine


def _why(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if isinstance(error, FedsenseError) and text else f"{type(error).__name__}: {text}"


def _counts(found: Document, engine: Engine, method: str) -> None:
    """Samples of every client and class; of each dataset's first run."""
    name, counts = found["dataset"][method], found.setdefault("counts", {})
    if name in counts:
        return
    federation = engine.federation
    each = {split: federation.class_counts(split) for split in SPLITS}
    counts[name] = {
        "classes": list(federation.task.classes),
        "clients": federation.ids,
        "seed": engine.settings.seed,
        **{split: [of[client] for client in federation.ids] for split, of in each.items()},
    }


def _confusion(found: Document, engine: Engine, method: str) -> None:
    """Cells ``[true][predicted]`` of everyone's own model on its own test data."""
    task = engine.federation.task
    if task.kind == "regression":
        raise UserError("labels are values, not classes")
    width, cells = len(task.classes), np.zeros((len(task.classes), len(task.classes)), dtype=int)
    for data in engine.federation:
        if not len(data.test):
            continue
        client = engine.site.client(data.id)
        logits = engine.method.predict(client, engine.personal_parameters(data.id), client.data.test.x)
        said, true = logits.argmax(1).cpu().numpy(), data.test.y.cpu().numpy()
        cells += np.bincount(true * width + said, minlength=width * width).reshape(width, width)
    found.setdefault("confusion", {})[method] = {
        "classes": list(task.classes),
        "cells": cells.tolist(),
        "samples": int(cells.sum()),
        "seed": engine.settings.seed,
    }


def _embedding(found: Document, engine: Engine, method: str) -> None:
    """Test samples of some clients in the space of their own models, with prototypes or anchors, in a plane."""
    task, seed = engine.federation.task, engine.settings.seed
    if task.kind == "regression":
        raise UserError("labels are values, not classes")
    anchors = engine.server.get("anchors", {}).get("anchors.mean")
    holding = [data for data in engine.federation if len(data.test)]
    chosen = [holding[i] for i in np.unique(np.linspace(0, len(holding) - 1, min(CLIENTS, len(holding))).astype(int))]
    points, labels, owners = [], [], []
    for number, data in enumerate(chosen):
        rows = stream(seed, data.id, "picture").permutation(len(data.test))[: SAMPLES // len(chosen)]
        client = engine.site.client(data.id)
        out = client.model.predict(engine.personal_parameters(data.id), client.data.test.x[torch.from_numpy(rows)])
        values = out.features if anchors is None or out.latent is None else out.latent
        points.append(values.flatten(1).cpu().numpy())
        labels += data.test.y[torch.from_numpy(rows)].tolist()
        owners += [number] * len(rows)
    if len({part.shape[1] for part in points}) > 1:
        raise UserError("clients' features have different widths, and so no common space")
    what, stars, star_labels, star_owners = _stars(
        engine.server, [data.id for data in chosen], len(task.classes), points[0].shape[1]
    )
    space = np.concatenate([*points, *stars])
    if len(space) < 5:
        raise UserError("there are fewer than five samples")
    planes = {name: _rounded(plane) for name, plane in (("t-SNE", _t_sne(space, seed)), ("PCA", _pca(space)))}
    found.setdefault("embeddings", {})[method] = {
        "classes": list(task.classes),
        "clients": [data.id for data in chosen],
        "label": labels,
        "client": owners,
        "what": what,
        "space": "features" if anchors is None else "common space (what adapters give)",
        "proto_label": star_labels,
        "proto_client": star_owners,
        "planes": planes,
        "seed": seed,
    }


def _stars(
    server: Bundle, clients: Sequence[str], many: int, width: int
) -> tuple[str, list[Array], list[int], list[int]]:
    """Prototypes on the server that lie in the clients' space, their classes and owners (-1: everyone's).

    None where anchors are not of classes (FLIC's meta-classes), or prototypes of another space (FedAli's).
    """
    found: list[Array] = []
    classes: list[int] = []
    owners: list[int] = []

    def add(table: Mapping[str, torch.Tensor], owner: int = -1) -> None:
        for c in (table["count"] > 0).nonzero().flatten().tolist():
            found.append(table["mean"][c][None].cpu().numpy())
            classes.append(c)
            owners.append(owner)

    anchors, proto = server.get("anchors", {}).get("anchors.mean"), server.get("proto", {})
    if anchors is not None and len(anchors) == many:
        add({"mean": anchors, "count": torch.ones(len(anchors))})
    elif "row" in server and "count" in server.get("table", {}):
        for number, client in enumerate(clients):
            if client in server["row"]:
                row = int(server["row"][client])
                add({name: server["table"][name][row] for name in ("mean", "count")}, number)
    elif "mean" in proto and "count" in proto:
        add(proto)
    if any(star.shape[1] != width for star in found):
        return "prototype", [], [], []
    return "anchor" if anchors is not None else "prototype", found, classes, owners


def _t_sne(space: Array, seed: int) -> Array:
    from sklearn.manifold import TSNE  # slow to import
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, (len(space) - 1) / 3)
    with warnings.catch_warnings(), threadpool_limits(1):  # so few points are slower with threads
        warnings.simplefilter("ignore")  # many samples in one place
        tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed, max_iter=750)
        return np.asarray(tsne.fit_transform(space.astype(np.float64)))


def _pca(space: Array) -> Array:
    centred = space.astype(np.float64) - space.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(space), 2))
    plane[:, : min(2, len(axes))] = centred @ axes[:2].T
    return plane


def _rounded(plane: Array) -> list[list[float]]:
    """Only where points lie to each other matters: within ±1, to four places."""
    return np.round(plane / (np.abs(plane).max() or 1.0), 4).tolist()  # type: ignore[no-any-return]
