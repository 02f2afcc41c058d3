"""The executor of a run on a fleet: calls go to the nodes that have the clients, and what comes back is checked.

A client that is lost, late, failed or refused is named in the log and in the ledger, and the run goes on with the
others, if they are enough.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import RecordDict

from fedsense.bundle import Bundle, payload
from fedsense.engine.rounds import Engine
from fedsense.engine.site import TRAINS, Answer, Call
from fedsense.errors import RunFailed
from fedsense.flower.records import Malformed, answers_from_records, calls_to_records, size_of, text_of
from fedsense.method import MODEL_GROUPS

if TYPE_CHECKING:
    from fedsense.flower.fleet import Fleet

log = logging.getLogger("fedsense.fleet")


class Caller:
    """The executor of one run on the fleet."""

    name = "fleet"

    def __init__(self, fleet: Fleet, engine: Engine) -> None:
        self.fleet, self.engine = fleet, engine
        site, task = engine.site, engine.site.task
        label = engine.about["label"]
        self._run = {
            "key": f"{fleet.key}-{label.replace(' ', '_')}-seed{engine.settings.seed}",
            "recipe": engine.about["recipe"],
            "label": label,
            "seed": engine.settings.seed,
            "views": engine.settings.views,
            "metrics": engine.settings.metrics,
            "moment": engine.settings.moment,
            "task": {"classes": task.classes, "kind": task.kind, "values": task.values, "features": task.features},
        }
        self._architectures = {client.id: site.architecture(client.id) for client in engine.federation}
        self._usual: dict[Any, Any] = {}  # kind of client and job -> what an upload looks like

    def run(self, calls: Sequence[Call]) -> Iterator[tuple[int, Answer]]:
        """Answers as they come; of clients that gave none, why, at the end."""
        if not calls:
            return
        trains = calls[0].job in TRAINS
        needed = max(1, math.ceil(self.fleet.terms.quorum * len(calls) - 1e-9)) if trains else 0
        failed: dict[int, Answer] = {i: Answer() for i in range(len(calls))}
        asked = time.monotonic()
        for attempt in range(self.fleet.terms.attempts):
            if attempt:  # a node that is gone has the rest of the deadline to come back
                self.fleet.wait_for([calls[i].clients[0] for i in failed], asked + self.fleet.terms.deadline)
            asked = time.monotonic()
            came = {}
            for i, answer in self._once(calls, sorted(failed)):
                if answer.failure:
                    failed[i] = answer
                    log.warning("round %s, %s: client '%s': %s", *_what(calls[i]), answer.failure)
                elif trains:
                    came[i] = answer
                else:
                    del failed[i]
                    yield i, answer
            for i, answer in self._alike(calls, came).items():
                if answer.failure:
                    failed[i] = answer
                    log.warning("round %s, %s: client '%s': %s", *_what(calls[i]), answer.failure)
                else:
                    del failed[i]
                    yield i, answer
            if len(calls) - len(failed) >= needed:
                yield from failed.items()
                return
            log.warning("%s of %s answered; attempt %s", len(calls) - len(failed), len(calls), attempt + 1)
        reasons = "; ".join(f"'{calls[i].clients[0]}': {answer.failure}" for i, answer in list(failed.items())[:5])
        raise RunFailed(
            f"round {calls[0].round}: {len(calls) - len(failed)} of {len(calls)} clients answered, and {needed} are "
            f"needed (quorum {self.fleet.terms.quorum:g}); {reasons}. What was done is kept: go on with --resume"
        )

    def close(self) -> None:
        pass

    def _once(self, calls: Sequence[Call], asked: Sequence[int]) -> Iterator[tuple[int, Answer]]:
        """Ask every node once for all that its clients are asked; a call to several clients may go to several nodes."""
        self.fleet.meet()
        parts: dict[int, list[tuple[int, Call]]] = {}
        open_parts: Counter[int] = Counter()
        gathered: dict[int, list[tuple[Call, Answer]]] = {i: [] for i in asked}
        for i in asked:
            homes: dict[int | None, list[str]] = {}
            for client in calls[i].clients:
                homes.setdefault(self.fleet.home.get(client), []).append(client)
            for node, clients in homes.items():
                part = replace(calls[i], clients=tuple(clients))
                if node is None:
                    gathered[i].append((part, Answer(failure="its node is not connected")))
                else:
                    parts.setdefault(node, []).append((i, part))
                    open_parts[i] += 1
        for i in asked:
            if not open_parts[i]:
                yield i, _together(gathered[i])
        for node, reply in self._send(parts):
            for (i, part), answer in zip(parts[node], self._read(reply, [p for _, p in parts[node]]), strict=True):
                gathered[i].append((part, answer))
                open_parts[i] -= 1
                if not open_parts[i]:
                    yield i, _together(gathered[i])

    def _send(self, parts: Mapping[int, Sequence[tuple[int, Call]]]) -> Iterator[tuple[int, RecordDict | str]]:
        letters, about = {}, "work"
        for node, entries in parts.items():
            asked = [call for _, call in entries]
            extra = [{"base": {c: self.engine.accepted(c) for c in call.clients}} for call in asked]
            here = sorted(client for client, home in self.fleet.home.items() if home == node)
            run = {**self._run, "architectures": {c: self._architectures[c] for c in here}}
            letters[node] = calls_to_records(asked, extra, {"run": run})
            about = f"{asked[0].round}"
        yield from self.fleet.exchange(letters, "train", self.fleet.terms.deadline, about)

    # -- what is wrong with an answer -----------------------------------------------------------------------------

    def _read(self, reply: RecordDict | str, calls: Sequence[Call]) -> list[Answer]:
        """The answers in a node's reply, each checked; a refusal names what was wrong."""
        if isinstance(reply, str):
            return [Answer(failure=reply) for _ in calls]
        try:
            room = sum(self._room(call) for call in calls)
            if (size := size_of(reply)) > room:
                raise Malformed(f"it sent {size / 1e6:.1f} MB, and {room / 1e6:.1f} MB are allowed")
            said = text_of(reply)
            if "failure" in said:
                return [Answer(failure=str(said["failure"])) for _ in calls]
            answers = answers_from_records(reply)
            if len(answers) != len(calls):
                raise Malformed(f"it sent {len(answers)} answers to {len(calls)} questions")
        except Malformed as error:
            return [Answer(failure=f"refused: {error}") for _ in calls]
        return [self._checked(call, answer) for call, answer in zip(calls, answers, strict=True)]

    def _checked(self, call: Call, answer: Answer) -> Answer:
        if answer.failure:
            return Answer(failure=answer.failure)
        if call.job not in TRAINS:
            sent = sum(sum(payload(bundle).values()) for bundle in call.bundles.values())
            if not _scores(answer.data.get("scores")):
                return Answer(failure="refused: it sent no scores")
            return Answer({}, {"scores": answer.data["scores"], "bytes": sent})
        upload = answer.bundles.get("upload", {})
        if wrong := self._wrong(call, upload) or _wrong_numbers(answer.data):
            return Answer(failure=f"refused: {wrong}")
        return Answer({"upload": upload}, answer.data)

    def _wrong(self, call: Call, upload: Bundle) -> str:
        """What of an upload a method must not see: values that are not finite, parameters of other shapes."""
        member = self.engine.site.task.members.get(call.clients[0])
        for group, params in upload.items():
            for name, tensor in params.items():
                where = name if group in MODEL_GROUPS else f"{group}/{name}"
                if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                    return f"'{where}' has values that are not finite"
                expected = member.shapes.get(name) if member else None
                if expected is not None and tuple(tensor.shape) != tuple(expected):
                    return f"'{where}' has shape {list(tensor.shape)}, not {list(expected)}"
        return ""

    def _alike(self, calls: Sequence[Call], came: Mapping[int, Answer]) -> dict[int, Answer]:
        """Clients of one network upload alike: who differs from what was accepted before, or from most, is refused."""
        kinds: dict[Any, dict[int, Any]] = {}
        for i, answer in came.items():
            client = calls[i].clients[0]
            kind = (calls[i].job, self._architectures.get(client), self.engine.federation[client].input_shape)
            kinds.setdefault(kind, {})[i] = _signature(answer.bundles["upload"])
        result = dict(came)
        for kind, signatures in kinds.items():
            most, count = Counter(signatures.values()).most_common(1)[0]
            usual = self._usual.get(kind, most if 2 * count > len(signatures) else None)
            for i, signature in signatures.items():
                if usual is not None and signature != usual:
                    result[i] = Answer(failure=f"refused: {_difference(signature, usual)}")
            if usual is not None:
                self._usual[kind] = usual
        return result

    def _room(self, call: Call) -> int:
        if call.job not in TRAINS:
            return 1 << 20
        member = self.engine.site.task.members.get(call.clients[0])
        own = 4 * sum(math.prod(shape) for shape in member.shapes.values()) if member else 0
        down = sum(sum(payload(bundle).values()) for bundle in call.bundles.values())
        return int(self.fleet.terms.room * (own + down)) + (1 << 20)


