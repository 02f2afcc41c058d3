"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020), Algorithm 1 with option II.

server  model, c, N        client  c_i
down    model, c           up      model, Δc_i, n

The correction c − c_i is applied to the step, after the optimiser (see ops/variates.py): with plain SGD it is the
paper's y ← y − η(g − c_i + c). The paper's average over clients is uniform; the default here weighs by samples, as
FedAvg does and FedCoad too, which extends it; ``weights = "uniform"`` is the paper's. The global step size is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import (
    add_changes,
    average,
    classify,
    corrected,
    new_variates,
    size,
    trainers,
    variate_change,
    zeros_of_trained,
)
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """FedAvg whose steps are corrected by how clients drift: w ← w − lr·(g − cᵢ + c)."""

    weights: Literal["samples", "uniform"] = "samples"  # of clients in the average

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    group: ClassVar[str] = "one model for all"
    equation: ClassVar[str] = "w ← w − lr·(g − cᵢ + c)"
    assumes: ClassVar[str] = "one network for all; clients who come back, because cᵢ must be fresh"
    use: ClassVar[str] = "where clients differ and drift apart, and twice the bytes may be sent"

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params, "variate": zeros_of_trained(params, task), "trainers": trainers(task)}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"variate": zeros_of_trained(params, client.task)}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return {"model": server["model"], "variate": server["variate"]}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        model, own, shared = down["model"], state["variate"], down["variate"]
        optimiser = corrected(self.optim(), self.lr, own, shared)
        done = fit(classify(client), model, client, work.epochs(self.epochs), optimiser)
        new = new_variates(own, shared, model, done.params, done.steps, self.lr)
        return Reply(
            state={"variate": new},
            upload={"model": done.params, "variate": variate_change(new, own), "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        model = average(uploads, "model", uniform=self.weights == "uniform")
        return {"model": model, "variate": add_changes(server, uploads), "trainers": server["trainers"]}
