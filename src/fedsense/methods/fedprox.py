"""FedProx: FedAvg with a pull towards the model that came down (Li et al., MLSys 2020), Algorithm 2.

server  model        client  –
down    model        up      model, n

Every client does all its epochs: the paper's tolerance of partial work (its gamma) is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import anchor, average, classify_near, size
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """FedAvg with a pull towards the model that came down: Lᵢ(w) + μ/2 ‖w − w_global‖²."""

    mu: float = 0.01  # strength of the pull

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    group: ClassVar[str] = "one model for all"
    equation: ClassVar[str] = "Lᵢ(w) + μ/2 ‖w − w_global‖²"
    assumes: ClassVar[str] = "one network for all"
    use: ClassVar[str] = "where clients do many local steps and drift apart"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "mu")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        model, loss = down["model"], classify_near(client, self.mu)  # Eq. 2
        done = fit(loss, model, client, work.epochs(self.epochs), self.optim(), given=anchor(client, model))
        upload = {"model": done.params, "size": size(client)}
        return Reply(upload=upload, model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": average(uploads, "model")}
