"""FedPer: shared base layers and personal last layers (Arivazhagan et al., 2019), Algorithms 1 and 2.

server  encoder        client  head
down    encoder        up      encoder, n

Base layers and personal layers train jointly; only the base layers W_B are sent and averaged, by samples. Base is
everything before the head (an adapter, too), and personal is the head of the network: how many layers that is (the
paper's K_P) is up to the network. FedRep is the method that trains the two in turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params, part
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import average, classify, size
from fedsense.training import fit
from fedsense.work import Work

SHARED = ("adapter", "encoder")  # W_B


@dataclass(frozen=True, kw_only=True)
class FedPer(Method):
    """A shared encoder and a head of one's own, trained together."""

    name: ClassVar[str] = "fedper"
    paper: ClassVar[str] = "Arivazhagan et al., 2019"
    group: ClassVar[str] = "personal heads"
    equation: ClassVar[str] = "φ = Σ nᵢφᵢ / Σ nᵢ; (φᵢ, hᵢ) trained together"
    assumes: ClassVar[str] = "one network before the head"
    use: ClassVar[str] = "as the simplest way to have something of one's own"

    def requires(self, task: Task) -> None:
        share_one_model(self, task, SHARED)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"encoder": part(params, *SHARED)}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"head": part(params, "head")}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = down["encoder"] | state["head"]
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        return Reply(
            state={"head": part(done.params, "head")},
            upload={"encoder": part(done.params, *SHARED), "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        """The head alone, to the encoder as it is at the end."""
        start = down["encoder"] | state["head"]
        done = fit(classify(client), start, client, work.epochs(self.epochs, "head"), self.optim(), only="head")
        return Reply(state={"head": part(done.params, "head")}, model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"encoder": average(uploads, "encoder")}
