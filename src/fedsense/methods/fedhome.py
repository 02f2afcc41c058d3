"""FedHome: FedAvg, and then every client tunes the head on as much of every class (Wu et al., TMC 2022).

server  model        client  –
down    model        up      model, n

The server's model is FedAvg's. A client's own is that model, as it came down, with a head that was tuned on the
client's balanced data: what the encoder makes of its samples, and new points between those of a class that has fewer,
until every class it has is as large as its largest (SMOTE; see :func:`fedsense.ops.smote`). The original has features
from a convolutional autoencoder, whose decoder trains along; here, as in ProtoHAR's comparison, they are those of the
network itself, whichever it is. Open in it, and settled so: 5 neighbours as SMOTE has them, ``tune_epochs`` as
WiFederated's, a class of one sample has that repeated. Points made are never sent, and new ones are drawn each time.

Features take the place of samples for the training loop: it is given them as a client's samples, and beside them as
what the head sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Samples, Task
from fedsense.method import Method, Reply, needs_classes, share_one_model
from fedsense.models.network import Network
from fedsense.ops import average, classify, size, smote
from fedsense.training import FEATURES, Fitted, fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedHome(Method):
    """FedAvg, whose head every client tunes before use, on as many samples of each class."""

    tune_epochs: int = 5
    tune_lr: float | None = None  # if None, lr
    neighbours: int = 5  # k of SMOTE

    name: ClassVar[str] = "fedhome"
    paper: ClassVar[str] = "Wu et al., TMC 2022"
    group: ClassVar[str] = "personal models"
    equation: ClassVar[str] = "w by FedAvg; hᵢ tuned on zᵢ and z + u(z′ − z) of the classes with fewer samples"
    assumes: ClassVar[str] = "one network for all, plain from encoder to head; classes"
    use: ClassVar[str] = "where clients have few samples of some classes"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "tune_epochs", "tune_lr")
        self.refuse_below(1, "neighbours")

    def complete(self, network: Network) -> None:
        kind = type(network)
        if kind.forward is not Network.forward or kind.onward is not Network.onward:
            raise UserError(
                f"fedhome trains the head on features alone, but {kind.__name__} has a forward pass of its own; use a "
                "network that is adapter, encoder and head, one after another"
            )

    def requires(self, task: Task) -> None:
        needs_classes(self, task)
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        done = fit(classify(client), down["model"], client, work.epochs(self.epochs), self.optim())
        return Reply(upload={"model": done.params, "size": size(client)}, metrics={"loss": done.loss})

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        tuned = self._tuned(client, down["model"], work)
        return Reply(model=tuned.params, metrics={"loss": tuned.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": average(uploads, "model")}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return self._tuned(client, down["model"], work).params

    def _tuned(self, client: Client, start: Params, work: Work) -> Fitted:
        """The head alone, on balanced features."""
        features = client.model.predict(start, client.train.x).features
        z, y = smote(features, client.train.y, self.neighbours, work.rng("smote"))
        balanced = replace(client, data=replace(client.data, train=Samples(z, y)))
        schedule, optim = work.epochs(self.tune_epochs, "tune"), self.optim(self.tune_lr)
        return fit(classify(client), start, balanced, schedule, optim, only="head", beside={FEATURES: z})
