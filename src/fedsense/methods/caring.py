"""CARING: FedAvg in which clients whose models do poorly count less (Li et al., TMC 2023), as FedAPA's paper has it.

server  model        client  –
down    model        up      model, accuracy

The server averages w = Σ a_i w_i / Σ a_i. FedAPA says that a_i is 0.3 or 1 by local performance, not where the line is;
here a_i = 1 if the accuracy of the model a client has just trained is at least the mean of the round's, else 0.3. It is
measured on the client's validation data; a client that has none takes its training data, which flatters it. Clients
with different networks are refused, or with ``by_architecture`` averaged, and compared, among their likes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, needs_classes, share_one_model
from fedsense.ops import architectures, average_for, average_within, classify, weighted_average
from fedsense.training import fit
from fedsense.work import Work

ROUNDING = 1e-6  # of accuracies in single precision: one so little below the mean is equal to it


@dataclass(frozen=True, kw_only=True)
class Caring(Method):
    """FedAvg in which a client counts in full if its accuracy is at least the mean, else by 0.3."""

    low: float = 0.3  # weight of a client whose accuracy is below the mean
    by_architecture: bool = False  # average among clients with the same network, where networks differ

    name: ClassVar[str] = "caring"
    paper: ClassVar[str] = "Li et al., TMC 2023"
    group: ClassVar[str] = "one model for all"
    equation: ClassVar[str] = "w = Σ aᵢwᵢ / Σ aᵢ, aᵢ = 1 if client i is at least as accurate as the mean, else 0.3"
    assumes: ClassVar[str] = "one network for all (or with by_architecture networks of a few kinds); classes"
    use: ClassVar[str] = "where some clients have bad recordings or labels"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "low")

    def requires(self, task: Task) -> None:
        needs_classes(self, task)
        if not self.by_architecture:
            share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"architecture": architectures(task)} if self.by_architecture else {"model": params}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return average_for(server, client_id) if self.by_architecture else server

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = down.get("model", client.initial)  # nothing came down: nobody has trained this network yet
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        judged = client.data.val if len(client.data.val) else client.train
        right = self.predict(client, done.params, judged.x).argmax(-1) == judged.y
        upload = {"model": done.params, "score": {"accuracy": right.float().mean()}}
        return Reply(upload=upload, model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        if self.by_architecture:
            return average_within(server, uploads, self.weights)
        return {"model": weighted_average(uploads, "model", self.weights(uploads))}

    def weights(self, uploads: Mapping[str, Bundle]) -> dict[str, float]:
        """a_i of those who are averaged."""
        scores = {client_id: float(upload["score"]["accuracy"]) for client_id, upload in uploads.items()}
        mean = statistics.fmean(scores.values())
        return {client_id: 1.0 if score >= mean - ROUNDING else self.low for client_id, score in scores.items()}
