"""FedBN: FedAvg but for BatchNorm, which stays with the client (Li et al., ICLR 2021), Algorithm 1.

server  model without BatchNorm        client  its BatchNorm layers: weights, biases, running statistics
down    model without BatchNorm        up      model without BatchNorm, n

For clients whose signals differ in level and spread (other devices, other rooms). A network without BatchNorm is
refused: FedBN would be FedAvg there, and a table would show it twice. There is no one model for all, because nobody's
normalisation is everybody's; a client that comes later begins with the starting values of its layers and trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import average, batchnorm_names, classify, size
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedBN(Method):
    """FedAvg whose clients keep their BatchNorm layers to themselves."""

    name: ClassVar[str] = "fedbn"
    paper: ClassVar[str] = "Li et al., ICLR 2021"
    group: ClassVar[str] = "personal models"
    equation: ClassVar[str] = "w = Σ nᵢwᵢ / Σ nᵢ of all but BatchNorm"
    assumes: ClassVar[str] = "one network for all, with BatchNorm"
    use: ClassVar[str] = "for devices that differ in gain, offset or spread"

    def requires(self, task: Task) -> None:
        share_one_model(self, task)
        first = next(iter(task.members.values()))
        if not batchnorm_names(first.shapes, first.buffers):
            raise UserError(
                f"fedbn keeps BatchNorm layers local, but {first.architecture} has none, so that it would be fedavg; "
                "use fedavg, or a network with BatchNorm, such as convnet4-tiny"
            )

    def init_server(self, task: Task, params: Params) -> Bundle:
        first = next(iter(task.members.values()))
        own = batchnorm_names(first.shapes, first.buffers)
        return {"model": {name: t for name, t in params.items() if name not in own}}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"norms": _norms(client, params)}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = down["model"] | state["norms"]
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        own = _norms(client, done.params)
        shared = {name: t for name, t in done.params.items() if name not in own}
        return Reply(
            state={"norms": own},
            upload={"model": shared, "size": size(client)},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": average(uploads, "model")}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return down["model"] | state["norms"]

    def global_model(self, server: Bundle) -> Params | None:
        return None


def _norms(client: Client, params: Params) -> Params:
    names = batchnorm_names(params, client.model.buffers)
    return {name: t for name, t in params.items() if name in names}
