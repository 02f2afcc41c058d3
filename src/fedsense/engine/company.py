"""Clients side by side: their updates go on in turns, and where several ask for the same training it is done at once.

Every client's update runs as a coroutine (a greenlet: the method's code need not know) until it asks for a ``fit``.
When all have asked (or are done), those that ask for the same are trained together, and the updates go on. So a method
stays what it is: a function for one client, with any number of phases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from greenlet import GreenletExit, greenlet
from torch import Tensor

from fedsense.alike import description
from fedsense.training import Fit, Fitted, train

T = TypeVar("T")
LARGEST = 32  # clients side by side, at most; more bring little on a processor


class Company:
    """Runs updates of several clients."""

    def __init__(self) -> None:
        self.refused = ""  # why the last training that could not be done together could not

    def run(self, updates: Sequence[Callable[[Callable[[Fit], Fitted]], T]]) -> tuple[list[T | BaseException], int]:
        """Every update, given the function that joins a training; what each gave or raised, and the largest group."""
        turns = [_Turn(update) for update in updates]
        largest = 1
        try:
            going = turns
            while going := [turn for turn in going if turn.go_on()]:
                for group in _groups([turn.asked for turn in going]):
                    answers, together = self._train([going[i].asked for i in group])
                    largest = max(largest, together)
                    for place, answer in zip(group, answers, strict=True):
                        going[place].answer = answer
        finally:
            for turn in turns:
                turn.leave()
        return [turn.outcome for turn in turns], largest

    def _train(self, asked: Sequence[Fit]) -> tuple[Sequence[Fitted | Exception], int]:
        """What each asked for, and how many were trained side by side."""
        if len(asked) > 1:
            try:
                return train(asked), len(asked)
            except Exception as error:  # whatever vmap cannot do, one after another can
                self.refused = f"{type(error).__name__}: {error}"
        return [_or_error(fit) for fit in asked], 1


def _or_error(asked: Fit) -> Fitted | Exception:
    try:
        return train([asked])[0]
    except Exception as error:  # raised where the client asked, so that the client is named
        return error


class _Turn:
    """One client's update, which runs when told to, until it asks for a training."""

    def __init__(self, update: Callable[[Callable[[Fit], Fitted]], Any]) -> None:
        self.outcome: Any = None
        self.asked: Fit
        self.answer: Fitted | Exception | None = None
        self._update = update
        self._coroutine = greenlet(self._work)
        self._gradients = True

    def go_on(self) -> bool:
        """Until it asks for a training (then true) or is done."""
        outside = torch.is_grad_enabled()
        torch.set_grad_enabled(self._gradients)  # an update may ask within ``torch.no_grad``
        self._coroutine.switch()
        self._gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(outside)
        if isinstance(self.outcome, KeyboardInterrupt):  # not one client's affair
            raise self.outcome
        return not self._coroutine.dead

    def leave(self) -> None:
        """An update that still waits ends."""
        if self._coroutine:
            self._coroutine.throw(GreenletExit)

    def _work(self) -> None:
        try:
            self.outcome = self._update(self._join)
        except BaseException as error:  # handed to whoever asked for the update
            self.outcome = error

    def _join(self, asked: Fit) -> Fitted:
        self.asked = asked
        assert self._coroutine.parent is not None
        self._coroutine.parent.switch()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


def _groups(asked: Sequence[Fit]) -> list[list[int]]:
    """Positions of those who ask for the same, each with its likes."""
    groups: dict[Any, list[int]] = {}
    for i, fit in enumerate(asked):
        key = _kind(fit)
        groups.setdefault(("alone", i) if key is None else key, []).append(i)
    return list(groups.values())


def _kind(fit: Fit) -> Any | None:
    """Equal for those who can be trained together; None for who cannot with anybody."""
    loss, optimiser = description(fit.loss), fit.optimiser.key
    if loss is None or optimiser is None:
        return None
    memory = fit.memory or {}
    slots = sorted(memory)
    counts = tuple(float(memory[slot]["steps"]) for slot in slots if slot.endswith("count"))  # of Adam
    x, model = fit.client.train.x, fit.client.model
    return (
        *(loss, optimiser, model.family or model, fit.parts, fit.schedule.count, fit.schedule.batch),
        *(tuple(slots), counts, _shapes(fit.params, model.widens), _shapes(fit.given)),
        *("any width" if model.family else x.shape[1:], x.dtype),
        tuple((name, t.shape[1:], t.dtype) for name, t in fit.beside.items()),
    )


def _shapes(tensors: Mapping[str, Tensor], widens: str = "") -> tuple[Any, ...]:
    """Names, shapes and types; of a weight as wide as the input, without that width."""
    return tuple((n, tensors[n].shape[: 1 if n == widens else None], tensors[n].dtype) for n in sorted(tensors))
