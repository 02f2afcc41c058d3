"""Centralized: one model trained on everyone's recordings in one place; min over w of Σ L_i(w).

server  model        client (the one that holds everything)  –
down    model        up      model

A reference, not a federation: every recording leaves its device. It gives the engine one client with all the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import classify
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class Centralized(Method):
    """One model trained on everyone's recordings in one place; a reference, not a federation."""

    name: ClassVar[str] = "centralized"
    paper: ClassVar[str] = "reference of FedAli and FedCoad"
    group: ClassVar[str] = "references"
    equation: ClassVar[str] = "min over w of Σ Lᵢ(w)"
    assumes: ClassVar[str] = "that every recording may leave its device; samples of one shape"
    use: ClassVar[str] = "beside every other method: what a federation could reach at best, with one model"
    pools: ClassVar[bool] = True

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        done = fit(classify(client), down["model"], client, work.epochs(self.epochs), self.optim())
        return Reply(upload={"model": done.params}, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": uploads["everyone"]["model"]}
