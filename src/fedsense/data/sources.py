"""Federations of several sources that differ in shape: each client is dealt samples of one source, of some classes."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsense.data.cache import code_key, key_of
from fedsense.data.dataset import Dataset
from fedsense.data.packing import kept_federation
from fedsense.data.partitions import Partition, apportion, hand_out, redeal
from fedsense.data.skews import apply_skews, hold_out, parse_skews
from fedsense.data.splits import at_most, in_floats
from fedsense.data.telling import telling
from fedsense.errors import UserError
from fedsense.federation import ClientData, Federation, Missing, Task
from fedsense.options import checked, options_of
from fedsense.work import seed_of, stream

Array = NDArray[Any]


@dataclass(frozen=True)
class Options:
    """What every such dataset can be asked."""

    root: str | None = None
    clients: int = 100
    classes_per_client: int = 2
    samples: int | None = None  # a client trains on at most so many, as evenly of its classes as can be
    val: float = 0.1  # share of what is not tested on
    held_out: int | float | list[str] | None = None
    skew: str | dict[str, Any] | list[str | dict[str, Any]] | None = None
    seed: int = 0


@dataclass(frozen=True)
class ClassesEach(Partition):
    """So many classes a client, each class held by as many clients as any other, or one more or less.

    A class is shared out evenly among its holders. With few clients some classes may be nobody's.
    """

    count: int
    kind = "classes-each"

    def _dealt(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        classes, sizes = np.unique(y, return_counts=True)
        holds = np.zeros((len(classes), clients), np.int64)
        for i in range(clients):
            rarest = np.lexsort((rng.random(len(classes)), holds.sum(1)))
            holds[rarest[: self.count], i] = 1
        wanted = holds.sum(1)
        if (wanted > sizes).any():
            c = int(np.argmax(wanted - sizes))
            self._refuse(
                f"{wanted[c]} clients want class {classes[c]}, which has {sizes[c]} samples to train on; "
                "ask for fewer clients, or for fewer classes a client",
                "clients",
            )
        held = np.flatnonzero(wanted)
        counts = np.stack([apportion(holds[c], int(sizes[c]), rng) for c in held])
        return hand_out(y, classes[held], counts, rng), ""


class Mixed(Dataset):
    """A dataset of several sources. A subclass says what they are."""

    options: ClassVar[type[Options]]
    classes: ClassVar[tuple[str, ...]]

    @abstractmethod
    def content(self, options: Mapping[str, Any]) -> str:
        """A digest of the files' content."""

    @abstractmethod
    def sources(self, options: Mapping[str, Any]) -> dict[str, ClientData]:
        """Name → all samples of a source, split."""

    def finished(self, client: ClientData, options: Mapping[str, Any]) -> ClientData:
        """The client with what is special about this dataset."""
        return client

    def defaults(self) -> dict[str, Any]:
        return dataclasses.asdict(self.options())

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = self.defaults() | checked(f"dataset '{self.name}'", given, options_of(self.options))
        parse_skews(options["skew"] or ())
        kept, samples = options["classes_per_client"], options["samples"]
        for name, wrong, expected in (
            ("clients", options["clients"] < 1, "give at least 1"),
            ("classes_per_client", not 1 <= kept <= len(self.classes), f"give 1 to {len(self.classes)}"),
            ("samples", samples is not None and samples < kept, f"give at least {kept}, one a class"),
            ("val", not 0 <= options["val"] < 1, "give a share from 0 up to, not including, 1"),
        ):
            if wrong:
                raise UserError(f"dataset '{self.name}': {name} = {options[name]}; {expected}", about=name)
        return options

    def build(self, options: Mapping[str, Any], missing: Missing) -> Federation:
        kept = {name: value for name, value in options.items() if name not in self.places()}
        key = key_of(code_key(), "federation", self.name, self.content(options), kept, missing)
        with telling(f"reading {self.name}"):
            return kept_federation(key, lambda: self._made(options).check(missing))

    def places(self) -> tuple[str, ...]:
        """Options that say where files lie, and nothing of what is in them."""
        return ("root",)

    def _made(self, options: Mapping[str, Any]) -> Federation:
        seed, sources = options["seed"], self.sources(options)
        task = Task(self.classes)
        order = stream(seed, self.name, "sources").permutation(np.arange(options["clients"]) % len(sources))
        clients: dict[int, ClientData] = {}
        for number, (name, pool) in enumerate(sources.items()):
            mine = np.flatnonzero(order == number)
            if not len(mine):
                continue
            partition = ClassesEach(options["classes_per_client"])
            dealt = redeal(Federation(name, task, (pool,)), partition, len(mine), seed_of(seed, self.name, name))
            for place, client in zip(mine.tolist(), dealt.clients, strict=True):
                clients[place] = replace(client, id=f"{name}-{place:03d}", traits={"source": name})
        ready = (self.finished(in_floats(clients[i]), options) for i in sorted(clients))
        federation = Federation(self.name, task, tuple(ready), description=self._description(sources, options))
        if options["samples"] is not None:
            federation = at_most(federation, options["samples"], seed)
        if options["held_out"] is not None:
            federation = hold_out(federation, options["held_out"], seed)
        return apply_skews(federation, parse_skews(options["skew"] or ()), seed)

    def _description(self, sources: Mapping[str, ClientData], options: Mapping[str, Any]) -> str:
        sizes = " and ".join(
            f"{len(s.train) + len(s.val) + len(s.test)} samples of {name}" for name, s in sources.items()
        )
        return (
            f"{self.card.title}: {sizes}, dealt to {options['clients']} clients, each with one source and "
            f"{options['classes_per_client']} of {len(self.classes)} classes"
        )


def each_split(client: ClientData, edit: Callable[[Tensor], Tensor]) -> ClientData:
    """The client with ``edit(x)`` in place of every ``x``."""
    return client.change(lambda _, samples: replace(samples, x=edit(samples.x)))
