"""FedAMP: clients draw on those whose models are like theirs (Huang et al., AAAI 2021), Algorithm 1.

server  everyone's last w_i, weights ξ        client  w_i
down    u_i                                   up      w_i

The objective is Σ L_i(w_i) + λ Σ_{i<j} A(‖w_i − w_j‖²) with A(d) = 1 − e^{−d/σ}. In turns, the server makes

    u_i = Σ_j ξ_ij w_j,  ξ_ij = α A'(‖w_i − w_j‖²) = (α/σ) e^{−‖w_i − w_j‖²/σ},  ξ_ii = 1 − Σ_{j≠i} ξ_ij

(a gradient step on the second term, whose factor 2 the paper leaves to α) and clients minimise
L_i(w) + λ/2α ‖w − u_i‖², from their own w_i. Only α/σ, λ/α and σ occur in this, and they are the settings here. Left
open, and how it is settled:

- σ is on the scale of squared distances between models, which depends on the network: by itself it is their mean.
- ξ_ii must not be below 0. By itself α/σ is 1/(m − 1), m clients being known, so that it never is.
- A client that sits a round out stays in the server's table with its last model. One the server has not heard of gets
  no u_i, and trains alone.
- Running statistics of BatchNorm are a client's own: neither sent nor compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import anchor, classify, classify_near
from fedsense.training import fit
from fedsense.work import Work

SHOWN_PEERS = 20  # of a client, the largest so many weights are recorded


@dataclass(frozen=True, kw_only=True)
class FedAMP(Method):
    """Models of one's own, each drawn to a mean of those that are like it."""

    pull: float = 1.0  # lambda / alpha, towards u_i
    attention: float | None = None  # alpha / sigma, weight of a client whose model is the same; if None, 1/(m - 1)
    sigma: float | None = None  # squared distance at which a weight is 1/e of that; if None, the mean one

    name: ClassVar[str] = "fedamp"
    paper: ClassVar[str] = "Huang et al., AAAI 2021"
    group: ClassVar[str] = "personal models"
    equation: ClassVar[str] = "Lᵢ(w) + λ/2α ‖w − uᵢ‖², uᵢ = Σ_j ξ_ij w_j, ξ_ij ∝ e^{−‖wᵢ − w_j‖²/σ}"
    assumes: ClassVar[str] = "one network for all; a server that holds everyone's model"
    use: ClassVar[str] = "for groups of clients that one does not know"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "pull", "attention")
        self.refuse_unless_positive("sigma")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)
        others = sum(member.samples > 0 for member in task.members.values()) - 1
        if self.attention is not None and self.attention * others > 1:
            raise UserError(
                f"fedamp: attention is {self.attention:g}, but with {others} other clients their weights could add up "
                f"to more than 1; give at most {1 / others:g}, or leave it out",
                about="attention",
            )

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"model": params}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        if client_id not in server.get("row", {}):
            return {}
        weights = server["weights"]["xi"][int(server["row"][client_id])]  # [m]
        return {"cloud": {name: torch.tensordot(weights, w, 1) for name, w in server["table"].items()}}  # u_i

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        loss, given = classify(client), {}
        if down and self.pull:
            loss, given = classify_near(client, self.pull), anchor(client, down["cloud"])
        done = fit(loss, state["model"], client, work.epochs(self.epochs), self.optim(), given=given)
        upload = {"model": anchor(client, done.params)}
        return Reply(state={"model": done.params}, upload=upload, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        rows, old = server.get("row", {}), server.get("table", {})
        who = sorted({*rows, *uploads})
        table = {
            name: torch.stack([uploads[c]["model"][name] if c in uploads else old[name][int(rows[c])] for c in who])
            for name in next(iter(uploads.values()))["model"]
        }
        places = {client_id: torch.tensor(place) for place, client_id in enumerate(who)}
        return {"row": places, "table": table, "weights": {"xi": self.weights(table)}}

    def weights(self, table: Mapping[str, Tensor]) -> Tensor:
        """ξ ``[m, m]`` of m models, each tensor ``[m, ...]``; rows add up to 1."""
        apart = sum((_squares(w.flatten(1)) for w in table.values()), torch.zeros(()))
        others = len(apart) - 1
        if not others:
            return torch.ones(1, 1)
        sigma = self.sigma or float(apart.sum()) / (others * len(apart)) or 1.0  # all models may be the same
        attention = 1 / others if self.attention is None else self.attention
        xi = (attention * (-apart / sigma).exp()).fill_diagonal_(0.0)
        return xi + torch.diag(1 - xi.sum(1))

    def observe(self, server: Bundle) -> dict[str, Any]:
        """Who draws on whom: ``collaboration[i][j]`` is ξ_ij; of many, the 20 largest of a client."""
        who = sorted(server["row"])
        weights, strongest = server["weights"]["xi"].topk(min(len(who), SHOWN_PEERS), dim=1)
        rows = zip(who, weights.tolist(), strongest.tolist(), strict=True)
        return {"collaboration": {i: {who[j]: round(x, 5) for x, j in zip(xi, of, strict=True)} for i, xi, of in rows}}


def _squares(w: Tensor) -> Tensor:
    """Squared distances of rows ``[m, d]``, ``[m, m]``; models that are the same are exactly 0 apart."""
    return torch.stack([(w - row).square().sum(1) for row in w])
