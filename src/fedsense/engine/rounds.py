"""Rounds: choose clients, broadcast, update locally, aggregate, score, checkpoint, tell listeners."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedsense import __version__
from fedsense.bundle import Bundle, nested, payload, within
from fedsense.engine import checkpoint as checkpoints
from fedsense.engine import folder as folders
from fedsense.engine.checkpoint import Checkpoint
from fedsense.engine.executors import Executor, make_executor
from fedsense.engine.folder import alone
from fedsense.engine.origin import session
from fedsense.engine.record import Record
from fedsense.engine.settings import HELD_OUT, NEW_CLIENT, Settings
from fedsense.engine.site import TRAINS, Answer, Call, Scores, Site
from fedsense.engine.store import Kept, Store
from fedsense.errors import FedsenseError, RunFailed, UserError
from fedsense.evaluation.metrics import check_metrics
from fedsense.evaluation.summary import POOLED
from fedsense.federation import Federation
from fedsense.method import Method
from fedsense.models.spec import ModelSpec
from fedsense.ops.prototypes import prototypes_moved
from fedsense.work import stream

# A checkpoint is written when it costs less than this share of the time since the one before, and after the last round.
CHECKPOINT_SHARE = 0.01
AT_ONCE = 256  # clients whose models or recordings are in memory together to be scored
MEASURED = ("seconds", "together", "peak_memory_bytes", "metrics", "anew")  # of an update, for the ledger


class Listener:
    """Told how a run goes. All functions may be left as they are."""

    def started(self, engine: Engine) -> None: ...

    def client_done(self, engine: Engine, round: int, done: int, total: int) -> None:
        """In round 0 clients get ready; after the last one, if the run is to finish, each trains for itself."""

    def round_done(self, engine: Engine, round: int) -> None: ...

    def failed(self, engine: Engine, failure: RunFailed) -> None:
        """The run cannot go on."""

    def stopped(self, engine: Engine) -> None:
        """All rounds are done, or the run failed or was interrupted."""


@dataclass
class Engine:
    """One method on one federation with one seed."""

    federation: Federation
    method: Method
    model: ModelSpec
    settings: Settings = field(default_factory=Settings)
    folder: Path | None = None
    listeners: Sequence[Listener] = ()
    about: Mapping[str, Any] = field(default_factory=dict)  # what else run.json shall say
    # Where clients are, if not here: gives the executor that reaches them. They keep their states themselves, some may
    # not answer, and there is a checkpoint after every round.
    place: Callable[[Engine], Executor] | None = None

    def __post_init__(self) -> None:
        s = self.settings
        check_metrics(s.metrics, self.federation.task)
        self.site = Site(
            self.federation,
            self.method,
            self.model,
            s.seed,
            views=s.views,
            metrics=s.metrics,
            moment=s.moment,
            pool=s.pool,
            device=s.torch_device(),
            executor=s.executor,
        )
        for view in s.views:
            if view in (*HELD_OUT, NEW_CLIENT):
                _refuse_without_newcomers(self.site, view)
        self.trainees = sorted(client.id for client in self.site.trainees if len(client.train))
        if not self.trainees:
            raise UserError(f"no client of '{self.federation.name}' has training data")
        self.server: Bundle = self.site.first_server
        store = Store(s.state_memory, self.folder)
        self.states = store.shelf("state")  # what clients keep; absent until their first update
        self.trained = store.shelf("trained")  # the model a client trained last, where its state does not hold it
        self.scores: dict[str, Scores] = {}  # each client's latest own scores
        self.record = Record()
        self.round = 0
        self.executor: Executor | None = None
        self._files = Checkpoint(0, {}, {}, {})
        self._changed: set[str] = set()
        self._last_saved, self._saving_took = time.monotonic(), 0.0
        self._between_rounds = True
        self._accepted: dict[str, int] = {}
        self._lines_read = 0
        self._unscored: dict[str, str] = {}
        self._scoring_bytes = 0

    def run(self, previous: bool = False, models: bool = True) -> None:
        """All rounds that are left; with a folder, from its newest checkpoint (see :meth:`restore`).

        Without ``models`` a run that has ended is not loaded: what it measured is read, its models stay on the disk.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # see engine/executors.py
        lock = alone(self.folder) if self.folder else nullcontext()
        with lock:
            try:
                if models or previous or not self._ended():
                    self._run(previous)
            finally:
                torch.set_num_threads(threads)

    def _ended(self) -> bool:
        rounds = self.settings.rounds
        if self.folder is None or (records := checkpoints.records_of_ended(self.folder, rounds)) is None:
            return False
        self.claim()
        self.record, self.round = Record(self.folder, records, write=False), rounds
        for listener in self.listeners:
            listener.started(self)
            listener.stopped(self)
        return True

    def _run(self, previous: bool) -> None:
        try:
            self.claim()
            self.restore(previous, write=True)
            if self.place is not None:
                self.executor = self.place(self)
            else:
                self.executor = make_executor(self.site, self.settings.executor, self.settings.workers)
            for listener in self.listeners:
                listener.started(self)
            with self._session():
                self._prepare()
                for round in range(self.round + 1, self.settings.rounds + 1):
                    self._one_round(round)
                    for listener in self.listeners:
                        listener.round_done(self, round)
        except KeyboardInterrupt:
            if self._between_rounds:  # a round under way has changed nothing yet
                self._save(always=True)
            raise
        except RunFailed as failure:
            for listener in self.listeners:
                with suppress(Exception):  # what went wrong first is to be told
                    listener.failed(self, failure)
            raise
        finally:
            for listener in self.listeners:
                listener.stopped(self)
            if self.executor is not None:
                self.executor.close()
                gc.unfreeze()

    def _session(self) -> AbstractContextManager[None]:
        if self.folder is None or self.round == self.settings.rounds:
            return nullcontext()
        return session(self.folder, self.settings.torch_device(), lambda: self.round)

    def participants(self, round: int) -> list[str]:
        """⌈share·N⌉ clients, as the method chooses: by default drawn from (seed, round) alone."""
        count = math.ceil(self.settings.participation * len(self.trainees) - 1e-9)
        rng = stream(self.settings.seed, round, "participants")
        with self._explained(round, "choose"):
            chosen = sorted(set(self.method.choose(self.server, self.trainees, count, rng)))
            if strangers := set(chosen) - set(self.trainees):
                raise ValueError(f"'{min(strangers)}' is no client that trains")
            if not chosen:
                raise ValueError("it chose nobody")
        return chosen

    @contextmanager
    def _explained(self, round: int, what: str) -> Iterator[None]:
        """Whatever a method does wrong on the server, it is named."""
        try:
            yield
        except FedsenseError:
            raise
        except Exception as error:
            note = f"{self.method.name}, round {round}, {what}: {type(error).__name__}: {error}"
            raise RunFailed(note) from error

    def _prepare(self) -> None:
        """First states that take work, of everyone, before round one."""
        if self.round or not self.method.prepares:
            return
        everyone = sorted({*self.trainees, *self.federation.ids})
        waiting = [client for client in everyone if client not in self.states and self.accepted(client) < 0]
        if not waiting:
            return
        for client, answer in self._in_turn("start", waiting, 0):
            if "state" in answer.bundles:
                self.states[client] = answer.bundles["state"]
        self._save(always=True, begun=True)

    def _finish(self, score: bool) -> None:
        """After the last round: the models clients then hold. Their states stay what they were."""
        for client, answer in self._in_turn("finish", self.trainees, self.settings.rounds + 1, score):
            if "state" in answer.bundles:
                self.trained[client] = answer.bundles["model"]
                if client not in self.states:  # who was never chosen: the state it began with
                    self.states[client] = answer.bundles["state"]
            self.scores.pop(client, None)
            if "scores" in answer.data:
                self.scores[client] = answer.data["scores"]

    def _in_turn(
        self, job: str, clients: Sequence[str], round: int, score: bool = False
    ) -> Iterator[tuple[str, Answer]]:
        """A job that changes what clients hold, for many of them, some at a time; with a line of the ledger."""
        line: dict[str, Any] = {"round": round, "clients": {}}
        for first in range(0, len(clients), AT_ONCE):
            some = clients[first : first + AT_ONCE]
            calls = [self._call(job, client, round, score) for client in some]
            answers = self._ask(calls, round, tell=True, before=first, total=len(clients))
            for key, entries in self._ledger_line(round, calls, answers).items():
                if key != "round":
                    line[key] = line.get(key, {}) | entries
            self._changed.update(
                client for client, answer in zip(some, answers, strict=True) if "state" in answer.bundles
            )
            yield from ((client, a) for client, a in zip(some, answers, strict=True) if not a.failure)
        self.record.add("ledger", line)

    def _one_round(self, round: int) -> None:
        chosen = self.participants(round)
        scoring = round % self.settings.every == 0 or round == self.settings.rounds
        own = scoring and self.settings.moment == "trained"
        calls = [self._call("update", client, round, score=own) for client in chosen]
        answers = self._ask(calls, round, tell=True)
        came = {client: answer for client, answer in zip(chosen, answers, strict=True) if not answer.failure}
        uploads = {client: answer.bundles["upload"] for client, answer in came.items()}
        self._between_rounds = False
        before = self.server
        with self._explained(round, "aggregate"):
            self.server = self.method.aggregate(before, uploads)
        self._commit(came)
        self.record.add("ledger", self._ledger_line(round, calls, answers))
        if self.settings.finish and round == self.settings.rounds and not self.method.pools:
            self._finish(own)
        if scoring:
            self.record.add("scores", {"round": round, "scores": self._score(round), **self._about_scoring()})
            with self._explained(round, "observe"):
                moved = prototypes_moved(before, self.server)
                seen = ({"prototypes moved": moved} if moved else {}) | self.method.observe(self.server)
                if seen:
                    self.record.add("observations", {"round": round, **seen})
        self.round, self._between_rounds = round, True
        self._save(always=round == self.settings.rounds or self.place is not None)

    def _call(self, job: str, client: str, round: int, score: bool = False) -> Call:
        with self._explained(round, f"broadcast to '{client}'"):
            bundles = {"down": self.method.broadcast(self.server, client)}
        if client in self.states:
            bundles["state"] = self.states[client]
        elif self.place is not None and self.accepted(client) < 0 and self.server is not self.site.first_server:
            bundles["first"] = self.method.broadcast(self.site.first_server, client)
        if job == "received" and client in self.trained:
            bundles["model"] = self.trained[client]
        return Call(job, (client,), round, bundles, score)

    def _ask(
        self, calls: Sequence[Call], round: int, tell: bool = False, before: int = 0, total: int | None = None
    ) -> list[Answer]:
        assert self.executor is not None
        answers: dict[int, Answer] = {}
        for position, answer in self.executor.run(calls):
            answers[position] = answer
            for listener in self.listeners if tell else ():
                listener.client_done(self, round, before + len(answers), total or len(calls))
        for call, answer in zip(calls, (answers[i] for i in range(len(calls))), strict=True):
            if call.job not in TRAINS:
                self._scoring_bytes += answer.data.pop("bytes", 0)
                lost = dict.fromkeys(call.clients, answer.failure) if answer.failure else {}
                self._unscored |= answer.data.pop("unscored", lost)
        return [answers[i] for i in range(len(calls))]  # in the calls' order, not in the order of arrival

    def accepted(self, client: str) -> int:
        """The last round in which the server used what a client gave, so that its state of then counts; -1 if none."""
        for line in self.record.ledger[self._lines_read :]:
            self._accepted |= dict.fromkeys(line["clients"], line["round"])
        self._lines_read = len(self.record.ledger)
        return self._accepted.get(client, -1)

    def _about_scoring(self) -> dict[str, Any]:
        """Where clients are elsewhere: what was sent so that they could score, and who could not be reached."""
        about = {"bytes": self._scoring_bytes, "unscored": self._unscored}
        self._scoring_bytes, self._unscored = 0, {}
        return {key: value for key, value in about.items() if value}

    def _commit(self, came: Mapping[str, Answer]) -> None:
        """A client's new state counts only once the server has its upload."""
        for client, answer in came.items():
            if "state" in answer.bundles:
                self.states[client] = answer.bundles["state"]
                self.trained.pop(client, None)
                if answer.bundles["model"]:
                    self.trained[client] = answer.bundles["model"]
                self._changed.add(client)
            if "scores" in answer.data:
                self.scores[client] = answer.data["scores"]
            else:
                self.scores.pop(client, None)  # its model has changed since it was scored

    def _ledger_line(self, round: int, calls: Sequence[Call], answers: Sequence[Answer]) -> dict[str, Any]:
        clients: dict[str, Any] = {}
        failed: dict[str, str] = {}
        for call, answer in zip(calls, answers, strict=True):
            if answer.failure:
                failed[call.clients[0]] = answer.failure
                continue
            clients[call.clients[0]] = {
                "down": payload(call.bundles["down"] | nested("first", call.bundles.get("first", {}))),
                "up": payload(answer.bundles["upload"]),
                **{key: answer.data[key] for key in MEASURED if key in answer.data},
            }
        return {"round": round, "clients": clients, **({"failed": failed} if failed else {})}

    def _score(self, round: int) -> dict[str, Any]:
        """view → split → metric → client → value, of the clients that have data to be scored on."""
        scored = sorted(c.id for c in self.federation if len(c.test) or len(c.val))
        latest = dict(self.scores)
        due = [c for c in scored if c not in latest or self.settings.moment == "received"]
        if set(self.settings.views) & {"personal", "generalisation"}:
            for first in range(0, len(due), AT_ONCE):
                some = due[first : first + AT_ONCE]
                calls = [self._call("received", client, round) for client in some]
                for client, answer in zip(some, self._ask(calls, round), strict=True):
                    if answer.failure:
                        continue
                    latest[client] = answer.data["scores"]
                    if client in self.trained:
                        self.scores[client] = latest[client]
        result: dict[str, Any] = {}
        for view in self.settings.views:
            if view in ("personal", "generalisation"):
                result[view] = self._by_metric({c: latest.get(c, {}).get(view) for c in scored})
        if NEW_CLIENT in self.settings.views:
            result[NEW_CLIENT] = self._score_new(round)
        return result | self._score_global(scored, round)

    def _score_new(self, round: int) -> dict[str, Any]:
        """Each newcomer joins with what it recorded for training."""
        who = sorted(c.id for c in self.federation.newcomers if len(c.train) and (len(c.test) or len(c.val)))
        calls = [self._call("join", client, round + 1, score=True) for client in who]
        answers = self._ask(calls, round)
        return self._by_metric({c: a.data["scores"]["personal"] for c, a in zip(who, answers, strict=True)})

    def _score_global(self, scored: Sequence[str], round: int) -> dict[str, Any]:
        """The views of the server's model; none, if the method has no model for all."""
        views = [view for view in self.settings.views if view in ("global", *HELD_OUT)]
        model = self.method.global_model(self.server) if views else None
        if model is None:
            return {}
        share = max(1, min(AT_ONCE, math.ceil(len(scored) / 8)))  # in one pass; not by workers, nor may the numbers be
        groups = [tuple(scored[i : i + share]) for i in range(0, len(scored), share)] if "global" in views else []
        calls = [Call("global", group, round, {"model": {"model": model}}) for group in groups]
        if set(views) & set(HELD_OUT):
            newcomers = tuple(sorted(client.id for client in self.federation.newcomers))
            calls.append(Call("held_out", newcomers, round, {"model": {"model": model}}))
        found: dict[str, dict[str, Any]] = {view: {} for view in views}
        for answer in self._ask(calls, round):
            for who, scores in answer.data.get("scores", {}).items():
                for view in found.keys() & scores.keys():
                    found[view][who] = scores[view]
            if "held-out-pooled" in views and "pooled" in answer.data:
                found["held-out-pooled"][POOLED] = answer.data["pooled"]
        if "global" in views:
            found["global"] = {c: found["global"].get(c) for c in scored}
        return {view: self._by_metric({c: found[view][c] for c in sorted(found[view])}) for view in views}

    def _by_metric(self, scores: Mapping[str, Mapping[str, Mapping[str, float]] | None]) -> dict[str, Any]:
        """client → split → metric turned into split → metric → client; NaN of a client that could not be reached."""
        return {
            split: {
                metric: {c: s[split][metric] if s else math.nan for c, s in scores.items()}
                for metric in self.settings.metrics
            }
            for split in ("val", "test")
        }

    def personal_parameters(self, client: str) -> dict[str, torch.Tensor]:
        """The parameters of a client's personal model, as the run now stands."""
        self.federation[client]  # says so if there is no such client
        return self.site.personal(self._call("received", client, self.round))

    def claim(self, write: bool = True) -> None:
        """Write run.json, or refuse a folder that holds another run, or one that has ended and goes no further."""
        if self.folder is None:
            return
        about = self._about()
        folders.refuse_another(self.folder, about)
        checkpoints.refuse_beyond_end(self.folder, self.settings.rounds)
        if write:
            folders.write_json(self.folder / folders.RUN_FILE, about)

    def _about(self) -> dict[str, Any]:
        return {
            "method": self.method.name,
            "parameters": asdict(self.method),
            "seed": self.settings.seed,
            "settings": asdict(self.settings),
            "model": self.model.about(),
            "start": self.model.start,
            "federation": self.federation.name,
            "synthetic": self.federation.synthetic,
            "fingerprint": self.federation.fingerprint,
            "task": asdict(self.federation.task),
            "clients": {
                c.id: {"train": len(c.train), "val": len(c.val), "test": len(c.test), **c.traits}
                for c in self.federation
            },
            "side_by_side": self.site.cohorts(),
            "versions": {"fedsense": __version__, "torch": torch.__version__},
            "newcomers": {
                c.id: {**c.traits, "samples": sum(map(len, c.splits)), "test": len(c.test)}
                for c in self.federation.newcomers
            },
            **self.about,
        }

    def restore(self, previous: bool = False, write: bool = False) -> None:
        """Take up what the folder holds: the newest checkpoint, or with ``previous`` the newest that is sound.

        With ``write`` to go on from there: what an interrupted round left behind is cut off.
        """
        if self.folder is None:
            return
        found = checkpoints.load(self.folder / "checkpoints", previous)
        self.record = Record(self.folder, found.records if found else None, write)
        self._accepted, self._lines_read = {}, 0
        if found is None:
            return
        if write:
            checkpoints.discard_after(self.folder / "checkpoints", found.round)
        self.round, self.server, self._files = found.round, found.server, replace(found, server={}, clients={})
        for client, kept in found.clients.items():
            self.states[client] = within(kept, "state")
            if "trained" in kept:
                self.trained[client] = {"model": kept["trained"]}
        self.scores = found.scores

    def _save(self, always: bool = False, begun: bool = False) -> None:
        if self.folder is None or (self.round == self._files.round and not begun):
            return
        now = time.monotonic()
        if not always and CHECKPOINT_SHARE * (now - self._last_saved) < self._saving_took:
            return
        point = replace(
            self._files,
            round=self.round,
            server=self.server,
            clients=Kept(self.states, self.trained),
            records=self.record.prefixes(),
            scores=self.scores,
        )
        checkpoints.save(self.folder / "checkpoints", point, sorted(self._changed))
        self._files, self._changed = replace(point, server={}, clients={}), set()
        self._saving_took, self._last_saved = time.monotonic() - now, time.monotonic()


def _refuse_without_newcomers(site: Site, view: str) -> None:
    federation = site.federation
    if not federation.newcomers:
        raise UserError(
            f"view '{view}' scores people who take no part in training, but nobody of '{federation.name}' is held out; "
            "say held-out = 0.2 in [data], or leave the view out",
            about=view,
        )
    if view == NEW_CLIENT:
        if not any(len(client.train) and (len(client.test) or len(client.val)) for client in federation.newcomers):
            text = f"view '{view}': nobody held out of '{federation.name}' has data to train and to test on"
            raise UserError(text, about=view)
        site.refuse_misfits(federation.newcomers, site.first_server)
        return
    known = {(client.input_shape, site.architecture(client.id)) for client in federation}
    for newcomer in federation.newcomers:
        if (newcomer.input_shape, site.architecture(newcomer.id)) not in known:
            raise UserError(
                f"view '{view}': client '{newcomer.id}' is held out, and nobody trains its model "
                f"({site.architecture(newcomer.id)} for samples of shape {list(newcomer.input_shape)}); "
                "hold out others, or leave the view out",
                about=view,
            )
