"""One's own recordings: a folder with one file or sub-folder per client, and a ``dataset.toml`` that describes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsense.data.card import Card
from fedsense.data.dataset import Found, Signals
from fedsense.data.description import (
    DESCRIPTION,
    SECONDS,
    UNITS,
    Description,
    Layout,
    check_layout,
    read_description,
)
from fedsense.data.files import File, Files
from fedsense.data.formats import ENDINGS, moments, place_of, read_columns, without_ending, word
from fedsense.data.intervals import Intervals, read_intervals
from fedsense.data.tables import Array, side_by_side
from fedsense.data.windows import UNLABELLED, Collected, Recording
from fedsense.errors import UserError, nearest
from fedsense.federation import Federation, Task


def read(files: Files) -> Found:
    """Every recording of every client."""
    description = _described(files)
    found = _clients(files, description)
    if not found:
        raise UserError(f"{files.root} holds no recordings beside {DESCRIPTION}; expected {', '.join(ENDINGS)} files")
    for client in description.clients:
        if client not in found:
            raise files.one(DESCRIPTION).wrong(f"[clients.{client}]: no such client; {nearest(client, found)}")
    for client in found:
        try:
            check_layout(description.layout(client), client, whole=True)
        except UserError as error:
            raise files.one(DESCRIPTION).wrong(str(error)) from error
    intervals = read_intervals(files, description, found)
    jobs = [(client, file) for client, group in found.items() for file in group]
    raw = side_by_side(lambda job: _recording(job[1], job[0], description.layout(job[0]), intervals), jobs)
    classes = tuple(description.classes or sorted({str(name) for r in raw for name in _names(r)}, key=_natural))
    return Found([_numbered(recording, classes, job[1]) for recording, job in zip(raw, jobs, strict=True)], classes)


def _described(files: Files) -> Description:
    """What the dataset.toml says, read once."""
    if DESCRIPTION not in files.readings:
        files.readings[DESCRIPTION] = read_description(files.one(DESCRIPTION))
    description: Description = files.readings[DESCRIPTION]
    return description


def _clients(files: Files, description: Description) -> dict[str, list[File]]:
    """A sub-folder is a client, and so is a file that lies beside the description."""
    base = files.one(DESCRIPTION).name.removesuffix(DESCRIPTION)
    groups: dict[str, list[File]] = {}
    places: dict[str, str] = {}
    for file in files.files:
        inside = file.name.removeprefix(base)
        if not file.name.startswith(base) or not inside.lower().endswith(ENDINGS) or inside == description.intervals:
            continue
        folder, slash, _ = inside.partition("/")
        client = folder if slash else without_ending(inside)
        place = f"{folder}/" if slash else inside
        if places.setdefault(client, place) != place:
            raise file.wrong(f"client '{client}' is {places[client]} already; rename one of them")
        groups.setdefault(client, []).append(file)
    return groups


def _names(recording: Recording | Collected) -> Sequence[str]:
    labels = recording.labels if isinstance(recording, Recording) else recording.y
    return [name for name in set(labels.tolist()) if name != ""]


def _natural(name: str) -> tuple[float, str]:
    """Numbers in their order, then words."""
    try:
        return float(name), name
    except ValueError:
        return math.inf, name


def _numbered(recording: Recording | Collected, classes: tuple[str, ...], file: File) -> Recording | Collected:
    number = {name: i for i, name in enumerate(classes)}
    for name in _names(recording):
        if name not in number:
            raise file.wrong(f"label '{name}' is none of the classes of {DESCRIPTION}; {nearest(name, classes)}")
    number[""] = UNLABELLED
    words = recording.labels if isinstance(recording, Recording) else recording.y
    kinds, places = np.unique(words.astype(str), return_inverse=True)
    numbers = np.array([number[name] for name in kinds], np.int64)[places]
    if isinstance(recording, Recording):
        return replace(recording, labels=numbers)
    return replace(recording, y=numbers).take(np.flatnonzero(numbers >= 0))


def _recording(file: File, client: str, layout: Layout, intervals: Intervals | None) -> Recording | Collected:
    """A recording whose labels are still words ("" where there is none)."""
    columns = layout.named()
    wanted: dict[str, tuple[str, type]] = {name: (column, float) for name, column in columns.items()}
    if layout.time:
        wanted["time"] = (layout.time, str if layout.time_unit == "iso" else float)
    if layout.label_from == "column" and layout.label:
        wanted["label"] = (layout.label, str)
    table = read_columns(file, wanted, layout.separator, layout.decimal)
    if isinstance(table, Collected):
        return replace(table, id=client, traits={**table.traits, **_known(layout)})
    scale = [UNITS[layout.units.get(name, layout.units.get(name.rpartition("_")[0], "m/s2"))] for name in columns]
    with np.errstate(over="ignore"):  # a number too large for float32 is missing
        signal = np.stack([table[name] * factor for name, factor in zip(columns, scale, strict=True)], axis=1)
        signal = signal.astype(np.float32)
    words = table.get("label")
    times = _times(file, layout, table["time"]) if layout.time else None
    if times is not None:
        kept = _not_written_twice(times, signal)
        times, signal, words = _spread(times[kept]), signal[kept], None if words is None else words[kept]
    rate = layout.rate or _rate(file, times)
    clock = np.arange(len(signal)) / rate if times is None else times
    return Recording(
        client, signal, _labels(file, layout, words, clock, intervals), rate, tuple(columns), times,
        traits={"file": file.name, **_known(layout)},
    )  # fmt: skip


def _known(layout: Layout) -> dict[str, float]:
    """What the description says of a device."""
    return {} if layout.speed is None else {"speed": layout.speed}


def _times(file: File, layout: Layout, values: Array) -> Array:
    """Seconds, in order."""
    in_words = layout.time_unit == "iso"
    times = moments(values) if in_words else values * SECONDS[layout.time_unit]
    if (missing := np.flatnonzero(~np.isfinite(times))).size:
        fault = f"'{values[missing[0]]}' is no date and time" if in_words else "the cell is empty"
        raise file.wrong(f"{place_of(file, missing[0])}, column '{layout.time}': {fault}")
    if (backwards := np.flatnonzero(np.diff(times) < 0)).size:
        raise file.wrong(
            f"{place_of(file, backwards[0] + 1)}, column '{layout.time}': time runs backwards; sort the rows"
        )
    return times


def _not_written_twice(times: Array, signal: Array) -> Array:
    """Which rows are not the row before once more."""
    same = (np.diff(times) == 0) & (signal[1:] == signal[:-1]).all(1)
    return np.concatenate([[True], ~same]) if len(times) else np.zeros(0, bool)


def _spread(times: Array) -> Array:
    """Rows that share a stamp, as devices write them that hand over in batches, evenly up to the next stamp.

    >>> _spread(np.array([0.0, 0.0, 4.0, 4.0, 8.0]))
    array([0., 2., 4., 6., 8.])
    """
    first = np.flatnonzero(np.diff(times, prepend=-np.inf))
    counts = np.diff(np.append(first, len(times)))
    if len(first) < 2 or (counts == 1).all():
        return times
    steps = np.diff(times[first]) / counts[:-1]
    steps = np.minimum(np.append(steps, np.median(steps)), 2 * np.median(steps))  # not into a gap
    within = np.arange(len(times)) - np.repeat(first, counts)
    return np.asarray(times + within * np.repeat(steps, counts))


def _rate(file: File, times: Array | None) -> float:
    steps = np.diff(times) if times is not None else np.zeros(0)
    if not (steps > 0).any():
        raise file.wrong("its rate cannot be told from the time column; say rate = (Hz)")
    usual = float(np.mean(steps[steps < 2.5 * np.median(steps[steps > 0])]))  # gaps do not count
    rate = 1 / usual
    if not 0.01 <= rate <= 20_000:
        raise file.wrong(f"its times are {usual:.3g} s apart, which is {rate:.3g} Hz; is time-unit right?")
    return float(round(rate)) if abs(rate - round(rate)) < 0.01 * rate else round(rate, 2)


def _labels(file: File, layout: Layout, words: Array | None, clock: Array, intervals: Intervals | None) -> Array:
    if layout.label_from == "file-name":
        return np.full(len(clock), file.base.split(".")[0].split("_")[0], object)
    if layout.label_from == "intervals":
        assert intervals is not None
        return intervals.labels(file, clock)
    assert words is not None
    return np.array([word(value) for value in words], object)


@dataclass(frozen=True)
class Own(Signals):
    """Signals whose window, overlap, rate, classes and kind of task are in the dataset.toml."""

    def defaults(self) -> dict[str, Any]:
        return super().defaults() | dict.fromkeys(("rate", "window", "overlap"))

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = super().parse({"window": 1, "overlap": 0.0, **given})  # placeholders, for the checks of the rest
        return options | {name: given.get(name) for name in ("window", "overlap")}

    def gather(self, files: Files, content: str, options: Mapping[str, Any]) -> list[Collected]:
        description = _described(files)
        said = {name: getattr(description, name) for name in ("rate", "window", "overlap")}
        merged = {**options, **{name: value for name, value in said.items() if options[name] is None}}
        records, _ = self.reading(files, content, merged)
        if all("x" in record for record in records):
            return _one_each([Collected(**record) for record in records])
        if any("x" in record for record in records):
            raise UserError(
                f"{files.root}: some recordings are already cut into windows, some are not; cut all or none"
            )
        return super().gather(files, content, merged)

    def _made(self, files: Files, content: str, options: Mapping[str, Any]) -> Federation:
        made, name = super()._made(files, content, options), _described(files).name
        return replace(made, name=name, description=made.description.replace(self.card.title, name, 1))

    def _task(self, files: Files, names: tuple[str, ...], options: Mapping[str, Any]) -> Task:
        task, kind = super()._task(files, names, options), _described(files).kind
        if kind != "counting":
            return task
        for name in names:
            if not name.replace(".", "", 1).isdigit():
                raise UserError(f"{DESCRIPTION}: a counting task needs classes that are numbers, not '{name}'")
        return replace(task, kind=kind, values=tuple(map(float, task.classes)))


def _one_each(parts: Sequence[Collected]) -> list[Collected]:
    """Files of windows joined to one client each."""
    clients: dict[str, list[Collected]] = {}
    for part in parts:
        clients.setdefault(part.id, []).append(part)
    return [_as_one(group) for group in clients.values()]


def _as_one(group: Sequence[Collected]) -> Collected:
    before = np.cumsum([0, *(len(part.y) for part in group)])
    x, y, session = (np.concatenate([getattr(part, name) for part in group]) for name in ("x", "y", "session"))
    origin = np.concatenate([part.origin + np.array([start, 0, 0]) for part, start in zip(group, before, strict=False)])
    return replace(group[0], x=x, y=y, session=session, origin=origin)


DATASET = Own(
    card=Card(
        name="folder",
        title="Your own recordings",
        what="your own recordings: a folder with one file or sub-folder per client, described by a dataset.toml",
        who="you",
        licence="yours",
        citation="yours",
        address="`fedsense data new FOLDER` writes the description",
        layout=f"{DESCRIPTION} beside one sub-folder (or one file) per client: CSV, Parquet, npz or npy",
        sizes="any",
        client="a sub-folder, or a file that lies beside the description",
        paper="any",
        by_hand="your own recordings need no download",
    ),
    read=read,
    wanted=(DESCRIPTION, *(f"*{ending}" for ending in ENDINGS)),
)
