"""How a run goes, whatever the method, and the ways in which it is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from fedsense.client import find_device
from fedsense.engine.executors import Kind
from fedsense.engine.store import DEFAULT_MB
from fedsense.errors import UserError, nearest
from fedsense.evaluation.metrics import check_metrics

VIEWS = ("personal", "generalisation", "global")
# The server's model on all recordings of people who took no part: of each of them, and of all of them together.
HELD_OUT = ("held-out", "held-out-pooled")
# People who took no part join, with their own training data, and are scored on their test data.
NEW_CLIENT = "new-client"


@dataclass(frozen=True)
class Settings:
    """How a run goes, whatever the method."""

    rounds: int = 20
    seed: int = 0
    participation: float = 1.0  # share of the clients that take part in a round
    every: int = 1  # score every so many rounds, and after the last
    views: tuple[str, ...] = VIEWS
    metrics: tuple[str, ...] = ("accuracy", "macro-f1")
    # "trained": a client's own model is the one it holds after its local work (FedAli, FedAPA); a client that sits a
    # round out keeps the one it has. "received": right after the next broadcast, before local work (ProtoHAR).
    moment: Literal["trained", "received"] = "trained"
    pool: int | None = 2000  # Generalisation is scored on at most so many of everyone's samples; None or 0 is all
    # "serial": one client after another; "workers": so in several processes, to the same bits; "cohort": side by side;
    # "auto": side by side where a step is mostly overhead. But for "serial", in as many processes as ``workers`` says.
    executor: Kind = "auto"
    workers: int | None = None  # processes; None is one a core
    device: str = "auto"
    state_memory: int = DEFAULT_MB  # MB of what clients keep between rounds that stay in memory; the rest is on disk
    finish: bool = False  # after the last round every client trains once more, for itself

    def __post_init__(self) -> None:
        check_metrics(self.metrics)
        for name in ("views", "metrics"):
            if not getattr(self, name):
                raise UserError(f"evaluation.{name} is empty; name at least one", about=name)
        for view in self.views:
            if view not in (known := (*VIEWS, *HELD_OUT, NEW_CLIENT)):
                raise UserError(f"there is no view '{view}'; {nearest(view, known)}", about=view)
        if self.rounds < 1:
            raise UserError(f"rounds is {self.rounds}; a run has at least one")
        if not 0 < self.participation <= 1:
            raise UserError(
                f"participation is {self.participation:g}; it is a share of the clients, above 0 and up to 1"
            )
        if self.every < 1:
            raise UserError(f"evaluation.every is {self.every}; it must be at least 1")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"workers is {self.workers}; it must be at least 1")
        if self.state_memory < 0:
            raise UserError(f"state_memory is {self.state_memory}; give a number of MB from 0", about="state_memory")
        if self.executor not in get_args(Kind):
            name = str(self.executor)
            raise UserError(f"there is no executor '{name}'; {nearest(name, get_args(Kind))}", about=name)
        if self.executor == "serial" and (self.workers or 1) > 1:
            raise UserError(
                f"executor is 'serial', one client after another, but workers is {self.workers}; leave one of them out",
                about="workers",
            )

    def torch_device(self) -> torch.device:
        return find_device(self.device)
