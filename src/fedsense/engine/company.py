"""Clients side by side: their updates go on in turns, and where several ask for the same training it is done at once.

Every client's update runs in a thread of its own, one at a time, until it asks for a ``fit``. When all have asked (or
are done), those that ask for the same are trained together, and the updates go on. So a method stays what it is: a
function for one client, with any number of phases. Nothing depends on the threads' timing: who runs when is settled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import CodeType
from typing import Any, TypeVar

from fedsense.alike import alike, code_of
from fedsense.training import Fit, Fitted, train

T = TypeVar("T")
LARGEST = 64  # clients side by side, at most


class Company:
    """Runs updates of several clients."""

    def __init__(self) -> None:
        self.refused: dict[CodeType, str] = {}  # losses that cannot be computed for several clients, and why
        self._threads: ThreadPoolExecutor | None = None

    def run(self, updates: Sequence[Callable[[Callable[[Fit], Fitted]], T]]) -> tuple[list[T | BaseException], int]:
        """Every update, given the function that joins a training; what each gave or raised, and the largest group."""
        if self._threads is None:  # not before: a fork would not take them along
            self._threads = ThreadPoolExecutor(LARGEST, thread_name_prefix="fedsense-client")
        turns = [_Turn(update, self._threads.submit) for update in updates]
        largest = 1
        try:
            going = turns
            while going := [turn for turn in going if turn.go_on()]:
                for group in _groups([turn.asked for turn in going], self.refused):
                    largest = max(largest, len(group))
                    for place, answer in zip(group, self._train([going[i].asked for i in group]), strict=True):
                        going[place].answer = answer
        finally:
            for turn in turns:
                turn.leave()
        return [turn.outcome for turn in turns], largest

    def _train(self, asked: Sequence[Fit]) -> Sequence[Fitted | Exception]:
        if len(asked) > 1:
            try:
                return train(asked)
            except Exception as error:  # whatever vmap cannot do, one after another can
                self.refused[code_of(asked[0].loss)] = f"{type(error).__name__}: {error}"
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
        self._mine, self._back = threading.Semaphore(0), threading.Semaphore(0)
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


def _groups(asked: Sequence[Fit], refused: dict[CodeType, str]) -> list[list[int]]:
    """Positions of those who ask for the same, each with its likes."""
    groups: list[list[int]] = []
    for i, fit in enumerate(asked):
        mates = next((g for g in groups if _same(asked[g[0]], fit)), None) if code_of(fit.loss) not in refused else None
        if mates is None:
            groups.append([i])
        else:
            mates.append(i)
    return groups


def _same(a: Fit, b: Fit) -> bool:
    return (
        a.client.model is b.client.model
        and a.parts == b.parts
        and (a.schedule.count, a.schedule.batch) == (b.schedule.count, b.schedule.batch)
        and a.optimiser.key is not None
        and a.optimiser.key == b.optimiser.key
        and _shapes(a.given) == _shapes(b.given)
        and a.beside.keys() == b.beside.keys()
        and _steps(a) == _steps(b)
        and alike(a.loss, b.loss)
    )


def _shapes(tensors: Any) -> dict[str, tuple[Any, ...]]:
    return {name: (t.shape, t.dtype) for name, t in tensors.items()}


def _steps(asked: Fit) -> Any:
    """How far optimisers that count their steps (Adam) have come, in whatever part of a chain."""
    memory = asked.memory or {}
    return sorted(memory), [float(values["steps"]) for slot, values in memory.items() if slot.endswith("count")]
