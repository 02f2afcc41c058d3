"""Flower's ClientApp: hands a message to the node, and the node's answer back.

Flower starts a process for every message. Where ``fedsense fleet node`` runs, that process only carries: it loads
neither PyTorch nor recordings, and asks the node's own process, which has them at hand, over a socket of this machine.
Elsewhere (Flower's simulation, or a SuperNode someone started by hand) the node is made here.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsense.flower.carry import ask

if TYPE_CHECKING:
    from fedsense.flower.node import Node

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Message:
    return answer(message, context)


@app.query()  # type: ignore[untyped-decorator, unused-ignore]
def query(message: Message, context: Context) -> Message:
    return answer(message, context)


def answer(message: Message, context: Context) -> Message:
    if socket := context.node_config.get("socket"):
        return Message(ask(str(socket), message.content), reply_to=message)
    config = context.node_config
    part = None
    if "partition-id" in config:
        part = (int(config["partition-id"]), int(config["num-partitions"]))
    keep = config.get("keep") or context.run_config.get("keep")
    return Message(
        _node(str(config.get("data", "")), str(config.get("clients", "")), part, str(keep or "")).answer(
            message.content
        ),
        reply_to=message,
    )


@lru_cache(maxsize=64)
def _node(data: str, clients: str, part: tuple[int, int] | None, keep: str) -> Node:
    from fedsense.flower.node import Node, Source

    named = tuple(name.strip() for name in clients.split(",") if name.strip())
    home = Path(keep or os.environ.get("FEDSENSE_KEEP", Path.home() / ".fedsense" / "keep"))
    return Node(Source(data, named, part), home)
