"""A Federation is the roster: each client's recordings, what its device measures, and the task all share."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsense.errors import UserError, nearest
from fedsense.recordings import Recordings

Kind = Literal["classification", "counting", "regression"]
Missing = Literal["refuse", "drop", "zero"]  # what becomes of samples with values that are not finite
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Samples:
    """Inputs ``x`` ``[n, ...]`` and labels ``y`` ``[n]`` (class numbers; values in a regression).

    ``x`` is float32; images may stay bytes, a fourth of the memory, which a model takes as shares of 255.

    ``origin`` ``[n, 3]`` says where each was cut from: which recording of the client, the first time step and the one
    after the last. Two samples of one recording whose spans meet share measurements. None where it is not known.

    Where a client's recordings are made when they are asked for (see :meth:`ClientData.later`), the three tensors are;
    the length and the shape are known before.
    """

    x: Tensor
    y: Tensor
    origin: Tensor | None = field(default_factory=lambda: None)

    @staticmethod
    def later(recordings: Recordings, place: int) -> Samples:
        """The split at ``place`` in SPLITS."""
        samples = object.__new__(Samples)
        object.__setattr__(samples, "_later", (recordings, place))
        return samples

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in ("x", "y", "origin") or self._awaited is None:
                raise AttributeError(f"Samples have no '{name}'")
            return getattr(self.made, name)

    @property
    def _awaited(self) -> tuple[Recordings, int] | None:
        return self.__dict__.get("_later")

    @property
    def recordings(self) -> Recordings | None:
        """What makes them, if they are made when they are asked for."""
        return self._awaited[0] if self._awaited else None

    @property
    def made(self) -> Samples:
        """The samples with their tensors, which stay in memory as long as this is held."""
        if self._awaited is None:
            return self
        recordings, place = self._awaited
        return recordings.splits()[place]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self._awaited[0].shape if self._awaited else tuple(self.x.shape[1:])

    def each(self, edit: Callable[[Tensor], Tensor]) -> Samples:
        """A copy with ``edit`` applied to the three tensors, one row a sample."""
        made = self.made
        return Samples(edit(made.x), edit(made.y), None if made.origin is None else edit(made.origin))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        made = self.made
        return (made.x, made.y) if made.origin is None else (made.x, made.y, made.origin)

    def __len__(self) -> int:
        if self._awaited is None:
            return len(self.y)
        recordings, place = self._awaited
        return recordings.sizes[place]

    def __repr__(self) -> str:
        return f"Samples({len(self)} of {'×'.join(map(str, self.shape))})"

    def take(self, index: Any) -> Samples:
        if isinstance(index, Tensor) and index.dtype == torch.int64:  # ten times as fast for images
            return self.each(lambda part: part.index_select(0, index))
        return self.each(lambda part: part[index])

    @staticmethod
    def join(parts: Sequence[Samples]) -> Samples:
        """All of them, as one; the origins go, because recordings are numbered within a client."""
        parts = [part.made for part in parts]
        xs = [part.x for part in parts]
        if len({x.dtype for x in xs}) > 1:
            xs = [in_shares(x) for x in xs]
        return Samples(torch.cat(xs), torch.cat([part.y for part in parts]))


def in_shares(x: Tensor) -> Tensor:
    """Bytes as shares of 255; other numbers as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


