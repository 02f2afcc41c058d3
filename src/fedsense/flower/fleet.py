"""The server's side of a fleet: which node has which client, and messages to them over Flower's Grid.

No exchange hangs: nodes have until a deadline. What is asked of them, and what of their answers is used, is in
:mod:`fedsense.flower.caller`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from uuid import uuid4

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsense.engine.folder import read_json, write_json
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import HELD_OUT, NEW_CLIENT, Settings
from fedsense.errors import RunFailed, UserError
from fedsense.federation import Federation
from fedsense.flower.caller import Caller
from fedsense.flower.pace import Patience
from fedsense.flower.records import text_of, to_records
from fedsense.flower.roster import Introduction, Roster
from fedsense.recipe import Recipe

ELSEWHERE = ("generalisation", *HELD_OUT, NEW_CLIENT)  # views that need recordings of several clients in one place
SHORTEST, LONGEST = 0.05, 1.0  # seconds between looking for replies
AT_ONCE = 4  # threads that may look so often; more share the pace, or the SuperLink would do nothing else
BETWEEN = 0.5  # seconds between looking for nodes
GREETING = 60.0  # seconds a node has to say who it is
SOON, AGAIN = 1.0, 300.0  # seconds after which one that did not is asked again: before a run, and at most during one
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
        self._silent: Counter[int] = Counter()  # and how often they did not
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
        else:  # a run that goes on: its nodes have lost their server, and need a moment to find it again
            everyone = [entry.id for entry in self._rosters[seed].clients]
            self.wait_for(everyone, time.monotonic() + min(self.terms.wait, GREETING))
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
                self._silent.pop(node, None)
            except ValueError as error:
                running = self._seed in self._rosters
                pause = min(AGAIN, SOON * 4 ** self._silent[node]) if running else SOON  # asking holds the others up
                self._silent[node] += 1
                self._later[node] = time.monotonic() + pause
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
            time.sleep(BETWEEN)

    def wait_for(self, clients: Sequence[str], until: float) -> None:
        """Until the nodes of these clients are connected."""
        while time.monotonic() < until:
            self.meet()
            if all(self.home.get(client) in self._met for client in clients):
                return
            time.sleep(max(0.0, min(BETWEEN, until - time.monotonic())))

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
        lookers = min(LOOKERS, len(each))
        for i in range(lookers):
            patience = Patience(SHORTEST * max(1.0, lookers / AT_ONCE), LONGEST)
            Thread(target=self._look, args=(each[i::LOOKERS], end, arrived, patience), daemon=True).start()
        while waiting and (left := end - time.monotonic()) > 0:
            try:
                message, reply = arrived.get(timeout=left)
            except Empty:
                break
            if message in waiting:
                yield waiting.pop(message), _content(reply)
        for node in waiting.values():
            yield node, f"it did not answer within {deadline:g} s"

    def _look(
        self, messages: Sequence[str], end: float, arrived: Queue[tuple[str, Message | Exception]], patience: Patience
    ) -> None:
        """Look for replies until all are there. Whoever dies while sending holds up this thread, and no other."""
        waiting = set(messages)
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
            if replies:
                patience.over()
            if waiting:
                time.sleep(min(patience.pause(), max(0.0, end - time.monotonic())))


def _content(reply: Message | Exception) -> RecordDict | str:
    if isinstance(reply, Exception):
        return f"{type(reply).__name__}: {reply}"
    return f"{reply.error.reason}" if reply.has_error() else reply.content
