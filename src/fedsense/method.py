"""A Method is a federated algorithm: a frozen dataclass of hyper-parameters and a few pure functions.

| function | where it runs | gives |
|---|---|---|
| ``complete(network)`` | everywhere | nothing; puts into a client's network what the method needs in it |
| ``requires(task)`` | server | nothing, or a UserError saying why the federation does not suit the method |
| ``too_few(rounds)`` | server | what one should know who runs it for so few rounds |
| ``init_server(task, params)`` | server | the server's Bundle; ``params`` are the starting values all clients share |
| ``choose(server, clients, count, rng)`` | server | who takes part in a round, where not everyone does |
| ``broadcast(server, client_id)`` | server | what goes down to this client |
| ``init_client(client, params, down, work)`` | client | its first state, from the first broadcast |
| ``local_update(client, state, down, work)`` | client | a Reply |
| ``finish(client, state, down, work)`` | client | a Reply, after the last round, if a run is asked to finish |
| ``join(client, down, work)`` | client | a Reply, of a client that comes after the last round |
| ``aggregate(server, uploads)`` | server | the new server Bundle; uploads come by client id, in sorted order |
| ``personalise(client, state, down, work)`` | client | the parameters of its personal model |
| ``predict(client, personal, x)`` | client | logits |
| ``global_model(server)`` | server | the parameters of one model for all, or None |
| ``observe(server)`` | server | what a run shall record of the server's Bundle beside scores and costs |

A method neither knows where it runs nor keeps anything in itself: what it must remember is in the Bundles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.errors import UserError
from fedsense.federation import Task
from fedsense.models.network import PARTS, Network
from fedsense.optim import Transform, adam, chain, clip, sgd
from fedsense.work import Work

GROUPS = (  # of methods, in the order in which they are listed
    "one model for all",
    "personal models",
    "personal heads",
    "prototypes",
    "different architectures",
    "different inputs",
    "references",
)
MODEL_GROUPS = ("model", *PARTS)  # groups of a Bundle that hold parameters of the client's model


@dataclass(frozen=True)
class Reply:
    """What a local update gives: the state the client keeps, what goes up, and numbers worth recording.

    ``model`` is the model the client holds after its update, where ``state`` alone does not give it (FedAvg keeps no
    state, yet its clients have just trained a model).
    """

    state: Bundle = field(default_factory=dict)
    upload: Bundle = field(default_factory=dict)
    model: Params | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("state", "upload"):
            for group, params in getattr(self, what).items():
                for name, tensor in params.items():
                    if not isinstance(name, str):
                        raise TypeError(
                            f"{what} must be a Bundle, but group '{group}' has a name that is no text: {name!r}"
                        )
                    if not isinstance(tensor, Tensor):
                        raise TypeError(
                            f"{what} must be a Bundle, but group '{group}' holds {type(tensor).__name__} under "
                            f"'{name}' instead of a tensor"
                        )
        for name, value in self.metrics.items():
            if not isinstance(value, int | float):
                raise TypeError(f"metrics['{name}'] must be a number, but is {type(value).__name__}; say float(…)")


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods: how clients train, and the functions' defaults."""

    batch: int = 32  # B, samples in a minibatch
    epochs: int = 5  # E, passes over the local data in a round
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01  # eta, step size
    momentum: float = 0.9  # of SGD; starts afresh every round unless the method keeps it
    weight_decay: float = 0.0
    clip: float | None = None  # largest joint norm of a gradient

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    group: ClassVar[str]  # one of GROUPS
    equation: ClassVar[str] = ""  # what it minimises or how it merges, in a line
    assumes: ClassVar[str] = ""  # of clients; completes "It assumes …"
    use: ClassVar[str] = ""  # completes "Use it …"
    pools: ClassVar[bool] = False  # trains on everyone's recordings in one place: a reference, not a federation

    def __post_init__(self) -> None:
        self.refuse_below(1, "batch", "epochs")
        self.refuse_below(0, "lr", "momentum", "weight_decay")
        self.refuse_unless_positive("clip")

    def refuse_below(self, least: int, *names: str) -> None:
        """For ``__post_init__``: the named hyper-parameters, unless None, must be at least so large."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value >= least:
                wanted = f"must be at least {least}" if least else "cannot be negative"
                raise UserError(f"{self.name}: {name} is {value}; it {wanted}", about=name)

    def refuse_unless_positive(self, *names: str) -> None:
        """For ``__post_init__``: the named hyper-parameters, unless None, must be above 0."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not value > 0:
                left_out = ", or left out" if type(self).__dataclass_fields__[name].default is None else ""
                raise UserError(f"{self.name}: {name} is {value}; it must be positive{left_out}", about=name)

    @property
    def prepares(self) -> bool:
        """Whether ``init_client`` is real work; then it is done for everyone before round one, and kept."""
        return False

    def complete(self, network: Network) -> None:
        """Put into a network what the method needs in it (FedAli: prototypes), before anything else is done."""

    def requires(self, task: Task) -> None:
        """Raise a UserError, naming clients and remedy, if the method cannot serve this federation."""

    def too_few(self, rounds: int) -> str:
        """What one should know who runs it for so few rounds only; "" if they are enough for it to be itself."""
        return ""

    def init_server(self, task: Task, params: Params) -> Bundle:
        return {}

    def choose(self, server: Bundle, clients: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
        """``count`` of the clients, drawn without replacement."""
        return [clients[i] for i in sorted(rng.choice(len(clients), count, replace=False))]

    def broadcast(self, server: Bundle, client_id: str) -> Bundle:
        return server

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        raise NotImplementedError

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        """A last local round, for the client itself: what it would upload is not sent."""
        return self.local_update(client, state, down, work)

    def join(self, client: Client, down: Bundle, work: Work) -> Reply:
        """A client that was not there gets what the others learned, and learns what is its own."""
        state = self.init_client(client, client.initial, down, work)
        return self.finish(client, state, down, work)

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        raise NotImplementedError

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        """The client's own parts, overlaid with what came down."""
        personal = dict(client.initial)
        for bundle in (state, down):
            for group in MODEL_GROUPS:
                personal |= bundle.get(group, {})
        return personal

    def predict(self, client: Client, personal: Params, x: Tensor) -> Tensor:
        return client.model.predict(personal, x).logits

    def global_model(self, server: Bundle) -> Params | None:
        return server.get("model")

    def observe(self, server: Bundle) -> dict[str, Any]:
        """Plain lists and numbers, written to the run's observations.jsonl after every scored round."""
        return {}

    def optim(self, lr: float | None = None) -> Transform:
        """The optimiser the hyper-parameters describe."""
        rate = self.lr if lr is None else lr
        if self.optimiser == "adam":
            step = adam(rate, weight_decay=self.weight_decay)
        else:
            step = sgd(rate, self.momentum, self.weight_decay)
        return step if self.clip is None else chain(clip(self.clip), step)


MEND = (
    "give all clients the same model and input shape, or use a method for clients that differ: flic or hetfedrep with "
    "a model that has an adapter, such as sensor-cnn; lg-fedavg, fedhenn, fedproto, fedapa, local "
    "(docs/how-to/mixed-sensors.md)"
)


def share_one_model(method: Method, task: Task, parts: tuple[str, ...] = PARTS, mend: str = MEND) -> None:
    """For ``requires``: every client's shared parts must have the same names and shapes; ``mend`` says what to do."""
    members = list(task.members.values())
    first = members[0]
    for other in members[1:]:
        if other.shapes == first.shapes:
            continue
        for name in sorted({*first.shapes, *other.shapes}):
            if name.split(".")[0] in parts and first.shapes.get(name) != other.shapes.get(name):
                raise UserError(
                    f"{method.name} shares '{name}', but client '{first.id}' ({first.architecture}) has "
                    f"{_shape(first.shapes, name)} and client '{other.id}' ({other.architecture}) "
                    f"{_shape(other.shapes, name)}; {mend}"
                )


def share_one_width(method: Method, task: Task) -> None:
    """For ``requires``: every client's features must have the same width."""
    first, *others = task.members.values()
    for other in others:
        if other.features != first.features:
            raise UserError(
                f"{method.name} compares prototypes, but client '{first.id}' ({first.architecture}) has "
                f"{first.features} features and client '{other.id}' ({other.architecture}) {other.features}; give "
                "their models one width (model.width)"
            )


def needs_classes(method: Method, task: Task) -> None:
    """For ``requires``: labels must be classes."""
    if task.kind == "regression":
        raise UserError(
            f"{method.name} works with classes, but labels of this federation are values (kind = regression); use a "
            "method that does not (local, fedavg, fedrep, hetfedrep, flic), or make classes of the values"
        )


def _shape(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "no such tensor"
