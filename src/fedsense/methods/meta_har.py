"""Meta-HAR: an embedding meta-learned over clients, under heads of their own (Li et al., WWW 2021).

server  encoder θ        client  head
down    encoder          up      adapted encoder θ_i, n

Every client is a task. It adapts the embedding θ (everything before the head, an adapter, too) to its own data, and the
server makes a step of Reptile (Nichol et al., 2018) towards what came of it,

    θ ← θ + ε · mean_i (θ_i − θ),

so that θ is near what suits each; the head never leaves the client, which may have classes of its own. With the default
``objective = "pairs"`` the embedding learns without the head, from pairs of samples: whether they are of one class,

    mean over pairs of −log σ(±cos(z_i, z_j)/τ),  + for samples of one class, − for others;

with "classes" embedding and head learn jointly, by cross-entropy. Either way ``head_epochs`` of the head alone follow.
We describe the method as the papers that cite it do; the form of the pairs' loss, τ, and ε = 0.5 are our choices.

- The step is for all tensors alike, running statistics of BatchNorm included, which is why ε is at most 1.
- A client's model as received (``moment = "received"``) is θ under its own head, tuned to θ for ``head_epochs``.
- After the last round, and when it comes later, a client adapts as in a round: embedding and head.
- With ε = 1 and cross-entropy it is FedPer, without ``head_epochs`` and weighing by samples to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedsense.bundle import Bundle, Params, part
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, needs_classes, share_one_model
from fedsense.models.network import PARTS
from fedsense.ops import average, classify, size, tell_pairs
from fedsense.training import fit
from fedsense.work import Work

EMBEDDING = ("adapter", "encoder")  # theta


@dataclass(frozen=True, kw_only=True)
class MetaHAR(Method):
    """An encoder that every client can adapt in a few epochs, learned by Reptile, and a head of one's own."""

    meta_lr: float = 0.5  # epsilon
    objective: Literal["pairs", "classes"] = "pairs"  # of the embedding: its own, or the head's
    temperature: float = 0.2  # tau, of pairs
    head_epochs: int = 5  # of the head alone, after the epochs; with pairs nothing else trains it
    head_lr: float | None = None  # if None, lr
    weights: Literal["uniform", "samples"] = "uniform"  # of clients in the mean

    name: ClassVar[str] = "meta-har"
    paper: ClassVar[str] = "Li et al., WWW 2021"
    group: ClassVar[str] = "personal heads"
    equation: ClassVar[str] = "θ ← θ + ε·mean(θᵢ − θ); θᵢ learns from pairs: −log σ(±cos(z, z′)/τ)"
    assumes: ClassVar[str] = "one network before the head; classes"
    use: ClassVar[str] = "where somebody new shall adapt the encoder in a few epochs"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "meta_lr", "head_epochs", "head_lr")
        self.refuse_unless_positive("temperature")
        if self.meta_lr > 1:
            raise UserError(f"meta-har: meta_lr is {self.meta_lr:g}; it is a share of the way, 0 to 1", about="meta_lr")
        if self.objective == "pairs" and not self.head_epochs:
            raise UserError(
                'meta-har: objective = "pairs" leaves the head to head_epochs, which is 0; give it some, or say '
                'objective = "classes"',
                about="head_epochs",
            )

    def requires(self, task: Task) -> None:
        share_one_model(self, task, EMBEDDING)
        if self.objective == "pairs":
            needs_classes(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"encoder": part(params, *EMBEDDING)}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"head": part(params, "head")}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = down["encoder"] | state["head"]
        pairs = self.objective == "pairs"
        loss, parts = (tell_pairs(client, self.temperature), EMBEDDING) if pairs else (classify(client), PARTS)
        adapted = fit(loss, start, client, work.epochs(self.epochs), self.optim(), only=parts)
        model = self._tuned(client, adapted.params, work)
        return Reply(
            state={"head": part(model, "head")},
            upload={"encoder": part(adapted.params, *EMBEDDING), "size": size(client)},
            model=model,
            metrics={"loss": adapted.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        mean = average(uploads, "encoder", uniform=self.weights == "uniform")
        return {"encoder": {name: torch.lerp(t, mean[name], self.meta_lr) for name, t in server["encoder"].items()}}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return self._tuned(client, down["encoder"] | state["head"], work)

    def _tuned(self, client: Client, start: Params, work: Work) -> Params:
        """The head alone, to an encoder that rests."""
        if not self.head_epochs:
            return start
        schedule = work.epochs(self.head_epochs, "head")
        return fit(classify(client), start, client, schedule, self.optim(self.head_lr), only="head").params
