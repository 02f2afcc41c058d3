"""A Bundle is named tensors in named groups: ``{"encoder": {"encoder.0.weight": ...}, "proto": {...}}``.

Server state, client state, what goes down, what comes up and every checkpoint are Bundles, so their bytes are
counted in one way, from what is really serialised (safetensors; never pickle).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

Params = dict[str, Tensor]
Bundle = dict[str, Params]

SEPARATOR = "/"  # between group and name in a serialised Bundle


def part(params: Mapping[str, Tensor], *names: str) -> Params:
    """The tensors of the named parts of a model: ``part(params, "encoder")`` is what begins with ``encoder.``."""
    prefixes = tuple(name + "." for name in names)
    return {name: tensor for name, tensor in params.items() if name.startswith(prefixes)}


def nested(name: str, bundle: Mapping[str, Params]) -> Bundle:
    """The groups of a Bundle under a name of their own, ``name.group``, to be kept in another Bundle."""
    return {f"{name}.{group}": params for group, params in bundle.items()}


def within(bundle: Mapping[str, Params], name: str) -> Bundle:
    """The inverse of :func:`nested`."""
    return {group.removeprefix(f"{name}."): v for group, v in bundle.items() if group.startswith(f"{name}.")}


def flatten(bundle: Mapping[str, Mapping[str, Tensor]]) -> Params:
    """One level of names, ``group/name``, as a file or a message holds them."""
    for group in bundle:
        if SEPARATOR in group:
            raise ValueError(f"a group's name may not contain '{SEPARATOR}': {group!r}")
    flat = {f"{group}{SEPARATOR}{name}": tensor for group, params in bundle.items() for name, tensor in params.items()}
    empty = {group + SEPARATOR: torch.empty(0) for group, params in bundle.items() if not params}  # it is there, too
    return flat | empty


def unflatten(flat: Mapping[str, Tensor]) -> Bundle:
    """The inverse of :func:`flatten`."""
    bundle: Bundle = {}
    for full, tensor in flat.items():
        group, name = full.split(SEPARATOR, 1)
        params = bundle.setdefault(group, {})
        if name:
            params[name] = tensor
    return bundle


def to_bytes(bundle: Mapping[str, Mapping[str, Tensor]]) -> bytes:
    """The Bundle as safetensors; an empty one is no bytes at all."""
    flat = flatten(bundle)
    if not flat:
        return b""
    return safetensors.numpy.save({name: t.detach().cpu().contiguous().numpy() for name, t in flat.items()})


def from_bytes(data: bytes) -> Bundle:
    """The inverse of :func:`to_bytes`."""
    return unflatten(safetensors.torch.load(data)) if data else {}


def payload(bundle: Mapping[str, Mapping[str, Tensor]]) -> dict[str, int]:
    """Bytes of each group as serialised, and of the ``header`` that names them; they add up to ``len(to_bytes(b))``."""
    flat = flatten(bundle)
    if not flat:
        return {}
    sizes = {group: sum(t.numel() * t.element_size() for t in params.values()) for group, params in bundle.items()}
    signature = tuple((name, t.dtype, tuple(t.shape)) for name, t in flat.items())
    return {**sizes, "header": sizes.get("header", 0) + _header_bytes(signature)}  # a group may be called so


@lru_cache(maxsize=4096)
def _header_bytes(signature: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> int:
    """Length of the safetensors header: it depends on names, types and shapes only, so it is measured once."""
    flat = {name: torch.zeros(shape, dtype=dtype).numpy() for name, dtype, shape in signature}
    return len(safetensors.numpy.save(flat)) - sum(array.nbytes for array in flat.values())


def to_device(bundle: Mapping[str, Mapping[str, Tensor]], device: torch.device | str) -> Bundle:
    """The Bundle on a device; tensors already there are not copied."""
    return {group: {name: t.to(device) for name, t in params.items()} for group, params in bundle.items()}
