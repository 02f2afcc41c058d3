"""Which network each client gets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedsense.bundle import Params
from fedsense.errors import UserError
from fedsense.models import MODELS, build_model
from fedsense.models.network import Model, Network
from fedsense.work import seed_of


@dataclass(frozen=True)
class ModelSpec:
    """One network for all, or several dealt out to the clients in turn; or a builder of one's own."""

    names: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    builder: Callable[[tuple[int, ...], int], Any] | None = None  # gives a Network
    start: str | None = None  # a file of ``fedsense pretrain`` to begin with

    @staticmethod
    def of(model: str | list[str] | Callable[[tuple[int, ...], int], Network] | ModelSpec) -> ModelSpec:
        """A spec from what a user gives: a name, several, or a function of (input shape, classes)."""
        if isinstance(model, ModelSpec):
            return model
        if callable(model):
            return ModelSpec((getattr(model, "__name__", "custom"),), builder=model)
        names = (model,) if isinstance(model, str) else tuple(model)
        if not names:
            raise UserError(f"name a model, or several; valid names: {', '.join(MODELS)}")
        return ModelSpec(names)

    def starting_values(self, model: Model, seed: int) -> Params:
        """What everyone's model begins with."""
        values = model.init(seed)
        if self.start is None:
            return values
        from fedsense.pretraining import starting_values  # which knows models

        return starting_values(self.start, model, values)

    def about(self) -> dict[str, Any]:
        """What a run's folder says of it; of a file to begin with, its content."""
        about: dict[str, Any] = {"names": self.names, "options": dict(self.options)}
        if self.start is not None:
            about["start"] = hashlib.blake2b(_content(self.start), digest_size=16).hexdigest()
        return about

    def for_client(self, number: int) -> str:
        return self.names[number % len(self.names)]

    def build(
        self,
        name: str,
        input_shape: tuple[int, ...],
        classes: int,
        seed: int,
        complete: Callable[[Network], None] = lambda network: None,
    ) -> Model:
        """The named network; a builder of one's own chooses its starting values itself, from a seeded generator.

        ``complete`` puts into it what a method needs in it.
        """
        if self.builder is not None and name in self.names:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_of(seed, "build", name))
                network = self.builder(input_shape, classes)
                if isinstance(network, Network):
                    complete(network)
            if not isinstance(network, Network):
                kind = type(network).__name__
                raise UserError(f"the model function '{name}' gave a {kind}; it must give a fedsense.models.Network")
            return Model(network, name, redraw=False)
        return build_model(name, input_shape, classes, complete, **self.options)


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error}); `fedsense pretrain` writes such a file", about=path
        ) from error
