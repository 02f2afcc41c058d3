"""A computation written down once and played again: the same operations on other tensors, without what leads to them.

A training step does the same operations every time, on parameters and minibatches of the same shapes. Most of the time
of a small step goes into finding out which operations these are: layers, vmap, the graph of gradients. A :class:`Tape`
listens to one step, forwards and backwards, and plays it again. The operations are the same, and so are the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_UNSEEN = {name: torch.Tensor.__dict__.get(name) for name in ("tolist", "numpy", "__array__")}
LARGEST = 256 << 20  # bytes of what a step makes; everything is kept while it is recorded
Key = tuple[Any, ...]
Play = Callable[[Sequence[Tensor]], list[Tensor]]
_OF_SHAPES_ONLY = {aten.ones_like, aten.zeros_like, aten.new_zeros, aten.new_ones}


class _Slot(NamedTuple):
    """A tensor's place while the tape is played."""

    number: int


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what is done within ``with tape:``; ``why`` says why it cannot be played again, if it cannot.

    Tensors are told apart by where they are in memory: what autograd kept of a tensor is that tensor. A tensor that
    is neither among the inputs nor made on the way is taken to be the same every time.

    Inputs of three kinds: ``moving`` are others whenever the tape is played; ``placed`` stay where they are, though
    their values change (parameters); ``fixed`` stay what they are. What follows from the last two is done once.
    """

    def __init__(self, moving: Sequence[Tensor], placed: Sequence[Tensor] = (), fixed: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        inputs = [*moving, *placed, *fixed]
        self.why, self.checked, self._held = "", False, 0
        self.unread: frozenset[int] = frozenset()  # positions of moving inputs that nothing depends on
        if len({_key(t) for t in inputs}) < len(inputs):
            self.why = "one tensor is given twice"
        self._seen: list[Tensor] = list(inputs)  # kept, so that nothing else comes to lie where they are
        self._slots: dict[Key, int] = {}
        self._raw: list[_Operation] = []
        self._ready: Callable[[Sequence[Tensor], Sequence[Tensor]], Play] | None = None
        self._moving, self._placed, self._fixed = ([self._slot(t) for t in kind] for kind in (moving, placed, fixed))

    def __enter__(self) -> Any:
        for name in _UNSEEN:  # these read values without any operation
            setattr(torch.Tensor, name, self._noticing(name))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for name, own in _UNSEEN.items():
            if own is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, own)

    def _noticing(self, name: str) -> Any:
        plain = _UNSEEN[name] or getattr(torch._C.TensorBase, name)

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.why = self.why or "it reads a value of a tensor"
            return plain(tensor, *args, **kwargs)

        return read

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
        single = isinstance(out, Tensor)
        results = (out,) if single else tuple(out) if isinstance(out, tuple | list) else ()
        self.why = _why_not(func, args, out, results)
        if self.why:
            self._seen, self._raw = [], []
            return out
        changes = func._schema.is_mutable
        if changes and _writes_elsewhere(func, given, named):
            self.why = "it changes a tensor that is not its own"
        new = [t is not None and _key(t) not in self._slots for t in results]
        slots = tuple(None if t is None else self._slot(t) for t in results)
        if changes or any(new):  # else it only looks at what is there already (detach, view)
            shapes_only = results if func.overloadpacket in _OF_SHAPES_ONLY else ()
            self._raw.append(_Operation(func, given, named, slots, single, shapes_only))
        self._held += sum(t.numel() * t.element_size() for t, fresh in zip(results, new, strict=True) if fresh)
        if self._held > LARGEST:
            self.why = "it needs much memory, and gains little"
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
            self._seen, self._raw, self._slots = [], [], {}
            return False
        results = [self._known(t) for t in wanted]
        needed = set(_slots_in(results))
        before = self._once(needed)
        kept = {*self._moving, *self._placed, *self._fixed, *before}
        once: list[str] = []
        always: list[str] = []
        constants = _Constants()
        for op in reversed(self._raw):
            if not op.changes and needed.isdisjoint(op.slots):
                continue
            made = {s for s in op.slots if s is not None}
            early = not op.changes and made <= before
            lines = once if early else always
            if early and op.of_shapes_only:
                lines += [f"t{s} = {constants.name(t)}" for s, t in zip(op.slots, op.of_shapes_only, strict=True)]
                continue
            done = sorted((op.reads | made) - needed - kept)
            if done:  # nobody wants them any more
                lines.append(f"{_tuple(done)} = ({'None, ' * len(done)})")
            changed = set(op.writes)  # what it gives is what it changed, which has its name already
            names = [f"t{s}" if s in needed and s not in changed else "_" for s in op.slots]
            to = "" if not names else f"{names[0]} = " if op.single else f"({', '.join(names)},) = "
            lines.append(f"{to}{constants.name(op.function)}({constants.arguments(op)})")
            needed |= op.reads
        self.unread = frozenset(i for i, slot in enumerate(self._moving) if slot not in needed)
        text = (
            f"def ready(placed, fixed):\n    {_tuple(self._placed)} = placed\n    {_tuple(self._fixed)} = fixed\n"
            + "".join(f"    {line}\n" for line in reversed(once))
            + f"    def play(moving):\n        {_tuple(self._moving)} = moving\n"
            + "".join(f"        {line}\n" for line in reversed(always))
            + f"        return [{', '.join(map(constants.text, results))}]\n    return play\n"
        )
        exec(text, constants.values)
        self._ready = constants.values["ready"]
        self._seen, self._raw, self._slots = [], [], {}
        return True

    def _once(self, results: set[int]) -> set[int]:
        """The slots of what need be done only once.

        Those are views of what is placed; and, if nothing made on the way is ever written into, whatever follows from
        what is fixed, or from shapes alone. Never a result: whoever gets it may change it.
        """
        own = set(results)
        for op in reversed(self._raw):
            if (op.looks or op.func is aten._unsafe_view.default) and not own.isdisjoint(op.slots):
                own |= op.reads
        placed, fixed = set(self._placed), set(self._fixed)
        written = {slot for op in self._raw for slot in op.writes}
        values = written <= placed
        early: set[int] = set()
        for op in self._raw:
            if op.changes or not own.isdisjoint(op.slots):
                continue
            made = {s for s in op.slots if s is not None}
            if values and (op.of_shapes_only or op.reads <= fixed):
                fixed |= made
            elif op.looks and op.reads <= placed:
                placed |= made
            else:
                continue
            early |= made
        return early

    def ready(self, placed: Sequence[Tensor] = (), fixed: Sequence[Tensor] = ()) -> Play:
        """The function that does the same with other tensors of the same shapes; it is given the moving ones."""
        assert self._ready is not None
        return self._ready(placed, fixed)


class _Operation(NamedTuple):
    """What was done: a function, its arguments (tensors as slots), and the slots of what it gave."""

    func: Any
    given: tuple[Any, ...]
    named: dict[str, Any]
    slots: tuple[int | None, ...]
    single: bool
    of_shapes_only: tuple[Tensor, ...]  # what it gave, where that depends on no value

    @property
    def reads(self) -> set[int]:
        return {*_slots_in(self.given), *_slots_in(self.named)}

    @property
    def changes(self) -> bool:
        return bool(self.func._schema.is_mutable)

    @property
    def looks(self) -> bool:
        """Whether it only gives another view of a tensor."""
        schema = self.func._schema
        return not schema.is_mutable and all(r.alias_info is not None for r in schema.returns)

    @property
    def writes(self) -> list[int]:
        return _slots_in(_written(self.func, self.given, self.named)) if self.changes else []

    @property
    def function(self) -> Any:
        """What to call: PyTorch's own function, where there is one, is reached faster than the operation."""
        own = getattr(self.func, "_op", self.func)
        places = any(str(a.type) == "List[Optional[Tensor]]" for a in self.func._schema.arguments)
        if self.changes or places:  # which may be left empty, as in x[:, i]
            return own
        return getattr(torch._C._VariableFunctions, self.func.overloadpacket.__name__, own)


