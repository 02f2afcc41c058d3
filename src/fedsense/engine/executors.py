"""Where local updates run: one after another here, or in worker processes. Both give the same bits.

Every local update runs on one thread, whichever executor runs it: the order in which numbers are added then depends on
nothing but the recipe. Two one-thread processes are also faster than two threads on networks of this size.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from fedsense.bundle import Bundle, from_bytes, to_bytes
from fedsense.engine.site import Answer, Call, Site
from fedsense.errors import FedsenseError, RunFailed, UserError

PR_SET_PDEATHSIG = 1  # of prctl(2)


class Executor(Protocol):
    """Answers calls; ``run`` yields (position of the call, answer) as answers come."""

    name: str

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]: ...

    def close(self) -> None: ...


def make_executor(site: Site, workers: int | None = None) -> Executor:
    """``workers`` processes; one means none but this. By default as many as there are cores, on Linux without a GPU."""
    if workers is None:
        possible = sys.platform == "linux" and site.device.type == "cpu"
        workers = min(len(os.sched_getaffinity(0)), len(site.trainees)) if possible else 1
    return Workers(site, workers) if workers > 1 else Serial(site)


class Serial:
    """One call after another, in this process."""

    name = "serial"

    def __init__(self, site: Site) -> None:
        self.site = site

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        for position, call in enumerate(calls):
            yield position, self.site.handle(call)

    def close(self) -> None:
        pass


Packed = dict[tuple[tuple[str, int], ...], bytes | None]


class Workers:
    """Processes that live as long as the run; each holds the same Site and takes the next call when it is free.

    They are forked, so recordings are shared without a copy and methods or networks defined in a notebook work. Bundles
    cross as safetensors, everything else as JSON.
    """

    name = "workers"

    def __init__(self, site: Site, count: int) -> None:
        context = multiprocessing.get_context("fork")
        self._ends: list[Connection[Any, Any]] = []
        self._processes = []
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(site, there, [*self._ends, here]), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        uses = Counter(_identity(bundle) for call in calls for bundle in call.bundles.values())
        packed: Packed = {key: None for key, count in uses.items() if count > 1}  # goes to many, is serialised once
        waiting = iter(enumerate(calls))
        busy: dict[Connection[Any, Any], int] = {}
        try:
            for end, (position, call) in zip(self._ends, waiting, strict=False):
                _send_call(end, call, packed)
                busy[end] = position
            while busy:
                for ready in wait(list(busy)):
                    end = ready  # type: ignore[assignment]
                    position = busy.pop(end)
                    answer = _receive_answer(end, calls[position])
                    following = next(waiting, None)
                    if following is not None:
                        _send_call(end, following[1], packed)
                        busy[end] = following[0]
                    yield position, answer
        finally:
            if busy:  # left in the middle: what is under way would answer the next question
                self.close()

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(timeout=1)
            if process.is_alive():
                process.terminate()
                process.join()
        self._ends, self._processes = [], []


def _serve(site: Site, end: Connection[Any, Any], others: list[Connection[Any, Any]]) -> None:
    """A worker's life: answer calls until the other end is gone."""
    if sys.platform == "linux":  # a worker in the middle of a long update ends with its parent, too
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # held open here, they would hide the parent's end from its other workers
        other.close()
    torch.set_num_threads(1)
    try:
        while True:
            call = _receive_call(end)
            try:
                answer = site.handle(call)
            except FedsenseError as error:  # told to the parent, which raises it
                kind = "UserError" if isinstance(error, UserError) else "RunFailed"
                _send(end, {"error": str(error), "kind": kind, "trace": traceback.format_exc()}, {})
            else:
                _send(end, {"data": answer.data}, {name: to_bytes(b) for name, b in answer.bundles.items()})
    except (EOFError, OSError):
        os._exit(0)


def _send(end: Connection[Any, Any], head: dict[str, Any], blobs: Mapping[str, bytes]) -> None:
    end.send_bytes(json.dumps({**head, "blobs": list(blobs)}).encode())
    for blob in blobs.values():
        end.send_bytes(blob)


def _receive(end: Connection[Any, Any]) -> tuple[dict[str, Any], dict[str, Bundle]]:
    head = json.loads(end.recv_bytes())
    return head, {name: from_bytes(end.recv_bytes()) for name in head["blobs"]}


def _identity(bundle: Bundle) -> tuple[tuple[str, int], ...]:
    """Two Bundles of the same groups, the very objects, are one: a broadcast may put them together anew for each."""
    return tuple((group, id(params)) for group, params in bundle.items())


def _send_call(end: Connection[Any, Any], call: Call, packed: Packed) -> None:
    blobs = {}
    for name, bundle in call.bundles.items():
        key = _identity(bundle)
        blob = packed.get(key)
        if blob is None:
            blob = to_bytes(bundle)
            if key in packed:
                packed[key] = blob
        blobs[name] = blob
    head = {"job": call.job, "clients": call.clients, "round": call.round, "score": call.score}
    try:
        _send(end, head, blobs)
    except OSError as error:
        raise _dead(call) from error


def _receive_call(end: Connection[Any, Any]) -> Call:
    head, bundles = _receive(end)
    return Call(head["job"], tuple(head["clients"]), head["round"], bundles, head["score"])


def _receive_answer(end: Connection[Any, Any], call: Call) -> Answer:
    try:
        head, bundles = _receive(end)
    except (EOFError, OSError) as error:
        raise _dead(call) from error
    if "error" in head:
        failure = {"UserError": UserError, "RunFailed": RunFailed}[head["kind"]](head["error"])
        failure.add_note(head["trace"])
        raise failure
    return Answer(bundles, head["data"])


def _dead(call: Call) -> RunFailed:
    who = ", ".join(f"'{client}'" for client in call.clients[:3])
    return RunFailed(
        f"the worker process for client {who} died in round {call.round} (killed, or out of memory?); "
        "go on with --resume, with fewer workers (workers = 1) if memory is short"
    )
