"""What the server knows of a fleet's clients: who, how many samples, of what shape. Their recordings stay with them.

The roster is fixed when a run begins, and kept in its folder, so that a server that goes on need not wait for everyone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from fedsense.errors import UserError
from fedsense.federation import ClientData, Federation, Samples, Task


@dataclass(frozen=True)
class Entry:
    """One client, as its node introduced it."""

    id: str
    sizes: tuple[int, int, int]  # samples to train, validate and test on
    shape: tuple[int, ...]
    mark: str  # a digest of its recordings
    model: str | None = None
    traits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Described:
    """Clients, and what they are about."""

    name: str
    synthetic: bool
    classes: tuple[str, ...]
    kind: str
    values: tuple[float, ...]
    clients: tuple[Entry, ...]


@dataclass(frozen=True)
class Introduction(_Described):
    """What a node says of itself."""

    @staticmethod
    def of(text: Mapping[str, Any]) -> Introduction:
        """From a node's words, which may be anything; a ValueError says that they are no introduction."""
        try:
            task = text["task"]
            entries = [
                Entry(
                    str(c["id"]),
                    _sizes(c["sizes"]),
                    tuple(int(n) for n in c["shape"]),
                    str(c["mark"]),
                    None if c["model"] is None else str(c["model"]),
                    {str(key): float(value) for key, value in c["traits"].items()},
                )
                for c in text["clients"]
            ]
            return Introduction(
                str(text["name"]),
                bool(text["synthetic"]),
                tuple(map(str, task["classes"])),
                str(task["kind"]),
                tuple(map(float, task["values"])),
                tuple(entries),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it does not introduce itself ({type(error).__name__}: {error})") from error


def _sizes(value: Sequence[Any]) -> tuple[int, int, int]:
    train, val, test = (int(n) for n in value)
    if min(train, val, test) < 0:
        raise ValueError("it claims to have fewer than no samples")
    return train, val, test


@dataclass(frozen=True)
class Roster(_Described):
    """Everyone, as the run began with them."""

    @staticmethod
    def of(introductions: Sequence[Introduction]) -> Roster:
        """One federation of all that was introduced; refuses nodes that speak of different things."""
        first = introductions[0]
        for other in introductions[1:]:
            if other.kind != first.kind:
                raise UserError(f"'{_who(first)}' has a {first.kind}, but '{_who(other)}' a {other.kind}")
            if other.values != first.values and other.classes == first.classes:
                raise UserError(f"classes of '{_who(first)}' and '{_who(other)}' stand for different counts")
        classes = first.classes
        if any(other.classes != classes for other in introductions):
            if first.kind != "classification":
                raise UserError("nodes name different classes; name them all in each dataset.toml (classes = […])")
            classes = tuple(sorted({name for each in introductions for name in each.classes}))
        everyone = sorted((entry for each in introductions for entry in each.clients), key=lambda entry: entry.id)
        for before, entry in pairwise(everyone):
            if before.id == entry.id:
                raise UserError(f"two nodes have a client called '{entry.id}'; give each a name of its own")
        names = sorted({each.name for each in introductions})
        synthetic = any(each.synthetic for each in introductions)
        return Roster(" + ".join(names), synthetic, classes, first.kind, first.values, tuple(everyone))

    @staticmethod
    def read(saved: Mapping[str, Any]) -> Roster:
        entries = [Entry(**{**c, "sizes": tuple(c["sizes"]), "shape": tuple(c["shape"])}) for c in saved["clients"]]
        lists = {key: tuple(saved[key]) for key in ("classes", "values")}
        return Roster(saved["name"], saved["synthetic"], kind=saved["kind"], clients=tuple(entries), **lists)

    def written(self) -> dict[str, Any]:
        return asdict(self)

    def federation(self) -> Federation:
        """A federation nobody's recordings are in: the engine needs to know no more."""
        task = Task(self.classes, self.kind, self.values)  # type: ignore[arg-type]
        clients = [
            ClientData.later(c.id, _elsewhere(c.id), c.sizes, c.shape, f"on a node: {c.mark}", c.traits, c.model)
            for c in self.clients
        ]
        return Federation(self.name, task, tuple(clients), self.synthetic, "on the nodes of a fleet")


def _who(introduction: Introduction) -> str:
    return introduction.clients[0].id if introduction.clients else introduction.name


def _elsewhere(client: str) -> Any:
    def make() -> tuple[Samples, Samples, Samples]:
        raise UserError(f"the recordings of '{client}' are on its node, and so is its model")

    return make
