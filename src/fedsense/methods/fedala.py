"""FedALA: how much of the global model a client takes, weight by weight, is learned (Zhang et al., AAAI 2023).

server  model w        client  its own head w_i, A
down    model          up      model, n

Before it trains, a client makes its start w_i + (w − w_i) ⊙ A, with A ∈ [0, 1] learned on a random share of its data
while all else rests (Eq. 4 to 6, Algorithm 1). Lower layers take w as it is. Left open, and how it is settled:

- The paper's top layers (its p) are the head, or with ``adapts = "all"`` everything. Running statistics take w's.
- A starts at 1. A client has no w_i of its own when it first takes part and starts at w, as all do in the paper's first
  round; the next time it learns A until the losses of ten epochs settle, and from then on one epoch a round.
- These losses are over the whole share, after each epoch: those of minibatches never settle where data are few.
- A is kept in [0, 1] after every step, and all parts run as in inference while it is learned.
- The model a client would receive is the start it makes of it (``moment = "received"``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params, part
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.models.network import PARTS, Batch
from fedsense.ops import anchor, average, classify, mean_loss, size, task_loss
from fedsense.optim import chain, keep_between, sgd
from fedsense.training import Loss, fit
from fedsense.work import Work

LOOKED_AT = 10  # losses whose spread says whether A has settled


@dataclass(frozen=True, kw_only=True)
class FedALA(Method):
    """FedAvg whose clients learn, weight by weight, how much of the global head to start from."""

    blend_lr: float = 1.0  # eta, step size of A
    share: float = 0.8  # s, of the local data A is learned on
    settled: float = 0.01  # standard deviation of the last ten losses at which A is learned, the first time
    most_epochs: int = 100  # of A, the first time
    adapts: Literal["head", "all"] = "head"  # what A is for

    name: ClassVar[str] = "fedala"
    paper: ClassVar[str] = "Zhang et al., AAAI 2023"
    group: ClassVar[str] = "personal models"
    equation: ClassVar[str] = "start at wᵢ + (w − wᵢ) ⊙ A, A ∈ [0, 1] learned"
    assumes: ClassVar[str] = "one network for all"
    use: ClassVar[str] = "where how much of the shared model suits differs from client to client"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "blend_lr", "settled")
        self.refuse_below(1, "most_epochs")
        self.refuse_unless_positive("share")
        if self.share > 1:
            raise UserError(f"fedala: share is {self.share:g}; it is a share of the data, up to 1", about="share")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start, blend = self._start(client, state, down, work)
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        own = anchor(client, part(done.params, *self._adapted))
        return Reply(
            state={"own": own} | ({"blend": blend} if blend else {}),
            upload={"model": done.params, "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": average(uploads, "model")}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return self._start(client, state, down, work)[0]

    @property
    def _adapted(self) -> tuple[str, ...]:
        return ("head",) if self.adapts == "head" else PARTS

    def _start(self, client: Client, state: Bundle, down: Bundle, work: Work) -> tuple[Params, Params]:
        """w_i + (w − w_i) ⊙ A, and A; w and nothing, for who has no w_i yet."""
        model, own = down["model"], state.get("own")
        if own is None:
            return model, {}
        blend = self._learned(client, own, model, state.get("blend"), work)
        return _mixed(model, own, blend), blend

    def _learned(self, client: Client, own: Params, model: Params, before: Params | None, work: Work) -> Params:
        """A ← A − η ∇_A L, in epochs over a share of the data."""
        some = _share(client, self.share, work)
        blend = before or {name: torch.ones_like(w) for name, w in own.items()}
        optimiser = chain(sgd(self.blend_lr), keep_between(0.0, 1.0))
        losses: list[float] = []
        for epoch in range(self.most_epochs if before is None else 1):
            params = model | {f"blend.{name}": a for name, a in blend.items()}
            schedule = work.epochs(1, f"blend {epoch}")
            done = fit(_blended(client), params, some, schedule, optimiser, only="blend", given=own)
            blend = {name: done.params[f"blend.{name}"] for name in own}
            if before is None:
                losses.append(mean_loss(some, _mixed(model, own, blend)))
            if len(losses) >= LOOKED_AT and statistics.pstdev(losses[-LOOKED_AT:]) < self.settled:
                break
        return blend


def _share(client: Client, share: float, work: Work) -> Client:
    """The client with a random share of its training data, at least one sample."""
    many = max(1, round(share * client.samples))
    chosen = torch.from_numpy(work.rng("share").permutation(client.samples)[:many]).to(client.device)
    return replace(client, data=replace(client.data, train=client.train.take(chosen)))


def _mixed(model: Mapping[str, Tensor], own: Mapping[str, Tensor], blend: Mapping[str, Tensor]) -> Params:
    """w_i + (w − w_i) ⊙ A where a client has a w_i; w where A is 1, to the bit."""
    return {**model, **{name: torch.lerp(w, model[name], blend[name]) for name, w in own.items()}}


def _blended(client: Client) -> Loss:
    def loss(params: Params, batch: Batch) -> Tensor:
        blend = {name: params[f"blend.{name}"] for name in batch.given}
        return task_loss(client.model(_mixed(params, batch.given, blend), batch).logits, batch)

    return loss
