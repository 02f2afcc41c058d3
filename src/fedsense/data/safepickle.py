"""Reads what Python pickled, if it is plain data, without running any of it.

A pickle is a program for a small stack machine that can call anything. Here only the instructions that numbers, text,
lists, tuples, dicts and numpy arrays need are carried out, by this file and not by ``pickle``; calls are not made but
recognised, and any other name is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from fedsense.data.files import File

LARGEST = 1 << 30  # bytes; the largest official file, of CIFAR-100, has 155 MB
TYPES = {"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8", "b1"}  # of arrays

VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
PUTS, GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Refused(Exception):
    """The message for the user."""


class _Mark:
    """Where a list of arguments begins on the stack."""


@dataclass(frozen=True)
class _Name:
    """A class or function the pickle names."""

    module: str
    name: str

    def known(self) -> str:
        """What it stands for, if it is needed for arrays; numpy 2 moved ``numpy.core``."""
        module = self.module.replace("numpy._core", "numpy.core")
        return {
            ("numpy.core.multiarray", "_reconstruct"): "array",
            ("numpy.core.numeric", "_frombuffer"): "filled array",
            ("numpy", "ndarray"): "ndarray",
            ("numpy", "dtype"): "type",
            ("_codecs", "encode"): "bytes",
        }.get((module, self.name), "")


@dataclass
class _Type:
    code: str
    order: str = "|"


@dataclass
class _Array:
    value: Any = None


def read_pickle(file: File) -> dict[str, Any]:
    """The dict a file holds; its keys as text, its values numbers, text, bytes, lists, tuples, dicts or arrays."""
    content = file.read()
    if len(content) > LARGEST:
        raise file.wrong(f"is larger than {LARGEST >> 30} GB, which no pickle of a known dataset is")
    try:
        found = _Machine().run(content)
    except _Refused as refused:
        raise file.wrong(str(refused)) from refused
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError) as error:
        raise file.wrong("is damaged or cut short, or no pickle at all; get it again") from error
    if not isinstance(found, dict):
        raise file.wrong(f"holds a {type(found).__name__}, expected a dict")
    return {key: value.value if isinstance(value, _Array) else value for key, value in found.items()}


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                (result,) = self.stack
                return result
            self.step(opcode.name, argument)
        raise ValueError("no end")

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in PUTS:
            self.memo[int(argument)] = stack[-1]
        elif name in GETS:
            stack.append(self.memo[int(argument)])
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in TUPLES:
            stack[-TUPLES[name] :] = [tuple(stack[-TUPLES[name] :])]
        elif (method := getattr(self, f"do_{name.lower()}", None)) is not None:
            method(argument)
        elif name == "INST":
            _refuse(argument.replace(" ", "."))
        elif name not in ("PROTO", "FRAME"):
            raise _Refused(f"holds a Python object ({name}), which is not trusted; only plain data is read")

    def since_mark(self) -> list[Any]:
        start = len(self.stack) - 1
        while not isinstance(self.stack[start], _Mark):
            start -= 1
            if start < 0:
                raise ValueError("no mark")
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def do_mark(self, _: Any) -> None:
        self.stack.append(_Mark())

    def do_pop(self, _: Any) -> None:
        self.stack.pop()

    def do_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.since_mark()))

    def do_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def do_list(self, _: Any) -> None:
        self.stack.append(self.since_mark())

    def do_append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def do_appends(self, _: Any) -> None:
        self._extend(self.since_mark())

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("no list")
        self.stack[-1].extend(items)

    def do_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def do_dict(self, _: Any) -> None:
        items = self.since_mark()
        self.stack.append({})
        self._update(items)

    def do_setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def do_setitems(self, _: Any) -> None:
        self._update(self.since_mark())

    def _update(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or len(items) % 2:
            raise ValueError("no dict")
        self.stack[-1].update(_pairs(items))

    def do_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")  # how pickletools gives the two
        self._named(module, name)

    def do_stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._named(str(module), str(name))

    def _named(self, module: str, name: str) -> None:
        found = _Name(module, name)
        if not found.known():
            _refuse(f"{module}.{name}")
        self.stack.append(found)

    def do_reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        what = function.known() if isinstance(function, _Name) else ""
        if what == "array":
            self.stack.append(_Array())
        elif what == "filled array":
            data, kind, shape, order = arguments
            self.stack.append(_Array(_filled(data, kind, shape, order)))
        elif what == "type":
            if arguments[0] not in TYPES:
                raise _Refused(f"holds an array of type {str(arguments[0])[:20]!r}, which is not trusted")
            self.stack.append(_Type(arguments[0]))
        elif what == "bytes" and arguments[1] == "latin1":
            self.stack.append(arguments[0].encode("latin-1"))
        else:
            raise ValueError("no call that arrays need")

    def do_build(self, _: Any) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if isinstance(built, _Type):
            if state[1] not in ("|", "<", ">", "="):
                raise ValueError("no order of bytes")
            built.order = state[1]
        elif isinstance(built, _Array):
            _, shape, kind, by_columns, data = state
            raw = data.encode("latin-1") if isinstance(data, str) else data  # Python 2 knew one kind of string
            built.value = _filled(raw, kind, shape, "F" if by_columns else "C")
        else:
            raise ValueError("no array")


def _filled(data: bytes, kind: _Type, shape: tuple[int, ...], order: Literal["C", "F"]) -> Any:
    values: Any = np.frombuffer(data, f"{kind.order}{kind.code}")
    return values.reshape(shape, order=order)


def _pairs(items: list[Any]) -> Iterator[tuple[str, Any]]:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes):
            raise ValueError("a key that is no text")
        yield key.decode("latin-1") if isinstance(key, bytes) else key, value


def _refuse(name: str) -> NoReturn:
    raise _Refused(f"names {name[:80]}, which is not trusted: it could run anything; only plain data is read")
