"""A client's own model, to use and to take home: one safetensors file, whose header says in JSON how to load it.

    mine.save("mine.safetensors")
    fedsense.load_personal("mine.safetensors").predict(x)

A file of safetensors holds numbers and text, and nothing that is run.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from fedsense import __version__
from fedsense.bundle import Params
from fedsense.client import Client
from fedsense.engine.folder import write_atomically
from fedsense.errors import UserError
from fedsense.federation import ClientData, Samples, Task
from fedsense.method import Method
from fedsense.methods import METHODS, find_method
from fedsense.models import MODELS
from fedsense.models.network import Model
from fedsense.models.spec import ModelSpec

ABOUT = "fedsense"  # what of a file's header says how to load it


def save_model(
    path: Path, client: str, classes: Sequence[str], params: Params, about: Mapping[str, Any] | None = None
) -> None:
    """A client's parameters as a safetensors file that says whose they are, and how to load them if that is known."""
    values = {name: t.detach().cpu().contiguous() for name, t in params.items()}
    header = {"client": client, "classes": json.dumps(classes)}
    if about:
        header[ABOUT] = json.dumps(about)
    write_atomically(path, safetensors.torch.save(values, metadata=header))


@dataclass(frozen=True)
class PersonalModel:
    """One client's own model, ready to use."""

    client: str
    classes: tuple[str, ...]
    params: Params = field(repr=False)
    _logits: Callable[[torch.Tensor], torch.Tensor] = field(repr=False)
    kind: str = "classification"
    about: Mapping[str, Any] | None = field(default=None, repr=False)  # how to build it; None if nobody else could
    _model: Model | None = field(default=None, repr=False)

    @staticmethod
    def of(client: Client, method: Method, params: Params, about: Mapping[str, Any] | None) -> PersonalModel:
        """With what a client has and these parameters."""
        shape = client.data.input_shape

        def logits(x: torch.Tensor) -> torch.Tensor:
            if tuple(x.shape[1:]) != shape:
                raise UserError(
                    f"client '{client.id}' takes samples of shape {list(shape)}, and was given {list(x.shape[1:])}"
                )
            return method.predict(client, params, x.to(client.device))

        return PersonalModel(client.id, client.task.classes, params, logits, client.task.kind, about, client.model)

    def values(self, x: Any) -> NDArray[np.float32]:
        """Of a regression: what it predicts for each sample."""
        if self.kind != "regression":
            raise UserError("this model tells classes, not values; ask predict or probabilities")
        return self._logits(torch.as_tensor(x, dtype=torch.float32))[:, 0].cpu().numpy()

    def probabilities(self, x: Any) -> NDArray[np.float32]:
        """``[n, classes]`` for samples ``[n, ...]`` of the client's input shape."""
        if self.kind == "regression":
            raise UserError(f"this model predicts values of '{self.classes[0]}', not classes; ask values")
        return self._logits(torch.as_tensor(x, dtype=torch.float32)).softmax(1).cpu().numpy()

    def predict(self, x: Any) -> list[str]:
        """The most probable class of every sample, by name."""
        return [self.classes[i] for i in self.probabilities(x).argmax(1)]

    def module(self) -> nn.Module:
        """A network of PyTorch of its own, with these parameters, in eval mode; it gives logits, features and more."""
        assert self._model is not None
        network = copy.deepcopy(self._model.network).cpu()
        own = {name: self.params[name].detach().cpu() for name in self._model.shapes}
        network.load_state_dict(own, strict=False)  # not strict: of BatchNorm's count of minibatches there is none
        return network.eval()

    def save(self, path: str | Path) -> None:
        """The parameters as a safetensors file, for :func:`load_personal` and whatever else reads such files."""
        save_model(Path(path), self.client, self.classes, self.params, self.about)


def described(
    task: Task, method: Method, model: ModelSpec, architecture: str, shape: Sequence[int], seed: int
) -> dict[str, Any] | None:
    """What it takes to build a client's model again; None with a network or a method that fedsense does not know."""
    if type(method) is not METHODS.get(method.name) or model.builder is not None or architecture not in MODELS:
        return None
    about = {
        "version": __version__,
        "model": architecture,
        "options": dict(model.options),
        "input_shape": list(shape),
        "classes": list(task.classes),
        "kind": task.kind,
        "values": list(task.values),
        "method": method.name,
        "parameters": asdict(method),
        "seed": seed,
    }
    found: dict[str, Any] = json.loads(json.dumps(about, default=str))
    return found


def load_personal(path: str | Path) -> PersonalModel:
    """A model as :meth:`PersonalModel.save` and ``fedsense export`` wrote it."""
    try:
        with safetensors.safe_open(str(path), "pt") as file:
            header = file.metadata() or {}
            params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; `fedsense export` writes one", about=str(path)) from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is no safetensors file ({error})", about=str(path)) from error
    if ABOUT not in header:
        raise UserError(
            f"{path} does not say how to load it: its network is not one of fedsense's, or an old version wrote it; "
            "load_state_dict on a network of the same kind takes its tensors"
        )
    return build(header["client"], params, json.loads(header[ABOUT]))


def build(client: str, params: Params, about: Mapping[str, Any]) -> PersonalModel:
    """A client's model from its parameters and what :func:`described` said of it."""
    method = find_method(about["method"])(**about["parameters"])
    classes, shape = tuple(about["classes"]), tuple(about["input_shape"])
    spec = ModelSpec((about["model"],), about["options"])
    model = spec.build(about["model"], shape, len(classes), about["seed"], method.complete)
    if wrong := {n: s for n, s in model.shapes.items() if n not in params or tuple(params[n].shape) != s}:
        name = min(wrong)
        has = list(params[name].shape) if name in params else "missing"
        raise UserError(f"the model of '{client}' does not fit {about['model']}: '{name}' is {has}, not {wrong[name]}")
    none = Samples(torch.empty(0, *shape), torch.empty(0, dtype=torch.int64))
    task = Task(classes, about["kind"], tuple(about["values"]))
    own = {name: params[name] for name in model.shapes}
    whose = Client(client, ClientData(client, none, none, none), model, task, own, torch.device("cpu"))
    return PersonalModel.of(whose, method, own, about)
