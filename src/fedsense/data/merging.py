"""Several federations as one: phones of one dataset and watches of another, on the classes they have in common.

Every client keeps its recordings, its split and its input shape; what changes are the numbers of the classes, its id
(``phones/s01``), and which samples are left out because nobody asked for their class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedsense.errors import UserError, nearest
from fedsense.federation import SPLITS, ClientData, Federation, Kind, Samples, Task
from fedsense.recordings import Recordings

Classes = Literal["common", "all"] | Sequence[str]  # those every federation has, those any has, or these
CHOICES = ("common", "all")
GONE = -1


def merge(
    federations: Sequence[Federation],
    classes: Classes = "common",
    rename: Mapping[str, Mapping[str, str]] | None = None,
    labels: Sequence[str] | None = None,
) -> Federation:
    """One federation of all clients of several; they may differ in sensors, rates and windows.

    ``labels``, by default the federations' names, tell clients apart: ``phones/s01``. ``rename`` gives classes common
    names, label by label: ``{"phones": {"seated": "sitting"}}``; two classes of one name become one. ``classes`` are
    those all federations have (``"common"``), those any has (``"all"``), or a list; samples of others are left out,
    and the description says how many.
    """
    return merged(federations, classes, rename, labels)[0]


def merged(
    federations: Sequence[Federation],
    classes: Classes = "common",
    rename: Mapping[str, Mapping[str, str]] | None = None,
    labels: Sequence[str] | None = None,
) -> tuple[Federation, list[str]]:
    """The federation, and what a person should know of it besides."""
    parts = _parts(federations, rename or {}, labels)
    regression = _kind(parts) == "regression"
    chosen = _quantity(parts) if regression else _chosen(parts, check_classes(classes))
    done = [_with_classes(part, chosen) for part in parts]
    remarks = [*_lonely(parts, chosen), *_strangers(parts), *(text for _, texts in done for text in texts)]
    made = [part for part, _ in done]
    federation = Federation(
        " + ".join(part.label for part in parts),
        _task(parts, chosen),
        tuple(client for part in made for client in part.federation.clients),
        synthetic=any(part.federation.synthetic for part in parts),
        description="; ".join(
            [*(_described(part, now, chosen) for part, now in zip(parts, made, strict=True)), *remarks]
        ),
        newcomers=tuple(client for part in made for client in part.federation.newcomers),
    )
    return federation, remarks


def check_classes(classes: object) -> Classes:
    """The choice of classes, or a UserError."""
    if isinstance(classes, str):
        if classes not in CHOICES:
            raise UserError(
                f'classes is \'{classes}\'; say "common" (those all data have), "all" (those any has), '
                f'or give a list: ["{classes}", …]',
                about="classes",
            )
        return classes
    if not isinstance(classes, Sequence) or not all(isinstance(name, str) for name in classes):
        raise UserError(f'classes is {classes!r}; say "common", "all", or give a list of names', about="classes")
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise UserError(f"classes names '{twice[0]}' twice; name it once", about="classes")
    if len(classes) < 2:
        raise UserError(f"classes is {list(classes)}; name at least two, or there is nothing to tell apart", "classes")
    return tuple(classes)


def check_label(label: str) -> str:
    """A label that can begin clients' ids, or a UserError."""
    if not label.strip() or "/" in label:
        raise UserError(f"label '{label}': give a word without /, which comes after it in clients' ids", about="label")
    return label


@dataclass(frozen=True)
class _Part:
    """One of the federations; ``names`` are its classes' common names, one for each of its own."""

    label: str
    federation: Federation
    names: tuple[str, ...]

    @cached_property
    def present(self) -> list[str]:
        """Common names of what its clients train on; of all its classes, where recordings are yet to be made."""
        if self.federation.task.kind == "regression" or any(map(_yet_to_be_made, self.federation)):
            return list(dict.fromkeys(self.names))
        counts = torch.bincount(torch.cat([client.train.y for client in self.federation])).tolist()
        return list(dict.fromkeys(name for name, count in zip(self.names, counts, strict=False) if count))


def _parts(
    federations: Sequence[Federation], rename: Mapping[str, Mapping[str, str]], labels: Sequence[str] | None
) -> list[_Part]:
    if not all(isinstance(f, Federation) for f in federations):
        raise UserError("merge takes a list of federations: fedsense.merge([phones, watches])")
    if not federations:
        raise UserError("there is nothing to merge; give at least one federation")
    names = [f.name.replace("/", "-") for f in federations] if labels is None else [str(label) for label in labels]
    if len(names) != len(federations):
        raise UserError(f"there are {len(federations)} federations, but {len(names)} labels; give one each")
    for name, count in Counter(map(check_label, names)).items():
        if count > 1:
            raise UserError(f"two federations are called '{name}'; give each a label of its own: labels=[…]")
    for label in rename:
        if label not in names:
            raise UserError(f"rename names '{label}', and no federation is called so; {nearest(label, names)}")
    for f in federations:
        _refuse_wrong_labels(f)
    return [
        _Part(label, f, _common_names(label, f, rename.get(label, {})))
        for label, f in zip(names, federations, strict=True)
    ]


