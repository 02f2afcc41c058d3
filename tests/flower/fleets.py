"""Fleets for the tests: recipes with little to do, nodes in this process, and nodes as they really are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedsense.experiment import run_recipe
from fedsense.flower.node import Node, Source
from fedsense.flower.server import run_on
from fedsense.recipe import Recipe, make_recipe

SEVEN = ("fedavg", "scaffold", "fedpac", "protohar", "fedapa", "fedcoad", "flic")  # and fedali, which needs places for
# prototypes in its network
IMU = {"name": "synthetic-imu", "clients": 3, "samples": 24, "window": 32, "classes-per-client": 4}


def recipe(*methods: str, rounds: int = 2, model: Any = "flic-mlp", **tables: Any) -> Recipe:
    """A small experiment; every client trains alone, as on a fleet."""
    little = {"flic": {"pretrain": 2}, "fedali": {"prototypes": 8, "decay": 0.9}}
    base: dict[str, Any] = {
        "name": "small",
        "rounds": rounds,
        "executor": "serial",
        "data": dict(IMU),
        "model": model,
        "training": {"epochs": 1, "batch": 8, "lr": 0.05},
        "evaluation": {"views": ["personal", "global"], "metrics": ["accuracy"]},
        "method": [{"name": name, **little.get(name, {})} for name in methods or ("fedavg",)],
    }
    return make_recipe({**base, **tables})


def write_recordings(folder: Path, who: str, labels: str, minutes: float = 0.4) -> None:
    """A CSV of a client's own, 50 rows a second."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(len(who))
    rows = ["time,x,y,label"]
    for i in range(int(3000 * minutes)):
        rows.append(f"{i / 50:.2f},{rng.normal():.4f},{rng.normal():.4f},{labels[i // 300 % len(labels)]}")
    (folder / f"{who}.csv").write_text("\n".join(rows))
    described = 'name = "ours"\n[recording]\ntime = "time"\ntime-unit = "s"\ncolumns = ["x", "y"]\nlabel = "label"\n'
    (folder / "dataset.toml").write_text(described)


def clients_of(asked: Recipe, seed: int = 0) -> list[str]:
    return asked.federation(seed).ids


def embedded(asked: Recipe, folder: Path) -> Path:
    """The same on this machine, without a fleet."""
    run_recipe(asked, folder)
    return folder


class Inside:
    """A Grid whose nodes are objects in this process; ``spoil`` may change, delay or drop a reply."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.spoil: Callable[[int, RecordDict, RecordDict], RecordDict | str | None] = lambda node, asked, reply: reply
        self.sent: list[tuple[int, Message]] = []
        self.received: list[tuple[int, RecordDict]] = []
        self._replies: dict[str, Message] = {}
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as the process of a ServerApp has them

    def get_node_ids(self) -> list[int]:
        return sorted(self.nodes)

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        ids: list[str | None] = []
        for number, message in enumerate(messages):
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{len(self.sent)}-{number}"
            self.sent.append((node, message))
            if node not in self.nodes:
                ids.append(None)
                continue
            ids.append(message.metadata.message_id)
            reply = self.spoil(node, message.content, self.nodes[node].answer(message.content))
            if isinstance(reply, str):
                self._replies[message.metadata.message_id] = Message(Error(0, reply), reply_to=message)
            elif reply is not None:
                self.received.append((node, reply))
                self._replies[message.metadata.message_id] = Message(reply, reply_to=message)
        return ids

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [self._replies.pop(i) for i in ids if i in self._replies]


def inside(asked: Recipe, keep: Path, share: int = 1) -> Inside:
    """A node for every client, or for every few."""
    names = clients_of(asked)
    groups = [names[i : i + share] for i in range(0, len(names), share)]
    return Inside({10 + i: Node(Source(clients=tuple(g)), keep / str(i)) for i, g in enumerate(groups)})


def run_inside(grid: Inside, asked: Recipe, out: Path, **config: Any) -> Path:
    run_on(grid, asked, {"out": str(out), "nodes": len(grid.nodes), "deadline": 20, "wait": 1, **config})  # type: ignore[arg-type]
    return out


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def same_results(fleet: Path, other: Path, run: str, bits: bool = True) -> None:
    """Two runs gave the same: the server's Bundle to the bit, scores, and what was sent."""
    mine, theirs = fleet / run, other / run
    server = sorted((mine / "checkpoints").glob("server-*"))[-1]
    assert server.read_bytes() == (theirs / "checkpoints" / server.name).read_bytes()
    for a, b in zip(lines(mine, "scores"), lines(theirs, "scores"), strict=True):
        assert a["scores"] == b["scores"]
    for a, b in zip(lines(mine, "ledger"), lines(theirs, "ledger"), strict=True):
        assert a.keys() == b.keys()
        assert a["clients"].keys() == b["clients"].keys()
        for client, entry in a["clients"].items():
            for key in ("up", "metrics"):
                assert entry[key] == b["clients"][client][key]
            down = {k: v for k, v in entry["down"].items() if not k.startswith("first.") and k != "header"}
            assert down == {k: v for k, v in b["clients"][client]["down"].items() if k != "header"}
