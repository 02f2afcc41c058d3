"""FedRep: a shared representation and personal heads (Collins et al., ICML 2021), Algorithm 1.

server  encoder        client  head
down    encoder        up      encoder, n

In every round a client first fits its own parts to the shared ones as they came, then the shared ones to its own. Own
is the head, and shared the representation φ, everything before it (an adapter, too). The paper averages clients alike;
the default here weighs by samples, as the papers that compare with it do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedsense.bundle import Bundle, Params, part
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import average, classify, size
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedRep(Method):
    """A shared encoder, and a head of one's own that is fitted first."""

    head_epochs: int | None = None  # of a client's own parts; if None, all epochs but the encoder's, and at least one
    encoder_epochs: int = 1  # of the shared parts
    head_lr: float | None = None  # if None, lr
    weights: Literal["samples", "uniform"] = "samples"  # of clients in the average

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = "Collins et al., ICML 2021"
    group: ClassVar[str] = "personal heads"
    equation: ClassVar[str] = "hᵢ ← arg min L(φ, h), then φᵢ ← arg min L(φ, hᵢ); φ = Σ nᵢφᵢ / Σ nᵢ"
    assumes: ClassVar[str] = "one network before the head"
    use: ClassVar[str] = (
        "where clients have different classes, and local time is to be saved: most epochs train the head alone"
    )
    own: ClassVar[tuple[str, ...]] = ("head",)
    shared: ClassVar[tuple[str, ...]] = ("adapter", "encoder")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "head_epochs", "encoder_epochs", "head_lr")

    def requires(self, task: Task) -> None:
        share_one_model(self, task, self.shared)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"encoder": part(params, *self.shared)}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"head": part(params, *self.own)}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        head_epochs = max(1, self.epochs - self.encoder_epochs) if self.head_epochs is None else self.head_epochs
        first, rest = work.epochs(head_epochs, "head"), work.epochs(self.encoder_epochs, "encoder")
        loss, start = classify(client), down["encoder"] | state["head"]
        solved = fit(loss, start, client, first, self.optim(self.head_lr), only=self.own)
        done = fit(loss, solved.params, client, rest, self.optim(), only=self.shared)
        return Reply(
            state={"head": part(done.params, *self.own)},
            upload={"encoder": part(done.params, *self.shared), "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        """Its own parts alone, to the shared ones as they are at the end."""
        loss, start = classify(client), down["encoder"] | state["head"]
        done = fit(loss, start, client, work.epochs(self.epochs, "head"), self.optim(self.head_lr), only=self.own)
        return Reply(state={"head": part(done.params, *self.own)}, model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"encoder": average(uploads, "encoder", uniform=self.weights == "uniform")}
