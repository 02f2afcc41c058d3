"""A node: it has the recordings of one client or a few, and answers the server's calls with Bundles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedsense import __version__
from fedsense.data.merging import renumbered
from fedsense.engine.settings import Settings
from fedsense.engine.site import TRAINS, Answer, Call, Site
from fedsense.errors import FedsenseError, UserError
from fedsense.federation import ClientData, Federation, Task
from fedsense.flower.keep import Keep
from fedsense.flower.records import answers_to_records, calls_from_records, text_of, to_records
from fedsense.personal import described
from fedsense.recipe import Recipe, make_recipe

KEPT = ("start", "update", "finish")  # jobs after which a client has something else than before
MARKED = 32  # characters of a client's digest


@dataclass(frozen=True)
class Source:
    """Where a node's recordings are, and whose they are."""

    data: str = ""  # a folder or file; or a dataset's name, or nothing, to take the recipe's as FEDSENSE_DATA has it
    clients: tuple[str, ...] = ()  # of all those in the data, the ones that are here; all, if none is named
    part: tuple[int, int] | None = None  # instead: the i-th of n equal shares of the clients (Flower's simulation)

    def load(self, recipe: Recipe, seed: int) -> Federation:
        """The clients that are here. The recipe says how recordings are cut; where they are, only the node says."""
        found = self._read(recipe, seed)
        here = list(found)
        if self.part is not None:
            place, count = self.part
            order = sorted(found.ids)
            here = [client for client in here if order.index(client.id) % count == place]
        if self.clients:
            here = [found[name] for name in self.clients]  # says so if there is no such client
        if not here:
            raise UserError(f"no client of '{found.name}' is on this node")
        return found.with_clients(here, newcomers=())

    def _read(self, recipe: Recipe, seed: int) -> Federation:
        if self.part is not None or isinstance(recipe.data, tuple):
            if self.data and self.part is None:
                raise UserError("the recipe has several [[data]] tables; a node reads one folder: give it one [data]")
            return recipe.federation(seed)
        table = {key: value for key, value in recipe.data.items() if key != "root"}
        if self.data and Path(self.data).expanduser().exists():
            table["root"] = str(Path(self.data).expanduser())
        elif self.data not in ("", table["name"]):
            raise UserError(
                f"there is no folder {self.data} on this node, and the server's recipe is about '{table['name']}'; "
                "name the folder or file this node's recordings are in (--data)"
            )
        return recipe.model_copy(update={"data": table}).federation(seed)


def mark(client: ClientData, task: Task) -> str:
    """A digest of a client's recordings, by which a server knows it again; it tells nothing else of them."""
    return Federation("mark", task, (client,)).fingerprint[:MARKED]


