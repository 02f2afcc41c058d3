"""Which network each client gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsense.errors import UserError
from fedsense.models import MODELS, build_model
from fedsense.models.network import Model, Network


@dataclass(frozen=True)
class ModelSpec:
    """One network for all, or several dealt out to the clients in turn; or a builder of one's own."""

    names: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    builder: Callable[[tuple[int, ...], int], Network] | None = None

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

    def for_client(self, number: int) -> str:
        return self.names[number % len(self.names)]

    def build(self, name: str, input_shape: tuple[int, ...], classes: int) -> Model:
        if self.builder is not None and name in self.names:
            return Model(self.builder(input_shape, classes), name)
        return build_model(name, input_shape, classes, **self.options)
