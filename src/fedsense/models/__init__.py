"""Networks of the papers, by the names users type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedsense.errors import UserError, nearest
from fedsense.models.alp import ALP
from fedsense.models.coad_cnn import coad_cnn
from fedsense.models.convnet4 import convnet4_large, convnet4_middle, convnet4_tiny
from fedsense.models.flic import flic_cnn, flic_mlp
from fedsense.models.hart import hart
from fedsense.models.network import Batch, Dropout, Model, Network, Output
from fedsense.models.protohar_cnn import protohar_cnn
from fedsense.models.sensor_cnn import sensor_cnn
from fedsense.models.vit import vit_tiny

__all__ = [
    "ALP",
    "MODELS",
    "Batch",
    "Builder",
    "Dropout",
    "Model",
    "ModelEntry",
    "Network",
    "Output",
    "build_model",
    "check_options",
]

Builder = Callable[..., Network]  # (input_shape, classes, **options) -> Network


@dataclass(frozen=True)
class ModelEntry:
    """A model users can name: how it is built, where it is from, and the size its paper used it at."""

    name: str
    build: Builder
    description: str
    paper: str
    paper_input: tuple[int, ...]
    paper_classes: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def paper_parameters(self) -> int:
        with torch.device("meta"):  # shapes without values: no memory, no random numbers
            return Model(self.build(self.paper_input, self.paper_classes, **self.options)).parameter_count

    @property
    def defaults(self) -> dict[str, Any]:
        """The options the model takes, with what they are when not given."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}


_FEDAPA = "FedAPA (Guo et al.), Table II"
_FEDALI = "FedAli (Ek et al.)"
_FLIC = "FLIC (Rakotomamonjy et al., TMLR 2024)"

MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        ModelEntry(
            "protohar-cnn",
            protohar_cnn,
            "three convolutions along time, alike for every channel, then a wide embedding",
            "ProtoHAR (Cheng et al., JBHI 2023)",
            (6, 512),  # USC-HAD; HARBOX is (9, 100), 5 classes, width 725
            12,
        ),
        ModelEntry(
            "coad-cnn",
            coad_cnn,
            "three 1-D convolutions with dropout, maximum over time, projection head",
            "FedCoad (Iwan et al., FITEE 2025)",
            (3, 200),
            6,
        ),
        ModelEntry("convnet4-tiny", convnet4_tiny, "one block of 3×3 convolutions", _FEDAPA, (1000, 242), 20),
        ModelEntry("convnet4-middle", convnet4_middle, "two blocks of 3×3 convolutions", _FEDAPA, (1000, 242), 20),
        ModelEntry("convnet4-large", convnet4_large, "five blocks of 3×3 convolutions", _FEDAPA, (1000, 242), 20),
        ModelEntry(
            "flic-mlp",
            flic_mlp,
            "a client's own embedding of any input by three linear layers, and a linear head",
            _FLIC,
            (30,),  # the toy problem of Figure 4, right; each client's own size differs
            20,
        ),
        ModelEntry(
            "flic-cnn",
            flic_cnn,
            "a client's own embedding of small images by two convolutions, and a linear head",
            _FLIC,
            (1, 28, 28),  # MNIST; USPS is (1, 16, 16)
            10,
        ),
        ModelEntry(
            "hart",
            hart,
            "a transformer for motion sensors: attention and light convolutions over patches of 16 steps",
            _FEDALI,
            (6, 128),
            6,
        ),
        ModelEntry("vit-tiny", vit_tiny, "a small vision transformer for small images", _FEDALI, (3, 32, 32), 10),
        ModelEntry(
            "sensor-cnn",
            sensor_cnn,
            "a client's own embedding of signals of any channels, rate and length by three convolutions, linear head",
            "fedsense",
            (6, 128),
            6,
        ),
    )
}


def build_model(
    name: str,
    input_shape: Sequence[int],
    classes: int,
    complete: Callable[[Network], None] | None = None,
    /,
    **options: Any,
) -> Model:
    """The named model for an input and a number of classes; ``options`` are the keywords of its builder.

    ``complete`` puts into the network what a method needs in it (:meth:`fedsense.method.Method.complete`).
    """
    if name not in MODELS:
        raise UserError(f"unknown model '{name}'; {nearest(name, MODELS)}")
    entry = MODELS[name]
    if classes < 1:
        raise UserError(f"{name} needs at least one class, and was given {classes}")
    check_options(name, options)
    with torch.random.fork_rng(devices=[]):  # PyTorch's layers draw from the global generator; Model.init redraws
        network = entry.build(tuple(input_shape), classes, **options)
        if complete is not None:
            complete(network)
    return Model(network, name)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options the model does not have, or values that do not fit."""
    for option, value in options.items():
        _check_option(MODELS[name], option, value)


def _check_option(entry: ModelEntry, option: str, value: object) -> None:
    defaults = entry.defaults
    if option not in defaults:
        raise UserError(f"{entry.name} has no option '{option}'; {nearest(option, defaults)}", about=option)
    default = defaults[option]
    if isinstance(default, bool):
        fits, expected = isinstance(value, bool), "true or false"
    elif isinstance(default, int):  # widths; 0 means none where it is the default
        least = min(default, 1)
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
        expected = f"a whole number, {least} or more"
    else:  # shares, as of dropout
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
        expected = "a number from 0 to below 1"
    if not fits:
        raise UserError(f"{entry.name}: option '{option}' must be {expected}, and is {value!r}", about=option)
