"""FedAvgM: FedAvg with momentum on the server (Hsu, Qi and Brown, 2019), Section 4.3.

server  model, velocity        client  –
down    model                  up      model, n

v ← βv + Δ with Δ = w − Σ nᵢwᵢ / Σ nᵢ, then w ← w − v. Running statistics of BatchNorm are averaged without momentum: a
variance that overshoots may fall below zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import average, classify, size, zeros_of_trained
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Method):
    """FedAvg with momentum on the server: v ← βv + Δ, w ← w − v."""

    beta: float = 0.7  # momentum of the server; FedCoad tries 0.7 and 0.997

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = "Hsu et al., 2019"
    group: ClassVar[str] = "one model for all"
    equation: ClassVar[str] = "v ← βv + w − Σ nᵢwᵢ / Σ nᵢ, then w ← w − v"
    assumes: ClassVar[str] = "one network for all"
    use: ClassVar[str] = "where FedAvg's model swings from round to round, because few clients take part"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "beta")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params, "velocity": zeros_of_trained(params, task)}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return {"model": server["model"]}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        done = fit(classify(client), down["model"], client, work.epochs(self.epochs), self.optim())
        upload = {"model": done.params, "size": size(client)}
        return Reply(upload=upload, model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        model, mean = server["model"], average(uploads, "model")
        velocity = {n: self.beta * v + model[n] - mean[n] for n, v in server["velocity"].items()}
        return {"model": mean | {n: model[n] - v for n, v in velocity.items()}, "velocity": velocity}
