"""Training without labels, in one place, before a federation begins (FedAli, Section 5.2 and appendix E).

A transformer is trained as a masked autoencoder on recordings that may be used for it, such as public datasets; clients
then begin with what it learned (``[model] start = "FILE"``). Its prototypes learn, too: an epoch is to them what a
round is in FedAli with one client, so after each epoch the global ones are set to the local ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params, flatten, nested, part, to_device, unflatten, within
from fedsense.client import Client, find_device
from fedsense.engine.folder import digest_of, write_atomically
from fedsense.errors import UserError, nearest
from fedsense.federation import ClientData, Federation, Samples, Task
from fedsense.models import MODELS, check_options
from fedsense.models.alp import ALIGNED, GLOBAL, LOCAL, moved, open_layers, prototype_layers
from fedsense.models.masked import MaskedAutoencoder
from fedsense.models.network import Batch, Model
from fedsense.optim import adam
from fedsense.options import checked, options_of
from fedsense.training import fit
from fedsense.work import Work

LEARNED = ("adapter", "encoder")  # what a federation begins with
KEPT = "fedsense.pretraining"  # in a file's metadata


@dataclass(frozen=True)
class Pretraining:
    """How to train; the values are the paper's."""

    model: str = "hart"
    epochs: int = 200
    batch: int = 128
    lr: float = 3e-4
    masked: float = 0.6  # share of the tokens that is hidden
    prototypes: int = 2048  # of the first block, halved in each that follows; 0: none
    seed: int = 0
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("prototypes", 0)):
            if getattr(self, name) < least:
                raise UserError(f"pretrain: {name} is {getattr(self, name)}; it must be at least {least}", about=name)
        if not 0 < self.masked < 1:
            raise UserError(f"pretrain: masked is {self.masked}; it must be between 0 and 1", about="masked")
        if not self.lr > 0:
            raise UserError(f"pretrain: lr is {self.lr}; it must be positive", about="lr")
        if self.model not in MODELS:
            raise UserError(f"there is no model '{self.model}'; {nearest(self.model, MODELS)}", about=self.model)
        check_options(self.model, self.model_options)


@dataclass(frozen=True)
class Epoch:
    """What an epoch gave."""

    loss: float  # mean squared error of what was hidden
    moved: tuple[float, ...]  # mean distance prototypes went, of each layer
    seconds: float


@dataclass(frozen=True)
class Pretrained:
    """The whole autoencoder, and what each epoch gave."""

    params: Params = field(repr=False)
    history: tuple[Epoch, ...]


def pretrain(
    data: Federation | Sequence[Federation],
    out: str | Path | None = None,
    resume: bool = False,
    told: Callable[[int, Epoch], None] = lambda number, epoch: None,
    device: str = "auto",
    **options: Any,
) -> Pretrained:
    """Train a masked autoencoder on the training recordings of ``data``, whose labels are not looked at.

    With ``out`` it is written there after every epoch; ``resume`` goes on with what the file holds, to the bit.
    """
    how = Pretraining(**checked("pretrain", options, options_of(Pretraining)))
    samples = _recordings([data] if isinstance(data, Federation) else data)
    client, masked = _client(samples, how, find_device(device))
    path = None if out is None else Path(out)
    about = asdict(how) | {"data": digest_of(samples.x.numpy().tobytes()).hexdigest()}
    state, history = _begin(client, about, path, resume)
    state = to_device(state, client.device)

    def loss(params: Params, batch: Batch) -> Tensor:
        return masked.loss(client.model(params, batch), batch)

    for number in range(len(history), how.epochs):
        began, before = time.perf_counter(), state["model"]
        schedule = Work(how.seed, number, client.id, how.batch).epochs(1)
        done = fit(loss, before, client, schedule, adam(how.lr), memory=within(state, "optimiser") or None)
        if not all(t.isfinite().all() for t in done.params.values()):
            raise UserError(f"pretrain diverged in epoch {number + 1}; lower lr (now {how.lr:g})")
        state = {"model": _reset(done.params), **nested("optimiser", done.optimiser)}
        epoch = Epoch(done.loss, _moved(before, done.params), time.perf_counter() - began)
        history.append(epoch)
        if path is not None:
            _write(path, state, about, history)
        told(number, epoch)
    return Pretrained(to_device(state, "cpu")["model"], tuple(history))


