"""FedAli: prototypes inside the network, aligned by optimal transport (Ek et al.), Algorithm 1.

server  model, global prototypes of every ALP layer         client  –
down    model, global prototypes                            up      model, local prototypes, n

The layers are :class:`fedsense.models.ALP`; ``hart`` and ``vit-tiny`` have one in each block, and any network may. They
are opened with the hyper-parameters below, unless whoever built the network has done so. Where the paper is open:

- Local prototypes are set to the global ones at the beginning of every round, the first one, too (the authors' begin
  apart), so one set travels each way. (The paper
  counts both: 2.38 times FedAvg's bytes with its network; this is 1.84 times.)
- Before prototypes were learned by anybody, in the first round, β counts as 0, as in the authors' code: embeddings are
  brought to length 1 and not drawn anywhere. β = 0 for good closes the layers, and what is left is FedAvg.
- Local prototypes move to a mean of embeddings as they are, by weights that sum to 1, as in the authors' code; the
  appendix has it otherwise (``update = "appendix"``), and the authors' run from scratch, too (``update = "hard"``).
- A cluster of k-means that nobody belongs to stays where it was. ``aggregation = "average"`` leaves k-means out.
- In inference a sample's output depends on its minibatch, through Sinkhorn's iterations. Minibatches are cut in the
  data's order. ``inference = "sample"`` takes the nearest prototype instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.models.alp import (
    ALIGNED,
    GLOBAL,
    LOCAL,
    Inference,
    Matching,
    Sets,
    Update,
    moved,
    open_layers,
    prototype_layers,
)
from fedsense.models.network import Network
from fedsense.ops import average, classify, size
from fedsense.ops.kmeans import kmeans
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedAli(Method):
    """FedAvg of transformers whose embeddings are drawn to prototypes: everyone's in training, its own in use."""

    prototypes: int = 2048  # G, of the first ALP layer; each that follows has half as many
    blend: float = 0.2  # beta, how far embeddings are drawn
    decay: float = 0.999  # gamma, how slowly local prototypes move
    glu: bool = True  # prototypes pass a gated linear unit
    matching: Matching = "transport"
    sets: Sets = "both"  # "local" and "global": without the other, Table 4
    update: Update = "soft"
    inference: Inference = "batch"
    aggregation: Literal["k-means", "average"] = "k-means"

    name: ClassVar[str] = "fedali"
    paper: ClassVar[str] = "Ek et al., FedAli"
    group: ClassVar[str] = "prototypes"
    equation: ClassVar[str] = (
        "z ← (1 − β)z + β·p(z), p by optimal transport between embeddings and prototypes; w = Σ nᵢwᵢ / Σ nᵢ"
    )
    assumes: ClassVar[str] = "one transformer with ALP layers (hart, vit-tiny)"
    use: ClassVar[str] = "for transformers, and one model that is to serve people who were not there"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(1, "prototypes")
        for name in ("blend", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"fedali: {name} is {getattr(self, name)}; it must be between 0 and 1", about=name)

    def complete(self, network: Network) -> None:
        if not self.blend:
            return
        open_layers(
            network,
            self.prototypes,
            beta=self.blend,
            gamma=self.decay,
            glu=self.glu,
            matching=self.matching,
            sets=self.sets,
            update=self.update,
            inference=self.inference,
        )

    def requires(self, task: Task) -> None:
        share_one_model(self, task)
        member = next(iter(task.members.values()))
        if self.blend and not prototype_layers(member.shapes):
            raise UserError(
                f"fedali aligns embeddings inside the network, but '{member.architecture}' has no ALP layer; take "
                "hart (motion sensors) or vit-tiny (images), or put fedsense.models.ALP into your own network "
                "(docs/how-to/prototypes-inside.md)"
            )

    def init_server(self, task: Task, params: Params) -> Bundle:
        return _apart(params, GLOBAL)

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = _together(down, down["proto"])
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        up = _apart(done.params, LOCAL)
        way = {f"moved.{layer}": float(moved(t, down["proto"][layer])) for layer, t in up["proto"].items()}
        return Reply(
            upload={**up, "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss, **way},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        mean = average(uploads, "proto")  # where k-means begins
        common = {layer: self._common([up["proto"][layer] for up in uploads.values()], mean[layer]) for layer in mean}
        model = average(uploads, "model")
        model |= {f"{layer}.{ALIGNED}": torch.ones(()) for layer in common}
        way = {layer: moved(t, server["proto"][layer]) for layer, t in common.items()}
        return {"model": model, "proto": common, "moved": way}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return {"model": server["model"], "proto": server["proto"]}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return _together(down, down["proto"])

    def global_model(self, server: Bundle) -> Params:
        return _together(server, server["proto"])

    def observe(self, server: Bundle) -> dict[str, Any]:
        """How far the global prototypes of each layer moved in the last round: mean distance, Figure 5."""
        return {"prototypes moved": {layer: float(way) for layer, way in server.get("moved", {}).items()}}

    def _common(self, each: list[Tensor], mean: Tensor) -> Tensor:
        """Line 11 of Algorithm 1: centres of everyone's local prototypes, from their mean.

        Everyone's began at the same place, so a prototype is likely to belong to the centre of its own number.
        """
        if self.aggregation == "average":
            return mean
        guess = torch.arange(len(mean)).repeat(len(each))
        return kmeans(torch.cat(each), mean, guess)[0]


def _apart(params: Mapping[str, Tensor], which: str) -> Bundle:
    """Weights, and one set of prototypes, which are sent apart."""
    layers = prototype_layers(params)
    prototypes = {f"{layer}.{kind}" for layer in layers for kind in (LOCAL, GLOBAL)}
    return {
        "model": {name: t for name, t in params.items() if name not in prototypes},
        "proto": {layer: params[f"{layer}.{which}"] for layer in layers},
    }


def _together(bundle: Bundle, proto: Mapping[str, Tensor]) -> Params:
    """A whole model whose local and global prototypes are the same."""
    return bundle["model"] | {f"{layer}.{kind}": t for layer, t in proto.items() for kind in (LOCAL, GLOBAL)}
