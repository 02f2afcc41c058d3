"""Whether two functions written for two clients, or on two days, are one function."""

from __future__ import annotations

import dataclasses
import functools
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from fedsense.client import Client

LONGEST = 64  # a list, or a dictionary, that is longer is not looked through: it must be the very same
DEEPEST = 12  # functions within functions; deeper ones are taken to be like no other
_VALUES = (int, float, str, bytes, bool, type(None), torch.device, torch.dtype, torch.Size)
_FIXED = (ModuleType, type, BuiltinFunctionType)


class _Very:
    """The very object: equal to nothing but itself. Keeps it, so that no other object gets its place."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Very) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def description(function: Any) -> Any | None:
    """What a function is now: its code, and the values it closes over or reads as globals. None if that cannot be told.

    Functions of equal descriptions can stand for one another. Tensors, networks and whatever else is not a plain value
    must be the very same. Of a client only its model and task count, because nothing else of it may be read while a
    loss stands for that of others (see :meth:`fedsense.client.Client.one_for_all`).
    """
    try:
        return _inside(function, 0)
    except Exception:  # an odd object; nothing is claimed of it
        return None


def _inside(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise RecursionError
    deeper = functools.partial(_inside, depth=depth + 1)
    if type(value) in _VALUES:
        return type(value), value
    if isinstance(value, Client):
        return "client", value.model.family or _Very(value.model), _Very(value.task)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        names = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
        read = {name: v for name, v in names.items() if not isinstance(v, (*_FIXED, FunctionType))}
        return value.__code__, deeper(value.__defaults__), deeper(value.__kwdefaults__), deeper(cells), deeper(read)
    if isinstance(value, MethodType):
        return _Very(value.__func__), deeper(value.__self__)
    if isinstance(value, functools.partial):
        return deeper([value.func, value.args, value.keywords])
    if isinstance(value, list | tuple | dict) and len(value) > LONGEST:
        return _Very(value)
    if isinstance(value, list | tuple):
        return type(value), tuple([deeper(v) for v in value])
    if isinstance(value, dict):
        return type(value), tuple([(key, deeper(v)) for key, v in value.items()])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple([deeper(getattr(value, field.name)) for field in dataclasses.fields(value)])
    return _Very(value)
