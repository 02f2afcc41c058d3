"""Skews make the clients of a federation differ more than they were recorded: fewer classes, fewer samples, dealt anew.

A skew is a small dataclass with ``apply(federation, seed)``, which gives a new federation. What a client loses is drawn
from a stream named by its id, so it does not depend on who else is there. Newcomers are skewed as clients are, but keep
what they have where a skew is of training data only: they do not train, and are scored on all they recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense.data.partitions import PARTITIONS, Partition, Size, apportion, redeal
from fedsense.errors import UserError, nearest
from fedsense.federation import ClientData, Federation, Samples
from fedsense.options import built, checked, kind_and_options, options_of
from fedsense.work import seed_of, stream

Array = NDArray[Any]
Splits = Literal["all", "train"]
Count = int | tuple[int, ...]  # a number, or [low, high]: drawn for each client, both ends included


@dataclass(frozen=True)
class Skew:
    """A change of a federation; ``position`` is its place in the list of skews, from 0."""

    kind: ClassVar[str]
    example: ClassVar[str] = ""  # of the options it cannot do without
    position: int = field(default=0, kw_only=True)

    def apply(self, federation: Federation, seed: int) -> Federation:
        """The federation, skewed: each client by :meth:`change`, with a stream of its own."""
        return self.over(federation, lambda client: self.change(client, self.rng(seed, client)))

    def over(self, federation: Federation, edit: Callable[[ClientData], ClientData]) -> Federation:
        """``edit`` applied to everyone the skew concerns."""
        return federation.with_clients(map(edit, federation)) if self.train_only else federation.change(edit)

    @property
    def train_only(self) -> bool:
        """It leaves newcomers as they are."""
        return getattr(self, "splits", "all") == "train"

    def change(self, client: ClientData, rng: np.random.Generator) -> ClientData:
        raise NotImplementedError

    def rng(self, seed: int, client: ClientData) -> np.random.Generator:
        return stream(seed, "skew", self.position, self.kind, client.id)

    def _refuse(self, message: str, about: str = "") -> NoReturn:
        raise UserError(f"{self.kind}: {message}", about)


@dataclass(frozen=True)
class DropClasses(Skew):
    """Takes random classes from each client, out of those it trains on; in all splits, or in training only.

    ProtoHAR drops 2 classes everywhere, FedCoad 0 to 2 in training. A client keeps one class at least, however few it
    has.
    """

    count: Count
    splits: Splits = "all"
    kind = "drop-classes"
    example = "count = 2"

    def __post_init__(self) -> None:
        _check_count(self, self.count, 0)

    def apply(self, federation: Federation, seed: int) -> Federation:
        most = _most_classes(federation)
        if _bounds(self.count)[1] >= max(most, 1):
            self._refuse(
                f"no client trains on more than {most} classes, and one must stay, but count is "
                f"{_written(self.count)}; give at most {max(most - 1, 0)}",
                "count",
            )
        return super().apply(federation, seed)

    def change(self, client: ClientData, rng: np.random.Generator) -> ClientData:
        classes, (low, high) = np.unique(client.train.y.numpy()), _bounds(self.count)
        count = min(int(rng.integers(low, high + 1)), max(len(classes) - 1, 0))  # one stays
        dropped = rng.permutation(classes)[:count]
        return _select(client, self.splits, lambda y: np.flatnonzero(~np.isin(y, dropped)))


@dataclass(frozen=True)
class KeepClasses(Skew):
    """Leaves each client random classes, out of those it trains on, and no others; as FLIC. Who has fewer keeps all."""

    count: Count
    splits: Splits = "all"
    kind = "keep-classes"
    example = "count = 3"

    def __post_init__(self) -> None:
        _check_count(self, self.count, 1)

    def apply(self, federation: Federation, seed: int) -> Federation:
        most = _most_classes(federation)
        if _bounds(self.count)[1] > most:
            self._refuse(
                f"no client trains on more than {most} classes, but count is {_written(self.count)}; "
                f"give at most {most}",
                "count",
            )
        return super().apply(federation, seed)

    def change(self, client: ClientData, rng: np.random.Generator) -> ClientData:
        classes, (low, high) = np.unique(client.train.y.numpy()), _bounds(self.count)
        kept = rng.permutation(classes)[: rng.integers(low, high + 1)]
        return _select(client, self.splits, lambda y: np.flatnonzero(np.isin(y, kept)))


@dataclass(frozen=True)
class Fraction(Skew):
    """Leaves each client a random share of its samples, alike in every class, and at least one of each."""

    keep: float
    splits: Splits = "train"
    kind = "fraction"
    example = "keep = 0.1"

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            self._refuse(f"keep is {self.keep:g}; give a share above 0 and at most 1", "keep")

    def change(self, client: ClientData, rng: np.random.Generator) -> ClientData:
        return _select(client, self.splits, lambda y: _share(y, self.keep, rng))


@dataclass(frozen=True)
class CapPerClass(Skew):
    """Leaves each client at most ``count`` samples of each class, drawn at random; ProtoHAR's code has 20."""

    count: int = 20
    splits: Splits = "train"
    kind = "cap-per-class"

    def __post_init__(self) -> None:
        _check_count(self, self.count, 1)

    def change(self, client: ClientData, rng: np.random.Generator) -> ClientData:
        def capped(y: Array) -> Array:
            classes, sizes = np.unique(y, return_counts=True)
            return _draw(y, classes, np.minimum(sizes, self.count), rng)

        return _select(client, self.splits, capped)


