"""A client as a method meets it, on the device where its recordings are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsense.bundle import Params
from fedsense.federation import ClientData, Samples, Task
from fedsense.models.network import Batch, Model
from fedsense.work import Step


@dataclass(frozen=True)
class Client:
    """One client's own recordings and model; nothing here is ever sent."""

    id: str
    data: ClientData  # on ``device``
    model: Model
    task: Task
    initial: Params  # the starting values of its model
    device: torch.device

    @property
    def train(self) -> Samples:
        return self.data.train

    @property
    def samples(self) -> int:
        """n_i, the number of training samples."""
        return len(self.data.train)

    def batch(self, step: Step, parts: tuple[str, ...], beside: Mapping[str, Tensor] | None = None) -> Batch:
        """The minibatch of one step of a schedule, with its rows of ``beside`` (one row a training sample)."""
        index = torch.from_numpy(step.samples).to(self.device)
        x, y = self.train.x.index_select(0, index), self.train.y.index_select(0, index)
        rows = {name: t.index_select(0, index) for name, t in (beside or {}).items()}
        return Batch(x, y, torch.ones(len(y), device=self.device), torch.tensor(step.noise), parts, rows)
