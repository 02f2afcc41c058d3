"""FedHeNN: clients of any architecture, whose representations are drawn together (Makhija et al., ICML 2022).

server  mean kernel K̄ [100, 100]        client  its whole model
down    K̄                               up      its kernel K_i [100, 100], n

As FLIC's paper (section 6) changes it for clients whose inputs differ in size: in every round there is a Representation
Alignment Dataset (RAD), 100 standard Gaussian points of the largest input space, of which a client takes the first so
many coordinates, in the shape of its input. Z_i is what the head of client i sees of them, K_i = Z_i Z_iᵀ (centred),
and a client minimises L_i + η_t (1 − CKA(K_i, K̄)). No weights are shared. Where the papers are open:

- K̄ and K_i must be of the same points. After the training of round t a client sends K_i on the points of round t + 1,
  and K̄ is the mean over those who trained in round t. So there is no K̄, and no alignment, in the first round. FLIC's
  code asks every client for K_i once more before each round, whether it takes part or not.
- The points are not sent: they come from a stream named by seed and round, coordinate by coordinate, so that the first
  coordinates of few and of many are the same.
- K̄ is weighted by samples; FLIC's code counts clients alike: ``weights = "uniform"``.
- η_t = η·√t with η = 0.01, as Makhija et al.; FLIC's code has a constant 0.1: ``eta = 0.1, growth = 0``. That code
  *adds* η·similarity, of kernels that are not centred, and so drives clients apart; here it is 1 − CKA.
- The points run as in inference: no dropout, and the running statistics of BatchNorm do not learn from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.method import Method, Reply
from fedsense.models.network import Batch
from fedsense.ops import average, classify, size, task_loss
from fedsense.training import Loss, fit
from fedsense.work import Work, stream

NOTHING = 1e-8  # a centred kernel of smaller norm is what rounding left of features that are all the same


@dataclass(frozen=True, kw_only=True)
class FedHeNN(Method):
    """Models of one's own, whose features of common random points are drawn to look alike (CKA)."""

    eta: float = 0.01  # weight of 1 - CKA in round one
    growth: float = 0.5  # eta_t = eta * t^growth; 0: constant
    points: int = 100  # of the alignment data
    weights: Literal["samples", "uniform"] = "samples"  # of clients in the mean kernel

    name: ClassVar[str] = "fedhenn"
    paper: ClassVar[str] = "Makhija et al., ICML 2022"
    group: ClassVar[str] = "different architectures"
    equation: ClassVar[str] = "Lᵢ + ηₜ(1 − CKA(Kᵢ, K̄)), Kᵢ of common random points"
    assumes: ClassVar[str] = "nothing but one task"
    use: ClassVar[str] = "where networks and inputs differ, and no weights may be sent"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "eta", "growth")
        self.refuse_below(2, "points")

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"model": params}

    def strength(self, round: int) -> float:
        """η_t."""
        return float(self.eta * round**self.growth)

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        strength = self.strength(work.round)
        loss, given = classify(client), {}
        if down and strength:
            given = {"points": self.alignment_data(client, work.seed, work.round), "kernel": down["kernel"]["mean"]}
            given["strength"] = torch.tensor(strength, device=client.device)
            loss = _aligning(client)
        done = fit(loss, state["model"], client, work.epochs(self.epochs), self.optim(), given=given)
        ahead = client.model.predict(done.params, self.alignment_data(client, work.seed, work.round + 1))
        return Reply(
            state={"model": done.params},
            upload={"kernel": {"mean": kernel(ahead.features)}, "size": size(client)},
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"kernel": average(uploads, "kernel", uniform=self.weights == "uniform")}

    def alignment_data(self, client: Client, seed: int, round: int) -> Tensor:
        """The RAD of a round ``[points, ...]``, pruned to the client's input."""
        shape = client.data.input_shape
        drawn = stream(seed, round, "alignment data").standard_normal((math.prod(shape), self.points), np.float32)
        return torch.from_numpy(drawn.T.copy()).view(self.points, *shape).to(client.device)


def kernel(features: Tensor) -> Tensor:
    """The centred linear kernel H Z Zᵀ H of features ``[n, d]``, with H = I − 11ᵀ/n."""
    centred = features - features.mean(0)
    return centred @ centred.T


def cka(mine: Tensor, theirs: Tensor) -> Tensor:
    """Centred kernel alignment ⟨K, L⟩ / (‖K‖ ‖L‖) of centred kernels: 1 if they are alike but for scale, 0 at least."""
    return (F.normalize(mine.flatten(), dim=0, eps=NOTHING) * F.normalize(theirs.flatten(), dim=0, eps=NOTHING)).sum()


def _aligning(client: Client) -> Loss:
    def loss(params: Params, batch: Batch) -> Tensor:
        out, given = client.model(params, batch), batch.given
        seen = client.model.infer(params, given["points"])  # after the batch, which moves running statistics
        gap = 1 - cka(kernel(seen.features), given["kernel"])
        return task_loss(out.logits, batch) + given["strength"] * gap

    return loss
