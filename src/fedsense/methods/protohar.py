"""ProtoHAR: prototype-guided personalised federated learning (Cheng et al., JBHI 2023), Algorithm 1.

server  encoder, prototypes [C, d]        client  head, momentum
down    encoder, prototypes               up      encoder, prototypes, class counts, n

The encoder φ is everything before the head (an adapter, too). Where the paper is open:

- Eq. 8 has both 1/m and |D_ij|/D_j, which together shrink prototypes by m; 1/m is left out. The authors' code counts
  clients alike: ``weights = "uniform"``.
- The distance of Eq. 10 is a mean over features and minibatch (the authors' MSE). A class without global prototype is
  not aligned, and so nothing is in the first round. A class nobody trained this round keeps its last prototype, unless
  ``forget``.
- Algorithm 1 steps h with α and φ with β, the text says the reverse, and the code agrees with the text: ``lr`` is φ's,
  ``head_lr`` the head's.
- Local epochs are divided 3 : 7 between head and encoder, the paper's choice for 10, unless they are said one by one.
- Momentum is kept from round to round and gradients are clipped at 50, as in the authors' code.
- W.O.PCR is ``align = 0``. W.O.SCR is ``personal_heads = False``: the whole model is shared and trained in one phase,
  guided by prototypes. +RP is ``sharpness`` above 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedsense.bundle import Bundle, Params, nested, part, within
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, needs_classes, share_one_model
from fedsense.models.network import PARTS
from fedsense.ops import (
    Distance,
    average,
    class_prototypes,
    classify,
    classify_and_align,
    keep_known,
    merge_prototypes,
    no_prototypes,
    size,
)
from fedsense.training import fit
from fedsense.work import Work

ENCODER = ("adapter", "encoder")  # phi


@dataclass(frozen=True, kw_only=True)
class ProtoHAR(Method):
    """A shared encoder guided by everyone's class prototypes, and a head of one's own."""

    epochs: int = 10
    head_epochs: int | None = None  # E_h; if None, three tenths of the epochs, and at least one
    encoder_epochs: int | None = None  # E_phi; if None, the rest of the epochs, and at least one
    head_lr: float = 0.01
    align: float = 1.0  # lambda, weight of the prototype term
    distance: Distance = "l2"  # L_R
    sharpness: float = 0.0  # epsilon of the reweighted prototype, Eq. 5; 0 is the plain mean, Eq. 4
    weights: Literal["samples", "uniform"] = "samples"  # of clients in a global prototype, Eq. 8
    forget: bool = False  # drop the global prototypes of classes nobody trained this round
    personal_heads: bool = True
    keep_momentum: bool = True  # across rounds
    clip: float | None = 50.0

    name: ClassVar[str] = "protohar"
    paper: ClassVar[str] = "Cheng et al., JBHI 2023"
    group: ClassVar[str] = "prototypes"
    equation: ClassVar[str] = "hᵢ ← arg min L, then φᵢ ← arg min L + λ·‖z − p_y‖²/d; φ = Σ nᵢφᵢ / Σ nᵢ"
    assumes: ClassVar[str] = "one network before the head; classes all share"
    use: ClassVar[str] = "for people who differ in what they do and in how they do it"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "head_epochs", "encoder_epochs", "head_lr", "align", "sharpness")

    @property
    def phases(self) -> tuple[int, int]:
        """E_h and E_φ."""
        head = max(1, round(0.3 * self.epochs)) if self.head_epochs is None else self.head_epochs
        return head, max(1, self.epochs - head) if self.encoder_epochs is None else self.encoder_epochs

    def requires(self, task: Task) -> None:
        needs_classes(self, task)
        share_one_model(self, task, ENCODER if self.personal_heads else PARTS)

    def init_server(self, task: Task, params: Params) -> Bundle:
        shared = {"encoder": part(params, *ENCODER)} if self.personal_heads else {"model": params}
        return shared | {"proto": no_prototypes(task)}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"head": part(params, "head")} if self.personal_heads else {}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        target = down["proto"]
        guided = classify_and_align(client, self.align, self.distance)  # Eq. 10

        def go_on(phase: str) -> Bundle | None:
            return within(state, phase) or None

        if self.personal_heads:
            start, (head_epochs, encoder_epochs) = down["encoder"] | state["head"], self.phases
            first, rest = work.epochs(head_epochs, "head"), work.epochs(encoder_epochs, "encoder")
            solve = self.optim(self.head_lr)
            solved = fit(classify(client), start, client, first, solve, only="head", memory=go_on("of-head"))  # Eq. 9
            memory = go_on("of-encoder")
            done = fit(guided, solved.params, client, rest, self.optim(), only=ENCODER, memory=memory, given=target)
            kept, upload = {"head": part(done.params, "head")}, {"encoder": part(done.params, *ENCODER)}
            memory = nested("of-head", solved.optimiser) | nested("of-encoder", done.optimiser)
        else:
            rest, memory = work.epochs(self.epochs), go_on("of-model")
            done = fit(guided, down["model"], client, rest, self.optim(), memory=memory, given=target)
            kept, upload = {}, {"model": done.params}
            memory = nested("of-model", done.optimiser)
        upload["proto"] = class_prototypes(client, done.params, target, self.sharpness)  # Eq. 4 or 5
        return Reply(
            state=kept | memory if self.keep_momentum else kept,
            upload=upload | {"size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        shared = "encoder" if self.personal_heads else "model"
        proto = merge_prototypes([upload["proto"] for upload in uploads.values()], self.weights == "uniform")  # Eq. 8
        return {
            shared: average(uploads, shared),  # Eq. 7
            "proto": proto if self.forget else keep_known(proto, server["proto"]),
        }