class Node:
    """Answers what a server asks; remembers nothing that is not on disk, but keeps recordings and models at hand."""

    def __init__(self, source: Source, keep: Path, device: str | None = None) -> None:
        self.source, self.keep, self.device = source, Keep(keep), device
        self._federations: dict[str, Federation] = {}
        self._site: tuple[str, Site] | None = None
        torch.set_num_threads(1)  # see engine/executors.py

    def answer(self, records: RecordDict) -> RecordDict:
        """To a message of the server; a node that cannot answer says why."""
        try:
            text = text_of(records)
            if "calls" not in text:
                return to_records([], self.introduce(text))
            calls, text = calls_from_records(records)
            answers = [self._handle(call, more, text["run"]) for call, more in zip(calls, text["calls"], strict=True)]
            return answers_to_records(answers)
        except Exception as error:  # told to the server, which goes on without this node
            return to_records([], {"failure": _said(error), "answers": []})

    def introduce(self, text: Mapping[str, Any]) -> dict[str, Any]:
        """Who is here: what a server must know of clients before round one, and no more."""
        federation = self._federation(make_recipe(text["recipe"]), text["seed"])
        task = federation.task
        return {
            "version": __version__,
            "name": federation.name,
            "synthetic": federation.synthetic,
            "task": {"classes": task.classes, "kind": task.kind, "values": task.values},
            "clients": [
                {
                    "id": client.id,
                    "sizes": [len(split) for split in client.splits],
                    "shape": client.input_shape,
                    "model": client.model,
                    "mark": mark(client, task),
                    "traits": {key: value for key, value in client.traits.items() if key == "speed"},
                }
                for client in federation
            ],
        }

    def _federation(self, recipe: Recipe, seed: int) -> Federation:
        key = json.dumps([recipe.data, seed], default=str)
        if key not in self._federations:
            self._federations = {key: self.source.load(recipe, seed)}
        return self._federations[key]

    def _handle(self, call: Call, more: Mapping[str, Any], run: Mapping[str, Any]) -> Answer:
        try:
            site = self._at(run)
            return (
                self._train(site, call, more, run["key"]) if call.job in TRAINS else self._score(site, call, more, run)
            )
        except Exception as error:  # one client's affair
            return Answer(failure=_said(error))

    def _train(self, site: Site, call: Call, more: Mapping[str, Any], run: str) -> Answer:
        (client,) = call.clients
        base = more["base"][client]
        kept, anew = self._kept(run, client, base, call)
        done = site.handle(replace(call, bundles={**call.bundles, **{k: v for k, v in kept.items() if k != "model"}}))
        if call.job in KEPT:
            self.keep.write(run, client, call.round, done.bundles["state"], done.bundles["model"], base)
        data = {**done.data, **({"anew": True} if anew else {})}
        return Answer({"upload": done.bundles["upload"]}, data)

    def _score(self, site: Site, call: Call, more: Mapping[str, Any], run: Mapping[str, Any]) -> Answer:
        if call.job == "received":
            (client,) = call.clients
            kept, _ = self._kept(run["key"], client, more["base"][client], call)
            call = replace(call, bundles={**call.bundles, **kept})
        return site.handle(call)

    def _kept(self, run: str, client: str, base: int, call: Call) -> tuple[dict[str, Any], bool]:
        """What the client had after round ``base``, and whether that is lost and it begins anew."""
        if base >= 0 and (kept := self.keep.read(run, client, base)) is not None:
            return kept, False
        first = {} if "first" in call.bundles else {"first": call.bundles["down"]}
        return first, base >= 0

    def _at(self, run: Mapping[str, Any]) -> Site:
        """The clients with their models, for a run; made when it is first asked for."""
        key = json.dumps(run, sort_keys=True)
        if self._site is None or self._site[0] != key:
            self._site = (key, self._make(run))
        return self._site[1]

    def _make(self, run: Mapping[str, Any]) -> Site:
        recipe = make_recipe(run["recipe"])
        federation = self._federation(recipe, run["seed"])
        asked = run["task"]
        task = Task(tuple(asked["classes"]), asked["kind"], tuple(asked["values"]), features=asked["features"])
        clients = [_in_classes(client, federation.task.classes, task) for client in federation]
        named = [replace(client, model=run["architectures"].get(client.id)) for client in clients]
        settings = Settings(device=self.device or recipe.device)
        method, spec, names = recipe.methods()[run["label"]], recipe.model_spec(), run["architectures"]
        models = {
            c.id: described(task, method, spec, names[c.id], c.input_shape, run["seed"]) for c in named if c.model
        }
        self.keep.describe(run["key"], models)
        return Site(
            replace(federation, task=replace(task, features=0), clients=tuple(c for c in named if c.model)),
            method,
            spec,
            run["seed"],
            views=run["views"],
            metrics=run["metrics"],
            moment=run["moment"],
            device=settings.torch_device(),
            task=task,
        )


def _in_classes(client: ClientData, own: Sequence[str], task: Task) -> ClientData:
    """The client's labels as the numbers its classes have in the whole federation."""
    if tuple(own) == task.classes or task.kind == "regression":
        return client
    places = torch.tensor([task.classes.index(name) for name in own])
    return client.change(lambda _, split: renumbered(split.made, places))


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, FedsenseError) else f"{type(error).__name__}: {error}"
