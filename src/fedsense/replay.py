"""Losses and gradients of a training step, computed, or played again from the tape of a step like it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsense.alike import description
from fedsense.client import Client, NotAlike
from fedsense.flows import Fit, Flow
from fedsense.models.layout import in_order_of
from fedsense.models.network import Batch
from fedsense.tape import Play, Tape

WORTH_A_TAPE = 4  # steps of one size; recording one takes as long as computing a few
KEPT_TAPES = 64  # of the process; those used longest ago go
UNUSED_TAPES = 8  # of one loss that no later training could use, after which it is recorded no more


class Recorder:
    """Gives the losses and gradients of one training's steps.

    A loss is played only if it is a function of its arguments: it leaves what it closes over as it was, it is the same
    code over the same values as when it was recorded, and the first time its tape is played the step is also computed,
    and gives the same bits.
    """

    _tapes: ClassVar[OrderedDict[Any, Tape]] = OrderedDict()
    _unused: ClassVar[Counter[Any]] = Counter()

    def __init__(self, asked: Fit, flow: Flow) -> None:
        self.asked, self.flow = asked, flow
        self.loss = description(asked.loss)
        # Of this training: size of a minibatch -> what gives its losses and gradients. In one training all other
        # shapes follow from it, and the parameters are the same tensors.
        self._mine: dict[Any, Callable[[Batch], list[Tensor]]] = {}

    def __call__(self, batch: Batch) -> list[Tensor]:
        """The loss of every client, and the gradient of each parameter that trains."""
        mine = self._mine.get(batch.mask.shape)
        return self._first(batch) if mine is None else mine(batch)

    @torch.enable_grad()
    def compute(self, batch: Batch) -> list[Tensor]:
        values, leaves = self.flow.loss(batch), list(self.flow.leaves.values())
        # The gradient of a sum over clients is each client's own. A sum, and not [values] beside a gradient of ones:
        # PyTorch imports sympy to look at the ones, a second of every process.
        total = values.sum() if values.ndim else values
        grads = torch.autograd.grad([total], leaves, allow_unused=True, materialize_grads=True)
        return [values.detach(), *map(in_order_of, grads, leaves)]  # fused optimisers go through both side by side

    def _inputs(self, batch: Batch) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """What a step depends on: tensors that are others in each, parameters, and what is always the same."""
        moving, fixed = batch.tensors(self.flow.even)
        return moving, list(self.flow.now.values()), fixed

    def _first(self, batch: Batch) -> list[Tensor]:
        """The first step of a size: from a tape of an earlier training, or recorded, or neither."""
        size, inputs = batch.mask.shape, self._inputs(batch)
        shapes = tuple([tuple([(t.shape, t.stride(), t.dtype) for t in kind]) for kind in inputs])
        model = self.asked.client.model
        names = (*self.flow.now, *sorted(batch.given), "beside", *sorted(batch.beside))
        key = (self.loss, model.family or model, self.asked.parts, names, shapes)
        known = None if self.loss is None else self._tapes.get(key)
        if known is not None:
            self._tapes.move_to_end(key)
            self._unused[self._code] = 0
            self._mine[size] = self._playing(known, inputs)
            return self._mine[size](batch)
        self._mine[size] = self.compute
        if self.loss is None or self.flow.repeats[size] < WORTH_A_TAPE or self._unused[self._code] >= UNUSED_TAPES:
            return self.compute(batch)
        tape, out = self._record(batch, inputs)
        self._tapes[key] = tape
        self._unused[self._code] += 1
        while len(self._tapes) > KEPT_TAPES:
            self._tapes.popitem(last=False)
        self._mine[size] = self._playing(tape, inputs)
        return out

    def _playing(self, tape: Tape, inputs: Sequence[Sequence[Tensor]]) -> Callable[[Batch], list[Tensor]]:
        """What gives the steps of a tape's size: the tape, once it was found right."""
        if tape.why:
            return self.compute
        if not tape.checked:
            return partial(self._check, tape)
        _, placed, fixed = inputs
        if 0 in tape.unread and len(self.flow.repeats) == 1:  # x, where features stand for it, and all steps are played
            self.flow.unread.add("x")
        return partial(_played, tape.ready(placed, fixed), self.flow.even)

    @property
    def _code(self) -> Any:
        return None if self.loss is None else self.loss[0]

    def _record(self, batch: Batch, inputs: Sequence[Sequence[Tensor]]) -> tuple[Tape, list[Tensor]]:
        tape = Tape(*inputs)
        buffers = [t for name, t in self.flow.now.items() if name in self.asked.client.model.buffers]
        before = [t.clone() for t in buffers]
        try:
            with Client.one_for_all(), tape:
                out = self.compute(batch)
            tape.finish(out)
            if description(self.asked.loss) != self.loss:
                tape.why = "it changes what it closes over"
        except NotAlike as error:
            tape.why = str(error)
            tape.finish([])  # lets go of what it heard
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
            out = self.compute(batch)
        return tape, out

    def _check(self, tape: Tape, batch: Batch) -> list[Tensor]:
        """Play it on copies, and compute."""
        inputs = self._inputs(batch)
        moving, placed, fixed = ([torch.empty_like(t).copy_(t) for t in kind] for kind in inputs)
        with torch.no_grad():
            try:
                for t in placed:  # whatever is done only once may not depend on their values
                    t.zero_()
                play = tape.ready(placed, fixed)
                for t, value in zip(placed, inputs[1], strict=True):
                    t.copy_(value)
                played = play(moving)
            except Exception as error:  # an operation that cannot be called as it was recorded
                tape.why = f"{type(error).__name__}: {error}"
        computed = self.compute(batch)
        if not tape.why:
            copies, originals = [*moving, *placed, *fixed], [t for kind in inputs for t in kind]
            pairs = zip([*played, *copies], [*computed, *originals], strict=True)  # what either changed, too
            if not all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs):
                tape.why = "it gives something else every time"
        tape.checked = True
        self._mine[batch.mask.shape] = self._playing(tape, inputs)
        return computed


def _played(play: Play, even: bool, batch: Batch) -> list[Tensor]:
    return play(batch.tensors(even)[0])
