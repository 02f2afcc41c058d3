"""Flower's ClientApp, for SuperNodes started by hand and for Flower's simulation; ``fedsense fleet node`` needs none.

Flower starts a process for every message: it loads PyTorch and the recordings each time. What a node must know stands
in its ``--node-config``: ``data`` (a folder), ``clients`` (names, with commas between) and ``keep`` (a folder).
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsense.flower.node import Node, Source

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Message:
    return answer(message, context)


@app.query()  # type: ignore[untyped-decorator, unused-ignore]
def query(message: Message, context: Context) -> Message:
    return answer(message, context)


def answer(message: Message, context: Context) -> Message:
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
    named = tuple(name.strip() for name in clients.split(",") if name.strip())
    home = Path(keep or os.environ.get("FEDSENSE_KEEP", Path.home() / ".fedsense" / "keep"))
    return Node(Source(data, named, part), home)