def starting_values(path: str | Path, model: Model, values: Params) -> Params:
    """``values`` with what a pre-trained network of the same kind learned in place of its adapter and encoder."""
    state, about = _read(Path(path))
    learned, kind = part(state["model"], *LEARNED), about["how"]["model"]
    if kind != model.architecture:
        raise UserError(f"{path} is of {kind}, and cannot begin {model.architecture}", about=str(path))
    for name, tensor in learned.items():
        if name in values and values[name].shape != tensor.shape:
            raise UserError(
                f"{path} has '{name}' of shape {list(tensor.shape)}, but {model.architecture} has "
                f"{list(values[name].shape)}; pre-train a network of the same kind, for samples of the same shape and "
                "with as many prototypes",
                about=str(path),
            )
    return {**values, **{name: tensor for name, tensor in learned.items() if name in values}}


def _recordings(federations: Sequence[Federation]) -> Samples:
    """Everyone's training samples, without labels."""
    clients = [client for federation in federations for client in federation if len(client.train)]
    if not clients:
        raise UserError("there are no training recordings to learn from")
    shapes = {client.input_shape: client.id for client in clients}
    if len(shapes) > 1:
        (one, a), (other, b) = list(shapes.items())[:2]
        raise UserError(
            f"samples must have one shape, but client '{a}' has {list(one)} and client '{b}' {list(other)}; choose "
            "channels, rate and window alike"
        )
    x = torch.cat([client.train.made.x for client in clients])
    return Samples(x, torch.zeros(len(x), dtype=torch.int64))


def _client(samples: Samples, how: Pretraining, device: torch.device) -> tuple[Client, MaskedAutoencoder]:
    shape, none = tuple(samples.x.shape[1:]), samples.take(slice(0))
    with torch.random.fork_rng(devices=[]):
        network = MODELS[how.model].build(shape, 1, **how.model_options)
        if how.prototypes:
            open_layers(network.encoder, how.prototypes)
        masked = MaskedAutoencoder(network, shape, how.masked)
    model = Model(masked, how.model)
    task = Task(("nothing",))
    data = ClientData("everyone", samples.each(lambda part: part.to(device)), none, none)
    return Client("everyone", data, model, task, model.init(how.seed), device), masked


def _begin(client: Client, how: dict[str, Any], path: Path | None, resume: bool) -> tuple[Bundle, list[Epoch]]:
    if path is None or not path.exists():
        if path is not None:
            _refuse_unwritable(path)
        return {"model": client.initial}, []
    if path.is_dir():
        raise UserError(f"{path} is a folder; --out names a file", about=str(path))
    if not resume:
        raise UserError(f"{path} exists; go on with it (--resume), or choose another --out")
    state, about = _read(path)
    before, now = ({k: v for k, v in each.items() if k != "epochs"} for each in (about["how"], how))
    if before != now:
        changed = [
            f"{k} was {before.get(k)!r} and is {now[k]!r}" for k in now if before.get(k) != now[k] and k != "data"
        ]
        changed += ["its recordings were others"] if before.get("data") != now["data"] else []
        raise UserError(
            f"{path} was begun otherwise: {', '.join(changed)}; go on as it was begun, or choose another --out"
        )
    return state, [Epoch(e["loss"], tuple(e["moved"]), e["seconds"]) for e in about["history"]]


def _refuse_unwritable(path: Path) -> None:
    """Now, and not after the first epoch."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, b"")
        path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error}); choose another --out", about=str(path)) from error


def _write(path: Path, state: Bundle, how: Mapping[str, Any], history: Sequence[Epoch]) -> None:
    about = {"how": how, "history": [asdict(epoch) for epoch in history]}
    flat = {name: t.detach().cpu().contiguous() for name, t in flatten(state).items()}
    write_atomically(path, safetensors.torch.save(flat, metadata={KEPT: json.dumps(about)}))


def _read(path: Path) -> tuple[Bundle, dict[str, Any]]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = (file.metadata() or {}).get(KEPT)
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); `fedsense pretrain` writes such a file", about=str(path)
        ) from error
    if about is None:
        raise UserError(f"{path} was not written by `fedsense pretrain`", about=str(path))
    try:
        return unflatten(flat), json.loads(about)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); train it anew", about=str(path)) from error


def _reset(params: Params) -> Params:
    """Global prototypes as the local ones, and in use from now on."""
    layers = prototype_layers(params)
    common = {f"{layer}.{GLOBAL}": params[f"{layer}.{LOCAL}"].clone() for layer in layers}
    in_use = {name: torch.ones_like(params[name]) for name in (f"{layer}.{ALIGNED}" for layer in layers)}
    return {**params, **common, **in_use}


def _moved(before: Params, after: Params) -> tuple[float, ...]:
    local = [f"{layer}.{LOCAL}" for layer in prototype_layers(after)]
    return tuple(float(moved(after[name], before[name])) for name in local)
