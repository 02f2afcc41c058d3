"""A client that was not there: it gets what a run has learned, and learns what is its own (FLIC, section S1.4).

Nothing is trained again but the newcomer's own parts, and nothing of it is sent: a run's folder is enough, without the
recordings it was trained on. A learning curve tells how many labelled samples of its own it takes, beside the same
network trained on these samples alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsense.bundle import Bundle, Params
from fedsense.data.merging import GONE, renumbered
from fedsense.engine import checkpoint as checkpoints
from fedsense.engine.executors import make_executor
from fedsense.engine.folder import RUN_FILE, read_json, write_json
from fedsense.engine.record import without_nan
from fedsense.engine.site import Call, Site
from fedsense.errors import RunFailed, UserError
from fedsense.evaluation.metrics import check_metrics
from fedsense.federation import ClientData, Federation, Task
from fedsense.method import Method
from fedsense.methods import Local, find_method
from fedsense.models import MODELS
from fedsense.models.spec import ModelSpec
from fedsense.personal import save_model
from fedsense.work import stream

JOINED = "join.json"


@dataclass(frozen=True)
class Point:
    """One client with so many labelled samples: its scores joined to the run, and on its own."""

    client: str
    samples: int
    joined: Mapping[str, float]
    alone: Mapping[str, float]


@dataclass(frozen=True)
class Joined:
    """What joining a run gave."""

    method: str
    points: tuple[Point, ...]
    models: Mapping[str, Params] = field(repr=False)  # of each client, with all its labelled samples
    classes: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)  # samples of classes the run does not know
    counts: tuple[int, ...] = ()  # of labelled samples that were asked for

    def curve(self, metric: str) -> dict[int, tuple[float, float, int]]:
        """Samples → mean over those clients who have as many, joined and alone, and how many they are; 0 is all."""
        largest = {p.client: max(q.samples for q in self.points if q.client == p.client) for p in self.points}
        whole = {p.client: p for p in self.points if p.samples == largest[p.client]}
        some = {n: [p for p in self.points if p.samples == n] for n in self.counts}
        some[0] = list(whole.values())
        return {
            n: (_mean([p.joined[metric] for p in points]), _mean([p.alone[metric] for p in points]), len(points))
            for n, points in some.items()
            if points
        }

    def save(self, folder: Path) -> None:
        """The curve as ``join.json``, and every client's model as a safetensors file."""
        (folder / "models").mkdir(parents=True, exist_ok=True)
        about = {"method": self.method, "classes": self.classes, "left_out": dict(self.left_out)}
        points = [asdict(point) for point in self.points]
        write_json(folder / JOINED, without_nan({**about, "points": points}))
        for client, params in self.models.items():
            path = folder / "models" / f"{client.replace('/', '-')}.safetensors"
            save_model(path, client, self.classes, params)


def join(folder: str | Path, newcomers: Federation, samples: Sequence[int] = (), workers: int | None = None) -> Joined:
    """Newcomers join the run in ``folder``, with each number of labelled ``samples`` and with all they have."""
    folder = Path(folder)
    about = read_json(folder / RUN_FILE)
    if about.get("fingerprint") == newcomers.fingerprint or _are_members(about, newcomers):
        raise UserError(f"these are the very clients {folder} was trained with, whose scores it has; name others")
    task = Task(**{key: about["task"][key] for key in ("classes", "kind", "values")} | {"members": {}})
    task = replace(task, classes=tuple(task.classes), values=tuple(task.values))
    method = _method(about)
    if unknown := [name for name in about["model"]["names"] if name not in MODELS]:
        raise UserError(f"{folder} has a network of its own ('{unknown[0]}'), which its folder does not hold")
    model = ModelSpec(tuple(about["model"]["names"]), about["model"]["options"], start=about.get("start"))
    if model.start is not None and model.about()["start"] != about["model"]["start"]:
        raise UserError(f"{model.start} is not the file {folder} began with; put that one back", about=model.start)
    found = checkpoints.load(folder / "checkpoints", False)
    if found is None:
        raise UserError(f"{folder} has no checkpoint yet; let the run finish first")
    seed = about["seed"]
    metrics = tuple(about["settings"]["metrics"])
    check_metrics(metrics, task)
    known, left_out = _in_classes(newcomers, task)
    dealt = sorted(client.id for client in known)  # several networks are dealt out as in a run
    known = [replace(client, model=client.model or model.for_client(dealt.index(client.id))) for client in known]
    federation = Federation(newcomers.name, task, tuple(_with_fewer(known, samples, seed)))
    epochs = method.epochs + int(getattr(method, "pretrain", 0))
    fields = ("batch", "optimiser", "lr", "momentum", "weight_decay", "clip")
    alone = Local(epochs=epochs, **{name: getattr(method, name) for name in fields})
    round = found.round + 1
    joined = _answers(Site(federation, method, model, seed, metrics=metrics), found.server, round, workers)
    own = _answers(Site(federation, alone, model, seed, metrics=metrics), {}, round, workers)
    points, models = [], {}
    for client in federation:
        who = client.traits["joins as"]
        points.append(Point(who, len(client.train), joined[client.id][0], own[client.id][0]))
        if client.traits["all"]:
            models[who] = joined[client.id][1]
    counts = tuple(sorted({n for n in samples if n > 0}))
    return Joined(about.get("label", method.name), tuple(points), models, task.classes, left_out, counts)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def _are_members(about: Mapping[str, Any], newcomers: Federation) -> bool:
    """Whether all are people a recipe's run on real recordings had; made-up people of one name may be others."""
    known = "recipe" in about and not about.get("synthetic") and about.get("federation") == newcomers.name
    return known and {client.id for client in newcomers.everyone} <= set(about.get("clients", {}))


