"""What every dataset shares: options, cache, split, partition, skews, normalisation. A dataset's own file only reads.

files → ``read`` → recordings (or samples) → windows → split → partition → held-out clients → skews → normalised
Federation. What ``read`` gives is kept under the content of the files; the whole Federation under that and the options.
"""

from __future__ import annotations

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedsense.data.cache import cached, code_key, content_key, key_of, unkept
from fedsense.data.card import Card
from fedsense.data.cores import on_all_cores
from fedsense.data.files import File, Files, find_root
from fedsense.data.packing import kept_federation, pack_records, unpack_records
from fedsense.data.partitions import Partition, parse_partition, redeal
from fedsense.data.skews import Skew, apply_skews, hold_out, parse_skews
from fedsense.data.splits import (
    Normalise,
    Split,
    at_most,
    client_data,
    normalised,
    parse_split,
    split_client,
    with_samples,
)
from fedsense.data.telling import telling
from fedsense.data.windows import Collected, Recording, cut
from fedsense.errors import UserError, nearest
from fedsense.federation import SPLITS, ClientData, Federation, Kind, Missing, Task
from fedsense.options import checked, options_of

Array = NDArray[Any]
NATURAL: tuple[Any, ...] = ("natural-id", {"kind": "natural-id"})  # the partition that is none


@dataclass(frozen=True)
class Found:
    """What a reader gives that also has to find out which classes there are."""

    records: Sequence[Recording | Collected]
    classes: tuple[str, ...]


# name → type of the options every dataset that is read has
COMMON: dict[str, Any] = {
    "root": str | None,
    "classes": list[str] | None,
    "split": str | dict[str, Any] | None,
    "normalise": Normalise,
    "partition": str | dict[str, Any] | None,
    "clients": int | None,
    "classes_per_client": int | None,
    "samples": int | None,
    "held_out": int | float | list[str] | None,
    "skew": str | dict[str, Any] | list[str | dict[str, Any]] | None,
    "seed": int,
}


