"""FedCLAR: FedAvg, and then FedAvg in groups of clients alike (Presotto, Civitarese and Bettini, PerCom 2022).

            server                                    client      down              up
warm-up     model, everyone's last update             head        model             model, n
afterwards  a model of each group, who is where       head        its encoder       encoder, n, group

For ``warm_up`` rounds all share one model. Then clients are clustered once, by the cosine between their updates w_i − w
of the last layers, and from there on each group k has an average of its own,

    w_k = Σ_{i in k} n_i w_i / Σ_{i in k} n_i,

of everything before the head; last layers are a client's own. We describe the method as the papers that cite it do;
what they leave open is settled so:

- Clustering is hierarchical, average linkage, cut at a cosine distance of ``threshold``: at 1 two groups are merged
  unless their updates point apart on average; ``clusters`` gives their number instead. ``layers = "all"`` compares
  whole updates.
- Of a client that sat the last warm-up round out, its last update counts. One the server has never heard of by then
  gets every group's model, the head as it was when groups were made, and goes where its loss is least; so does a client
  that comes after the last round.
- ``by = "performance"``: everyone does so, in every round it takes part in (as IFCA, Ghosh et al., NeurIPS 2020). The
  groups by cosine are where this begins. Each group's encoder is tried under the client's own head, on its training
  data. Every group's encoder then goes down to everyone.
- A client's head begins as it was after its last warm-up round. ``personal_heads = False`` shares heads, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params, part
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.models.network import PARTS
from fedsense.ops import average, classify, cosine_distances, groups, mean_loss, size, zeros_of_trained
from fedsense.training import fit
from fedsense.work import Work

ENCODER = ("adapter", "encoder")


@dataclass(frozen=True, kw_only=True)
class FedCLAR(Method):
    """FedAvg, and from some round on FedAvg in groups of clients alike, under heads of one's own."""

    warm_up: int = 10  # rounds of FedAvg before clients are grouped
    by: Literal["cosine", "performance"] = "cosine"  # a client's group: by its update once, or by its loss every round
    threshold: float = 1.0  # cosine distance of updates up to which groups are merged
    clusters: int | None = None  # how many groups instead, at most
    layers: Literal["head", "all"] = "head"  # whose updates are compared
    personal_heads: bool = True

    name: ClassVar[str] = "fedclar"
    paper: ClassVar[str] = "Presotto et al., PerCom 2022"
    group: ClassVar[str] = "personal models"
    equation: ClassVar[str] = "w_k = Σ_{i in k} nᵢwᵢ / Σ_{i in k} nᵢ, groups k by cos(wᵢ − w, w_j − w)"
    assumes: ClassVar[str] = "one network for all; rounds enough to tell clients apart before they are grouped"
    use: ClassVar[str] = "for a few kinds of people or places that one does not know"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(1, "warm_up", "clusters")
        self.refuse_below(0, "threshold")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)
        many = sum(member.samples > 0 for member in task.members.values())
        if self.clusters is not None and self.clusters > many:
            raise UserError(
                f"fedclar: clusters is {self.clusters}, but only {many} clients train; ask for fewer groups, or leave "
                "it out",
                about="clusters",
            )

    def too_few(self, rounds: int) -> str:
        if rounds > self.warm_up:
            return ""
        return f"clients are grouped after round {self.warm_up} (warm_up), and train as in FedAvg until then"

    def init_server(self, task: Task, params: Params) -> Bundle:
        trained = zeros_of_trained(part(params, *(PARTS if self.layers == "all" else ("head",))), task)
        compared = {name: torch.zeros(()) for name in trained}
        return {"model": params, "rounds": {"done": torch.tensor(0)}, "compared": compared}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        if "model" in server:
            return {"model": server["model"]}
        known = server["group"].get(client_id)
        if known is None or self.by == "performance":
            own_head = self.personal_heads and known is not None
            return {
                f"group-{k}": part(model, *ENCODER) if own_head else model for k, model in enumerate(_models(server))
            }
        model = server[f"model-{int(known)}"]
        return {"encoder": part(model, *ENCODER)} if self.personal_heads else {"model": model}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        return self._trained(client, state, down, work, PARTS)

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        """Where heads are one's own, the head alone, to the group's encoder as it is at the end."""
        whole = "model" in down or not self.personal_heads
        return self._trained(client, state, down, work, PARTS if whole else ("head",))

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        if "model" not in server:
            return self._within_groups(server, uploads)
        done, before = server["rounds"]["done"] + 1, server["model"]
        new = {c: _direction(u["model"], before, server["compared"]) for c, u in uploads.items()}
        updates = server.get("update", {}) | new
        if done < self.warm_up:
            return server | {"model": average(uploads, "model"), "rounds": {"done": done}, "update": updates}
        who = sorted(updates)
        number = groups(cosine_distances(torch.stack([updates[c] for c in who])), self.threshold, self.clusters)
        group = {c: torch.tensor(k) for c, k in zip(who, number, strict=True)}
        everyone = average(uploads, "model")  # of a group none of whom took part in this round
        clustered = {"group": group} | {f"model-{k}": everyone for k in range(max(number) + 1)}
        return self._within_groups(clustered, uploads)

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return self._start(client, state, down)[0]

    def global_model(self, server: Bundle) -> Params | None:
        return None  # in the end there is none

    def observe(self, server: Bundle) -> dict[str, Any]:
        """Who is in which group, once there are groups."""
        members: dict[str, list[str]] = {}
        for client_id, number in sorted(server.get("group", {}).items()):
            members.setdefault(str(int(number)), []).append(client_id)
        return {"groups": dict(sorted(members.items(), key=lambda item: int(item[0])))} if members else {}

    def _start(self, client: Client, state: Bundle, down: Bundle) -> tuple[Params, Params]:
        """The model to go on with, and which group it is of, where that was the client's choice."""
        own = {**client.initial, **state.get("head", {})}
        if "group-0" not in down:
            return own | down.get("encoder", {}) | down.get("model", {}), {}
        choices = [own | down[f"group-{k}"] for k in range(len(down))]
        losses = [mean_loss(client, choice) for choice in choices]
        best = losses.index(min(losses))
        return choices[best], {"number": torch.tensor(best)}

    def _trained(self, client: Client, state: Bundle, down: Bundle, work: Work, parts: tuple[str, ...]) -> Reply:
        start, chosen = self._start(client, state, down)
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim(), only=parts)
        whole = "model" in down or not self.personal_heads
        upload = {"model": done.params if whole else part(done.params, *ENCODER), "size": size(client)}
        return Reply(
            state={"head": part(done.params, "head")} if self.personal_heads else {},
            upload=upload | ({"chosen": chosen} if chosen else {}),
            model=done.params,
            metrics={"loss": done.loss},
        )

    def _within_groups(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        """w_k of every group of whom somebody took part; the others stay as they were."""
        chosen = {c: upload["chosen"]["number"] for c, upload in uploads.items() if "chosen" in upload}
        group, new = server["group"] | chosen, {}
        for number in {int(group[c]) for c in uploads}:
            members = {c: upload for c, upload in uploads.items() if int(group[c]) == number}
            new[f"model-{number}"] = server[f"model-{number}"] | average(members, "model")
        return server | {"group": group} | new


def _models(server: Bundle) -> list[Params]:
    """Of every group, by its number."""
    return [server[f"model-{k}"] for k in range(sum(group.startswith("model-") for group in server))]


def _direction(model: Mapping[str, Tensor], before: Mapping[str, Tensor], compared: Mapping[str, Tensor]) -> Tensor:
    """w_i − w of the layers compared, as one vector."""
    return torch.cat([(model[name] - before[name]).flatten() for name in sorted(compared)])
