"""FedAPA: adaptive prototype aggregation for Wi-Fi crowd counting (Guo et al.), Algorithms 1 and 2.

server  everyone's prototypes with their counts and ages, each client's Q_i        client  its whole model
down    Q_i [C, d], everyone's P [n, C, d], classes that are known                 up      prototypes, class counts

Only prototypes travel, so clients may have any architecture with the same width of features. Where the paper is open:

- J_c(i) of Eq. 6 has i itself in it, and the mean of Eq. 10 is over all clients, i and padded sets included.
- Eq. 7 averages prototypes as they are; ``normalise`` gives each length 1 first. Eq. 8 is uniform, as the formula, not
  sample-weighted, as the text; ``padding = "samples"`` is the text.
- A class nobody holds is in no denominator. There are no prototypes in the first round, and so no contrast.
- Prototypes are taken after training, in inference, over all training data.
- Table IV: ``aggregation = "average"`` is "Global Avg. Proto with Client Protos", with ``peers = False`` without them.
  ``warm_up = 0`` makes λ static.

Beyond the paper, where everyone takes part in every round (VII-A says that this should change): prototypes of clients
that sit a round out stay in the table and grow older, and ``selection = "diverse"`` prefers clients whose prototypes
are old and unlike those of the clients already chosen, and whose devices can carry the work (see ``choose``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, needs_classes, share_one_width
from fedsense.models.network import Batch
from fedsense.ops import (
    class_prototypes,
    classify,
    cross_entropy,
    held_only,
    likeness,
    merge_prototypes,
    prototype_contrast,
)
from fedsense.ops.selection import draw_diverse
from fedsense.training import Loss, fit
from fedsense.work import Work

SHOWN_PEERS = 20  # of a client and class, the strongest so many weights are recorded


@dataclass(frozen=True, kw_only=True)
class FedAPA(Method):
    """Clients of any architecture learn from the class prototypes of those most like them."""

    temperature: float = 0.5  # tau, of the aggregation (Eq. 6) and of the contrast (Eq. 9, 10)
    align: float = 1.0  # lambda_max, weight of the contrast after the warm-up
    align_start: float = 0.0  # lambda_min
    warm_up: int = 50  # T_warm, rounds; 0: lambda_max from the beginning
    aggregation: Literal["similarity", "average"] = "similarity"
    peers: bool = True  # contrast to everyone's prototypes, too (L_c)
    normalise: bool = False  # average prototypes of length 1
    padding: Literal["uniform", "samples"] = "uniform"  # Eq. 8
    selection: Literal["random", "diverse"] = "random"  # who takes part, where not everyone does

    name: ClassVar[str] = "fedapa"
    paper: ClassVar[str] = "Guo et al., FedAPA"
    group: ClassVar[str] = "prototypes"
    equation: ClassVar[str] = (
        "L + λ(L_g + L_c), contrast to one's own and to everyone's prototypes; qᵢ = Σ_j α_ij p_j, α_ij ∝ "
        "e^{cos(pᵢ, p_j)/τ}"
    )
    assumes: ClassVar[str] = "features of one width; classes all share"
    use: ClassVar[str] = "for very different surroundings, networks that differ, and little to be sent"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "align", "align_start", "warm_up")
        self.refuse_unless_positive("temperature")

    def requires(self, task: Task) -> None:
        needs_classes(self, task)
        share_one_width(self, task)

    def too_few(self, rounds: int) -> str:
        if rounds >= self.warm_up or self.align <= self.align_start:
            return ""
        share = self.strength(rounds) / self.align
        return f"its contrast warms up for {self.warm_up} rounds (warm_up), and comes to {share:.1%} of its weight"

    def init_server(self, task: Task, params: Params) -> Bundle:
        if self.selection == "random":
            return {}
        load = {m.id: torch.tensor(max(m.samples * m.flops, 1) / m.speed) for m in task.members.values()}
        return {"load": load, "rounds": {"done": torch.tensor(0)}}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"model": params}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        if "row" not in server:  # round one
            return {}
        row = server["row"].get(client_id)
        mine = server["padding"]["mean"] if row is None else server["personal"]["mean"][int(row)]
        down = {"personal": {"mean": mine}, "known": {"classes": server["padding"]["count"] > 0}}
        return down | ({"peers": {"mean": server["padded"]["mean"]}} if self.peers else {})

    def strength(self, round: int) -> float:
        """λ_t, Eq. 11: from λ_min to λ_max along half a cosine, in ``warm_up`` rounds."""
        progress = min(round, self.warm_up) / self.warm_up if self.warm_up else 1.0
        return self.align_start + (self.align - self.align_start) / 2 * (1 - math.cos(math.pi * progress))

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        strength = self.strength(work.round)
        loss, given = classify(client), {}
        if down and strength:
            sets = [down["personal"]["mean"][None], *([down["peers"]["mean"]] if self.peers else [])]
            each = [s.new_full((len(s),), strength / len(s)) for s in sets]  # λ for Q_i, λ/n for each of the n P_j
            given = {"sets": F.normalize(torch.cat(sets), dim=-1), "weights": torch.cat(each)}
            given["known"] = down["known"]["classes"]
            loss = self._contrasting(client)
        done = fit(loss, state["model"], client, work.epochs(self.epochs), self.optim(), given=given)
        return Reply(
            state={"model": done.params},
            upload={"proto": held_only(class_prototypes(client, done.params))},  # Eq. 4
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        who, mean, count, age = self._table(server, uploads)  # [n, C, d], [n, C], [n]
        has = count > 0
        averaged = F.normalize(mean, dim=-1) if self.normalise else mean
        personal = torch.einsum("ijc,jcd->icd", self.shares(mean, has), averaged)  # Eq. 7
        each = [{"mean": m, "count": n} for m, n in zip(averaged, count, strict=True)]
        padding = merge_prototypes(each, uniform=self.padding == "uniform")  # Eq. 8
        kept = {"load": server["load"], "rounds": {"done": server["rounds"]["done"] + 1}} if "load" in server else {}
        return kept | {
            "row": {client_id: torch.tensor(i) for i, client_id in enumerate(who)},
            "table": {"mean": mean, "count": count, "age": age},
            "padding": padding,
            "personal": {"mean": torch.where(has[..., None], personal, padding["mean"])},
            "padded": {"mean": torch.where(has[..., None], mean, padding["mean"])},
        }

    def shares(self, mean: Tensor, has: Tensor) -> Tensor:
        """α_ijc ``[n, n, C]``, Eq. 5 and 6: how much of j's prototype of class c is in i's; 0 unless both hold it."""
        both = has[:, None] & has[None]  # j is in J_c(i)
        alike = likeness(mean) if self.aggregation == "similarity" else torch.zeros(both.shape)
        return (alike / self.temperature).masked_fill(~both, -torch.inf).softmax(1).nan_to_num()

    def choose(self, server: Bundle, clients: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
        """With ``selection = "diverse"`` by :func:`fedsense.ops.selection.draw_diverse`.

        Two clients are as alike as their prototypes (Eq. 5, mean over the classes both hold). A load is samples ×
        operations of the network / speed of the device (the trait ``speed``).
        """
        if self.selection == "random":
            return super().choose(server, clients, count, rng)
        load = np.array([float(server["load"][client_id]) for client_id in clients])
        age = np.full(len(clients), float(server["rounds"]["done"]))
        alike = np.zeros((len(clients), len(clients)))
        seen = [i for i, client_id in enumerate(clients) if client_id in server.get("row", {})]
        if seen:
            rows = torch.stack([server["row"][clients[i]] for i in seen])
            table = {name: values[rows] for name, values in server["table"].items()}
            age[seen] = table["age"].numpy()
            unit, has = F.normalize(table["mean"], dim=-1).flatten(1), (table["count"] > 0).float()
            alike[np.ix_(seen, seen)] = (unit @ unit.T / (has @ has.T).clamp(min=1)).numpy()
        return [clients[i] for i in draw_diverse(alike, age, load, count, rng)]

    def observe(self, server: Bundle) -> dict[str, Any]:
        """Who learns from whom: ``collaboration[class number][i][j]`` is α_ij of Eq. 6; and the prototypes' ages.

        Of more than 20 peers of a client and class, the 20 with the largest weights.
        """
        who, table = sorted(server["row"]), server["table"]
        has = table["count"] > 0
        weights, strongest = self.shares(table["mean"], has).topk(min(len(who), SHOWN_PEERS), dim=1)  # [n, k, C]
        graph: dict[str, dict[str, dict[str, float]]] = {}
        for c, holders in enumerate(has.T):
            rows = zip(who, holders.tolist(), weights[:, :, c].tolist(), strongest[:, :, c].tolist(), strict=True)
            graph[str(c)] = {
                client_id: {who[j]: round(weight, 5) for weight, j in zip(row, peers, strict=True) if weight > 0}
                for client_id, holds, row, peers in rows
                if holds
            }
        return {"collaboration": graph, "ages": dict(zip(who, table["age"].tolist(), strict=True))}

    def _contrasting(self, client: Client) -> Loss:
        def loss(params: Params, batch: Batch) -> Tensor:  # Eq. 12: L_ce + λ (L_g + L_c), Eq. 9 and 10
            out, given = client.model(params, batch), batch.given
            contrast = prototype_contrast(out.features, batch, given["sets"], given["known"], self.temperature)
            return cross_entropy(out.logits, batch) + (given["weights"] * contrast).sum()  # contrast [1 + n]

        return loss

    def _table(self, server: Bundle, uploads: Mapping[str, Bundle]) -> tuple[list[str], Tensor, Tensor, Tensor]:
        """Everyone heard of so far, by id: prototypes, counts and ages, those of this round's clients replaced."""
        known = {c: int(row) for c, row in server.get("row", {}).items()}
        who = sorted({*known, *uploads})
        first = next(iter(uploads.values()))["proto"]
        mean = torch.zeros(len(who), len(first["count"]), first["mean"].shape[1])
        count, age = torch.zeros(mean.shape[:2]), torch.zeros(len(who), dtype=torch.int64)
        for i, client_id in enumerate(who):
            if client_id in uploads:
                count[i] = uploads[client_id]["proto"]["count"]
                mean[i, count[i] > 0] = uploads[client_id]["proto"]["mean"]
            else:
                table, row = server["table"], known[client_id]
                mean[i], count[i], age[i] = table["mean"][row], table["count"][row], table["age"][row] + 1
        return who, mean, count, age