class Dataset(ABC):
    """A dataset users can name."""

    card: Card

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def dealt(self) -> bool:
        """Whether nobody recorded it for himself: clients are dealt samples of a pile, others with every seed."""
        return True

    @abstractmethod
    def defaults(self) -> dict[str, Any]:
        """Option → its default."""

    @abstractmethod
    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options, checked; nothing is read."""

    @abstractmethod
    def build(self, options: Mapping[str, Any], missing: Missing) -> Federation:
        """The federation, from what ``parse`` gave."""


@dataclass(frozen=True)
class Generated(Dataset):
    """A dataset that is drawn, not read."""

    card: Card
    make: Callable[..., Federation]

    common: ClassVar[dict[str, Any]] = {name: COMMON[name] for name in ("held_out", "skew")}

    def defaults(self) -> dict[str, Any]:
        own = {name: parameter.default for name, parameter in inspect.signature(self.make).parameters.items()}
        return own | dict.fromkeys(self.common)

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = checked(f"dataset '{self.name}'", given, {**options_of(self.make), **self.common})
        parse_skews(options.get("skew") or ())
        return options

    def build(self, options: Mapping[str, Any], missing: Missing) -> Federation:
        own = {name: value for name, value in options.items() if name not in self.common}
        seed = options.get("seed", self.defaults()["seed"])
        federation = self.make(**own)
        if options.get("held_out") is not None:
            federation = hold_out(federation, options["held_out"], seed)
        return apply_skews(federation, parse_skews(options.get("skew") or ()), seed).check(missing)


@dataclass(frozen=True)
class Read(Dataset):
    """A dataset read from files. ``read(files, **own)`` gives recordings or samples; ``own`` are options it adds."""

    card: Card
    read: Callable[..., Iterable[Recording | Collected] | Found]
    wanted: tuple[str, ...] | Callable[..., tuple[str, ...]]  # patterns of the files the reader uses
    classes: tuple[str, ...] | Callable[..., tuple[str, ...]] = ()  # in the reader's numbering; none: it finds out
    kind: Kind = "classification"
    values: tuple[float, ...] = ()
    split: Split = field(default_factory=Split)
    normalise: Normalise = "none"
    partition: str | Mapping[str, Any] | None = None  # None: the clients are who recorded the data
    clients: int | None = None  # how many a pool is dealt to
    keep: bool = True  # what is read is kept by itself, for other options; not worth it where reading is unpacking
    ahead: Callable[[File], Any] | None = None  # done to each file early; a reader asks ``files.made``

    common: ClassVar[dict[str, Any]] = COMMON

    @property
    def dealt(self) -> bool:
        return self.partition is not None

    @cached_property
    def own(self) -> dict[str, Any]:
        """Name → type of the reader's own options."""
        return {name: kind for name, kind in get_type_hints(self.read).items() if name not in ("files", "return")}

    def types(self) -> dict[str, Any]:
        return {**self.common, **self.own}

    def defaults(self) -> dict[str, Any]:
        signature = inspect.signature(self.read).parameters
        common: dict[str, Any] = dict.fromkeys(self.common) | {
            "split": dataclasses.asdict(self.split),
            "normalise": self.normalise,
            "partition": self.partition,
            "clients": self.clients,
            "seed": 0,
        }
        return common | {name: signature[name].default for name in self.own}

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = self.defaults() | checked(f"dataset '{self.name}'", given, self.types())
        split = parse_split(options["split"], self.split)
        if split.kind == "official" and self.split.kind != "official":
            raise UserError(f"dataset '{self.name}' has no official split; say chronological or random", about="split")
        self._skews(options)
        self._refuse_clients(given, options)
        self._partition(options)
        _refuse_twice("classes", options["classes"])
        if options["samples"] is not None and options["samples"] < 1:
            raise UserError(f"samples = {options['samples']}; give at least 1", about="samples")
        return options

    def build(self, options: Mapping[str, Any], missing: Missing) -> Federation:
        files = self.files(options)
        content = self.content(files)
        kept = {name: value for name, value in options.items() if name != "root"}
        key = key_of(code_key(), "federation", self.name, content, kept, missing)
        with telling(f"reading {self.name}"):
            return kept_federation(key, lambda: self._made(files, content, options).check(missing))

    def content(self, files: Files) -> str:
        """A digest of what is read."""
        return content_key(files)

    def files(self, options: Mapping[str, Any]) -> Files:
        hint = f"`fedsense data describe {self.name}` says how to get it"
        wanted = _settled(self.wanted, options)
        return Files(find_root(self.name, options["root"], hint), wanted, self.card.layout, self.ahead)

    def gather(self, files: Files, content: str, options: Mapping[str, Any]) -> list[Collected]:
        """Every client's samples, not yet split."""
        return [Collected(**record) for record in self.reading(files, content, options)[0]]

    def reading(
        self, files: Files, content: str, options: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """What the reader gave, as plain fields, from the cache if it was read before; and the classes it numbers."""
        own = {name: options[name] for name in self.own}

        def make() -> tuple[dict[str, Array], Any]:
            found = self.read(files, **own)
            if not isinstance(found, Found):
                found = Found(list(found), _settled(self.classes, options))
            return pack_records(found.records, found.classes)

        key = key_of(code_key(), "read", self.name, content, own)
        if key not in files.readings:
            files.readings[key] = unpack_records(cached(key, make) if self.keep else unkept(*make()))
        records, names = files.readings[key]
        return [dict(record) for record in records], names

    def _made(self, files: Files, content: str, options: Mapping[str, Any]) -> Federation:
        seed = options["seed"]
        collection = self.gather(files, content, options)
        names = self.reading(files, content, options)[1]
        collection = self._chosen(collection, names, options)
        dealt = self._partition(options)
        pool = collection[0].x if dealt is not None and len(collection) == 1 else None
        if pool is not None:  # samples are dealt by number, so that each is copied once
            collection = [replace(collection[0], x=np.arange(len(pool)))]
        split = parse_split(options["split"], self.split)
        clients = on_all_cores(lambda client: client_data(client, split_client(client, split, seed)), collection)
        kept = [client for client in clients if len(client.train)]
        if not kept:
            raise UserError(f"dataset '{self.name}': {files.root} gives no sample to train on with these options")
        federation = Federation(
            self.name, self._task(files, names, options), tuple(kept), description=_left_out(clients, kept)
        )
        if dealt is not None:
            federation = redeal(federation, dealt, options["clients"] or len(federation), seed)
        if options["held_out"] is not None:
            federation = hold_out(federation, options["held_out"], seed)
        federation = apply_skews(federation, self._skews(options), seed)
        if options["samples"] is not None:
            federation = at_most(federation, options["samples"], seed)
        if pool is not None:
            federation = with_samples(federation, pool)
        federation = replace(federation, description=self._description(federation, options))
        return self.finished(federation, options)

    def finished(self, federation: Federation, options: Mapping[str, Any]) -> Federation:
        """What is fitted on training parts comes last, when it is settled what they are."""
        return normalised(federation, options["normalise"])

    def _task(self, files: Files, names: tuple[str, ...], options: Mapping[str, Any]) -> Task:
        chosen = options["classes"] or names
        values = tuple(self.values[names.index(name)] for name in chosen) if self.values else ()
        if self.kind == "counting" and not values:
            values = tuple(float(name) for name in chosen)
        return Task(tuple(chosen), self.kind, values)

    def _chosen(self, clients: list[Collected], names: tuple[str, ...], options: Mapping[str, Any]) -> list[Collected]:
        """Only the samples of the classes that are asked for, numbered in that order."""
        if not options["classes"]:
            return clients
        for name in options["classes"]:
            if name not in names:
                raise UserError(f"dataset '{self.name}' has no class '{name}'; {nearest(name, names)}", about="classes")
        number = np.full(len(names), -1)
        for new, name in enumerate(options["classes"]):
            number[names.index(name)] = new
        kept = [replace(client, y=np.where(client.y < 0, -1, number[client.y])) for client in clients]
        return [client.take(np.flatnonzero(client.y >= 0)) for client in kept]

    def _refuse_clients(self, given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Numbers of clients that cannot be, and clients as recorded where nobody knows who recorded what."""
        if options["clients"] is not None and options["clients"] < 1:
            raise UserError(f"clients = {options['clients']}; give at least 1", about="clients")
        if options["partition"] in NATURAL and self.partition is not None:
            raise UserError(
                f"dataset '{self.name}' does not say who recorded what; leave natural-id out", about="partition"
            )
        if options["partition"] in NATURAL and given.get("clients") is not None:
            raise UserError(
                f"natural-id keeps the clients as recorded; leave out clients = {options['clients']}, "
                "or deal anew with another partition",
                about="clients",
            )

    def _partition(self, options: Mapping[str, Any]) -> Partition | None:
        """How samples are dealt; ``clients`` alone deals a dataset that has clients of its own at random."""
        asked = options["partition"]
        if asked in NATURAL:
            asked = None
        if asked is None and options["clients"] is not None:
            asked = "iid"
        return None if asked is None else parse_partition(asked)

    def _skews(self, options: Mapping[str, Any]) -> tuple[Skew, ...]:
        """``classes-per-client`` is short for the skew used most."""
        asked: list[Any] = []
        if options["classes_per_client"] is not None:
            asked.append({"kind": "keep-classes", "count": options["classes_per_client"]})
        given = options["skew"] or []
        asked += given if isinstance(given, list) else [given]
        return parse_skews(asked)  # together, so that each draws numbers of its own

    def _description(self, federation: Federation, options: Mapping[str, Any]) -> str:
        """How much there is after all, and what was done to it."""
        samples = sum(len(client.split(name)) for client in federation.everyone for name in SPLITS)
        held = f" and {len(federation.newcomers)} held out" if federation.newcomers else ""
        skews = ", ".join(skew.kind for skew in self._skews(options))
        said = [
            f"{self.card.title}: {samples:,} samples of {len(federation)} clients{held}",
            federation.description,
            f"skewed by {skews}" if skews else "",
        ]
        return "; ".join(filter(None, said))


def _settled(names: tuple[str, ...] | Callable[..., tuple[str, ...]], options: Mapping[str, Any]) -> tuple[str, ...]:
    """The names, which may depend on options of the reader."""
    if not callable(names):
        return names
    return names(**{name: options[name] for name in inspect.signature(names).parameters})


def _left_out(clients: Sequence[ClientData], kept: Sequence[ClientData]) -> str:
    names = sorted({client.id for client in clients} - {client.id for client in kept})
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{len(names)} left out, who have nothing to train on ({some})" if names else ""


@dataclass(frozen=True)
class Signals(Read):
    """A dataset of recordings, cut into windows."""

    rate: float | None = 50.0  # Hz; None: each client's own
    window: int = 128
    overlap: float = 0.5
    normalise: Normalise = "channel"

    common: ClassVar[dict[str, Any]] = Read.common | {
        "rate": float | None,
        "window": int,
        "overlap": float,
        "channels": list[str] | None,
    }

    def defaults(self) -> dict[str, Any]:
        return super().defaults() | {
            "rate": self.rate,
            "window": self.window,
            "overlap": self.overlap,
            "channels": None,
        }

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = super().parse(given)
        cut([], options["rate"], options["window"], options["overlap"])
        return options

    def gather(self, files: Files, content: str, options: Mapping[str, Any]) -> list[Collected]:
        return cut(self.recordings(files, content, options), options["rate"], options["window"], options["overlap"])

    def recordings(self, files: Files, content: str, options: Mapping[str, Any]) -> list[Recording]:
        """Every recording, with the channels that are asked for."""
        records, _ = self.reading(files, content, options)
        found = [Recording(**{**record, "channels": tuple(record["channels"])}) for record in records]
        return [self._with_channels(r, options["channels"]) for r in found] if options["channels"] else found

    def _with_channels(self, recording: Recording, asked: Sequence[str]) -> Recording:
        """``acc`` is all of acc_x, acc_y, acc_z."""
        sensors = [name.rpartition("_")[0] or name for name in recording.channels]
        for name in asked:
            if name not in recording.channels and name not in sensors:
                known = dict.fromkeys([*sensors, *recording.channels])
                raise UserError(
                    f"client '{recording.client}' has no channel '{name}'; {nearest(name, known)}", about="channels"
                )
        chosen = [i for name in asked for i, c in enumerate(recording.channels) if name in (c, sensors[i])]
        chosen = list(dict.fromkeys(chosen))
        return replace(
            recording, signal=recording.signal[:, chosen], channels=tuple(recording.channels[i] for i in chosen)
        )


def _refuse_twice(option: str, names: Sequence[str] | None) -> None:
    for name in names or ():
        if (names or ()).count(name) > 1:
            raise UserError(f"{option} names '{name}' twice; name it once", about=option)
