"""FedAvg: clients train the shared model, the server averages (McMahan et al., AISTATS 2017), Algorithm 1.

server  model        client  –
down    model        up      model, n

Running statistics of BatchNorm are averaged like weights; FedBN is the method that keeps them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import average, classify, size
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Clients train the shared model in turn, the server averages: w = Σ nᵢwᵢ / Σ nᵢ."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        done = fit(classify(client), down["model"], client, work.epochs(self.epochs), self.optim())
        upload = {"model": done.params, "size": size(client)}
        return Reply(upload=upload, model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": average(uploads, "model")}