def _refuse_wrong_labels(federation: Federation) -> None:
    count = len(federation.task.classes)
    for client in federation.everyone if federation.task.kind != "regression" else ():
        for split in () if _yet_to_be_made(client) else client.splits:
            if len(split) and not 0 <= int(split.y.min()) <= int(split.y.max()) < count:
                raise UserError(
                    f"client '{client.id}' of '{federation.name}' has labels from {int(split.y.min())} to "
                    f"{int(split.y.max())}, but there are {count} classes; map the labels, or name more classes"
                )


def _common_names(label: str, federation: Federation, rename: object) -> tuple[str, ...]:
    own = federation.task.classes
    if not isinstance(rename, Mapping):
        raise UserError(f'rename of \'{label}\' is {rename!r}; give its classes\' new names: {{"{own[0]}": "…"}}')
    for old, new in rename.items():
        if old not in own:
            raise UserError(f"rename: '{label}' has no class '{old}'; {nearest(old, own)}", about=str(old))
        if not isinstance(new, str) or not new.strip():
            raise UserError(f"rename: '{label}' calls '{old}' {new!r}; give a name", about=str(old))
    return tuple(rename.get(name, name) for name in own)


def _chosen(parts: Sequence[_Part], classes: Classes) -> tuple[str, ...]:
    """The classes of the merged federation, in the order in which they are met (or given)."""
    present = {part.label: part.present for part in parts}
    every = list(dict.fromkeys(name for names in present.values() for name in names))
    if classes == "all":
        return tuple(every)
    if classes == "common":
        common = tuple(name for name in every if all(name in names for names in present.values()))
        if len(common) < 2:
            have = f"only '{common[0]}'" if common else "no class"
            raise UserError(
                f"the data have {have} in common, and a model needs at least two classes to tell apart: "
                + "; ".join(f"'{label}' has {_listed(names)}" for label, names in present.items())
                + '; rename classes that mean the same to one name, or choose otherwise: classes = "all", or a list',
                about="classes",
            )
        return common
    for name in classes:
        if name not in every:
            where = [part.label for part in parts if name in part.names]
            known = f"'{where[0]}' knows it, but has no sample of it" if where else nearest(name, every)
            raise UserError(f"no data has a class '{name}'; {known}", about=name)
    for label, names in present.items():
        if not set(names) & set(classes):
            raise UserError(
                f"'{label}' has none of the classes {_listed(classes)}, but {_listed(names)}; rename what means the "
                f"same, or leave '{label}' out",
                about="classes",
            )
    return tuple(classes)


def _kind(parts: Sequence[_Part]) -> Kind:
    kinds = {part.federation.task.kind: part.label for part in reversed(parts)}
    if len(kinds) > 1:
        said = ", ".join(f"'{label}' of {kind}" for kind, label in reversed(kinds.items()))
        raise UserError(f"the data are of different tasks: {said}; only data of one kind can be merged")
    return next(iter(kinds))


def _quantity(parts: Sequence[_Part]) -> tuple[str, ...]:
    """What all of several regressions predict."""
    first = parts[0]
    for part in parts:
        if part.names != first.names:
            raise UserError(
                f"'{first.label}' predicts {first.names[0]}, and '{part.label}' {part.names[0]}; rename what means the "
                f"same, or leave one out"
            )
    return first.names


def _task(parts: Sequence[_Part], chosen: Sequence[str]) -> Task:
    kind = _kind(parts)
    if kind != "counting":
        return Task(tuple(chosen), kind)
    values: dict[str, tuple[float, str]] = {}
    for part in parts:
        for name, value in zip(part.names, part.federation.task.counts, strict=True):
            before, whose = values.setdefault(name, (value, part.label))
            if before != value and name in chosen:
                raise UserError(
                    f"class '{name}' stands for {before:g} in '{whose}' and for {value:g} in '{part.label}'; rename one"
                )
    return Task(tuple(chosen), "counting", tuple(values[name][0] for name in chosen))


