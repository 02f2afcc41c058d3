"""The client's side of a run: everything that touches a client's recordings happens here.

An executor passes calls to a Site, in this process or in another; a call and its answer hold only Bundles and plain
numbers, so they can cross any boundary.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense.bundle import Bundle, Params, to_device
from fedsense.client import Client
from fedsense.errors import FedsenseError, RunFailed, UserError
from fedsense.evaluation.metrics import measure
from fedsense.federation import ClientData, Federation, Member, Samples, Task
from fedsense.method import MODEL_GROUPS, Method
from fedsense.models.network import Model
from fedsense.models.spec import ModelSpec
from fedsense.work import Work, stream

Array = NDArray[Any]
Scores = dict[str, dict[str, dict[str, float]]]  # view -> split -> metric -> value


@dataclass(frozen=True)
class Call:
    """One piece of work for one client (or, to score one model, for several)."""

    job: str  # "update", "received", "global" or "held_out"
    clients: tuple[str, ...]
    round: int
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    score: bool = False


@dataclass(frozen=True)
class Answer:
    """What a call gave."""

    bundles: dict[str, Bundle] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


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
    ) -> None:
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
        method.requires(self.task)

    @cached_property
    def first_server(self) -> Bundle:
        """The server's Bundle before round one, from the starting values whose name and shape are everyone's."""
        first = self.task.members[min(self.task.members)]
        shapes = {id(member.shapes): member.shapes for member in self.task.members.values()}.values()
        values = self._model(self._data[first.id])[1]
        common = {name: t for name, t in values.items() if all(s.get(name) == tuple(t.shape) for s in shapes)}
        return self.method.init_server(self.task, common)

    def architecture(self, client_id: str) -> str:
        return self._architecture[client_id]

    def handle(self, call: Call) -> Answer:
        """Do what is asked; errors say which client they met."""
        try:
            return getattr(self, f"_{call.job}")(call)  # type: ignore[no-any-return]
        except FedsenseError:
            raise
        except Exception as error:  # whatever a method does wrong, the client is named
            who = ", ".join(f"'{client}'" for client in call.clients[:3])
            note = f"{self.method.name}, round {call.round}, client {who}: {type(error).__name__}: {error}"
            raise RunFailed(note) from error

    def _update(self, call: Call) -> Answer:
        client = self.client(call.clients[0])
        work = self._work(client, call.round)
        state, down = self._state(client, call), to_device(call.bundles["down"], self.device)
        began = time.perf_counter()
        reply = self.method.local_update(client, state, down, work)
        seconds = time.perf_counter() - began
        self._refuse_non_finite(reply.upload, call)
        self._refuse_non_finite(reply.state, call)
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
        scores = {}
        for client_id in call.clients:
            client = self.client(client_id)
            scores[client_id] = {"global": self._score(client, model, client.data)}
        return Answer(data={"scores": scores})

    def _held_out(self, call: Call) -> Answer:
        """Score one model for all on everything the named newcomers recorded, one by one and together."""
        model = to_device(call.bundles["model"], self.device)["model"]
        scores, parts = {}, []
        for client_id in call.clients:
            client = self.client(client_id)
            samples = Samples.join(client.data.splits)
            logits = self.method.predict(client, model, samples.x).cpu().numpy()
            parts.append((logits, samples.y.cpu().numpy()))
            scores[client_id] = {"held-out": self._measured(*parts[-1])}
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
            scores["generalisation"] = self._score(client, personal, self._pooled(client.data.input_shape))
        return scores

    def _score(self, client: Client, params: Params, data: ClientData) -> dict[str, dict[str, float]]:
        """Metrics on validation and test data, from one pass over both."""
        logits = self.method.predict(client, params, torch.cat([data.val.x, data.test.x])).cpu().numpy()
        y = torch.cat([data.val.y, data.test.y]).cpu().numpy()
        return self._measured(logits, y, len(data.val))

    def _state(self, client: Client, call: Call) -> Bundle:
        """The client's state; a client's first is a pure function of the seed, whenever it is first asked for."""
        if "state" in call.bundles:
            return to_device(call.bundles["state"], self.device)
        down = to_device(self.method.broadcast(self.first_server, client.id), self.device)
        return self.method.init_client(client, client.initial, down, self._work(client, 0))

    def _work(self, client: Client, round: int) -> Work:
        return Work(self.seed, round, client.id, self.method.batch)

    def _pool(self, shape: tuple[int, ...]) -> ClientData:
        """Everyone's validation and test data, of the clients with this input shape."""
        alike = [self.client(c.id).data for c in self.federation if c.input_shape == shape]
        val, test = (self._thin(Samples.join([c.split(name) for c in alike]), name) for name in ("val", "test"))
        return ClientData("everyone", train=test.take(slice(0)), val=val, test=test)

    def _thin(self, samples: Samples, name: str) -> Samples:
        """At most ``pool`` of the samples, the same for every model."""
        if not self.pool or len(samples) <= self.pool:
            return samples
        chosen = stream(self.seed, "pool", name).permutation(len(samples))[: self.pool]
        return samples.take(torch.from_numpy(chosen).to(samples.y.device))

    def _make_client(self, client_id: str) -> Client:
        data = self._data[client_id]
        model, initial = self._model(data)
        if self.device.type != "cpu":
            data = data.change(lambda _, s: Samples(s.x.to(self.device), s.y.to(self.device)))
            initial = {name: t.to(self.device) for name, t in initial.items()}
        return Client(client_id, data, model, self.task, initial, self.device)

    def _model(self, data: ClientData) -> tuple[Model, Params]:
        key = (self._architecture[data.id], data.input_shape)
        if key not in self._models:
            model = self._spec.build(key[0], data.input_shape, len(self.federation.task.classes), self.seed)
            self._models[key] = (model, model.init(self.seed))
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
            )
            widest = max(widest, model.features)
        return replace(task, features=widest, members=members)

    def _refuse_non_finite(self, bundle: Bundle, call: Call) -> None:
        for group, params in bundle.items():
            for name, tensor in params.items():
                if tensor.is_floating_point() and not bool(tensor.sum().isfinite()) and not tensor.isfinite().all():
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


def peak_memory() -> int:
    """The most memory this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
