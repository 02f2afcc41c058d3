"""Where local updates run: one after another here, in worker processes, side by side, or side by side in processes.

Every local update runs on one thread, whichever executor runs it: the order in which numbers are added then depends on
nothing but the recipe. Two one-thread processes are also faster than two threads on networks of this size. ``serial``
and ``workers`` give the same bits. Side by side (``cohort``) numbers differ from theirs by rounding; who is side by
side with whom depends on who takes part alone, so they are the same bits whatever the number of processes.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, Protocol

import torch

from fedsense.engine.shared import Region
from fedsense.engine.site import Answer, Call, Site
from fedsense.errors import FedsenseError, RunFailed, UserError

PR_SET_PDEATHSIG = 1  # of prctl(2)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)

Kind = Literal["auto", "serial", "workers", "cohort"]


class Executor(Protocol):
    """Answers calls; ``run`` yields (position of the call, answer) as answers come."""

    name: str

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]: ...

    def close(self) -> None: ...


def make_executor(site: Site, kind: Kind = "auto", workers: int | None = None) -> Executor:
    """``workers`` processes; one means none but this. By default as many as there are cores, on Linux without a GPU."""
    if kind == "serial":
        workers = 1
    elif workers is None:
        possible = sys.platform == "linux" and site.device.type == "cpu"
        workers = min(len(os.sched_getaffinity(0)), len(site.trainees)) if possible else 1
    gc.freeze()  # nothing that is here now is garbage: neither look through it again nor, in a worker, copy it
    if workers > 1:
        return Workers(site, workers)
    keep_freed_memory()
    return Serial(site)


def keep_freed_memory() -> None:
    """Let the C library keep what was freed: a step frees and asks for the same again, and new pages are slow."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(M_TRIM_THRESHOLD, 512 << 20)


class Serial:
    """One job after another, in this process."""

    name = "serial"

    def __init__(self, site: Site) -> None:
        self.site = site

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        for job in self.site.jobs(calls):
            yield from zip(job, self.site.answer([calls[i] for i in job]), strict=True)

    def close(self) -> None:
        pass


class _Worker:
    """The parent's side of one process: a pipe for words, and memory in which each writes its tensors."""

    def __init__(self, site: Site, common: Region, others: Sequence[_Worker]) -> None:
        context = multiprocessing.get_context("fork")
        self.end, there = context.Pipe()
        self.inbox, self.outbox = Region(), Region()
        ends = [*(other.end for other in others), self.end]
        self.process = context.Process(target=_serve, args=(site, there, common, self.inbox, self.outbox, ends))
        self.process.daemon = True
        self.process.start()
        there.close()

    def close(self, deadline: float) -> None:
        """Its pipe is closed already, and it ends when it sees that; one in the middle of something is made to."""
        self.process.join(timeout=max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()
        self.inbox.close()
        self.outbox.close()


class Workers:
    """Processes that live as long as the run; each holds the same Site and takes the next job when it is free.

    They are forked, so recordings are shared without a copy and methods or networks defined in a notebook work. Tensors
    cross in shared memory, everything else as JSON.
    """

    name = "workers"

    def __init__(self, site: Site, count: int) -> None:
        self.site = site
        self._common = Region()  # what goes to many is written once
        self._workers: list[_Worker] = []
        for _ in range(count):
            self._workers.append(_Worker(site, self._common, self._workers))

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        uses = Counter(id(t) for call in calls for b in call.bundles.values() for p in b.values() for t in p.values())
        many = {key for key, count in uses.items() if count > 1}
        self._common.clear()
        jobs = iter(self.site.jobs(calls))
        busy: dict[Any, tuple[_Worker, list[int]]] = {}
        try:
            for worker, job in zip(self._workers, jobs, strict=False):
                self._send(worker, [calls[i] for i in job], many)
                busy[worker.end] = (worker, job)
            while busy:
                for end in wait(list(busy)):
                    worker, job = busy.pop(end)
                    answers = _receive_answers(worker, [calls[i] for i in job])
                    following = next(jobs, None)
                    if following is not None:
                        self._send(worker, [calls[i] for i in following], many)
                        busy[worker.end] = (worker, following)
                    yield from zip(job, answers, strict=True)
        finally:
            if busy:  # left in the middle: what is under way would answer the next question
                self.close()

    def _send(self, worker: _Worker, calls: Sequence[Call], many: set[int]) -> None:
        worker.inbox.clear()

        def place(tensor: torch.Tensor) -> list[Any]:
            common = id(tensor) in many
            return [common, *(self._common if common else worker.inbox).write(tensor)]

        message = [[c.job, c.clients, c.round, c.score, _each(c.bundles, place)] for c in calls]
        try:
            worker.end.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise _dead(calls[0]) from error

    def close(self) -> None:
        for worker in self._workers:
            worker.end.close()
        deadline = time.monotonic() + 1
        for worker in self._workers:
            worker.close(deadline)
        if self._workers:
            self._common.close()
        self._workers = []


def _serve(
    site: Site, end: Connection[Any, Any], common: Region, inbox: Region, outbox: Region, others: list[Any]
) -> None:
    """A worker's life: answer jobs until the other end is gone."""
    if sys.platform == "linux":  # a worker in the middle of a long update ends with its parent, too
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # held open here, they would hide the parent's end from its other workers
        other.close()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        while True:
            calls = [
                Call(
                    job, tuple(clients), round, _each(bundles, lambda p: (common if p[0] else inbox).read(p[1:])), score
                )
                for job, clients, round, score, bundles in json.loads(end.recv_bytes())
            ]
            try:
                answers = site.answer(calls)
            except Exception as error:  # told to the parent, which raises it
                kind = "UserError" if isinstance(error, UserError) else "RunFailed"
                said = str(error) if isinstance(error, FedsenseError) else f"{type(error).__name__}: {error}"
                reply: Any = {"error": said, "kind": kind, "trace": traceback.format_exc()}
            else:
                outbox.clear()
                reply = [[_each(answer.bundles, outbox.write), answer.data] for answer in answers]
            end.send_bytes(json.dumps(reply).encode())
    except (EOFError, OSError):
        os._exit(0)


def _each(bundles: Mapping[str, Mapping[str, Mapping[str, Any]]], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The Bundles with something else in the place of every tensor: where it is, or the other way round."""
    return {
        bundle: {group: {name: change(t) for name, t in params.items()} for group, params in groups.items()}
        for bundle, groups in bundles.items()
    }


def _receive_answers(worker: _Worker, calls: Sequence[Call]) -> list[Answer]:
    try:
        reply = json.loads(worker.end.recv_bytes())
    except (EOFError, OSError) as error:
        raise _dead(calls[0]) from error
    if isinstance(reply, dict):
        failure = {"UserError": UserError, "RunFailed": RunFailed}[reply["kind"]](reply["error"])
        failure.add_note(reply["trace"])
        raise failure
    copies: dict[tuple[int, ...], torch.Tensor] = {}  # the worker will write there again; what is one stays one

    def copy(place: list[Any]) -> torch.Tensor:
        key = (place[2], *place[1])
        if key not in copies:
            copies[key] = worker.outbox.read(place).clone()
        return copies[key]

    return [Answer(_each(bundles, copy), data) for bundles, data in reply]


def _dead(call: Call) -> RunFailed:
    who = ", ".join(f"'{client}'" for client in call.clients[:3])
    return RunFailed(
        f"the worker process for client {who} died in round {call.round} (killed, or out of memory?); "
        "go on with --resume, with fewer workers (workers = 1) if memory is short"
    )