def _what(call: Call) -> tuple[int, str, str]:
    return call.round, call.job, "', '".join(call.clients)


def _together(parts: Sequence[tuple[Call, Answer]]) -> Answer:
    """The answer to a call, from those of the nodes it went to."""
    if len(parts) == 1:
        return parts[0][1]
    good = [answer for _, answer in parts if not answer.failure]
    unscored = {client: answer.failure for call, answer in parts if answer.failure for client in call.clients}
    scores = {client: score for answer in good for client, score in answer.data["scores"].items()}
    return Answer({}, {"scores": scores, "unscored": unscored, "bytes": sum(a.data.get("bytes", 0) for a in good)})


def _signature(upload: Bundle) -> tuple[tuple[str, str, torch.dtype, tuple[int, ...]], ...]:
    return tuple(
        sorted(
            ((group, name, t.dtype, tuple(t.shape)) for group, params in upload.items() for name, t in params.items()),
            key=str,
        )
    )


def _difference(signature: Sequence[Any], usual: Sequence[Any]) -> str:
    known = {(group, name): (dtype, shape) for group, name, dtype, shape in usual}
    for group, name, dtype, shape in signature:
        if (group, name) not in known:
            return f"it sent '{group}/{name}', which others of its network do not"
        if known[group, name] != (dtype, shape):
            return (
                f"'{group}/{name}' is {dtype} {list(shape)}, not {known[group, name][0]} {list(known[group, name][1])}"
            )
    return "something that others of its network send is missing"


def _scores(value: Any) -> bool:
    """Whether it is nested dicts of numbers."""
    if isinstance(value, dict):
        return all(_scores(v) for v in value.values())
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong_numbers(data: Mapping[str, Any]) -> str:
    if not isinstance(data.get("seconds"), int | float) or not isinstance(data.get("peak_memory_bytes"), int):
        return "it does not say how long it took"
    if not _scores(data.get("metrics", {})) or not _scores(data.get("scores", {})):
        return "its scores are no numbers"
    return ""