def _with_classes(part: _Part, chosen: Sequence[str]) -> tuple[_Part, list[str]]:
    """The part with its classes numbered anew and samples of others left out; and who is left with nothing."""
    number = {name: i for i, name in enumerate(chosen)}
    lookup = torch.tensor([number.get(name, GONE) for name in part.names])
    federation = part.federation.change(lambda client: _client(client, part.label, lookup))
    clients = [client for client in federation.clients if len(client.train)]
    newcomers = [client for client in federation.newcomers if any(map(len, client.splits))]
    stay = {client.id for client in (*clients, *newcomers)}
    empty = [client.id for client in federation.everyone if client.id not in stay]
    if not clients:
        raise UserError(f"no client of '{part.label}' has anything to train on of {_listed(chosen)}; leave it out")
    few = f"{len(empty)} left out, who have nothing to train on of these classes ({_listed(empty)})"
    return replace(part, federation=federation.with_clients(clients, newcomers=tuple(newcomers))), [few] * bool(empty)


def _client(client: ClientData, label: str, lookup: Tensor) -> ClientData:
    named = replace(client, id=f"{label}/{client.id}")
    if torch.equal(lookup, torch.arange(len(lookup))):
        return named
    recordings = _yet_to_be_made(client)
    if recordings is not None and not (lookup == GONE).any():  # as many as before: they need not be made now
        text = f"renumbered {len(recordings.passed)}: {lookup.tolist()}"
        later = recordings.checked(text, lambda made: _splits(made, lookup))
        later.key = later.key and f"{later.key} {text}"  # what names them must differ, too
        train, val, test = (Samples.later(later, place) for place in range(len(SPLITS)))
    else:
        train, val, test = _splits(client.splits, lookup)
    return replace(named, train=train, val=val, test=test)


def _splits(splits: tuple[Samples, Samples, Samples], lookup: Tensor) -> tuple[Samples, Samples, Samples]:
    train, val, test = (renumbered(samples.made, lookup) for samples in splits)
    return train, val, test


def renumbered(samples: Samples, lookup: Tensor) -> Samples:
    """Samples whose class numbers are looked up; those of classes that are GONE are left out."""
    y = lookup[samples.y.long()]
    kept = (y != GONE).nonzero().squeeze(1)
    if len(kept) < len(y):
        samples, y = samples.take(kept), y[kept]
    return replace(samples, y=y)


def _yet_to_be_made(client: ClientData) -> Recordings | None:
    """What makes a client's recordings, if they are made when they are asked for."""
    recordings = {split.recordings for split in client.splits}
    return recordings.pop() if len(recordings) == 1 else None


def _described(part: _Part, made: _Part, chosen: Sequence[str]) -> str:
    """How much of a part there is, and what of it was left out."""
    federation = made.federation
    held = f" and {len(federation.newcomers)} held out" if federation.newcomers else ""
    said = f"{part.label}: {_size(federation):,} samples of {len(federation)} clients{held}"
    if set(part.names) <= set(chosen):
        return said
    every = torch.cat([split.y for client in part.federation.everyone for split in client.splits])
    found = zip(part.federation.task.classes, part.names, torch.bincount(every).tolist(), strict=False)
    gone = {own: count for own, name, count in found if count and name not in chosen}
    left_out = _listed([f"{count:,} {own}" for own, count in gone.items()])
    return f"{said}, {sum(gone.values()):,} of other classes left out ({left_out})" if gone else said


def _size(federation: Federation) -> int:
    return sum(len(split) for client in federation.everyone for split in client.splits)


def _lonely(parts: Sequence[_Part], chosen: Sequence[str]) -> list[str]:
    """Classes only one of several has."""
    if len(parts) < 2:
        return []
    holders = {name: [part.label for part in parts if name in part.present] for name in chosen}
    alone: dict[str, list[str]] = {}
    for name, who in holders.items():
        if len(who) == 1:
            alone.setdefault(who[0], []).append(name)
    return [f"only '{label}' has {_listed(names)}" for label, names in alone.items()]


def _strangers(parts: Sequence[_Part]) -> list[str]:
    """People of one dataset who are held out with one device and train with another."""
    held, there = (
        {
            (part.federation.name, str(client.traits["person"])): part.label
            for part in parts
            for client in getattr(part.federation, group)
            if "person" in client.traits and not part.federation.synthetic  # other seeds make up other people
        }
        for group in ("newcomers", "clients")
    )
    both = [key for key in held if key in there]
    if not both:
        return []
    (name, person), more = both[0], f" (and {len(both) - 1} more)" if len(both) > 1 else ""
    return [
        f"'{person}' of {name}{more} is held out in '{held[both[0]]}', but trains in '{there[both[0]]}'; "
        "name who is held out in both"
    ]


def _listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "") or "none"
