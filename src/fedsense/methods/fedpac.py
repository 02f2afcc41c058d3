"""FedPAC: features aligned to global prototypes, heads mixed from those of clients alike (Xu et al., ICLR 2023).

server  encoder, prototypes [C, d], everyone's head        client  –
down    encoder, prototypes, its own head                  up      encoder, head, prototypes, class counts, n,
                                                                   h_i [C, d], V_i

In every round a client first fits its head to the encoder φ as it came (φ is everything before the head, an adapter,
too), then φ to the head, by cross-entropy + λ·MSE(z, global prototype of the class). The server averages φ by samples
and prototypes by class counts, and gives each client that took part a head of its own, Σ_j α_ij·head_j.

Statistics that go up for α are taken before training, with φ as it came, which is the same for all, in inference and
over all n samples. They are h(c) = p(c)·μ(c), a row for each class, where p(c) is the share of class c in the client's
data and μ(c) the mean of its features, and one number, the variance of h as an estimate,

    V = (1/n) Σ_c tr Cov(1{y = c}·z) = (1/n) (mean ‖z‖² − Σ_c ‖h(c)‖²).

α_i minimises variance plus squared bias of Σ_j α_j h_j as an estimate of h_i over all shares (α ≥ 0, Σα = 1),

    Σ_j α_j² V_j + ‖Σ_j α_j (h_i − h_j)‖² = αᵀ(diag V + D_i)α,  D_i,jk = Σ_c ⟨h_i(c) − h_j(c), h_i(c) − h_k(c)⟩;

shares below 10⁻³ are set to 0, and the others scaled up to 1. (Of a class with one sample, the prototype is that
sample's features, and h is, over n.) Where the paper is open:

- A class without global prototype is not aligned, and so nothing is in the first round. (The authors' code takes a
  client's own prototype from before the training instead.) A class nobody trained this round keeps its last prototype.
- Heads are mixed among the clients of a round; who sits out keeps its head, and who never took part has the first one.
- ``epochs`` are the encoder's; the head has ``head_epochs`` beside them. The authors' code has a rate of its own for
  the head, 0.1: ``head_lr``.
- A client with one sample has V = 0: the estimate of its own variance is taken as it comes.
- The paper's two parts can be had one by one: ``align = 0`` mixes heads only, ``combine = False`` aligns only. With
  both it is FedRep, whose heads stay at home.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsense.bundle import Bundle, Params, nested, part, within
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, needs_classes, share_one_model
from fedsense.ops import (
    average,
    class_prototypes,
    classify,
    classify_and_align,
    keep_known,
    least_on_simplex,
    merge_prototypes,
    no_prototypes,
    size,
)
from fedsense.training import fit
from fedsense.work import Work

ENCODER = ("adapter", "encoder")  # phi
SMALL = 1e-3  # a smaller share of a head is none


@dataclass(frozen=True, kw_only=True)
class FedPAC(Method):
    """A shared encoder guided by everyone's class prototypes, and a head mixed from those of clients alike."""

    head_epochs: int = 1  # before the epochs, which are the encoder's
    head_lr: float | None = None  # if None, lr
    align: float = 1.0  # lambda, weight of the prototype term
    combine: bool = True  # mix heads; else each client's stays as it is

    name: ClassVar[str] = "fedpac"
    paper: ClassVar[str] = "Xu et al., ICLR 2023"
    group: ClassVar[str] = "prototypes"
    equation: ClassVar[str] = "L + λ·‖z − p_y‖²/d; headᵢ = Σ_j α_ij head_j, αᵢ = arg min αᵀ(diag V + Dᵢ)α"
    assumes: ClassVar[str] = "one network for all; classes; that heads may be sent"
    use: ClassVar[str] = "where groups of clients have few recordings each"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "head_epochs", "head_lr", "align")

    def requires(self, task: Task) -> None:
        needs_classes(self, task)
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"encoder": part(params, *ENCODER), "proto": no_prototypes(task)}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        head = {name: each[client_id] for name, each in within(server, "heads").items() if client_id in each}
        shared = {"encoder": server["encoder"], "proto": server["proto"]}
        return shared | {"head": head} if head else shared

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = self._start(client, down)
        statistics = feature_statistics(client, start)
        first, rest = work.epochs(self.head_epochs, "head"), work.epochs(self.epochs, "encoder")
        solved = fit(classify(client), start, client, first, self.optim(self.head_lr), only="head")
        guided = classify_and_align(client, self.align)
        done = fit(guided, solved.params, client, rest, self.optim(), only=ENCODER, given=down["proto"])
        upload = {"encoder": part(done.params, *ENCODER), "head": part(done.params, "head"), "statistics": statistics}
        return Reply(
            upload=upload | {"proto": class_prototypes(client, done.params), "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        """The head alone, to the encoder as it is at the end; who was not there begins with the first head."""
        head = work.epochs(self.epochs, "head")
        start = self._start(client, down)
        done = fit(classify(client), start, client, head, self.optim(self.head_lr), only="head")
        return Reply(model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        each = [upload["head"] for upload in uploads.values()]
        if self.combine:
            h, v = (torch.stack([u["statistics"][name] for u in uploads.values()]) for name in ("mean", "variance"))
            each = mixed(each, self.shares(h, v))
        known = within(server, "heads")
        heads = {
            name: known.get(name, {}) | {client_id: head[name] for client_id, head in zip(uploads, each, strict=True)}
            for name in each[0]
        }
        proto = merge_prototypes([upload["proto"] for upload in uploads.values()])
        shared = {"encoder": average(uploads, "encoder"), "proto": keep_known(proto, server["proto"])}
        return shared | nested("heads", heads)

    def shares(self, h: Tensor, v: Tensor) -> Tensor:
        """α ``[m, m]``, of j's head in i's, from ``h`` ``[m, C, d]`` and ``v`` ``[m]``; rows add up to 1."""
        flat = h.double().flatten(1)
        flat = flat - flat.mean(0)  # differences are the same, and lose less to rounding
        products = flat @ flat.T
        alpha = torch.stack(
            [
                least_on_simplex(v.double().diag() + products[i, i] - products[i, :, None] - products[i] + products)
                for i in range(len(flat))
            ]
        )
        large = alpha >= SMALL
        alpha = torch.where(large | ~large.any(1, keepdim=True), alpha, 0.0)  # of thousands alike all are small
        return alpha / alpha.sum(1, keepdim=True)

    def _start(self, client: Client, down: Bundle) -> Params:
        return down["encoder"] | down.get("head", part(client.initial, "head"))


def feature_statistics(client: Client, params: Params) -> Params:
    """h ``[C, d]`` as ``mean``, and V as ``variance``, of a client's training data."""
    z = client.model.predict(params, client.train.x).features.double()  # [n, d]
    h = F.one_hot(client.train.y, len(client.task.classes)).T.to(z) @ z / len(z)
    variance = (z.square().sum(1).mean() - h.square().sum()).clamp(min=0) / len(z)
    return {"mean": h.float(), "variance": variance.float()}


def mixed(heads: list[Params], shares: Tensor) -> list[Params]:
    """Σ_j α_ij·head_j for each i."""
    each = {name: torch.stack([head[name] for head in heads]) for name in heads[0]}
    return [{n: torch.tensordot(row.to(t), t, 1) for n, t in each.items()} for row in shares]
