"""FedProto: clients share class prototypes, and nothing else (Tan et al., AAAI 2022), Algorithm 1.

server  prototypes [C, d]        client  its whole model
down    prototypes [C, d]        up      prototypes of its classes, class counts

Only prototypes travel, so clients may have any architecture with the same width of features. (A prototype of a class
with one sample is that sample's features.) Where the paper is open:

- Eq. 6 has both 1/|N_j| and |D_ij|/N_j, which together shrink prototypes by the number of clients; 1/|N_j| is left out.
  ``weights = "uniform"`` counts the clients that hold a class alike.
- The distance is a mean over features and minibatch. There are no prototypes in the first round, and so no
  alignment, and a sample of a class without one is never aligned. The paper has all clients in every round; where they
  are not, a class nobody trained this round keeps its last prototype.
- Prototypes are taken after training, in inference, over all training data.
- The paper predicts the class of the nearest prototype. By default here the head does, which needs none and is what
  other methods are compared by; ``inference = "prototype"`` is the paper's. It takes the global prototypes that came
  down, its own of classes that have none, and never predicts a class that has neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, needs_classes, share_one_width
from fedsense.ops import class_prototypes, classify_and_align, held_only, keep_known, merge_prototypes, with_absent
from fedsense.training import fit
from fedsense.work import Work

FAR = 1e30  # squared distance to a class that is not known


@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """Clients of any architecture, whose features are drawn to everyone's class prototypes."""

    align: float = 1.0  # lambda, weight of the prototype term
    weights: Literal["samples", "uniform"] = "samples"  # of clients in a global prototype, Eq. 6
    inference: Literal["head", "prototype"] = "head"  # what predicts a class

    name: ClassVar[str] = "fedproto"
    paper: ClassVar[str] = "Tan et al., AAAI 2022"
    group: ClassVar[str] = "prototypes"
    equation: ClassVar[str] = "L + λ·‖z − p_y‖²/d, p_c = Σ |D_ic| p_ic / Σ |D_ic|"
    assumes: ClassVar[str] = "features of one width; classes all share"
    use: ClassVar[str] = "where networks differ or little may be sent, and clients are alike"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "align")

    def requires(self, task: Task) -> None:
        needs_classes(self, task)
        share_one_width(self, task)
        for member in task.members.values() if self.inference == "prototype" else ():
            head = {name: shape for name, shape in member.shapes.items() if name.startswith("head.")}
            if head != {"head.weight": (len(task.classes), member.features), "head.bias": (len(task.classes),)}:
                raise UserError(
                    f"{self.name} with inference = 'prototype' puts prototypes in the place of a head that is one "
                    f"linear layer, but that of client '{member.id}' ({member.architecture}) has {sorted(head)}; "
                    "use inference = 'head', or a network with such a head"
                )

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        loss = classify_and_align(client, self.align if down else 0.0)
        given = down.get("proto", {})
        done = fit(loss, state["model"], client, work.epochs(self.epochs), self.optim(), given=given)
        own = class_prototypes(client, done.params)
        return Reply(
            state={"model": done.params},
            upload={"proto": held_only(own)},
            model=self._predicting(done.params, down, own) if self.inference == "prototype" else None,
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        proto = merge_prototypes(
            [with_absent(u["proto"]) for u in uploads.values()], self.weights == "uniform"
        )  # Eq. 6
        return {"proto": keep_known(proto, server["proto"]) if server else proto}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        if self.inference == "head":
            return state["model"]
        return self._predicting(state["model"], down, class_prototypes(client, state["model"]))

    def _predicting(self, model: Params, down: Bundle, own: Params) -> Params:
        """The model with a head that predicts the nearest prototype: logits ‖z‖² − ‖z − p_c‖² = 2 p_c·z − ‖p_c‖²."""
        proto = keep_known(down["proto"], own) if down else own
        distance: Tensor = torch.where(proto["count"] > 0, proto["mean"].square().sum(1), FAR)
        return model | {"head.weight": 2 * proto["mean"], "head.bias": -distance}
