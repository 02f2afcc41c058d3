"""Partitions deal one pool of samples to clients; names and options are those of flwr-datasets, where it has the same.

Every partition is a small dataclass with ``deal(y, clients, rng)``: for each client the sorted numbers of its samples,
no sample twice. :func:`redeal` does it to a whole federation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from fedsense.errors import UserError
from fedsense.federation import SPLITS, ClientData, Federation, Samples
from fedsense.options import built, kind_and_options
from fedsense.work import stream

Array = NDArray[Any]
Made = TypeVar("Made")

DRAWS = 100  # at most, until what is drawn at random fits what was asked for


@dataclass(frozen=True)
class Partition:
    """A way to deal samples to clients."""

    kind: ClassVar[str]
    example: ClassVar[str] = ""  # of the options it cannot do without

    def deal(self, y: Array, clients: int, rng: np.random.Generator) -> list[Array]:
        """For each client the sorted numbers of its samples; ``y`` ``[n]`` holds class numbers."""
        return self.noted(y, clients, rng)[0]

    def noted(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        """What :meth:`deal` gives, and a note where that is not quite what the options say."""
        if clients < 1:
            self._refuse(f"clients = {clients}; give at least 1", "clients")
        if len(y) < clients:
            self._refuse(
                f"there are {len(y)} samples for {clients} clients; ask for at most {len(y)} clients", "clients"
            )
        parts, note = self._dealt(y, clients, rng)
        return [np.sort(part) for part in parts], note

    def _dealt(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        raise NotImplementedError

    def _refuse(self, message: str, about: str = "") -> NoReturn:
        raise UserError(f"{self.kind}: {message}", about)


@dataclass(frozen=True)
class Iid(Partition):
    """At random, in sizes that differ by one at most."""

    kind = "iid"

    def _dealt(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        return np.array_split(rng.permutation(len(y)), clients), ""


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is shared out among the clients in proportions drawn from Dirichlet(alpha, ..., alpha).

    ``alpha`` is one number, or one for each class that occurs. With ``self_balancing``, a client that holds more than
    the average gets nothing of the classes that follow.

    It always ends: if no draw of ``DRAWS`` gives every client ``min_partition_size`` samples, the draw that lacks the
    fewest is taken, and the poorest client is given samples of those who can spare them, in its own mix of classes as
    drawn, as far as they last. :meth:`noted` says how many.
    """

    alpha: float | tuple[float, ...]
    min_partition_size: int = 10
    self_balancing: bool = False
    kind = "dirichlet"
    example = "alpha = 0.3"

    def __post_init__(self) -> None:
        alphas = np.atleast_1d(np.asarray(self.alpha, dtype=float))
        if not (len(alphas) and (alphas > 0).all() and np.isfinite(alphas).all()):
            self._refuse(f"alpha is {self.alpha}; it must be above 0 and finite", "alpha")
        if self.min_partition_size < 1:
            self._refuse(f"min_partition_size is {self.min_partition_size}; give at least 1", "min_partition_size")

    def _dealt(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        least, (classes, sizes) = self.min_partition_size, np.unique(y, return_counts=True)
        if clients * least > len(y):
            self._refuse(
                f"{clients} clients of at least {least} samples need {clients * least}, but there are {len(y)}; "
                f"lower min_partition_size to at most {len(y) // clients}, or ask for fewer clients",
                "min_partition_size",
            )
        if not isinstance(self.alpha, float | int) and len(self.alpha) != len(classes):
            self._refuse(
                f"alpha lists {len(self.alpha)} numbers, but {len(classes)} classes occur; give one a class", "alpha"
            )
        counts, shares = self._best_drawn(sizes, clients, rng)
        moved = _fill(counts, shares + np.log(sizes)[:, None], least)
        note = f"{moved} of {len(y)} samples were moved so that every client has at least {least}" if moved else ""
        return hand_out(y, classes, counts, rng), note

    def _best_drawn(self, sizes: Array, clients: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """The first draw that gives everyone enough, or else the one that lacks the fewest samples."""
        best, fewest = None, np.inf
        for _ in range(DRAWS):
            draw = self._drawn(sizes, clients, rng)
            lacks = np.maximum(self.min_partition_size - draw[0].sum(0), 0).sum()
            if best is None or lacks < fewest:
                best, fewest = draw, lacks
            if not fewest:
                break
        assert best is not None
        return best

    def _drawn(self, sizes: Array, clients: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Samples, and logarithms of shares, of each class and client ``[classes, clients]``."""
        # Beyond these bounds shares are 0 or 1, or equal, to the last sample.
        alpha = np.broadcast_to(np.clip(np.asarray(self.alpha, dtype=float), 1e-300, 1e15), len(sizes))[:, None]
        shape = (len(sizes), clients)
        # Gamma(a) = Gamma(a + 1) * U^(1 / a): its logarithm does not underflow where a is tiny, and -log U is Exp(1)
        shares = np.log(rng.gamma(alpha + 1, size=shape)) - rng.standard_exponential(shape) / alpha
        counts = np.zeros(shape, dtype=np.int64)
        for c, size in enumerate(sizes):
            if self.self_balancing:
                shares[c, counts.sum(0) > sizes.sum() / clients] = -np.inf
            shares[c] -= logsumexp(shares[c])
            counts[c] = apportion(np.exp(shares[c]), int(size), rng)
        return counts, shares


@dataclass(frozen=True)
class Pathological(Partition):
    """So many classes a client; a class is shared out evenly among the clients that have it.

    Which classes: "deterministic" gives client i the classes i, i + 1, ... (and round again), "first-deterministic"
    the class i and others at random, "random" any. What is random is drawn anew, a bounded number of times, until every
    class is someone's and has a sample for each of its clients.
    """

    num_classes_per_partition: int
    class_assignment_mode: Literal["random", "deterministic", "first-deterministic"] = "random"
    kind = "pathological"
    example = "num_classes_per_partition = 2"

    def __post_init__(self) -> None:
        if (kept := self.num_classes_per_partition) < 1:
            self._refuse(f"num_classes_per_partition is {kept}; give at least 1", "num_classes_per_partition")

    def _dealt(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        classes, sizes = np.unique(y, return_counts=True)
        if self.num_classes_per_partition > len(classes):
            self._refuse(
                f"num_classes_per_partition is {self.num_classes_per_partition}, but {len(classes)} classes occur; "
                f"give at most {len(classes)}",
                "num_classes_per_partition",
            )
        for _ in range(DRAWS):
            holds = self._drawn(len(classes), clients, rng)
            wanted = holds.sum(1)
            if (wanted > 0).all() and (wanted <= sizes).all():
                break
        else:
            self._explain(classes, sizes, wanted)
        counts = np.stack([apportion(row, int(size), rng) for row, size in zip(holds, sizes, strict=True)])
        return hand_out(y, classes, counts, rng), ""

    def _drawn(self, classes: int, clients: int, rng: np.random.Generator) -> Array:
        """Who has which class, 0 or 1, ``[classes, clients]``."""
        holds = np.zeros((classes, clients), dtype=np.int64)
        for i in range(clients):
            order = (np.arange(classes) + i) % classes
            if self.class_assignment_mode == "random":
                order = rng.permutation(classes)
            elif self.class_assignment_mode == "first-deterministic":
                order[1:] = rng.permutation(order[1:])
            holds[order[: self.num_classes_per_partition], i] = 1
        return holds

    def _explain(self, classes: Array, sizes: Array, wanted: Array) -> NoReturn:
        if (wanted == 0).any():
            each = self.num_classes_per_partition
            self._refuse(
                f"nobody gets class {classes[wanted == 0][0]}: {wanted.sum() // each} clients with {each} of "
                f"{len(classes)} classes each leave it out; ask for more clients, or for more classes a client",
                "num_classes_per_partition",
            )
        c = int(np.argmax(wanted > sizes))
        self._refuse(
            f"{wanted[c]} clients want class {classes[c]}, which has {sizes[c]} samples; ask for fewer clients, or for "
            "fewer classes a client",
            "num_classes_per_partition",
        )


@dataclass(frozen=True)
class Shard(Partition):
    """The samples, sorted by class, are cut into shards, and shards are dealt at random.

    Given ``num_shards_per_partition``, each client gets so many, of ``shard_size`` or else as large as can be (rounded
    down). Given ``shard_size`` alone, all shards are dealt, as evenly as can be. A last shard that is not full is left
    out, unless ``keep_incomplete_shard`` (which means nothing where both are given).
    """

    num_shards_per_partition: int | None = None
    shard_size: int | None = None
    keep_incomplete_shard: bool = False
    kind = "shard"

    def __post_init__(self) -> None:
        for name in ("num_shards_per_partition", "shard_size"):
            if (value := getattr(self, name)) is not None and value < 1:
                self._refuse(f"{name} is {value}; give at least 1", name)
        if self.num_shards_per_partition is None and self.shard_size is None:
            self._refuse("give num_shards_per_partition, or shard_size, or both")

    def _dealt(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        each, size = self.num_shards_per_partition, self.shard_size or 0
        if each is not None:
            size = size or len(y) // (clients * each)
            if not size or clients * each * size > len(y):
                self._refuse(
                    f"{clients} clients with {each} shards of {max(size, 1)} need {clients * each * max(size, 1)} "
                    f"samples, but there are {len(y)}; ask for fewer clients, or fewer or smaller shards",
                    "num_shards_per_partition",
                )
        whole = self.keep_incomplete_shard and not (each and self.shard_size)
        shards = -(-len(y) // size) if whole else len(y) // size
        if shards < clients:
            self._refuse(
                f"{len(y)} samples make {shards} shards of {size}, too few for {clients} clients; give a shard_size "
                f"of at most {len(y) // clients}, or ask for fewer clients",
                "shard_size",
            )
        mixed = rng.permutation(len(y))
        by_class = mixed[np.argsort(y[mixed], kind="stable")]
        order = rng.permutation(shards)
        dealt = np.array_split(order, clients) if each is None else order[: clients * each].reshape(clients, each)
        return [np.concatenate([by_class[s * size : (s + 1) * size] for s in mine]) for mine in dealt], ""


@dataclass(frozen=True)
class Size(Partition):
    """At random, in the sizes given, one a client; what is left over is nobody's."""

    partition_sizes: tuple[int, ...]
    kind = "size"
    example = "partition_sizes = [60, 30, 10]"

    def __post_init__(self) -> None:
        if not self.partition_sizes or min(self.partition_sizes) < 1:
            self._refuse(
                f"partition_sizes is {[*self.partition_sizes]}; give each client at least 1", "partition_sizes"
            )

    def _dealt(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        if len(self.partition_sizes) != clients:
            self._refuse(
                f"partition_sizes lists {len(self.partition_sizes)} sizes for {clients} clients; give one a client",
                "partition_sizes",
            )
        if (total := sum(self.partition_sizes)) > len(y):
            self._refuse(
                f"partition_sizes add up to {total}, but there are {len(y)} samples; give smaller sizes",
                "partition_sizes",
            )
        return _cut(rng.permutation(len(y)), self.partition_sizes), ""


@dataclass(frozen=True)
class _Growing(Partition):
    """At random, in sizes that grow with the client's number from 1; what rounding leaves over goes to the last."""

    units: ClassVar[Any]  # client numbers → sizes, up to a factor

    def _dealt(self, y: Array, clients: int, rng: np.random.Generator) -> tuple[list[Array], str]:
        units = type(self).units(np.arange(1, clients + 1, dtype=float))
        sizes = np.floor(units * len(y) / units.sum()).astype(np.int64)
        sizes[-1] += len(y) - sizes.sum()
        if not sizes[0]:
            without = int((sizes == 0).sum())
            self._refuse(
                f"{len(y)} samples leave {without} of {clients} clients with none; ask for fewer clients", "clients"
            )
        return _cut(rng.permutation(len(y)), sizes), ""


@dataclass(frozen=True)
class Linear(_Growing):
    """Sizes in proportion to the client's number."""

    kind = "linear"
    units = staticmethod(lambda number: number)


@dataclass(frozen=True)
class Square(_Growing):
    """Sizes in proportion to the square of the client's number."""

    kind = "square"
    units = staticmethod(lambda number: number**2)


@dataclass(frozen=True)
class Exponential(_Growing):
    """Sizes in proportion to exp(the client's number)."""

    kind = "exponential"
    units = staticmethod(lambda number: np.exp(number - number[-1]))


PARTITIONS: dict[str, type[Partition]] = {
    entry.kind: entry for entry in (Iid, Dirichlet, Pathological, Shard, Size, Linear, Square, Exponential)
}


def parse_partition(table: str | Mapping[str, Any]) -> Partition:
    """A partition from ``"iid"`` or ``{kind = "dirichlet", alpha = 0.3}``."""
    kind, options = kind_and_options(table, PARTITIONS, "partition")
    return built(PARTITIONS[kind], options)


def apportion(weights: Array, total: int, rng: np.random.Generator) -> Array:
    """Whole numbers in proportion to ``weights`` that add up to ``total``: largest remainders, ties at random."""
    ideal = weights / weights.sum() * total
    whole: Array = np.floor(ideal).astype(np.int64)
    order = np.lexsort((rng.random(len(whole)), whole - ideal))
    whole[order[: total - whole.sum()]] += 1
    return whole


def hand_out(y: Array, classes: Array, counts: Array, rng: np.random.Generator) -> list[Array]:
    """Samples at random, as many of each of ``classes`` to each client as ``counts`` ``[classes, clients]`` says."""
    piles = [_cut(rng.permutation(np.flatnonzero(y == c)), row) for c, row in zip(classes, counts, strict=True)]
    return [np.concatenate([pile[i] for pile in piles]) for i in range(counts.shape[1])]


def _cut(order: Array, sizes: Iterable[int]) -> list[Array]:
    edges = np.cumsum([0, *sizes])
    return [order[start:end] for start, end in pairwise(edges)]


def _fill(counts: Array, wishes: Array, least: int) -> int:
    """Move samples until every client has ``least``; how many were moved. Changes ``counts`` ``[classes, clients]``.

    Each step gives the poorest client one sample of the class it lacks most, by the mix softmax(``wishes``) of its
    classes, from the client that has the most of it among those with more than ``least`` samples. There is one while
    anyone lacks samples, since the mean is not below ``least``, and each step leaves one less to move.
    """
    moved = 0
    while (held := counts.sum(0)).min() < least:
        poor = int(held.argmin())
        spare = np.where(held > least, counts, 0)
        lacks = softmax(wishes[:, poor]) * (held[poor] + 1) - counts[:, poor]
        c = int(np.argmax(np.where(spare.any(1), lacks, -np.inf)))
        counts[c, spare[c].argmax()] -= 1
        counts[c, poor] += 1
        moved += 1
    return moved


def redeal(federation: Federation, partition: Partition, clients: int, seed: int) -> Federation:
    """The samples of all clients, pooled and dealt anew to clients "client-000", ...; newcomers stay as they are.

    ``partition`` deals the training samples. Of the other splits' samples, each class is shared out in proportion to
    who trains on it, so that a client is tested on what it trains on; a class nobody trains on is left out.
    """
    model = _common(federation, partition.kind)
    first, *others = (client.traits for client in federation.clients)
    common = {key: value for key, value in first.items() if all(traits.get(key) == value for traits in others)}
    pools = {split: _pooled(federation, split) for split in SPLITS}
    labels = {split: pool.y.numpy() for split, pool in pools.items()}
    rngs = {split: stream(seed, "redeal", partition.kind, split) for split in SPLITS}
    parts, note = partition.noted(labels["train"], clients, rngs["train"])
    width = 1 + max(int(y.max(initial=0)) for y in labels.values())
    trains = np.stack([np.bincount(labels["train"][part], minlength=width) for part in parts], axis=1)
    dealt = {"train": parts}
    for split in SPLITS[1:]:
        counts = _following(trains, np.bincount(labels[split], minlength=width), rngs[split])
        dealt[split] = [np.sort(part) for part in hand_out(labels[split], np.arange(width), counts, rngs[split])]
    ids = [f"client-{i:03d}" for i in range(clients)]
    if taken := sorted({client.id for client in federation.newcomers} & set(ids)):
        raise UserError(f"{partition.kind}: a newcomer is called '{taken[0]}', like a new client; hold out afterwards")
    new = []
    for i, name in enumerate(ids):
        train, val, test = (pools[split].take(torch.from_numpy(dealt[split][i])) for split in SPLITS)
        new.append(ClientData(name, train, val, test, common, model))
    said = f"dealt anew to {clients} clients: {partition}{f' ({note})' if note else ''}"
    return federation.with_clients(new, description="; ".join(filter(None, (federation.description, said))))


def _common(federation: Federation, kind: str) -> str | None:
    """The architecture all clients have, if they can be pooled."""
    federation.refuse_different_shapes(kind)
    models = {client.model: client.id for client in federation.clients}
    if len(models) > 1:
        raise UserError(
            f"{kind} pools all recordings, but clients of '{federation.name}' have models of their own: "
            + ", ".join(f"'{client_id}' has {model or 'none'}" for model, client_id in models.items())
            + f"; leave {kind} out, or give all clients one model"
        )
    return next(iter(models))


def _pooled(federation: Federation, split: str) -> Samples:
    """The samples of all clients, with recordings numbered on from client to client, alike in all splits."""
    parts, origins, start = [], [], 0
    for client in federation.clients:
        samples = client.split(split)
        known = [o for o in (client.split(name).origin for name in SPLITS) if o is not None and len(o)]
        if len(samples):
            parts.append(samples)
        if len(samples) and samples.origin is not None:
            origins.append(samples.origin + torch.tensor([start, 0, 0], dtype=samples.origin.dtype))
        start += max((int(o[:, 0].max()) + 1 for o in known), default=0)
    if not parts:
        return federation.clients[0].train.take(slice(0, 0))
    joined = Samples.join(parts) if len(parts) > 1 else parts[0]
    return replace(joined, origin=torch.cat(origins) if len(origins) == len(parts) else None)


def _following(trains: Array, sizes: Array, rng: np.random.Generator) -> Array:
    """How many of ``sizes`` ``[classes]`` samples each client gets, from its numbers of training samples.

    Whoever trains on a class gets one of it where there are enough for all who do, and whoever trains gets one of any
    of its classes where someone can spare it. ``trains`` and the result are ``[classes, clients]``.
    """
    counts = np.zeros_like(trains)
    for c in np.flatnonzero((trains.sum(1) > 0) & (sizes > 0)):
        counts[c] = apportion(trains[c], int(sizes[c]), rng)
        holders = trains[c] > 0
        while counts[c].sum() >= holders.sum() and (counts[c][holders] == 0).any():
            counts[c, counts[c].argmax()] -= 1
            counts[c, np.argmax(holders & (counts[c] == 0))] += 1
    for i in np.flatnonzero((trains.sum(0) > 0) & (counts.sum(0) == 0)):
        spare = np.where((trains[:, [i]] > 0) & (counts.sum(0) > 1), counts, 0)
        if spare.any():
            c, rich = np.unravel_index(spare.argmax(), spare.shape)
            counts[c, rich] -= 1
            counts[c, i] += 1
    return counts
