"""WiFederated: FedAvg, and then every client tunes the shared model for itself (Hernandez and Bulut, IoT-J 2022).

server  model        client  –
down    model        up      model, n

The server's model is FedAvg's. A client's own is that model, as it came down, after ``tune_epochs`` on its own data;
how many is not said, and 5 is our choice. FedAvg's clients, too, hold a model they have just trained once their local
work is done, so the two differ where models are scored as received (``moment = "received"``): there FedAvg's is the
server's. Clients with different networks are refused, or averaged among their likes with ``by_architecture``, as
FedAPA's Table III needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import architectures, average, average_for, average_within, classify, size
from fedsense.training import Fitted, fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class WiFederated(Method):
    """FedAvg, whose model every client tunes on its own data before use."""

    tune_epochs: int = 5
    tune_lr: float | None = None  # if None, lr
    by_architecture: bool = False  # average among clients with the same network, where networks differ

    name: ClassVar[str] = "wifederated"
    paper: ClassVar[str] = "Hernandez and Bulut, IoT-J 2022"
    group: ClassVar[str] = "personal models"
    equation: ClassVar[str] = "w by FedAvg; wᵢ = w after some epochs on Lᵢ"
    assumes: ClassVar[str] = "one network for all (or with by_architecture networks of a few kinds)"
    use: ClassVar[str] = "where the shared model needs only a little fitting before use"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "tune_epochs", "tune_lr")

    def requires(self, task: Task) -> None:
        if not self.by_architecture:
            share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"architecture": architectures(task)} if self.by_architecture else {"model": params}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return average_for(server, client_id) if self.by_architecture else server

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = down.get("model", client.initial)  # nothing came down: nobody has trained this network yet
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        return Reply(upload={"model": done.params, "size": size(client)}, metrics={"loss": done.loss})

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        tuned = self._tuned(client, down, work)
        return Reply(model=tuned.params, metrics={"loss": tuned.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return average_within(server, uploads) if self.by_architecture else {"model": average(uploads, "model")}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return self._tuned(client, down, work).params

    def _tuned(self, client: Client, down: Bundle, work: Work) -> Fitted:
        start, schedule = down.get("model", client.initial), work.epochs(self.tune_epochs, "tune")
        return fit(classify(client), start, client, schedule, self.optim(self.tune_lr))
