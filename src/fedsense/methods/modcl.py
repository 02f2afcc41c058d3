"""ModCL: federated contrastive pre-training without labels, then training with them (Guo et al., IoT-J 2024).

server  model        client  –
down    model        up      pre-training: adapter, encoder, n; afterwards: what trains, n

For ``pretrain_rounds`` rounds labels are not looked at. Clients train everything before the head by SimCLR's NT-Xent
(Chen et al., ICML 2020): of every sample of a minibatch two random views are made, and each view a is to find its
sample's other view b among all others, by the cosine of their features z,

    −log exp(cos(z_a, z_b)/τ) / Σ_{c ≠ a} exp(cos(z_a, z_c)/τ);

the server averages by samples. Then the model is trained with labels as in FedAvg: all of it, or the head alone on the
encoder as it is (``tunes``). The original compares what several sensors see of one moment, within and between them; we
have it from the papers that cite it, and for one sensor or many, so views of a sample stand in for that. Our choices:

- A view is the window with noise on it, channels scaled by a factor each, and by chance reversed in time or negated.
  Which of them leave the activity what it is depends on the sensor: each can be switched off with 0.
- What is compared is what the head sees, as in MOON; SimCLR puts a small network after that which is then thrown away.
- While there is pre-training the head is the first one, and scores are chance. Its seeds and steps are its own, so with
  ``pretrain_rounds = 0`` it is FedAvg, to the bit.
- After the last round, or when it comes later, a client tunes the model with its labels for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedsense.bundle import Bundle, Params, part
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.method import Method, Reply, share_one_model
from fedsense.models.network import PARTS, Batch
from fedsense.ops import average, classify, nt_xent, size, two_views
from fedsense.training import Loss, fit
from fedsense.work import Work

ENCODER = ("adapter", "encoder")


@dataclass(frozen=True, kw_only=True)
class ModCL(Method):
    """An encoder learned without labels, from what two views of a sample have in common; then FedAvg with labels."""

    pretrain_rounds: int = 20
    pretrain_lr: float | None = None  # if None, lr
    temperature: float = 0.5  # tau
    tunes: Literal["all", "head"] = "all"  # what labels train
    jitter: float = 0.1  # standard deviation of noise
    scale: float = 0.1  # standard deviation of a channel's factor
    negate: float = 0.0  # chance of a view to be negated
    reverse: float = 0.5  # chance of a view to be reversed in time

    name: ClassVar[str] = "modcl"
    paper: ClassVar[str] = "Guo et al., IoT-J 2024"
    group: ClassVar[str] = "one model for all"
    equation: ClassVar[str] = (
        "−log e^{s(z_a, z_b)/τ} / Σ_{c≠a} e^{s(z_a, z_c)/τ} for two views a, b of a sample; then FedAvg"
    )
    assumes: ClassVar[str] = "one network for all; changes of a window that leave what it shows as it is"
    use: ClassVar[str] = "where recordings are more to be trusted than their labels"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "pretrain_rounds", "pretrain_lr", "jitter", "scale", "negate", "reverse")
        self.refuse_unless_positive("temperature")
        for name in ("negate", "reverse"):
            if getattr(self, name) > 1:
                raise UserError(f"modcl: {name} is {getattr(self, name):g}; it is a chance, 0 to 1", about=name)
        if self.pretrain_rounds and self.batch < 2:
            raise UserError("modcl: batch is 1, but samples of a minibatch are told from one another", about="batch")

    def requires(self, task: Task) -> None:
        share_one_model(self, task)

    def too_few(self, rounds: int) -> str:
        enough = rounds > self.pretrain_rounds
        return "" if enough else f"labels are not looked at before round {self.pretrain_rounds + 1} (pretrain_rounds)"

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        if work.round > self.pretrain_rounds:
            return self.finish(client, state, down, work)
        schedule, optim = work.epochs(self.epochs), self.optim(self.pretrain_lr)
        done = fit(self._views_apart(client), down["model"], client, schedule, optim, only=ENCODER)
        return self._reply(client, done.params, ENCODER, done.loss)

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        """With labels."""
        parts = PARTS if self.tunes == "all" else ("head",)
        done = fit(classify(client), down["model"], client, work.epochs(self.epochs), self.optim(), only=parts)
        return self._reply(client, done.params, parts, done.loss)

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return {"model": server["model"] | average(uploads, "model")}

    def _reply(self, client: Client, params: Params, parts: tuple[str, ...], loss: float) -> Reply:
        upload = {"model": part(params, *parts), "size": size(client)}
        return Reply(upload=upload, model=params, metrics={"loss": loss})

    def _views_apart(self, client: Client) -> Loss:
        changes = {name: getattr(self, name) for name in ("jitter", "scale", "negate", "reverse")}
        temperature = self.temperature

        def loss(params: Params, batch: Batch) -> Tensor:
            mask = batch.mask.repeat_interleave(2)
            views = batch._replace(x=two_views(batch.x, batch.noise, **changes), mask=mask)
            return nt_xent(client.model(params, views).features, mask, temperature)

        return loss