def _method(about: Mapping[str, Any]) -> Method:
    kind = find_method(about["method"])
    return kind(**about["parameters"])


def _in_classes(newcomers: Federation, task: Task) -> tuple[list[ClientData], dict[str, int]]:
    """The newcomers with the run's class numbers, and how many samples are of classes the run does not know."""
    if (newcomers.task.kind == "regression") != (task.kind == "regression"):
        raise UserError(f"the run is a {task.kind}, but '{newcomers.name}' is a {newcomers.task.kind}")
    if task.kind == "regression":
        if newcomers.task.classes != task.classes:
            other = newcomers.task.classes[0]
            raise UserError(f"the run predicts '{task.classes[0]}', but '{newcomers.name}' has '{other}'")
        return [c for c in newcomers.everyone if len(c.train) and len(c.test)], {}
    number = {name: place for place, name in enumerate(task.classes)}
    names = newcomers.task.classes
    places = torch.tensor([number.get(name, GONE) for name in names])
    every = torch.cat([split.y for client in newcomers.everyone for split in client.splits])
    left_out = {name: int((every == i).sum()) for i, name in enumerate(names) if name not in number}
    clients = [client.change(lambda _, split: renumbered(split.made, places)) for client in newcomers.everyone]
    fit = [client for client in clients if len(client.train) and len(client.test)]
    if not fit:
        raise UserError(
            f"nobody of '{newcomers.name}' has both training and test samples of the run's classes "
            f"({', '.join(task.classes)}); its own are {', '.join(newcomers.task.classes)}: rename them, or split them"
        )
    return fit, {name: count for name, count in left_out.items() if count}


def _with_fewer(clients: Sequence[ClientData], samples: Sequence[int], seed: int) -> Iterator[ClientData]:
    """Each client with each number of labelled samples it can give, and with all; fewer are always among more."""
    for client in clients:
        order = _class_by_class(client.train.y.numpy(), seed, client.id)
        whole = len(client.train)
        for count in (*sorted({n for n in samples if 0 < n < whole}), whole):
            train = client.train.take(torch.from_numpy(order[:count]))
            traits = {**client.traits, "joins as": client.id, "all": count == whole}
            yield replace(client, id=f"{client.id}, {count} samples", train=train, traits=traits)


def _class_by_class(y: np.ndarray, seed: int, client: str) -> np.ndarray:
    """Samples in an order in which classes take turns."""
    shuffled = stream(seed, client, "labelled").permutation(len(y))
    if y.dtype.kind == "f":  # values have no classes
        return shuffled
    turn = np.zeros(len(y), np.int64)
    for label in np.unique(y):
        mine = y[shuffled] == label
        turn[mine] = np.arange(mine.sum())
    return shuffled[np.argsort(turn, kind="stable")]


def _answers(site: Site, server: Bundle, round: int, workers: int | None) -> dict[str, tuple[dict[str, float], Params]]:
    """Client → its test scores and its model."""
    site.refuse_misfits(site.federation.clients, server)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    executor = make_executor(site, "auto", workers)
    try:
        calls = []
        for client in site.federation:
            try:
                down = site.method.broadcast(server, client.id)
            except Exception as error:
                raise RunFailed(
                    f"{site.method.name} has nothing for a client that was not there ({error!r})"
                ) from error
            calls.append(Call("join", (client.id,), round, {"down": down}, score=True))
        found = {calls[i].clients[0]: answer for i, answer in executor.run(calls)}
    finally:
        executor.close()
        torch.set_num_threads(threads)
    return {c: (a.data["scores"]["personal"]["test"], a.bundles["model"]["model"]) for c, a in found.items()}
