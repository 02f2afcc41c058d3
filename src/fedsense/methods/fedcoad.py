"""FedCoad: model-contrastive learning with control variates (Iwan et al., FITEE 2025), Algorithms 1 and 2.

server  model, ρ_glob, N        client  ρ_i, the model it trained last
down    model, ρ_glob           up      model, Δ_i, n

- Eq. 4 adds ρ_glob − ρ_i to a loss, where it has no gradient; it is applied to the step, after the optimiser.
- Eq. 7 divides by E·α with E local epochs; here by K·α with K minibatch steps, as a step is what the variate corrects.
- Eq. 8 sums the changes; here they are averaged over all clients, as in SCAFFOLD. A sum grows with their number.
- Variates start at zero for server and clients; any other common start gives the same first correction, zero.

Without ``variates`` it is MOON, with ``mu = 0`` SCAFFOLD's correction, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import (
    add_changes,
    average,
    classify,
    classify_and_contrast,
    corrected,
    new_variates,
    seen_by,
    size,
    trainers,
    variate_change,
    zeros_of_trained,
)
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class FedCoad(Method):
    """One model for people it has not met: contrast to the global model in the loss, control variates in the step."""

    mu: float = 1.0  # weight of the contrast, Eq. 3; 0 switches it off
    temperature: float = 0.5  # tau, Eq. 2
    variates: bool = True  # control variates, Eq. 4 to 8

    name: ClassVar[str] = "fedcoad"
    paper: ClassVar[str] = "Iwan et al., FITEE 2025"
    group: ClassVar[str] = "one model for all"
    equation: ClassVar[str] = "MOON's loss, in steps w ← w − lr·(g − ρᵢ + ρ)"
    assumes: ClassVar[str] = "one network for all"
    use: ClassVar[str] = "for people one has not met, where those one has differ"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "mu")
        self.refuse_unless_positive("temperature")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        if not self.variates:
            return {"model": params}
        return {"model": params, "variate": zeros_of_trained(params, task), "trainers": trainers(task)}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"variate": zeros_of_trained(params, client.task)} if self.variates else {}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return {group: server[group] for group in ("model", "variate") if group in server}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        model, loss, seen, optimiser = down["model"], classify(client), {}, self.optim()
        if self.mu:
            loss = classify_and_contrast(client, self.mu, self.temperature)  # Eq. 3
            seen = seen_by(client, model, state.get("model", model))
        if self.variates:
            own, shared = state["variate"], down["variate"]
            optimiser = corrected(optimiser, self.lr, own, shared)  # Eq. 4 to 6
        done = fit(loss, model, client, work.epochs(self.epochs), optimiser, beside=seen)
        kept: Bundle = {"model": done.params} if self.mu else {}
        upload: Bundle = {"model": done.params, "size": size(client)}
        if self.variates:
            kept["variate"] = new_variates(own, shared, model, done.params, done.steps, self.lr)  # Eq. 7
            upload["variate"] = variate_change(kept["variate"], own)
        return Reply(state=kept, upload=upload, model=done.params, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        model: Bundle = {"model": average(uploads, "model")}
        if not self.variates:
            return model
        return model | {"variate": add_changes(server, uploads), "trainers": server["trainers"]}  # Eq. 8
