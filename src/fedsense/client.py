"""A client as a method meets it, on the device where its recordings are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedsense.bundle import Params
from fedsense.errors import UserError
from fedsense.federation import ClientData, Samples, Task
from fedsense.models.network import Model

if TYPE_CHECKING:
    from fedsense.training import Fit, Fitted


def find_device(name: str) -> torch.device:
    """The device of that name; ``auto`` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{name}' cannot be used here; say auto, cpu or cuda") from error


class NotAlike(Exception):
    """A loss asks for something that is one client's own, and so cannot serve others."""


@dataclass(frozen=True)
class Client:
    """One client's own recordings and model; nothing here is ever sent."""

    id: str
    data: ClientData  # on ``device``
    model: Model
    task: Task
    initial: Params  # the starting values of its model
    device: torch.device
    join: Callable[[Fit], Fitted] | None = None  # trains together with others; see :mod:`fedsense.engine.company`

    _shared: ClassVar[frozenset[str]] = frozenset({"model", "task", "device"})
    _one_for_all: ClassVar[bool] = False

    @property
    def train(self) -> Samples:
        return self.data.train

    @property
    def samples(self) -> int:
        """n_i, the number of training samples."""
        return len(self.data.train)

    def __getattribute__(self, name: str) -> Any:
        if Client._one_for_all and name not in Client._shared and not name.startswith("__"):
            raise NotAlike(f"its loss reads client.{name}; give what it needs of a client to fit(..., given=...)")
        return super().__getattribute__(name)

    @staticmethod
    @contextmanager
    def one_for_all() -> Iterator[None]:
        """Within, the loss of one client stands for that of others: only what they share may be read."""
        before, Client._one_for_all = Client._one_for_all, True
        try:
            yield
        finally:
            Client._one_for_all = before
