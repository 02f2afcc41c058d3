"""MOON: model-contrastive federated learning (Li, He and Song, CVPR 2021), Algorithm 1.

server  model        client  the model it trained last
down    model        up      model, n

What is compared is what the head sees; in ``coad-cnn`` that is the output of a projection head, as in the paper. The
global and the previous model run as in inference. A client's first previous model is the global one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import average, classify_and_contrast, seen_by, size
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class Moon(Method):
    """FedAvg whose features are drawn to the global model's and pushed from those of the client's previous one."""

    mu: float = 1.0  # weight of the contrast; the papers try 1, 5 and 10
    temperature: float = 0.5  # tau

    name: ClassVar[str] = "moon"
    paper: ClassVar[str] = "Li et al., CVPR 2021"
    group: ClassVar[str] = "one model for all"
    equation: ClassVar[str] = "L + μ·(−log e^{s(z, z_global)/τ} / (e^{s(z, z_global)/τ} + e^{s(z, z_previous)/τ}))"
    assumes: ClassVar[str] = "one network for all"
    use: ClassVar[str] = "where clients' features drift apart"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "mu")
        self.refuse_unless_positive("temperature")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        model = down["model"]
        seen = seen_by(client, model, state.get("model", model))
        loss = classify_and_contrast(client, self.mu, self.temperature)
        done = fit(loss, model, client, work.epochs(self.epochs), self.optim(), beside=seen)
        return Reply(
            state={"model": done.params},
            upload={"model": done.params, "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": average(uploads, "model")}
