"""L2GD: a mixture of global and local models (Hanzely and Richtárik, 2020), Algorithm 1 in rounds.

server  mean model x̄, who has it        client  x_i
down    x̄, once it has changed          up      x_i, in rounds that average

The objective is (1/n) Σ f_i(x_i) + (λ/2n) Σ ‖x_i − x̄‖². Algorithm 1 tosses a coin before every step: with probability
1 − p all take a gradient step x_i ← x_i − α/(n(1−p)) ∇f_i(x_i), with p an averaging step x_i ← x_i − αλ/(np) (x_i − x̄).
On average that is a step along the gradient of the objective. Here the coin is tossed once a round:

- Every client takes its K_i local steps of size η (``lr``). Then, with probability p, the server averages, and clients
  move x_i ← x_i − min(1, K_i ηλ/p) (x_i − x̄). On average that is K_i steps along ∇f_i(x_i) + λ(x_i − x̄), with η for the
  α/n of Algorithm 1, and λ means the same whatever the epochs are. With momentum K_i is the number of plain steps that
  would go as far; with Adam, whose steps do not depend on the length of gradients, λ is no more than a setting.
- The coin is drawn from the run's seed and the round, so clients know without being told whether to send.
- x̄ is over those who took part, all alike. Who sits out moves to the latest x̄ when it is back. Who never trained
  begins at x̄.

With λ = 0 this is ``local``; with p = 1 and a large λ it is FedAvg whose clients count alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.ops import average, classify
from fedsense.training import fit
from fedsense.work import Work, stream


@dataclass(frozen=True, kw_only=True)
class L2GD(Method):
    """Models of one's own that now and then move towards their mean; how far, λ says."""

    pull: float = 0.1  # lambda, weight of the distance to the mean
    chance: float = 0.5  # p, of averaging after a round

    name: ClassVar[str] = "l2gd"
    paper: ClassVar[str] = "Hanzely and Richtárik, 2020"
    group: ClassVar[str] = "personal models"
    equation: ClassVar[str] = "(1/n) Σ fᵢ(xᵢ) + (λ/2n) Σ ‖xᵢ − x̄‖²"
    assumes: ClassVar[str] = "one network for all"
    use: ClassVar[str] = "for local models that do not stray, and few messages"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "pull")
        self.refuse_unless_positive("chance")
        if self.chance > 1:
            raise UserError(f"l2gd: chance is {self.chance:g}; it is a probability, above 0 and up to 1", "chance")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params, "seen": {}}

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return {} if client_id in server["seen"] else {"model": server["model"]}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        start = self.personalise(client, state, down, work)
        done = fit(classify(client), start, client, work.epochs(self.epochs), self.optim())
        averages = self.averages(work.seed, work.round)
        return Reply(
            state={"own": done.params},
            upload={"model": done.params} if averages else {},
            model=done.params,
            metrics={"loss": done.loss},
        )

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        if any(uploads.values()):
            return {"model": average(uploads, "model", uniform=True), "seen": {}}
        return server | {"seen": server["seen"] | {client_id: torch.tensor(True) for client_id in uploads}}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        """x_i after the averaging step, if there was one since the client last trained."""
        own, mean = state.get("own"), down.get("model")
        if own is None or mean is None:
            return own or mean or client.initial
        far = self.step(client)
        return {name: torch.lerp(x, mean[name], far) for name, x in own.items()}

    def averages(self, seed: int, round: int) -> bool:
        """The coin."""
        return bool(stream(seed, round, "coin").random() < self.chance)

    def step(self, client: Client) -> float:
        """min(1, K_i ηλ/p)."""
        steps = float(self.epochs * -(-client.samples // self.batch))
        if self.optimiser == "sgd":  # the k-th step after a start is 1 + m + … + m^(k−1) times a plain one
            m = self.momentum
            steps = (steps - m * (1 - m**steps) / (1 - m)) / (1 - m) if m < 1 else steps * (steps + 1) / 2
        return min(1.0, steps * self.lr * self.pull / self.chance)