@dataclass(frozen=True)
class Quantity(Skew):
    """Leaves clients shares of their samples in proportion to exp(sigma z), z normal; whoever draws the most keeps all.

    The share of a client is exp(sigma (z - max z)), the largest being that of all who are skewed; within a client it is
    as in :class:`Fraction`.
    """

    sigma: float
    splits: Splits = "train"
    kind = "quantity"
    example = "sigma = 0.5"

    def __post_init__(self) -> None:
        if not (self.sigma >= 0 and math.isfinite(self.sigma)):
            self._refuse(f"sigma is {self.sigma:g}; give 0 (none) or more", "sigma")

    def apply(self, federation: Federation, seed: int) -> Federation:
        skewed = federation.clients if self.train_only else federation.everyone
        rngs = {client.id: self.rng(seed, client) for client in skewed}
        draws = {client_id: float(rng.standard_normal()) for client_id, rng in rngs.items()}
        largest = max(draws.values())

        def change(client: ClientData) -> ClientData:
            keep = math.exp(self.sigma * (draws[client.id] - largest))
            return _select(client, self.splits, lambda y: _share(y, keep, rngs[client.id]))

        return self.over(federation, change)


@dataclass(frozen=True)
class Deal(Skew):
    """Deals all samples anew by a partition, to ``clients`` clients (if None, as many as there are)."""

    partition: Partition
    clients: int | None = None
    kind = "deal"

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients < 1:
            raise UserError(f"{self.partition.kind}: clients = {self.clients}; give at least 1", "clients")

    def apply(self, federation: Federation, seed: int) -> Federation:
        clients = self.clients
        if clients is None:
            sizes = self.partition.partition_sizes if isinstance(self.partition, Size) else federation.clients
            clients = len(sizes)
        return redeal(federation, self.partition, clients, seed_of(seed, "skew", self.position, self.partition.kind))


SKEWS: dict[str, type[Skew]] = {
    entry.kind: entry for entry in (DropClasses, KeepClasses, Fraction, CapPerClass, Quantity)
}

# FedCoad's conditions: skewed in features (as recorded), in labels, in quantity
SHORT: dict[str, dict[str, Any] | None] = {
    "FS": None,
    "LS": {"kind": "drop-classes", "count": (0, 2), "splits": "train"},
    "QS": {"kind": "fraction", "keep": 0.1, "splits": "train"},
}


def parse_skews(value: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]) -> tuple[Skew, ...]:
    """Skews from ``"FS+LS+QS"``, a table ``{kind = "fraction", keep = 0.1}``, or a list of such, in order.

    A table may name a partition, and then how many ``clients`` it deals to.
    """
    if isinstance(value, str | Mapping):
        value = [value]
    if not isinstance(value, Sequence):
        raise UserError(f'skew is {value!r}; expected a list: [{{kind = "…", …}}, …]', about="skew")
    tables = [table for entry in value for table in (_spelled_out(entry) if isinstance(entry, str) else [entry])]
    return tuple(_parsed(table, position) for position, table in enumerate(tables))


def apply_skews(federation: Federation, skews: Iterable[Skew], seed: int) -> Federation:
    """The federation with one skew after another applied."""
    for skew in skews:
        federation = skew.apply(federation, seed)
    return federation


