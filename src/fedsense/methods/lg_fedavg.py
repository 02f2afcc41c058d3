"""LG-FedAvg: representations of one's own under a shared head (Liang et al., 2020), Algorithm 1.

server  head        client  adapter, encoder
down    head        up      head, n

The reverse of FedRep and FedPer: what is near the sensors is local, the classifier global; a client trains both at
once. Encoders may be any, if only their features have one width. The paper starts from a model trained by FedAvg; here
the first round starts from scratch, so encoders meet only through the head.
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

OWN = ("adapter", "encoder")


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Method):
    """Encoders of one's own, of any kind, under a head that is averaged."""

    name: ClassVar[str] = "lg-fedavg"
    paper: ClassVar[str] = "Liang et al., 2020"
    group: ClassVar[str] = "different architectures"
    equation: ClassVar[str] = "h = Σ nᵢhᵢ / Σ nᵢ; (φᵢ, h) trained together"
    assumes: ClassVar[str] = "features of one width, heads of one kind"
    use: ClassVar[str] = "where encoders differ, and classes are the same"

    def requires(self, task: Task) -> None:
        mend = "give their models one width of features (model.width) and heads of one kind; encoders may differ"
        share_one_model(self, task, ("head",), mend)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"head": part(params, "head")}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"encoder": part(params, *OWN)}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = state["encoder"] | down["head"]
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        return Reply(
            state={"encoder": part(done.params, *OWN)},
            upload={"head": part(done.params, "head"), "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"head": average(uploads, "head")}