class _Constants:
    """What the text of a played tape refers to by name: operations, and tensors and numbers that never change."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def name(self, value: Any) -> str:
        if id(value) not in self._names:
            self._names[id(value)] = f"c{len(self._names)}"
            self.values[self._names[id(value)]] = value
        return self._names[id(value)]

    def arguments(self, op: _Operation) -> str:
        return ", ".join([*map(self.text, op.given), *(f"{name}={self.text(a)}" for name, a in op.named.items())])

    def text(self, value: Any) -> str:
        if isinstance(value, _Slot):
            return f"t{value.number}"
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        return repr(value) if value is None or type(value) in (bool, int) else self.name(value)


def _tuple(numbers: Iterable[int]) -> str:
    return "(" + "".join(f"t{number}, " for number in numbers) + ")"


def _written(func: Any, given: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    """The arguments an operation changes."""
    arguments = func._schema.arguments
    values = [*zip(arguments, given, strict=False), *((a, named.get(a.name)) for a in arguments[len(given) :])]
    return [v for a, v in values if a.alias_info is not None and a.alias_info.is_write]


def _writes_elsewhere(func: Any, given: Sequence[Any], named: dict[str, Any]) -> bool:
    """Whether an operation changes a tensor that neither was given nor made on the way."""
    return any(isinstance(v, Tensor) for v in _written(func, given, named))


def _why_not(func: Any, args: Sequence[Any], out: Any, results: Sequence[Any]) -> str:
    """Why an operation cannot be played again, or nothing."""
    if func is aten.index.Tensor and all(i is None or i.dtype is torch.int64 for i in args[1]):
        return ""  # only of masks it gives as much as they say
    if func is aten._local_scalar_dense.default or torch.Tag.data_dependent_output in func.tags:
        return "it reads a value of a tensor"
    if torch.Tag.nondeterministic_seeded in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return f"{func} gives something else every time"
    if not all(t is None or isinstance(t, Tensor) for t in results) or (not results and out is not None):
        return f"{func} gives more than tensors"
    return ""


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