def hold_out(federation: Federation, which: int | float | Sequence[str], seed: int) -> Federation:
    """Some clients become newcomers: so many (a whole number), a share (rounded up, FedCoad's ⌈20 %⌉), or those named.

    Numbers and shares are of people: clients with one trait ``person`` (somebody's phone and watch) go together. Who
    goes is drawn from a stream of their own, so a larger number holds out those of a smaller one and more.
    """
    people: dict[str, list[str]] = {}
    for client in federation:
        people.setdefault(str(client.traits.get("person", client.id)), []).append(client.id)
    count = len(people)
    if isinstance(which, bool) or not isinstance(which, int | float | Sequence):
        raise UserError(f"held-out is {which!r}; give a number of clients, a share, or a list of their ids")
    if isinstance(which, int | float):
        if which < 0 or not math.isfinite(which) or (isinstance(which, float) and which > 1):
            raise UserError(f"held-out is {which:g}; give a number of clients from 0, or a share from 0 to 1")
        # 0.07 * 100 is a little more than 7
        held = which if isinstance(which, int) else math.ceil(round(which * count, 9))
        order = sorted(map(min, people.values()), key=lambda first: (stream(seed, "hold-out", first).random(), first))
        first = set(order[:held])
        gone = {client_id for clients in people.values() if min(clients) in first for client_id in clients}
    else:
        gone = {federation[client_id].id for client_id in ([which] if isinstance(which, str) else which)}
        held = len(gone)
    if len(gone) == len(federation):
        raise UserError(
            f"held-out takes {held} of the {len(federation)} clients of '{federation.name}'; at least one must remain"
            if count == len(federation)
            else f"held-out takes {held} of the {count} people of '{federation.name}'; at least one must remain"
        )
    moved = tuple(client for client in federation if client.id in gone)
    stay = (client for client in federation if client.id not in gone)
    return federation.with_clients(stay, newcomers=(*federation.newcomers, *moved))


def _spelled_out(text: str) -> list[dict[str, Any]]:
    """The tables a short form stands for: ``"FS+LS"``, whose order means nothing; or the name of one skew."""
    words = [word.strip() for word in text.split("+")]
    if len(words) == 1 and words[0] not in SHORT:
        return [{"kind": words[0]}]
    for word in words:
        if word not in SHORT:
            raise UserError(f"there is no short form '{word}' in '{text}'; {nearest(word, SHORT)}", about=text)
        if words.count(word) > 1:
            raise UserError(f"'{text}' names {word} twice; once is enough", about=text)
    return [table for word, table in SHORT.items() if word in words and table is not None]


def _parsed(table: Any, position: int) -> Skew:
    kind, options = kind_and_options(table, [*SKEWS, *PARTITIONS, *SHORT], "skew")
    if kind in SHORT:
        raise UserError(f"'{kind}' is a short form and stands alone: skew = \"{kind}\"", about=kind)
    if kind in SKEWS:
        return replace(built(SKEWS[kind], options, without=("position",)), position=position)
    clients = checked(kind, options, {**options_of(PARTITIONS[kind]), "clients": int}).get("clients")
    own = {key: value for key, value in options.items() if key != "clients"}
    return Deal(built(PARTITIONS[kind], own), clients, position=position)


def _most_classes(federation: Federation) -> int:
    return max(len(np.unique(client.train.y.numpy())) for client in federation.clients)


def _bounds(count: Count) -> tuple[int, int]:
    return (count, count) if isinstance(count, int) else (count[0], count[1])


def _written(count: Count) -> str:
    return str(count) if isinstance(count, int) else str([*count])


def _check_count(skew: Skew, count: Count, least: int) -> None:
    wrong = f"{skew.kind}: count is {_written(count)}; "
    if not isinstance(count, int) and (len(count) != 2 or count[0] > count[1]):
        raise UserError(f"{wrong}give a number, or [low, high]", "count")
    if _bounds(count)[0] < least:
        raise UserError(f"{wrong}give at least {least}", "count")


def _select(client: ClientData, splits: Splits, chosen: Callable[[Array], Array]) -> ClientData:
    """The client with the samples ``chosen(labels)`` of the training split, or of each split."""

    def edit(name: str, samples: Samples) -> Samples:
        if splits == "train" and name != "train":
            return samples
        return samples.take(torch.from_numpy(chosen(samples.y.numpy())))

    return client.change(edit)


def _share(y: Array, keep: float, rng: np.random.Generator) -> Array:
    """Sorted numbers of a random share of the samples, alike in every class, and at least one of each."""
    if not len(y):
        return np.arange(0)
    classes, sizes = np.unique(y, return_counts=True)
    return _draw(y, classes, np.maximum(apportion(sizes, math.floor(keep * len(y) + 0.5), rng), 1), rng)


def _draw(y: Array, classes: Array, counts: Array, rng: np.random.Generator) -> Array:
    """Sorted numbers of so many random samples of each class."""
    drawn = [rng.permutation(np.flatnonzero(y == c))[:count] for c, count in zip(classes, counts, strict=True)]
    return np.sort(np.concatenate([np.arange(0), *drawn]))
