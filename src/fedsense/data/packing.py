"""Federations, and what readers give, as a few named arrays and a description: the form they are kept in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsense.data.cache import Pack, cached
from fedsense.federation import SPLITS, ClientData, Federation, Samples, Task

Array = NDArray[Any]


def pack_records(records: Sequence[Any], classes: Sequence[str]) -> tuple[dict[str, Array], Any]:
    """Arrays of all records, and their other fields."""
    arrays: dict[str, Array] = {}
    about = []
    for number, record in enumerate(records):
        plain = {}
        for entry in dataclasses.fields(record):
            value = getattr(record, entry.name)
            if isinstance(value, np.ndarray):
                arrays[f"{number}.{entry.name}"] = value
            else:
                plain[entry.name] = value
        about.append(plain)
    return arrays, {"records": about, "classes": list(classes)}


def unpack_records(pack: Pack) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    records: list[dict[str, Any]] = [dict(plain) for plain in pack.about["records"]]
    for name, tensor in pack.arrays.items():
        number, _, entry = name.partition(".")
        records[int(number)][entry] = tensor.numpy()
    return records, tuple(pack.about["classes"])


def kept_federation(key: str, make: Callable[[], Federation]) -> Federation:
    """The federation of that key, from the cache or made; with one thread, as the small steps of loading want it."""

    def packed() -> tuple[dict[str, list[Array]], Any]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # on a busy machine a second one only waits
        try:
            return pack_federation(make())
        finally:
            torch.set_num_threads(threads)

    return unpack_federation(cached(key, packed))


def pack_federation(federation: Federation) -> tuple[dict[str, list[Array]], Any]:
    """All samples of one shape are one array, so that reading takes no time for each client."""
    shapes: dict[Any, list[Tensor]] = {}  # shape and type of a sample → samples
    filled: dict[Any, int] = {}
    labels: list[Tensor] = []
    origins: list[Tensor] = []
    about: dict[str, Any] = {
        "name": federation.name,
        "task": dataclasses.asdict(federation.task),
        "synthetic": federation.synthetic,
        "description": federation.description,
    }
    for group in ("clients", "newcomers"):
        about[group] = []
        for client in getattr(federation, group):
            places = []
            for name in SPLITS:
                samples = client.split(name)
                shape = (tuple(samples.x.shape[1:]), samples.x.dtype)
                shapes.setdefault(shape, []).append(samples.x)
                start = filled.get(shape, 0)
                places.append([list(shapes).index(shape), start, len(samples), samples.origin is not None])
                filled[shape] = start + len(samples)
                labels.append(samples.y)
                origins.append(samples.y.new_full((len(samples), 3), -1) if samples.origin is None else samples.origin)
            about[group].append({"id": client.id, "traits": dict(client.traits), "model": client.model, "at": places})
    pieces = {**{f"x{number}": parts for number, parts in enumerate(shapes.values())}, "y": labels, "origin": origins}
    return {name: [part.numpy() for part in parts] for name, parts in pieces.items()}, about


def unpack_federation(pack: Pack) -> Federation:
    """The federation that was packed; its samples are views of the arrays."""
    about, seen = pack.about, 0

    def clients(group: str) -> tuple[ClientData, ...]:
        nonlocal seen
        made = []
        for entry in about[group]:
            parts = []
            for number, start, count, known in entry["at"]:
                here = slice(seen, seen + count)
                seen += count
                x = pack.arrays[f"x{number}"][start : start + count]
                parts.append(Samples(x, pack.arrays["y"][here], pack.arrays["origin"][here] if known else None))
            train, val, test = parts
            made.append(ClientData(entry["id"], train, val, test, entry["traits"], entry["model"]))
        return tuple(made)

    task = Task(tuple(about["task"]["classes"]), about["task"]["kind"], tuple(about["task"]["values"]))
    return Federation(
        about["name"], task, clients("clients"), about["synthetic"], about["description"], clients("newcomers")
    )
