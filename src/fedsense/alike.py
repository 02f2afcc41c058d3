"""Whether two functions written for two clients are one function."""

from __future__ import annotations

import functools
from dataclasses import is_dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from fedsense.client import Client


def alike(a: Any, b: Any) -> bool:
    """Whether one can stand for the other: the same code over the same values. In doubt it cannot.

    Tensors must be the very same; clients need only share their model, because nothing else of them may be read while
    a loss is computed for several (see :meth:`fedsense.client.Client.one_for_all`).
    """
    if a is b:
        return True
    if isinstance(a, Client) and isinstance(b, Client):
        return a.model is b.model and a.task is b.task
    if type(a) is not type(b):
        return False
    if isinstance(a, FunctionType):
        inside = [f.__closure__ or () for f in (a, b)]
        return a.__code__ is b.__code__ and alike(
            [a.__defaults__, a.__kwdefaults__, [cell.cell_contents for cell in inside[0]]],
            [b.__defaults__, b.__kwdefaults__, [cell.cell_contents for cell in inside[1]]],
        )
    if isinstance(a, MethodType):
        return a.__func__ is b.__func__ and alike(a.__self__, b.__self__)
    if isinstance(a, functools.partial):
        return alike([a.func, a.args, a.keywords], [b.func, b.args, b.keywords])
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(value, b[key]) for key, value in a.items())
    if isinstance(a, int | float | str | bytes | torch.device | torch.dtype | frozenset):
        return bool(a == b)
    if is_dataclass(a):
        return alike(vars(a), vars(b))
    return False


def code_of(loss: Any) -> CodeType:
    """The code a function runs, whatever it closes over."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    found = getattr(getattr(loss, "__func__", loss), "__code__", None)
    return found if isinstance(found, CodeType) else type(loss).__call__.__code__
