"""The server's side of a fleet: an executor whose calls go over Flower's Grid to the nodes that have the clients.

A step does not hang: nodes have until a deadline, and enough of those asked must have answered by then, or they are
asked again. What came is checked before a method sees it; a client that is lost, late, failed or refused is named in
the log and in the ledger, and the run goes on with the others.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any
from uuid import uuid4

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsense.bundle import Bundle, payload
from fedsense.engine.folder import read_json, write_json
from fedsense.engine.rounds import HELD_OUT, NEW_CLIENT, Engine, Settings
from fedsense.engine.site import TRAINS, Answer, Call
from fedsense.errors import RunFailed, UserError
from fedsense.federation import Federation
from fedsense.flower.records import Malformed, answers_from_records, calls_to_records, size_of, text_of, to_records
from fedsense.flower.roster import Introduction, Roster
from fedsense.method import MODEL_GROUPS
from fedsense.recipe import Recipe

ELSEWHERE = ("generalisation", *HELD_OUT, NEW_CLIENT)  # views that need recordings of several clients in one place
SHORTEST, LONGEST = 0.05, 0.5  # seconds between looking for replies
GREETING = 60.0  # seconds a node has to say who it is
SOON, AGAIN = 1.0, 300.0  # seconds after which one that did not is asked again, before a run and during one
LOOKERS = 32  # threads that do so
FLEET_FILE = "fleet.json"
log = logging.getLogger("fedsense.fleet")


@dataclass(frozen=True)
class Terms:
    """What the server grants nodes."""

    nodes: int = 1  # how many must be there before a run begins
    wait: float = 600.0  # seconds to wait for them
    deadline: float = 600.0  # seconds a node has to answer
    quorum: float = 0.5  # share of the clients asked that must answer
    attempts: int = 3  # times those who did not are asked, if they are too few
    room: float = 4.0  # an upload may be so many times as large as the client's model and what came down; and 1 MB

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.attempts < 1:
            raise UserError("a fleet has at least one node, and asks at least once")
        if not 0 < self.quorum <= 1:
            raise UserError(f"quorum is {self.quorum:g}; it is a share of the clients asked, above 0 and up to 1")
        if min(self.deadline, self.wait, self.room) <= 0:
            raise UserError("deadline, wait and room must be positive")


class Fleet:
    """The nodes of an experiment, and which of them has which client."""

    def __init__(self, grid: Grid, folder: Path, terms: Terms) -> None:
        self.grid, self.folder, self.terms = grid, folder, terms
        self.home: dict[str, int] = {}  # client -> node
        self._met: dict[int, Introduction] = {}  # nodes that said who they are
        self._later: dict[int, float] = {}  # nodes that did not, and when to ask them again
        self._recipe: Recipe | None = None
        self._rosters: dict[int, Roster] = {}
        self._seed = 0
        saved = read_json(folder / FLEET_FILE) if (folder / FLEET_FILE).exists() else {}
        self.key: str = saved.get("key") or uuid4().hex[:16]  # by which nodes know this experiment again
        self._rosters = {int(seed): Roster.read(roster) for seed, roster in saved.get("rosters", {}).items()}

    # -- what fedsense.experiment asks of a place -----------------------------------------------------------------

    def federation(self, recipe: Recipe, seed: int) -> Federation:
        """Everyone the nodes have introduced; waits for as many nodes as the terms say."""
        self._recipe, self._seed, self._met, self.home = recipe, seed, {}, {}
        if seed not in self._rosters:
            self._rosters[seed] = self._wait()
            self._write()
            self._settle(sorted(self._met))
        self.meet()
        return self._rosters[seed].federation()

    def settings(self, settings: Settings) -> Settings:
        """Every client trains alone, on its node; nobody has everyone's recordings to score on."""
        views = tuple(view for view in settings.views if view not in ELSEWHERE)
        if left_out := set(settings.views) - set(views):
            log.warning("views left out, because nobody has everyone's recordings: %s", ", ".join(sorted(left_out)))
        return replace(settings, views=views or ("personal",), executor="serial", workers=1, device="cpu")

    def executor(self, engine: Engine) -> Caller:
        return Caller(self, engine)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Ask nodes that were not there before who they are."""
        online = set(self.grid.get_node_ids())
        for node in set(self._met) - online:  # it may come back with another number, or with other clients
            del self._met[node]
        now = time.monotonic()
        new = sorted(node for node in online - set(self._met) if self._later.get(node, 0.0) <= now)
        if not new:
            return
        assert self._recipe is not None
        question = to_records([], {"recipe": self._recipe.model_dump(mode="json"), "seed": self._seed})
        patience = min(self.terms.deadline, GREETING)  # whoever reads its recordings for longer has them the next time
        for node, reply in self.exchange(dict.fromkeys(new, question), "query", patience, "hello"):
            try:
                if isinstance(reply, str):
                    raise ValueError(reply)
                said = text_of(reply)
                if "failure" in said:
                    raise ValueError(said["failure"])
                self._met[node] = Introduction.of(said)
            except ValueError as error:
                running = self._seed in self._rosters
                self._later[node] = time.monotonic() + (AGAIN if running else SOON)
                log.warning("node %s is of no use: %s", node, error)
        self._settle(new)

    def _settle(self, new: Iterable[int]) -> None:
        """Clients of the roster have a home where they were met; one that is met twice stays unless it moved."""
        if self._seed not in self._rosters:
            return
        known = {entry.id: entry for entry in self._rosters[self._seed].clients}
        for node in new:
            for entry in introduced.clients if (introduced := self._met.get(node)) else ():
                if entry.id not in known:
                    log.warning("client '%s' came after the run began, and is not part of it", entry.id)
                elif (entry.mark, entry.shape) != (known[entry.id].mark, known[entry.id].shape):
                    log.warning("node %s has other recordings of '%s' than the run began with: refused", node, entry.id)
                else:
                    if entry.id in self.home:
                        log.info("client '%s' is now on node %s", entry.id, node)
                    self.home[entry.id] = node

    def _wait(self) -> Roster:
        end = time.monotonic() + self.terms.wait
        while True:
            self.meet()
            here = {node: met for node, met in self._met.items() if met.clients}
            if len(here) >= self.terms.nodes:
                return Roster.of([here[node] for node in sorted(here)])
            if time.monotonic() > end:
                raise RunFailed(
                    f"{len(here)} of {self.terms.nodes} nodes came within {self.terms.wait:g} s; start the others "
                    "(fedsense fleet node), see what they say, or ask for fewer (--nodes)"
                )
            time.sleep(LONGEST)

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        rosters = {str(seed): roster.written() for seed, roster in self._rosters.items()}
        write_json(self.folder / FLEET_FILE, {"key": self.key, "terms": asdict(self.terms), "rosters": rosters})

    # -- messages -------------------------------------------------------------------------------------------------

    def exchange(
        self, letters: Mapping[int, RecordDict], kind: str, deadline: float, about: str
    ) -> Iterator[tuple[int, RecordDict | str]]:
        """One message a node; each reply as it comes, or why there is none."""
        if not letters:
            return
        nodes = list(letters)
        ids = self.grid.push_messages([Message(letters[n], n, kind, ttl=deadline, group_id=about) for n in nodes])
        waiting: dict[str, int] = {}
        for node, message in zip(nodes, ids, strict=False):
            if message:
                waiting[message] = node
            else:
                yield node, "its node cannot be reached"
        end = time.monotonic() + deadline
        arrived: Queue[tuple[str, Message | Exception]] = Queue()
        each = list(waiting)
        for i in range(min(LOOKERS, len(each))):
            Thread(target=self._look, args=(each[i::LOOKERS], end, arrived), daemon=True).start()
        while waiting and (left := end - time.monotonic()) > 0:
            try:
                message, reply = arrived.get(timeout=left)
            except Empty:
                break
            if message in waiting:
                yield waiting.pop(message), _content(reply)
        for node in waiting.values():
            yield node, f"it did not answer within {deadline:g} s"

    def _look(self, messages: Sequence[str], end: float, arrived: Queue[tuple[str, Message | Exception]]) -> None:
        """Look for replies until all are there. Whoever dies while sending holds up this thread, and no other."""
        waiting, pause = set(messages), SHORTEST
        while waiting and time.monotonic() < end:
            try:
                replies = list(self.grid.pull_messages(sorted(waiting)))
            except Exception as error:  # whatever Flower meets, the run goes on without these nodes
                for message in waiting:
                    arrived.put((message, error))
                return
            for reply in replies:
                waiting.discard(reply.metadata.reply_to_message_id)
                arrived.put((reply.metadata.reply_to_message_id, reply))
            pause = SHORTEST if replies else min(pause * 1.2, LONGEST)
            if waiting:
                time.sleep(min(pause, max(0.0, end - time.monotonic())))


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
        for attempt in range(self.fleet.terms.attempts):
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


def _content(reply: Message | Exception) -> RecordDict | str:
    if isinstance(reply, Exception):
        return f"{type(reply).__name__}: {reply}"
    return f"{reply.error.reason}" if reply.has_error() else reply.content


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
