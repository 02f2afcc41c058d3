"""Losses and gradients of a training step, computed, or played again from the tape of a step like it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsense.alike import alike, code_of
from fedsense.client import Client, NotAlike
from fedsense.flows import Fit, Flow, Loss
from fedsense.models.network import Batch
from fedsense.tape import Tape

WORTH_A_TAPE = 4  # steps of one size; recording one takes as long as computing a few
KEPT_TAPES = 64  # of the process; those used longest ago go
KEPT_ALIKE = 3  # of losses that differ in a number only


class Recorder:
    """Gives the losses and gradients of one training's steps.

    A loss must be a function of its arguments alone. It is: the first time a tape is played, the step is computed, too,
    and a tape that does not give the same bits is not used.
    """

    _tapes: ClassVar[OrderedDict[Any, list[_Taped]]] = OrderedDict()

    def __init__(self, asked: Fit, flow: Flow) -> None:
        self.asked, self.flow = asked, flow
        self._mine: dict[Any, _Taped | None] = {}

    def __call__(self, batch: Batch) -> list[Tensor]:
        """The loss of every client, and the gradient of each parameter that trains."""
        inputs = [*self.flow.now.values(), *batch.tensors()]
        size = batch.mask.shape  # in one training all other shapes follow from it
        if size not in self._mine:
            self._mine[size] = self._find(inputs)
        taped = self._mine[size]
        if taped is None and self.flow.repeats[size] >= WORTH_A_TAPE:
            self._mine[size] = taped = _Taped(self.asked.loss, Tape(inputs))
            return self._record(taped, batch, inputs)
        if taped is None or not taped.sound:
            return self.compute(batch)
        if not taped.checked:
            return self._check(taped, batch, inputs)
        with torch.no_grad():
            return taped.tape.play(inputs)

    def compute(self, batch: Batch) -> list[Tensor]:
        values, leaves = self.flow.loss(batch), list(self.flow.leaves.values())
        each = torch.ones_like(values)  # the gradient of a sum over clients is each client's own
        grads = torch.autograd.grad([values], leaves, [each], allow_unused=True, materialize_grads=True)
        return [values.detach(), *grads]

    def _key(self, inputs: list[Tensor]) -> Any:
        alike = tuple([(t.shape, t.stride(), t.dtype) for t in inputs])
        return code_of(self.asked.loss), id(self.asked.client.model), self.asked.parts, tuple(self.flow.now), alike

    def _find(self, inputs: list[Tensor]) -> _Taped | None:
        key = self._key(inputs)
        found = next((taped for taped in self._tapes.get(key, ()) if alike(taped.loss, self.asked.loss)), None)
        if found is not None:
            self._tapes.move_to_end(key)
        return found

    def _record(self, taped: _Taped, batch: Batch, inputs: list[Tensor]) -> list[Tensor]:
        buffers = self._buffers()
        before = [t.clone() for t in buffers]
        try:
            with Client.one_for_all(), taped.tape:
                out = self.compute(batch)
            taped.sound = taped.tape.finish(out)
        except NotAlike:
            _put_back(buffers, before)
            out = self.compute(batch)
        known = self._tapes.setdefault(self._key(inputs), [])
        known[:] = [*known[-KEPT_ALIKE:], taped]
        while len(self._tapes) > KEPT_TAPES:
            self._tapes.popitem(last=False)
        return out

    def _check(self, taped: _Taped, batch: Batch, inputs: list[Tensor]) -> list[Tensor]:
        """Play and compute; running statistics, which either changes, are put back in between."""
        buffers = self._buffers()
        before = [t.clone() for t in buffers]
        with torch.no_grad():
            played = taped.tape.play(inputs)
        after = [t.clone() for t in buffers]
        _put_back(buffers, before)
        computed = self.compute(batch)
        pairs = zip([*played, *after], [*computed, *buffers], strict=True)
        taped.sound = all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)
        taped.checked = True
        return computed

    def _buffers(self) -> list[Tensor]:
        return [t for name, t in self.flow.now.items() if name in self.asked.client.model.buffers]


@dataclass
class _Taped:
    """A tape, and the loss it is of; one that is not ``sound`` says that there is none."""

    loss: Loss
    tape: Tape
    sound: bool = False
    checked: bool = False


def _put_back(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