@dataclass(frozen=True)
class ClientData:
    """One client of the roster: its recordings, split, and what is known of it (person, device, placement, ...)."""

    id: str
    train: Samples
    val: Samples
    test: Samples
    traits: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None  # an architecture of its own, instead of the federation's

    @staticmethod
    def later(
        id: str,
        make: Callable[[], tuple[Samples, Samples, Samples]],
        sizes: tuple[int, int, int],
        input_shape: tuple[int, ...],
        key: str = "",
        traits: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> ClientData:
        """A client whose recordings are made when they are first asked for; many can be there that are never made.

        ``make()`` gives train, val and test, of so many samples (``sizes``) of this shape, the same ones every time:
        they are forgotten when memory is short, and made anew. ``key`` names what it gives, so that a resumed run can
        tell whether its data changed; where there is none, it has to make them all to tell.
        """
        recordings = Recordings(id, make, sizes, input_shape, key)
        train, val, test = (Samples.later(recordings, place) for place in range(len(SPLITS)))
        return ClientData(id, train, val, test, traits or {}, model)

    def __repr__(self) -> str:
        return f"ClientData('{self.id}', train={self.train}, val={self.val}, test={self.test})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: ``(channels, length)`` of a signal, ``(channels, height, width)`` of an image."""
        return self.train.shape

    def split(self, name: str) -> Samples:
        return {"train": self.train, "val": self.val, "test": self.test}[name]

    @property
    def splits(self) -> tuple[Samples, Samples, Samples]:
        return self.train, self.val, self.test

    def change(self, edit: Callable[[str, Samples], Samples]) -> ClientData:
        """A copy with ``edit(split name, samples)`` applied to each split."""
        train, val, test = (edit(name, self.split(name)) for name in SPLITS)
        return replace(self, train=train, val=val, test=test)

    def checked(self, name: str, check: Callable[[ClientData], ClientData]) -> ClientData:
        """``check(client)``, which gives the client or a copy of the same sizes; once it is made, if it is not yet.

        ``name`` tells checks apart, so that each is done once.
        """
        awaited = {split.recordings for split in self.splits}
        recordings = awaited.pop()
        if awaited or recordings is None:
            return check(self)
        if recordings.here:
            check(self)  # what is wrong with it can be said at once
        made = recordings.checked(
            name, lambda splits: check(ClientData(self.id, *splits, self.traits, self.model)).splits
        )
        train, val, test = (Samples.later(made, place) for place in range(len(SPLITS)))
        return replace(self, train=train, val=val, test=test)


@dataclass(frozen=True)
class Member:
    """What the server knows of a client before round one; never its data."""

    id: str
    samples: int
    architecture: str
    shapes: Mapping[str, tuple[int, ...]]  # name -> shape of every tensor of its model
    buffers: frozenset[str] = frozenset()  # those of them that hold running state and do not train
    features: int = 0  # width of its feature space
    speed: float = 1.0  # of its device, relative to the others: the trait "speed", if it is known
    count_flops: Callable[[], int] = field(default=lambda: 0, repr=False)
    find_latent: Callable[[], int] = field(default=lambda: 0, repr=False)

    @property
    def flops(self) -> int:
        """Floating-point operations of one sample's forward pass, counted when first asked for."""
        return self.count_flops()

    @property
    def latent(self) -> int:
        """Width of the space its adapter maps to, found when first asked for."""
        return self.find_latent()


@dataclass(frozen=True)
class Task:
    """What everyone knows: the classes, what kind of question it is, and (once models are built) who takes part."""

    classes: tuple[str, ...]
    # "counting": a class is a count, and being off by one is better than by five. "regression": labels are values, and
    # the only class is the name of what is measured.
    kind: Kind = "classification"
    values: tuple[float, ...] = ()  # the number each class stands for, in a counting task
    features: int = 0  # width of the feature space the models share
    members: Mapping[str, Member] = field(default_factory=dict)
    seed: int = 0  # of the run

    def __post_init__(self) -> None:
        if self.values and len(self.values) != len(self.classes):
            raise UserError(f"there are {len(self.classes)} classes, but {len(self.values)} values; give one a class")
        if self.kind == "regression" and len(self.classes) != 1:
            raise UserError(
                f'kind = "regression" predicts one value, but {len(self.classes)} classes are named; name the one '
                'quantity, as in classes=["speed"]'
            )

    @property
    def counts(self) -> tuple[float, ...]:
        return self.values or tuple(float(i) for i in range(len(self.classes)))


@dataclass(frozen=True)
class Federation:
    """The clients of one experiment and the task they share."""

    name: str
    task: Task
    clients: tuple[ClientData, ...]
    synthetic: bool = False
    description: str = ""
    newcomers: tuple[ClientData, ...] = ()  # held out: they take no part in training and may join afterwards

    def __post_init__(self) -> None:
        if not self.clients:
            raise UserError(f"federation '{self.name}' has no clients")
        ids = Counter(client.id for client in self.everyone)
        twice = [client_id for client_id, count in ids.items() if count > 1]
        if twice:
            raise UserError(f"federation '{self.name}': client ids must differ, but these occur twice: {twice}")

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        return f"Federation('{self.name}', {len(self)} clients, {len(self.task.classes)} classes: {self.description})"

    def __iter__(self) -> Iterator[ClientData]:
        return iter(self.clients)

    def __getitem__(self, client_id: str) -> ClientData:
        if client_id not in self._by_id:
            raise UserError(f"no client '{client_id}' in '{self.name}'; {nearest(client_id, self.ids)}")
        return self._by_id[client_id]

    @cached_property
    def _by_id(self) -> dict[str, ClientData]:
        return {client.id: client for client in self.clients}

    @property
    def ids(self) -> list[str]:
        return [client.id for client in self.clients]

    @staticmethod
    def from_arrays(
        clients: Mapping[str, Mapping[str, tuple[Any, Any]]],
        classes: Sequence[str] | int,
        name: str = "mine",
        **task: Any,
    ) -> Federation:
        """A federation from arrays: ``{"anna": {"train": (x, y), "test": (x, y)}, ...}``; ``val`` may be left out.

        Labels are class numbers, or names from ``classes``. Arrays of bytes stay so, as images (see :class:`Samples`).
        With ``kind="regression"`` labels are values of one quantity, ``classes=["speed"]``.
        """
        names = tuple(str(i) for i in range(classes)) if isinstance(classes, int) else tuple(classes)
        asked = Task(names, **task)
        return Federation(
            name=name,
            task=asked,
            clients=tuple(_client_from_arrays(str(client_id), splits, asked) for client_id, splits in clients.items()),
        )

    @property
    def everyone(self) -> tuple[ClientData, ...]:
        """Clients and newcomers."""
        return (*self.clients, *self.newcomers)

    def with_clients(self, clients: Iterable[ClientData], **changes: Any) -> Federation:
        return replace(self, clients=tuple(clients), **changes)

    def change(
        self,
        edit: Callable[[ClientData], ClientData],
        over: Callable[[Callable[[ClientData], ClientData], Iterable[ClientData]], Iterable[ClientData]] = map,
    ) -> Federation:
        """A copy with ``edit`` applied to every client and newcomer; ``over`` is what goes through them."""
        made = tuple(over(edit, self.everyone))
        return replace(self, clients=made[: len(self.clients)], newcomers=made[len(self.clients) :])

    def refuse_different_shapes(self, kind: str) -> None:
        """Only samples of one shape can be pooled, as ``kind`` does."""
        shapes = {client.input_shape: client.id for client in self.clients}
        if len(shapes) > 1:
            raise UserError(
                f"{kind} pools all recordings, but clients of '{self.name}' differ in input shape: "
                + ", ".join(f"'{client_id}' has {list(shape)}" for shape, client_id in shapes.items())
                + f"; leave {kind} out, or keep the clients of one shape"
            )

    def pooled(self) -> Federation:
        """One client that holds everyone's recordings: the reference no federation has, for ``Centralized``."""
        if "everyone" in self.ids:
            raise UserError("a client is called 'everyone', the name of all clients pooled; give it another id")
        self.refuse_different_shapes("centralized")
        made = [[split.made for split in client.splits] for client in self.clients]
        train, val, test = (Samples.join(parts) for parts in zip(*made, strict=True))
        return self.with_clients([ClientData("everyone", train, val, test)])

    def check(self, missing: Missing = "refuse") -> Federation:
        """The federation, sound: labels in range, shapes consistent, no missing values (or dealt with as asked).

        Recordings that are not made yet are checked when they are; leaving samples out, which changes how many there
        are, makes them.
        """
        if missing == "drop":
            return self.change(lambda client: _checked(client, self.task, missing))
        name = f"{missing}, {len(self.task.classes)} classes"
        return self.change(lambda client: client.checked(name, lambda made: _checked(made, self.task, missing)))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of every value, so that a resumed run can tell whether its data changed.

        Of recordings that are made when they are asked for it is a digest of what names them, if they have a name.
        """
        digest = hashlib.blake2b(digest_size=16)
        for client in self.everyone:
            digest.update(client.id.encode())
            for name in SPLITS:
                for piece in _identity(client.split(name)):
                    digest.update(piece)
        return digest.hexdigest()

    def class_counts(self, split: str = "train") -> dict[str, list[int]]:
        """Windows per class of every client."""
        width = len(self.task.classes)
        if self.task.kind == "regression":
            return {c.id: [len(c.split(split))] for c in self.clients}
        return {c.id: torch.bincount(c.split(split).y, minlength=width).tolist() for c in self.clients}


def _identity(samples: Samples) -> Iterator[Any]:
    """Bytes that differ where samples do."""
    yield repr((len(samples), *samples.shape)).encode()
    if samples.recordings and samples.recordings.key:
        yield b"made of " + samples.recordings.key.encode()
    elif len(samples):
        made = samples.made
        yield made.x.contiguous().numpy().data
        yield made.y.contiguous().numpy().data


def _client_from_arrays(client_id: str, splits: Mapping[str, tuple[Any, Any]], task: Task) -> ClientData:
    if unknown := set(splits) - set(SPLITS):
        name = sorted(unknown)[0]
        raise UserError(f"client '{client_id}' has a split '{name}'; {nearest(name, SPLITS)}")
    if "train" not in splits:
        raise UserError(f"client '{client_id}' has no 'train' split; give it {{'train': (x, y), 'test': (x, y)}}")
    made = {
        name: Samples(_floats(x, f"client '{client_id}', {name}"), _labels(y, task, f"client '{client_id}', {name}"))
        for name, (x, y) in splits.items()
    }
    for name, samples in made.items():
        if samples.y.dim() != 1 or len(samples.x) != len(samples.y):
            raise UserError(
                f"client '{client_id}', {name}: x holds {len(samples.x)} samples and y has shape "
                f"{list(samples.y.shape)}; give one label a sample"
            )
    empty = Samples(made["train"].x[:0], made["train"].y[:0])
    return ClientData(client_id, made["train"], made.get("val", empty), made.get("test", empty))


def _floats(x: Any, where: str) -> Tensor:
    try:
        tensor = torch.as_tensor(x)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: x must be numbers ({error})") from error
    return tensor if tensor.dtype in (torch.float32, torch.uint8) else tensor.to(torch.float32)


def _labels(y: Any, task: Task, where: str) -> Tensor:
    """Class numbers, from numbers or names; values in a regression."""
    array, classes = np.asarray(y.cpu() if isinstance(y, Tensor) else y), task.classes
    if task.kind == "regression":
        if array.dtype.kind not in "fiub":
            raise UserError(f"{where}: y must be numbers, the values of '{classes[0]}'")
        return torch.from_numpy(np.ascontiguousarray(array).astype(np.float32))
    if array.dtype.kind in "USO":
        numbers = {name: number for number, name in enumerate(classes)}
        unknown = next((str(label) for label in array.ravel() if str(label) not in numbers), None)
        if unknown is not None:
            raise UserError(f"{where}: label '{unknown}' is none of the classes; {nearest(unknown, classes)}")
        array = np.array([numbers[str(label)] for label in array.ravel()], dtype=np.int64).reshape(array.shape)
    if array.dtype.kind == "f" and not (array == np.round(array)).all():
        wrong = array[array != np.round(array)].flat[0]
        raise UserError(f"{where}: label {wrong:g} is no class number; give whole numbers, or names of classes")
    return torch.from_numpy(np.ascontiguousarray(array).astype(np.int64))


def _checked(client: ClientData, task: Task, missing: Missing) -> ClientData:
    for name in SPLITS:
        samples = client.split(name)
        if len(samples) and tuple(samples.x.shape[1:]) != client.input_shape:
            raise UserError(
                f"client '{client.id}': {name} samples have shape {list(samples.x.shape[1:])}, "
                f"train samples {list(client.input_shape)}; cut them to one shape"
            )
        if task.kind == "regression":
            if not samples.y.is_floating_point() or not _finite(samples.y):
                what = "are not finite" if samples.y.is_floating_point() else f"are {samples.y.dtype}, not floats"
                raise UserError(f"client '{client.id}': {name} holds values of '{task.classes[0]}' that {what}")
            continue
        if len(samples) and not (int(samples.y.min()) >= 0 and int(samples.y.max()) < len(task.classes)):
            wrong = int(samples.y.min()) if int(samples.y.min()) < 0 else int(samples.y.max())
            raise UserError(
                f"client '{client.id}': {name} holds label {wrong}, but there are {len(task.classes)} classes "
                f"(0 to {len(task.classes) - 1}); map the labels, or name more classes"
            )
    if all(_finite(client.split(name).x) for name in SPLITS):
        return client
    if missing == "drop":
        return client.change(lambda _, s: s.take(s.x.flatten(1).isfinite().all(1)))
    if missing == "zero":
        return client.change(lambda _, s: replace(s, x=s.x.nan_to_num(0.0, 0.0, 0.0)))
    name = next(name for name in SPLITS if not _finite(client.split(name).x))
    bad = ~client.split(name).x.isfinite()
    first = bad.nonzero()[0].tolist()
    raise UserError(
        f"client '{client.id}': {int(bad.sum())} of {bad.numel()} values in {name} are not finite "
        f"(NaN or infinite; the first in sample {first[0]}, channel {first[1] if len(first) > 1 else 0}); "
        'say missing="drop" to leave such samples out, or "zero" to put zeros in their place (data.missing in a recipe)'
    )


def _finite(x: Tensor) -> bool:
    if not x.is_floating_point():
        return True
    # a sum is finite unless something in it is not (or it overflows, and then the long way decides)
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())
