"""Networks are adapter → encoder → head; a Model runs one as a pure function of its parameters.

The adapter turns a client's own sensors into a common input (it may be nothing at all), the encoder gives the features
that prototypes and alignment speak of, the head classifies. Names of parameters begin with the name of their part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsense.bundle import Params
from fedsense.errors import UserError
from fedsense.federation import in_shares
from fedsense.models.layout import channels_last, laid_out, transformed
from fedsense.work import seed_of

PARTS = ("adapter", "encoder", "head")
AT_ONCE = 128 * 6 * 128  # numbers of the input a network is given at once in inference
_NO_SEED = torch.tensor(0)


class Output(NamedTuple):
    """What a forward pass gives: logits ``[B, C]``, the features ``[B, d]`` the head saw, and what the encoder saw."""

    logits: Tensor
    features: Tensor
    latent: Tensor | None = None  # what the adapter gave; None if only the head was run


class Seen(NamedTuple):
    """What the head sees of x, where that is known because only the head trains."""

    x: Tensor
    features: Tensor


class Batch(NamedTuple):
    """A minibatch as a loss meets it. Losses average over ``mask`` (1 for a sample, 0 for padding)."""

    x: Tensor
    y: Tensor
    mask: Tensor
    noise: Tensor  # seed of dropout in this step
    parts: tuple[str, ...] = PARTS  # parts that train; the others run as in inference
    beside: Mapping[str, Tensor] = MappingProxyType({})  # rows of what :func:`fedsense.training.fit` was given beside x
    given: Mapping[str, Tensor] = MappingProxyType({})  # what else it was given for the loss
    seen: Seen | None = None

    def tensors(self, even: bool) -> tuple[list[Tensor], list[Tensor]]:
        """All tensors of the minibatch, in one order: those that are its own, and those others have, too.

        ``even``: all minibatches of a size share one mask.
        """
        own, common = [self.x, self.y, self.noise], [self.given[name] for name in sorted(self.given)]
        (common if even else own).append(self.mask)
        own += [self.beside[name] for name in sorted(self.beside)]
        if self.seen is not None:
            own.append(self.seen.features)
        return own, common


class Network(nn.Module):
    """Adapter, encoder and head of one architecture; ``features`` is the width of what the head sees."""

    def __init__(self, encoder: nn.Module, head: nn.Module, features: int, adapter: nn.Module | None = None) -> None:
        super().__init__()
        self.adapter = adapter if adapter is not None else nn.Identity()
        self.encoder = encoder
        self.head = head
        self.features = features

    def forward(self, x: Tensor) -> Output:
        return self.onward(self.adapter(x))

    def onward(self, latent: Tensor) -> Output:
        """From what an adapter gave."""
        z = self.encoder(latent)
        return Output(self.head(z), z, latent)


class Model:
    """A network as a pure function: ``model(params, batch)`` trains, ``model.infer(params, x)`` predicts.

    Buffers with running state (BatchNorm) are part of ``params`` like any weight.
    """

    def __init__(self, network: Network, architecture: str = "custom", redraw: bool = True) -> None:
        """``redraw``: starting values come from :meth:`init`'s seed; else the network's present ones are kept."""
        self._redraw = redraw
        _own_dropout(network)
        self._norms: list[Any] = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for norm in self._norms:  # it counts minibatches: nothing to send or to average
            norm.register_buffer("num_batches_tracked", norm.num_batches_tracked, persistent=False)
            norm.counted = None
            if type(norm).forward is nn.modules.batchnorm._BatchNorm.forward:
                norm.forward = partial(_normalise, norm)
            if norm.track_running_stats and norm.momentum is None:
                raise UserError(
                    "BatchNorm with momentum=None counts minibatches outside the parameters; give a momentum"
                )
        # Layers whose output for a sample depends on the others: they must know which of them count.
        self._company: list[Any] = [*self._norms, *(m for m in network.modules() if hasattr(m, "mixes"))]
        self.mixes = any(getattr(m, "mixes", False) for m in network.modules())  # in use, too
        kind = type(network)  # adapter, encoder, head, and nothing between
        self.plain = kind.forward is Network.forward and kind.onward is Network.onward
        chains = (network.adapter, network.encoder, network.head) if self.plain else ()
        self.family, self.widens = _family(network) if self.plain else (None, "")
        self._convolutions = channels_last(network, chains)
        self.convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in network.modules())
        self.parameter_count = sum(p.numel() for p in network.parameters())
        self.network = network
        self.architecture = architecture
        self.features = network.features
        self.buffers = frozenset(network.state_dict()) - frozenset(name for name, _ in network.named_parameters())
        self.shapes = {name: tuple(t.shape) for name, t in network.state_dict().items()}
        self._places = _places(network, self.shapes)
        if tied := self.buffers & frozenset(name for name, _ in network.named_parameters(remove_duplicate=False)):
            raise UserError(
                f"'{min(tied)}' is another name of a parameter; weights that are tied cannot be trained here"
            )
        self._places_of_head = {name: place for name, place in self._places.items() if name.startswith("head.")}
        self._places_onward = {name: place for name, place in self._places.items() if not name.startswith("adapter.")}
        self._dropouts = [m for m in network.modules() if isinstance(m, Dropout)]
        self._mode: tuple[tuple[str, ...], bool] | None = None
        self._flops: int | None = None
        self._latent: int | None = None

    def flops(self, input_shape: Sequence[int]) -> int:
        """Floating-point operations of one sample's forward pass: its matrix products and convolutions."""
        if self._flops is None:
            from torch.utils.flop_counter import FlopCounterMode

            with FlopCounterMode(display=False) as counter:
                self._try(input_shape)
            self._flops = int(counter.get_total_flops())
        return self._flops

    def latent(self, input_shape: Sequence[int]) -> int:
        """Width of the latent space the adapter maps to; 0 if what it gives is no vector."""
        if self._latent is None:
            latent = self._try(input_shape).latent
            self._latent = latent.shape[1] if latent is not None and latent.ndim == 2 else 0
        return self._latent

    @torch.no_grad()
    def _try(self, input_shape: Sequence[int]) -> Output:
        device = next((t.device for t in self.network.state_dict().values()), torch.device("cpu"))
        self._set_mode(())
        out: Output = self.network(torch.zeros(1, *input_shape, device=device))
        return out

    def init(self, seed: int) -> Params:
        """Starting values: each part from a stream of its own, so an encoder starts alike whatever the adapter is."""
        with torch.random.fork_rng(devices=[]):
            for name in PARTS if self._redraw else ():
                torch.manual_seed(seed_of(seed, "init", name))
                for module in getattr(self.network, name).modules():
                    if hasattr(module, "reset_parameters"):
                        module.reset_parameters()
        return {name: t.detach().clone() for name, t in self.network.state_dict().items()}

    def __call__(self, params: Mapping[str, Tensor], batch: Batch) -> Output:
        """A training pass; parts that do not train run as in inference.

        A minibatch of one sample has no variance: BatchNorm then takes its running statistics and leaves them be.
        """
        self._set_mode(batch.parts, normalise=len(batch.x) > 1)
        for number, layer in enumerate(self._dropouts):
            layer.seed = batch.noise + number
        together = transformed()
        for layer in self._company:
            layer.counted = batch.mask if together else None
        try:
            if batch.seen is not None and batch.seen.x is batch.x:  # else a loss has changed x
                return Output(self.head(params, batch.seen.features), batch.seen.features)
            return self._run(params, batch.x)
        finally:  # under vmap seeds and masks are tensors that must not outlive the pass
            for layer in self._dropouts:
                layer.seed = _NO_SEED
            for layer in self._company:
                layer.counted = None

    def laid_out(self, name: str, tensor: Tensor) -> Tensor:
        """A copy of a parameter in the order of memory in which the network is fastest; shape and values stay."""
        return laid_out(tensor) if name in self._convolutions else tensor.clone()

    def infer(self, params: Mapping[str, Tensor], x: Tensor) -> Output:
        """A pass in inference mode: no dropout, running statistics as they are."""
        self._set_mode(())
        return self._run(params, x)

    def head(self, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Logits of given features, through the head alone."""
        with self._holding(params, self._places_of_head):
            logits: Tensor = self.network.head(features)
        return logits

    def onward(self, params: Mapping[str, Tensor], latent: Tensor) -> Output:
        """Encoder and head on points of the latent space, as in inference."""
        self._set_mode(())
        with self._holding(params, self._places_onward):
            out: Output = self.network.onward(latent)
        return out

    @torch.no_grad()
    def predict(self, params: Mapping[str, Tensor], x: Tensor, batch: int | None = None) -> Output:
        """Inference over any number of samples, in pieces that fit the processor's cache."""
        if not len(x):  # some networks cannot do with nothing
            one = self.infer(params, x.new_zeros(1, *x.shape[1:]))
            return Output(one.logits[:0], one.features[:0], None if one.latent is None else one.latent[:0])
        batch = batch or max(64, AT_ONCE // max(1, math.prod(x.shape[1:])))
        pieces = [self.infer(params, piece) for piece in torch.split(x, batch)]
        if len(pieces) == 1:
            return pieces[0]
        logits, features, latents = zip(*pieces, strict=True)
        return Output(torch.cat(logits), torch.cat(features), None if None in latents else torch.cat(latents))

    def _run(self, params: Mapping[str, Tensor], x: Tensor) -> Output:
        with self._holding(params, self._places):
            out: Output = self.network(in_shares(x))
        return out

    @contextmanager
    def _holding(self, params: Mapping[str, Tensor], places: Mapping[str, tuple[Any, str]]) -> Iterator[None]:
        """The network with these parameters in it, as ``torch.func.functional_call``, which takes twice as long."""
        try:
            given = [(holder, key, params[name]) for name, (holder, key) in places.items()]
        except KeyError as missing:
            raise ValueError(f"the parameters lack {missing} of {self.architecture}; give the whole model") from None
        before = [holder[key] for holder, key, _ in given]
        try:
            for holder, key, tensor in given:
                holder[key] = tensor
            yield
        finally:
            for (holder, key, _), tensor in zip(given, before, strict=True):
                holder[key] = tensor

    def _set_mode(self, parts: tuple[str, ...], normalise: bool = True) -> None:
        if (parts, normalise) == self._mode:
            return
        for name in PARTS:
            getattr(self.network, name).train(name in parts)
        for norm in self._norms if not normalise else ():
            norm.eval()
        self._mode = (parts, normalise)


# Layers that treat a batch alike whatever its width, and whose text says all there is to say of them.
_PLAIN_LAYERS = {nn.Sequential, nn.Flatten, nn.Linear, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.GELU}


def _family(network: Network) -> tuple[str | None, str]:
    """What networks have in common that differ only in the width of their input, and the weight that is as wide.

    Such a network flattens its input and begins with a linear layer. Inputs filled up with zeros, and that layer's
    weight with anything, give the same output; and the gradient of what was filled in is exactly zero.
    """
    layers = [module for module in network.modules() if module is not network]
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    plain = all(type(layer) in _PLAIN_LAYERS or type(layer) is Dropout for layer in layers)
    if hooked or not plain or type(network) is not Network:
        return None, ""
    match list(network.adapter.children()):
        case [nn.Flatten(start_dim=1, end_dim=-1), nn.Linear() as first, *_]:
            text = str(network).replace(f"in_features={first.in_features},", "in_features=any,", 1)
            return text, "adapter.1.weight"
    return None, ""


def _places(network: nn.Module, names: Iterable[str]) -> dict[str, tuple[dict[str, Any], str]]:
    """Name of a parameter or buffer → the dictionary of its module that holds it, and its name there."""
    places = {}
    for name in names:
        path, _, key = name.rpartition(".")
        module = network.get_submodule(path)
        places[name] = (module._parameters if key in module._parameters else module._buffers, key)
    return places


def _normalise(norm: Any, x: Tensor) -> Tensor:
    """BatchNorm over the samples that count, where minibatches of several clients were filled up to one size."""
    if norm.counted is None or not norm.training:
        if norm.training and norm.track_running_stats:  # as PyTorch's, but for a count of minibatches nobody asks for
            return F.batch_norm(
                *(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, True, norm.momentum, norm.eps)
            )
        plain: Tensor = type(norm).forward(norm, x)
        return plain
    dims = [0, *range(2, x.ndim)]
    counted = norm.counted.view(-1, *(1,) * (x.ndim - 1))  # [B, 1, ...]
    samples, size = norm.counted.sum(), norm.counted.sum() * x[0, 0].numel()
    shape = (1, -1, *(1,) * (x.ndim - 2))
    mean = (x * counted).sum(dims) / size
    variance = ((x - mean.view(shape)) ** 2 * counted).sum(dims) / size
    several = samples > 1  # of one sample, as alone: by the running statistics, which stay
    with torch.no_grad():
        for running, now in ((norm.running_mean, mean), (norm.running_var, variance * size / (size - 1).clamp(min=1))):
            running.copy_(torch.where(several, running + norm.momentum * (now - running), running))
    mean, variance = (
        torch.where(several, now, running.detach().clone())
        for now, running in ((mean, norm.running_mean), (variance, norm.running_var))
    )
    y: Tensor = (x - mean.view(shape)) * (variance + norm.eps).rsqrt().view(shape)
    return y * norm.weight.view(shape) + norm.bias.view(shape) if norm.affine else y


class Dropout(nn.Module):
    """Dropout whose mask depends on a given seed only, never on a global generator."""

    def __init__(self, p: float = 0.5, whole_channels: bool = False) -> None:
        super().__init__()
        self.p = p
        self.whole_channels = whole_channels  # one decision a channel, as Dropout2d
        self.seed: Tensor = _NO_SEED

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = x[(slice(None), slice(None), *(slice(1) for _ in x.shape[2:]))] if self.whole_channels else x
        return x * self.mask(shape)

    def mask(self, like: Tensor) -> Tensor:
        """What to multiply with, in the shape of ``like``."""
        return _Mask.apply(self.seed, like, self.p)  # type: ignore[no-any-return, no-untyped-call]

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _own_dropout(network: nn.Module) -> None:
    """PyTorch's dropout reads the global generator: put ours in its place, or say where that cannot be done."""
    for module in network.modules():
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout:
            raise UserError(
                f"{type(module).__name__} with dropout={module.dropout} draws from the global generator, "
                "and a run could not be repeated; give it dropout=0 and put a fedsense.models.Dropout beside it"
            )
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Dropout):
                setattr(module, name, Dropout(child.p))
            elif isinstance(child, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                setattr(module, name, Dropout(child.p, whole_channels=True))


def _drawn_mask(seed: Tensor, shape: Sequence[int], p: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device=device).manual_seed(int(seed))
    drawn = torch.rand(shape, dtype=dtype, device=device, generator=generator)
    return drawn.ge_(p).div_(1 - p)  # three times as fast as bernoulli_


# One operation of PyTorch's, a function of its seed: a tape (fedsense/tape.py) can play it with another.
_OPERATIONS = torch.library.Library("fedsense", "DEF")  # type: ignore[no-untyped-call]
_OPERATIONS.define("drawn_mask(Tensor seed, int[] shape, float p, ScalarType dtype, Device device) -> Tensor")  # type: ignore[no-untyped-call]
_OPERATIONS.impl("drawn_mask", _drawn_mask, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


class _Mask(torch.autograd.Function):
    """Zeros with probability p, else 1/(1 − p), from a seed; over a cohort (vmap) each client draws from its own."""

    @staticmethod
    def forward(seed: Tensor, like: Tensor, p: float) -> Tensor:
        # Drawn with the channels last, whatever the layout of ``like``: the mask may not depend on it. Samples come
        # first, so that those of a minibatch that was filled up have the same masks.
        shape = (*like.shape[:1], *like.shape[2:], *like.shape[1:2])
        drawn: Tensor = torch.ops.fedsense.drawn_mask(seed, shape, p, like.dtype, like.device)
        return drawn.movedim(-1, 1 if like.ndim > 1 else 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, seed: Tensor, like: Tensor, p: float) -> tuple[Tensor, int]:
        likes = like.movedim(in_dims[1], 0) if in_dims[1] is not None else [like] * info.batch_size
        seeds = seed if in_dims[0] is not None else [seed] * info.batch_size
        return torch.stack([_Mask.forward(s, x, p) for s, x in zip(seeds, likes, strict=True)]), 0
