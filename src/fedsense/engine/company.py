"""Clients side by side: their updates go on in turns, and where several ask for the same training it is done at once.

Every client's update runs in a thread of its own, one at a time, until it asks for a ``fit``. When all have asked (or
are done), those that ask for the same are trained together, and the updates go on. So a method stays what it is: a
function for one client, with any number of phases. Nothing depends on the threads' timing: who runs when is settled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch import Tensor

from fedsense.alike import description
from fedsense.training import Fit, Fitted, train

T = TypeVar("T")
LARGEST = 32  # clients side by side, at most; more bring little on a processor


class Company:
    """Runs updates of several clients."""

    def __init__(self) -> None:
        self.refused = ""  # why the last training that could not be done together could not
        self._threads: ThreadPoolExecutor | None = None

    def run(self, updates: Sequence[Callable[[Callable[[Fit], Fitted]], T]]) -> tuple[list[T | BaseException], int]:
        """Every update, given the function that joins a training; what each gave or raised, and the largest group."""
        assert len(updates) <= LARGEST, "a thread each: more would wait for one another"
        if self._threads is None:  # not before: a fork would not take them along
            self._threads = ThreadPoolExecutor(LARGEST, thread_name_prefix="fedsense-client")
        turns = [_Turn(update, self._threads.submit) for update in updates]
        largest = 1
        try:
            going = turns
            while going := [turn for turn in going if turn.go_on()]:
                for group in _groups([turn.asked for turn in going]):
                    largest = max(largest, len(group))
                    for place, answer in zip(group, self._train([going[i].asked for i in group]), strict=True):
                        going[place].answer = answer
        finally:
            for turn in turns:
                turn.leave()
        return [turn.outcome for turn in turns], largest

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _train(self, asked: Sequence[Fit]) -> Sequence[Fitted | Exception]:
        if len(asked) > 1:
            try:
                return train(asked)
            except Exception as error:  # whatever vmap cannot do, one after another can
                self.refused = f"{type(error).__name__}: {error}"
        return [_or_error(fit) for fit in asked]


def _or_error(asked: Fit) -> Fitted | Exception:
    try:
        return train([asked])[0]
    except Exception as error:  # raised where the client asked, so that the client is named
        return error


class _Left(BaseException):
    """The others have gone: an update that still waits ends."""


class _Turn:
    """One client's update in a thread, which runs only when told to."""

    def __init__(self, update: Callable[[Callable[[Fit], Fitted]], Any], run: Callable[..., Any]) -> None:
        self.outcome: Any = None
        self.asked: Fit
        self.answer: Fitted | Exception | None = None
        self._update = update
        self._waiting = self._gone = self._over = False
        self._mine, self._back = threading.Lock(), threading.Lock()  # one lets go of what the other waits for
        self._mine.acquire()
        self._back.acquire()
        run(self._work)

    def go_on(self) -> bool:
        """Until it asks for a training (then true) or is done."""
        self._waiting = False
        self._mine.release()
        self._back.acquire()
        return self._waiting

    def leave(self) -> None:
        if not self._over:
            self._gone = True
            self._mine.release()
            self._back.acquire()

    def _work(self) -> None:
        self._mine.acquire()
        try:
            if not self._gone:
                self.outcome = self._update(self._join)
        except BaseException as error:  # handed to whoever asked for the update
            self.outcome = error
        self._over = True
        self._back.release()

    def _join(self, asked: Fit) -> Fitted:
        self.asked, self._waiting = asked, True
        self._back.release()
        self._mine.acquire()
        if self._gone:
            raise _Left
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
    rows = {"x": fit.client.train.x, **fit.beside}
    return (
        *(loss, optimiser, fit.client.model, fit.parts, fit.schedule.count, fit.schedule.batch),
        *(tuple(slots), counts, _shapes(fit.params), _shapes(fit.given)),
        tuple((name, t.shape[1:], t.dtype) for name, t in rows.items()),
    )


def _shapes(tensors: Mapping[str, Tensor]) -> tuple[Any, ...]:
    return tuple((name, tensors[name].shape, tensors[name].dtype) for name in sorted(tensors))
