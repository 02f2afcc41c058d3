"""A computation written down once and played again: the same operations on other tensors, without what leads to them.

A training step does the same operations every time, on parameters and minibatches of the same shapes. Most of the time
of a small step goes into finding out which operations these are: layers, vmap, the graph of gradients. A :class:`Tape`
listens to one step, forwards and backwards, and plays it again. The operations are the same, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
LARGEST = 256 << 20  # bytes of what a step makes; everything is kept while it is recorded
Key = tuple[Any, ...]


class _Slot(NamedTuple):
    """A tensor's place while the tape is played."""

    number: int


class _Operation(NamedTuple):
    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    results: tuple[int | None, ...]  # slots of what it gives; None where nobody wants it
    single: bool  # gives one tensor, not several
    done: tuple[int, ...]  # slots that nobody wants any more


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what is done within ``with tape:``; ``why`` says why it cannot be played again, if it cannot.

    Tensors are told apart by where they are in memory: what autograd kept of a tensor is that tensor. A tensor that
    is neither among the inputs nor made on the way is taken to be the same every time.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.why, self._held = "", 0
        self._seen: list[Tensor] = list(inputs)  # kept, so that nothing else comes to lie where they are
        self._slots: dict[Key, int] = {}
        self._raw: list[tuple[Any, tuple[Any, ...], dict[str, Any], tuple[int | None, ...], bool]] = []
        self._operations: list[_Operation] = []
        self._wanted: list[Any] = []
        self._many = 0
        self._inputs = [self._slot(t) for t in inputs]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.why:
            return func(*args, **kwargs)
        given = tuple(self._known(a) for a in args)
        named = {name: self._known(a) for name, a in kwargs.items()}
        out = func(*args, **kwargs)
        tags = func.tags
        if func is aten._local_scalar_dense.default or torch.Tag.data_dependent_output in tags:
            self.why = "it reads a value of a tensor"
        elif torch.Tag.nondeterministic_seeded in tags or torch.Tag.dynamic_output_shape in tags:
            self.why = f"{func} gives something else every time"
        single = isinstance(out, Tensor)
        results = (out,) if single else tuple(out) if isinstance(out, tuple | list) else ()
        if not all(t is None or isinstance(t, Tensor) for t in results) or (not results and out is not None):
            self.why = f"{func} gives more than tensors"
            return out
        changes = func._schema.is_mutable
        new = [t is not None and _key(t) not in self._slots for t in results]
        slots = tuple(None if t is None else self._slot(t) for t in results)
        if changes or any(new):  # else it only looks at what is there already (detach, view)
            self._raw.append((func, given, named, slots, single))
        self._held += sum(t.numel() * t.element_size() for t, fresh in zip(results, new, strict=True) if fresh)
        if self._held > LARGEST:
            self.why = "it needs much memory, and gains little"
        if self.why:
            self._seen, self._raw = [], []
        return out

    def _slot(self, tensor: Tensor) -> int:
        self._seen.append(tensor)
        return self._slots.setdefault(_key(tensor), len(self._slots))

    def _known(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            number = self._slots.get(_key(value))
            return value if number is None else _Slot(number)
        if isinstance(value, list | tuple):
            return [self._known(v) for v in value]
        return value

    def finish(self, wanted: Sequence[Tensor]) -> bool:
        """Called after the recording, with what playing it shall give; whether it can be played."""
        if self.why:
            return False
        self._wanted = [self._known(t) for t in wanted]
        needed = {w.number for w in self._wanted if isinstance(w, _Slot)}
        operations: list[_Operation] = []
        for func, given, named, slots, single in reversed(self._raw):
            if not func._schema.is_mutable and needed.isdisjoint(slots):
                continue
            reads = {*_slots_in(given), *_slots_in(named)}
            done = tuple(s for s in {*reads, *(s for s in slots if s is not None)} - needed if s not in self._inputs)
            kept = tuple(s if s in needed else None for s in slots)
            operations.append(_Operation(func, given, named, kept, single, done))
            needed |= reads
        self._operations = operations[::-1]
        self._seen, self._raw, self._many, self._slots = [], [], len(self._slots), {}
        return True

    def play(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The same with other tensors of the same shapes."""
        slots: list[Any] = [None] * self._many
        for place, tensor in zip(self._inputs, inputs, strict=True):
            slots[place] = tensor
        for function, arguments, named, results, single, done in self._operations:
            given = [slots[a.number] if type(a) is _Slot else _filled(a, slots) for a in arguments]
            out = function(*given, **{name: _filled(a, slots) for name, a in named.items()})
            if single:
                if results[0] is not None:
                    slots[results[0]] = out
            elif out is not None:
                for number, tensor in zip(results, out, strict=True):
                    if number is not None:
                        slots[number] = tensor
            for number in done:
                slots[number] = None
        return [_filled(w, slots) for w in self._wanted]


def _key(tensor: Tensor) -> Key:
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )


def _slots_in(value: Any) -> list[int]:
    if isinstance(value, _Slot):
        return [value.number]
    if isinstance(value, dict):
        value = list(value.values())
    return [number for v in value for number in _slots_in(v)] if isinstance(value, list | tuple) else []


def _filled(value: Any, slots: list[Any]) -> Any:
    if type(value) is _Slot:
        return slots[value.number]
    return [_filled(v, slots) for v in value] if type(value) is list else value
