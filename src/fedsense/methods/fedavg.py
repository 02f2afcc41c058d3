"""FedAvg: clients train the shared model, the server averages (McMahan et al., AISTATS 2017), Algorithm 1.

server  model        client  –
down    model        up      model, n

Running statistics of BatchNorm are averaged like weights; FedBN is the method that keeps them apart. Clients with
different networks are refused, or averaged among their likes with ``by_architecture``, as FedAPA's Table III needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import architectures, average, average_for, average_within, classify, size
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Clients train the shared model in turn, the server averages: w = Σ nᵢwᵢ / Σ nᵢ."""

    by_architecture: bool = False  # average among clients with the same network, where networks differ

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    group: ClassVar[str] = "one model for all"
    equation: ClassVar[str] = "w = Σ nᵢwᵢ / Σ nᵢ"
    assumes: ClassVar[str] = "one network for all"
    use: ClassVar[str] = "as the first thing to try, and beside every other method"

    def requires(self, task: Task) -> None:
        if not self.by_architecture:
            share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"architecture": architectures(task)} if self.by_architecture else {"model": params}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return average_for(server, client_id) if self.by_architecture else server

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = down.get("model", client.initial)  # nothing came down: nobody has trained this network yet
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        upload = {"model": done.params, "size": size(client)}
        return Reply(upload=upload, model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return average_within(server, uploads) if self.by_architecture else {"model": average(uploads, "model")}
