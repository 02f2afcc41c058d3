"""The client's side of a run: everything that touches a client's recordings happens here.

An executor passes calls to a Site, in this process or in another; a call and its answer hold only Bundles and plain
numbers, so they can cross any boundary.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense.bundle import Bundle, Params, nested, to_device
from fedsense.client import Client, NotAlike
from fedsense.engine.company import LARGEST, Company
from fedsense.errors import FedsenseError, RunFailed, UserError
from fedsense.evaluation.metrics import measure
from fedsense.federation import ClientData, Federation, Member, Samples, Task
from fedsense.method import MODEL_GROUPS, Method, Reply
from fedsense.models.network import Model
from fedsense.models.spec import ModelSpec
from fedsense.training import Fit, Fitted
from fedsense.work import Work, stream

Array = NDArray[Any]
SMALLEST_SPLIT = 3  # more clients than so many are two cohorts at least, so that two processes have work
SCORED_TOGETHER = 16  # clients scored in one message
TRAINS = ("start", "update", "finish", "join")
MOSTLY_OVERHEAD = 2e6  # parameters times samples of a minibatch below which a step is mostly overhead; measured: ADR 8
Scores = dict[str, dict[str, dict[str, float]]]  # view -> split -> metric -> value


@dataclass(frozen=True)
class Call:
    """One piece of work for one client (or, to score one model, for several)."""

    job: str  # "start", "update", "finish" or "join", which train; "received", "global" or "held_out", which score
    clients: tuple[str, ...]
    round: int
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    score: bool = False


@dataclass(frozen=True)
class Answer:
    """What a call gave, or why it gave nothing."""

    bundles: dict[str, Bundle] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    failure: str = ""  # only where clients are elsewhere: one that is lost or refused does not end a run


class Site:
    """The clients of a federation with their models, ready to answer calls."""

    def __init__(
        self,
        federation: Federation,
        method: Method,
        model: ModelSpec,
        seed: int,
        views: Sequence[str] = (),
        metrics: Sequence[str] = (),
        moment: str = "trained",
        pool: int | None = None,
        device: torch.device | str = "cpu",
        executor: str = "serial",
        task: Task | None = None,
    ) -> None:
        """With ``task``, what a server knows of everyone, where ``federation`` is only those who are here."""
        self.executor, self._company = executor, Company()
        self._known: dict[Any, tuple[Params, dict[str, dict[str, float]]]] = {}  # scores of models of this job
        self.federation, self.method, self.seed = federation, method, seed
        self.views, self.metrics, self.moment, self.pool = tuple(views), tuple(metrics), moment, pool
        self.device = torch.device(device)
        self.trainees = federation.pooled() if method.pools else federation
        self._data = {client.id: client for client in (*federation.everyone, *self.trainees)}
        self._models: dict[tuple[str, tuple[int, ...]], tuple[Model, Params]] = {}
        order = sorted(federation.ids)
        named = {client_id: model.for_client(i) for i, client_id in enumerate(order)}
        self._architecture = {c.id: c.model or named.get(c.id, model.for_client(0)) for c in self._data.values()}
        self._spec = model
        self.task = self._describe(federation.task)
        self.client = lru_cache(maxsize=64 if self.device.type != "cpu" else None)(self._make_client)
        self._pooled = lru_cache(maxsize=None)(self._pool)
        if task is None:
            method.requires(self.task)
        else:
            self.task = replace(self.task, features=task.features)

    @cached_property
    def first_server(self) -> Bundle:
        """The server's Bundle before round one, from the starting values whose name and shape are everyone's."""
        first = self.task.members[min(self.task.members)]
        shapes = {id(member.shapes): member.shapes for member in self.task.members.values()}.values()
        values = self._model(self._data[first.id])[1]
        common = {name: t for name, t in values.items() if all(s.get(name) == tuple(t.shape) for s in shapes)}
        return self.method.init_server(self.task, common)

    def refuse_misfits(self, clients: Sequence[ClientData], server: Bundle) -> None:
        """What is shared must fit the network of a client that was not there."""
        for data in clients:
            shapes = self._model(data)[0].shapes
            for group in MODEL_GROUPS:
                for name, value in server.get(group, {}).items():
                    if name in shapes and shapes[name] != tuple(value.shape):
                        raise UserError(
                            f"{self.method.name} shares '{name}' of shape {list(value.shape)}, but client '{data.id}', "
                            f"whose samples have shape {list(data.input_shape)}, has {list(shapes[name])}; methods "
                            "with adapters (flic, hetfedrep) take clients of other shapes"
                        )

    def architecture(self, client_id: str) -> str:
        return self._architecture[client_id]

    def handle(self, call: Call, *join: Callable[[Fit], Fitted]) -> Answer:
        """Do what is asked; errors say which client they met. With ``join`` an update trains together with others."""
        try:
            return getattr(self, f"_{call.job}")(call, *join)  # type: ignore[no-any-return]
        except FedsenseError:
            raise
        except Exception as error:  # whatever a method does wrong, the client is named
            who = ", ".join(f"'{client}'" for client in call.clients[:3])
            note = f"{self.method.name}, round {call.round}, client {who}: {type(error).__name__}: {error}"
            raise RunFailed(note) from error

    def jobs(self, calls: Sequence[Call]) -> list[list[int]]:
        """Which calls go together: positions of updates that run side by side, of a few to score, every other alone.

        It depends on the calls only, so that numbers do not depend on how many processes there are.
        """
        alike: dict[Any, list[int]] = {}
        few = max(1, min(SCORED_TOGETHER, len(calls) // 8))
        for i, call in enumerate(calls):
            together = call.job in TRAINS and self.side_by_side(call.clients[0])
            if call.job == "received":
                fresh = call.bundles.keys() == {"down"}  # many of them have the same model, which is scored once
                alike.setdefault(("received", ("fresh", i % 2) if fresh else i // few), []).append(i)
            else:
                key = ("together", self._kind(self._data[call.clients[0]])) if together else ("alone", i)
                alike.setdefault(key, []).append(i)
        jobs = []
        for (what, _), positions in alike.items():
            if what != "together":
                jobs.append(positions)
                continue
            positions.sort(key=lambda i: (-len(self._data[calls[i].clients[0]].train), calls[i].clients))
            pieces = 1
            while len(positions) / pieces > LARGEST or (pieces == 1 and len(positions) > SMALLEST_SPLIT):
                pieces *= 2
            jobs += [part.tolist() for part in np.array_split(positions, pieces)]
        return jobs

    def side_by_side(self, client_id: str) -> bool:
        """Whether a client trains side by side with those whose model is the same.

        By itself (``auto``), where a step is mostly overhead: on a processor in networks of linear layers whose
        minibatches need few operations; on a GPU always.
        """
        if self.executor != "auto":
            return self.executor == "cohort"
        if self.device.type != "cpu":
            return True
        data = self._data[client_id]
        model = self._model(data)[0]
        return not model.convolves and model.parameter_count * self.method.batch < MOSTLY_OVERHEAD

    def cohorts(self) -> dict[str, bool]:
        """Whether the clients of each model train side by side."""
        first = {self._key(data): data.id for data in self.trainees}
        return {f"{name} {shape}": self.side_by_side(client_id) for (name, shape), client_id in first.items()}

    def answer(self, calls: Sequence[Call]) -> list[Answer]:
        """Do what is asked: one call, several to score, or updates that go together."""
        self._known = {}
        if len(calls) == 1 or calls[0].job not in TRAINS:
            return [self.handle(call) for call in calls]
        began = time.perf_counter()
        outcomes, largest = self._company.run([partial(self.handle, call) for call in calls])
        seconds = (time.perf_counter() - began) / len(calls)
        answers = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            outcome.data.update(seconds=seconds, together=largest)
            answers.append(outcome)
        return answers

    def _start(self, call: Call, join: Callable[[Fit], Fitted] | None = None) -> Answer:
        """A client's first state."""
        began = time.perf_counter()
        state = self._state(self._trainee(call, join), call)
        self._refuse_non_finite(state, call)
        data = {"seconds": time.perf_counter() - began, "metrics": {}, "peak_memory_bytes": peak_memory()}
        return Answer(bundles={"state": to_device(state, "cpu"), "upload": {}, "model": {}}, data=data)

    def _finish(self, call: Call, join: Callable[[Fit], Fitted] | None = None) -> Answer:
        """The model a client has after a last local round."""
        return self._for_itself(call, self._trainee(call, join), self.method.finish)

    def _join(self, call: Call, join: Callable[[Fit], Fitted] | None = None) -> Answer:
        """The model of a client that was not there."""
        return self._for_itself(
            call, self._trainee(call, join), lambda client, state, *rest: self.method.join(client, *rest)
        )

    def _for_itself(self, call: Call, client: Client, train: Callable[[Client, Bundle, Bundle, Work], Reply]) -> Answer:
        work, down = self._work(client, call.round), to_device(call.bundles["down"], self.device)
        state = {} if call.job == "join" else self._state(client, call)
        began = time.perf_counter()
        reply = train(client, state, down, work)
        data = {"seconds": time.perf_counter() - began, "metrics": reply.metrics, "peak_memory_bytes": peak_memory()}
        model = self.method.personalise(client, reply.state, down, work) if reply.model is None else reply.model
        self._refuse_non_finite({"model": model}, call)
        if call.score and call.job == "join":
            data["scores"] = {"personal": self._score(client, model, client.data)}
        elif call.score:
            data["scores"] = self._own_scores(client, model)
        return Answer(
            {"state": to_device(state, "cpu"), "upload": {}, "model": to_device({"model": model}, "cpu")}, data
        )

    def _trainee(self, call: Call, join: Callable[[Fit], Fitted] | None) -> Client:
        client = self.client(call.clients[0])
        return client if join is None else replace(client, join=join)

    def _update(self, call: Call, join: Callable[[Fit], Fitted] | None = None) -> Answer:
        client = self._trainee(call, join)
        work = self._work(client, call.round)
        state, down = self._state(client, call), to_device(call.bundles["down"], self.device)
        given = [t for bundle in (state, down) for params in bundle.values() for t in params.values()]
        before = [t._version for t in given]
        began = time.perf_counter()
        reply = self.method.local_update(client, state, down, work)
        seconds = time.perf_counter() - began
        if before != [t._version for t in given]:
            raise ValueError("local_update changed its state or what came down in place; clone what is to be changed")
        self._refuse_non_finite({**nested("state", reply.state), **reply.upload}, call)
        answer = Answer(
            bundles={"state": to_device(reply.state, "cpu"), "upload": to_device(reply.upload, "cpu"), "model": {}},
            data={"seconds": seconds, "metrics": reply.metrics},
        )
        if self.moment == "trained" and client.id in self.task.members:
            personal = reply.model
            if personal is None:
                personal = self.method.personalise(client, reply.state, down, work)
            own = reply.state.get("model", {})
            laid_over = any(group in down for group in MODEL_GROUPS)  # the next broadcast would be, over the state
            if laid_over or any(
                own.get(name) is not tensor for name, tensor in personal.items()
            ):  # else the state has it
                answer.bundles["model"] = to_device({"model": personal}, "cpu")
            if call.score:
                answer.data["scores"] = self._own_scores(client, personal)
        answer.data["peak_memory_bytes"] = peak_memory()
        return answer

    def _received(self, call: Call) -> Answer:
        """Score the personal model a client has right after a broadcast, or the one it trained last."""
        client = self.client(call.clients[0])
        return Answer(data={"scores": self._own_scores(client, self.personal(call))})

    def personal(self, call: Call) -> Params:
        """The parameters of a client's personal model."""
        client = self.client(call.clients[0])
        if trained := call.bundles.get("model"):
            return to_device(trained, self.device)["model"]
        work = self._work(client, call.round)
        state, down = self._state(client, call), to_device(call.bundles["down"], self.device)
        return self.method.personalise(client, state, down, work)

    def _global(self, call: Call) -> Answer:
        """Score one model for all on the data of each of the named clients."""
        model = to_device(call.bundles["model"], self.device)["model"]
        clients = [self.client(client_id) for client_id in call.clients]
        each = [Samples.join([client.data.val, client.data.test]) for client in clients]
        scores = {}
        for client, samples, logits in zip(clients, each, self._logits(clients, model, each), strict=True):
            y = samples.y.cpu().numpy()
            scores[client.id] = {"global": self._measured(logits, y, len(client.data.val))}
        return Answer(data={"scores": scores})

    def _logits(self, clients: Sequence[Client], model: Params, each: Sequence[Samples]) -> list[Array]:
        """What one model says of the samples of each client; those who share its network are asked in one pass."""
        found: dict[int, Array] = {}
        for network in {id(client.model): client.model for client in clients}.values():
            mine = [i for i, client in enumerate(clients) if client.model is network]
            if network.mixes:
                found |= {i: self._said(clients[i], model, clients[i].data, each[i]) for i in mine}
                continue
            try:
                with Client.one_for_all():
                    joined = self.method.predict(clients[mine[0]], model, Samples.join([each[i] for i in mine]).x)
            except NotAlike:  # the method predicts otherwise for each
                found |= {i: self.method.predict(clients[i], model, each[i].x).cpu().numpy() for i in mine}
                continue
            cuts = np.cumsum([len(each[i]) for i in mine])[:-1]
            found |= dict(zip(mine, np.split(joined.cpu().numpy(), cuts), strict=True))
        return [found[i] for i in range(len(clients))]

    def _held_out(self, call: Call) -> Answer:
        """Score one model for all on everything the named newcomers recorded, one by one and together."""
        model = to_device(call.bundles["model"], self.device)["model"]
        clients = [self.client(client_id) for client_id in call.clients]
        each = [Samples.join(client.data.splits) for client in clients]
        parts = [
            (logits, samples.y.cpu().numpy())
            for samples, logits in zip(each, self._logits(clients, model, each), strict=True)
        ]
        scores = {client.id: {"held-out": self._measured(*part)} for client, part in zip(clients, parts, strict=True)}
        logits, y = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Answer(data={"scores": scores, "pooled": self._measured(logits, y)})

    def _measured(self, logits: Array, y: Array, cut: int = 0) -> dict[str, dict[str, float]]:
        """Metrics on validation data, the first ``cut`` samples, and on test data, the others."""
        return {
            "val": measure(logits[:cut], y[:cut], self.task, self.metrics),
            "test": measure(logits[cut:], y[cut:], self.task, self.metrics),
        }

    def _own_scores(self, client: Client, personal: Params) -> Scores:
        scores: Scores = {}
        if "personal" in self.views:
            scores["personal"] = self._score(client, personal, client.data)
        if "generalisation" in self.views:
            scores["generalisation"] = self._generalisation(client, personal)
        return scores

    def _generalisation(self, client: Client, personal: Params) -> dict[str, dict[str, float]]:
        """Scores on everyone's data; clients who hold the very same model (the server's) have the same."""
        same = (id(client.model), tuple([t.data_ptr() for t in personal.values()]))
        if same not in self._known:
            found = self._score(client, personal, self._pooled(client.data.input_shape))
            self._known[same] = (personal, found)  # the parameters, too, so that nothing else comes to lie there
        return self._known[same][1]

    def _score(self, client: Client, params: Params, data: ClientData) -> dict[str, dict[str, float]]:
        """Metrics on validation and test data, from one pass over both."""
        both = Samples.join([data.val, data.test])
        logits = self._said(client, params, data, both)
        return self._measured(logits, both.y.cpu().numpy(), len(data.val))

    def _said(self, client: Client, params: Params, data: ClientData, samples: Samples) -> Array:
        """Logits; from a network whose output for a sample depends on its company, of validation data by themselves."""
        cut = len(data.val) if client.model.mixes and 0 < len(data.val) < len(samples) else 0
        parts = [samples.x[:cut], samples.x[cut:]] if cut else [samples.x]
        return np.concatenate([self.method.predict(client, params, x).cpu().numpy() for x in parts])

    def _state(self, client: Client, call: Call) -> Bundle:
        """The client's state; a client's first is a pure function of the seed, whenever it is first asked for."""
        if "state" in call.bundles:
            return to_device(call.bundles["state"], self.device)
        first = call.bundles.get("first")  # sent to where the server's Bundle is not known
        if first is None:
            first = self.method.broadcast(self.first_server, client.id)
        down = to_device(first, self.device)
        return self.method.init_client(client, client.initial, down, self._work(client, 0))

    def _work(self, client: Client, round: int) -> Work:
        return Work(self.seed, round, client.id, self.method.batch)

    def _pool(self, shape: tuple[int, ...]) -> ClientData:
        """Everyone's validation and test data, of the clients with this input shape."""
        alike = [c for c in self.federation if c.input_shape == shape]
        val, test = (self._drawn([c.split(name) for c in alike], name) for name in ("val", "test"))
        return ClientData("everyone", train=test.take(slice(0)), val=val, test=test)

    def _drawn(self, parts: Sequence[Samples], name: str) -> Samples:
        """At most ``pool`` of all samples, the same for every model; only the clients they are from are made."""
        parts = [part for part in parts if len(part)] or parts[:1]
        starts = np.cumsum([0, *map(len, parts)])
        if not self.pool or starts[-1] <= self.pool:
            return Samples.join(parts).each(lambda part: part.to(self.device))
        chosen = stream(self.seed, "pool", name).permutation(starts[-1])[: self.pool]
        rows = np.sort(chosen)
        owner = np.searchsorted(starts, rows, side="right") - 1
        picked = [parts[i].take(torch.from_numpy(rows[owner == i] - starts[i])) for i in np.unique(owner)]
        places = torch.from_numpy(np.searchsorted(rows, chosen))
        return Samples.join(picked).take(places).each(lambda part: part.to(self.device))

    def _make_client(self, client_id: str) -> Client:
        data = self._data[client_id]
        model, initial = self._model(data)
        if self.device.type != "cpu":
            data = data.change(lambda _, s: Samples(s.x.to(self.device), s.y.to(self.device)))
            initial = {name: t.to(self.device) for name, t in initial.items()}
        return Client(client_id, data, model, self.task, initial, self.device)

    def _key(self, data: ClientData) -> tuple[str, tuple[int, ...]]:
        return self._architecture[data.id], data.input_shape

    def _kind(self, data: ClientData) -> Any:
        """What clients have in common that train side by side: their network, but for the width of its input."""
        return self._model(data)[0].family or self._key(data)

    def _model(self, data: ClientData) -> tuple[Model, Params]:
        key = self._key(data)
        if key not in self._models:
            classes = len(self.federation.task.classes)
            model = self._spec.build(key[0], data.input_shape, classes, self.seed, self.method.complete)
            self._models[key] = (model, self._spec.starting_values(model, self.seed))
            model.network.to(self.device)
        return self._models[key]

    def _describe(self, task: Task) -> Task:
        members, widest = {}, 0
        for data in self.federation:
            model = self._model(data)[0]
            members[data.id] = Member(
                data.id,
                len(data.train),
                self._architecture[data.id],
                model.shapes,
                model.buffers,
                model.features,
                _speed(data),
                partial(model.flops, data.input_shape),
                partial(model.latent, data.input_shape),
            )
            widest = max(widest, model.features)
        return replace(task, features=widest, members=members, seed=self.seed)

    def _refuse_non_finite(self, bundle: Bundle, call: Call) -> None:
        floats = {id(t): t for params in bundle.values() for t in params.values() if t.is_floating_point()}
        if not floats or bool(torch.stack([t.sum() for t in floats.values()]).sum().isfinite()):
            return  # a sum is finite unless something in it is not (or it overflows, and then the long way decides)
        for group, params in bundle.items():
            for name, tensor in params.items():
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    what = name if group in MODEL_GROUPS else f"{group}/{name}"
                    raise RunFailed(
                        f"{self.method.name} diverged: in round {call.round}, client '{call.clients[0]}' trained "
                        f"'{what}' to a value that is not finite; lower lr (now {self.method.lr:g}) or set clip"
                    )


def _speed(data: ClientData) -> float:
    speed = data.traits.get("speed", 1.0)
    if isinstance(speed, bool) or not isinstance(speed, Real) or not 0 < float(speed) < float("inf"):
        raise UserError(f"client '{data.id}': its trait speed is {speed!r}; give a positive number, 1 being usual")
    return float(speed)


def forget_peak() -> None:
    """Give back what nobody holds, and count the peak of memory from now on, where the system lets one."""
    gc.collect()  # engines and sites refer to one another
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)  # what the C library keeps, a step for the next, is not the next run's
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The most memory this process has held since :func:`forget_peak`, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
