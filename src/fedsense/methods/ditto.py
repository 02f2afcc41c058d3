"""Ditto: a global model by FedAvg, and a personal one near it (Li et al., ICML 2021), Algorithm 1.

server  model w        client  personal model v_i
down    model          up      model, n

In every round a client trains w as in FedAvg, for the server, and then v_i, for itself, with λ(v_i − w) added to its
gradients; w is the model that came down. Nothing of v_i is sent or reaches w. Both see the same minibatches, so that
with λ = 0 the personal models are those of ``local``. A client's first v_i is the w it meets first. Running statistics
of BatchNorm are not pulled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import anchor, average, classify, classify_near, size
from fedsense.training import Fitted, fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """FedAvg, and a personal model beside it that is drawn to it: Lᵢ(v) + λ/2 ‖v − w‖²."""

    pull: float = 1.0  # lambda, of the personal towards the global model
    personal_epochs: int | None = None  # of the personal model; if None, epochs
    personal_lr: float | None = None  # if None, lr

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al., ICML 2021"
    group: ClassVar[str] = "personal models"
    equation: ClassVar[str] = "Lᵢ(v) + λ/2 ‖v − w‖², w by FedAvg"
    assumes: ClassVar[str] = "one network for all; time for two models"
    use: ClassVar[str] = "where both a personal model and one for all are wanted"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "pull", "personal_lr")
        self.refuse_below(1, "personal_epochs")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        shared = fit(classify(client), down["model"], client, work.epochs(self.epochs), self.optim())
        own = self._personal(client, state, down, work)
        return Reply(
            state={"model": own.params},
            upload={"model": shared.params, "size": size(client)},
            model=own.params,
            metrics={"loss": own.loss},
        )

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        """The personal model alone, near the global one as it is at the end."""
        own = self._personal(client, state, down, work)
        return Reply(state={"model": own.params}, model=own.params, metrics={"loss": own.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": average(uploads, "model")}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return state.get("model", down["model"])

    def _personal(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Fitted:
        """v_i ← v_i − η(∇L_i(v_i) + λ(v_i − w)), the personal epochs long."""
        start, loss = state.get("model", down["model"]), classify_near(client, self.pull)
        schedule = work.epochs(self.personal_epochs or self.epochs)
        return fit(loss, start, client, schedule, self.optim(self.personal_lr), given=anchor(client, down["model"]))
