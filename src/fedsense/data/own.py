"""One's own recordings: a folder with one file or sub-folder per client, and a ``dataset.toml`` that describes them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from typing import Any, Literal

import numpy as np

from fedsense.data.card import Card
from fedsense.data.dataset import Found, Signals
from fedsense.data.files import File, Files, ends_as
from fedsense.data.formats import ENDINGS, read_columns, word
from fedsense.data.tables import Array, read_table, side_by_side
from fedsense.data.windows import UNLABELLED, Collected, Recording
from fedsense.errors import UserError, nearest
from fedsense.federation import Federation, Kind, Task
from fedsense.options import checked, options_of

DESCRIPTION = "dataset.toml"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# what one unit is in the unit the pipeline uses: m/s² and rad/s
UNITS = {"m/s2": 1.0, "g": 9.80665, "mg": 9.80665e-3, "rad/s": 1.0, "deg/s": math.pi / 180}


@dataclass(frozen=True)
class Layout:
    """How a client's files are written: the [recording] table, or a client's own [clients.NAME]."""

    columns: list[str] | dict[str, str] = field(default_factory=list)  # channels, or channel → column of the file
    units: dict[str, str] = field(default_factory=dict)  # sensor (or channel) → unit
    rate: float | None = None  # Hz; None: found from the time column
    time: str | None = None
    time_unit: Literal["s", "ms", "us", "ns"] = "s"
    label: str | None = None  # a column
    label_from: Literal["column", "file-name", "intervals"] = "column"
    separator: Literal[",", ";", "\t"] = ","  # of CSV files

    def named(self) -> dict[str, str]:
        """Channel → column."""
        return self.columns if isinstance(self.columns, dict) else {name: name for name in self.columns}


@dataclass(frozen=True)
class Description:
    """What a dataset.toml says."""

    name: str = "mine"
    kind: Kind = "classification"
    classes: list[str] | None = None
    rate: float | None = None
    window: int = 128
    overlap: float = 0.5
    intervals: str = "intervals.csv"
    recording: dict[str, Any] = field(default_factory=dict)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)

    def layout(self, client: str) -> Layout:
        """The [recording] table, with what [clients.NAME] says instead."""
        allowed = options_of(Layout)
        common = checked(f"{DESCRIPTION}, [recording]", self.recording, allowed)
        own = checked(f"{DESCRIPTION}, [clients.{client}]", self.clients.get(client, {}), allowed)
        return Layout(**{**common, **own})


def read_description(file: File) -> Description:
    """The description, every mistake explained."""
    try:
        table = tomllib.loads(file.read().decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise file.wrong(f"not valid TOML: {error}") from error
    try:
        description = Description(**checked(DESCRIPTION, table, options_of(Description)))
        for client in ("", *description.clients):
            _check_layout(description.layout(client), client, bool(client or not description.clients))
    except UserError as error:
        raise file.wrong(str(error).removeprefix(f"{DESCRIPTION}, ").removeprefix(f"{DESCRIPTION}: ")) from error
    return description


def _check_layout(layout: Layout, client: str, whole: bool) -> None:
    """``whole``: nothing is left to say. [recording] may leave it to the tables of the clients."""
    where = f"[clients.{client}]" if client else "[recording]"
    columns = [*layout.named().values()]
    for wrong, message in (
        (whole and not columns, 'names no columns; say columns = ["acc_x", …], the columns to learn from'),
        (len(set(columns)) < len(columns), f"names a column twice ({', '.join(columns)})"),
        (layout.label in columns, f"learns from '{layout.label}', which is the label; take it out of columns"),
        (layout.rate is not None and layout.rate <= 0, f"has rate = {layout.rate}; give Hz above 0"),
        (whole and layout.rate is None and layout.time is None,
         "needs rate = (Hz), or time = (the column that holds the time)"),
        (whole and layout.label_from == "column" and layout.label is None,
         'needs label = (a column), or label-from = "file-name" or "intervals"'),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"{where} {message}")
    sensors = {*layout.named(), *(name.rpartition("_")[0] for name in layout.named())} - {""}
    for what, unit in layout.units.items():
        if sensors and what not in sensors:
            raise UserError(f"{where}: units names '{what}', which is no sensor of columns; {nearest(what, sensors)}")
        if unit not in UNITS:
            raise UserError(f"{where}: unit '{unit}' of '{what}' is unknown; {nearest(unit, UNITS)}")


def read(files: Files) -> Found:
    """Every recording of every client."""
    description = read_description(files.one(DESCRIPTION))
    found = {client: group for client, group in _clients(files).items() if group}
    if not found:
        raise UserError(f"{files.root} holds no recordings beside {DESCRIPTION}; expected {', '.join(ENDINGS)} files")
    for client in description.clients:
        if client not in found:
            raise files.one(DESCRIPTION).wrong(f"[clients.{client}]: no such client; {nearest(client, found)}")
    for client in found:
        try:
            _check_layout(description.layout(client), client, whole=True)
        except UserError as error:
            raise files.one(DESCRIPTION).wrong(str(error)) from error
    intervals = _intervals(files, description)
    jobs = [(client, file) for client, group in found.items() for file in group]
    raw = side_by_side(lambda job: _recording(job[1], job[0], description, intervals), jobs)
    classes = tuple(description.classes or sorted({str(name) for r in raw for name in _names(r)}, key=_natural))
    return Found([_numbered(recording, classes, job[1]) for recording, job in zip(raw, jobs, strict=True)], classes)


def _clients(files: Files) -> dict[str, list[File]]:
    """A sub-folder is a client, and so is a file that lies beside the description."""
    base = files.one(DESCRIPTION).name.removesuffix(DESCRIPTION)
    groups: dict[str, list[File]] = {}
    for file in files.files:
        inside = file.name.removeprefix(base)
        if file.name.startswith(base) and inside.lower().endswith(ENDINGS):
            folder, slash, _ = inside.partition("/")
            groups.setdefault(folder if slash else inside.split(".")[0], []).append(file)
    description = read_description(files.one(DESCRIPTION))
    groups.pop(description.intervals.split(".")[0], None)
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


def _recording(
    file: File, client: str, description: Description, intervals: Mapping[str, Any]
) -> Recording | Collected:
    """A recording whose labels are still words ("" where there is none)."""
    layout = description.layout(client)
    columns = layout.named()
    wanted: dict[str, tuple[str, type]] = {name: (column, float) for name, column in columns.items()}
    if layout.time is not None:
        wanted["time"] = (layout.time, float)
    if layout.label_from == "column" and layout.label is not None:
        wanted["label"] = (layout.label, str)
    table = read_columns(file, wanted, exact=[layout.time] if layout.time is not None else [], sep=layout.separator)
    if isinstance(table, Collected):
        return replace(table, id=client)
    scale = [UNITS[layout.units.get(name, layout.units.get(name.rpartition("_")[0], "m/s2"))] for name in columns]
    signal = np.stack([table[name] * factor for name, factor in zip(columns, scale, strict=True)], 1).astype(np.float32)
    times = None if layout.time is None else table["time"] * SECONDS[layout.time_unit]
    if times is not None and len(times) > 1 and (wrong := np.flatnonzero(np.diff(times) < 0)).size:
        raise file.wrong(f"line {wrong[0] + 3}, column '{layout.time}': time runs backwards; sort the rows")
    rate = layout.rate or _rate(file, times)
    labels = _labels(file, layout, table, times, rate, intervals)
    return Recording(client, signal, labels, rate, tuple(columns), times, traits={"file": file.name})


def _rate(file: File, times: Array | None) -> float:
    steps = np.diff(times) if times is not None else np.zeros(0)
    if not (steps > 0).any():
        raise file.wrong("its rate cannot be told from the time column; say rate = (Hz)")
    usual = float(np.mean(steps[steps < 2.5 * np.median(steps[steps > 0])]))  # gaps do not count
    rate = 1 / usual
    if not 0.01 <= rate <= 20_000:
        raise file.wrong(f"its times are {usual:.3g} s apart, which is {rate:.3g} Hz; is time-unit right?")
    return float(round(rate)) if abs(rate - round(rate)) < 0.01 * rate else round(rate, 2)


def _labels(
    file: File,
    layout: Layout,
    table: Mapping[str, Array],
    times: Array | None,
    rate: float,
    intervals: Mapping[str, Any],
) -> Array:
    rows = len(next(iter(table.values())))
    if layout.label_from == "file-name":
        return np.full(rows, file.base.split(".")[0].split("_")[0], object)
    if layout.label_from == "column":
        return np.array([word(value) for value in table["label"]], object)
    clock = np.arange(rows) / rate if times is None else times
    labels = np.full(rows, "", object)
    for row, name in enumerate(intervals["file"]):
        if ends_as(file.name, escape(name)):
            start, stop = (intervals[side][row] * SECONDS[layout.time_unit] for side in ("start", "stop"))
            labels[(clock >= start) & (clock < stop)] = intervals["label"][row]
    return labels


def _intervals(files: Files, description: Description) -> Mapping[str, Any]:
    """The table of label intervals: file, start, stop, label; times as in the time column, else from the start."""
    kinds = [description.recording, *description.clients.values()]
    if not any(kind.get("label-from", kind.get("label_from")) == "intervals" for kind in kinds):
        return {}
    table = files.one(description.intervals)
    rows = read_table(table, {"file": str, "start": float, "stop": float, "label": str})
    for row, (start, stop) in enumerate(zip(rows["start"], rows["stop"], strict=True)):
        if stop <= start:
            raise table.wrong(f"line {row + 2}: stop ({stop:g}) must be after start ({start:g})")
        before = [i for i in range(row) if rows["file"][i] == rows["file"][row]]
        if any(start < rows["stop"][i] and rows["start"][i] < stop for i in before):
            raise table.wrong(f"line {row + 2}: {start:g} to {stop:g} overlaps with another interval of the file")
        if not any(ends_as(file.name, escape(rows["file"][row])) for file in files.files):
            raise table.wrong(f"line {row + 2}, column 'file': there is no recording '{rows['file'][row]}'")
    return rows


@dataclass(frozen=True)
class Own(Signals):
    """Signals whose window, overlap, rate, classes and kind of task are in the dataset.toml."""

    def defaults(self) -> dict[str, Any]:
        return super().defaults() | dict.fromkeys(("rate", "window", "overlap"))

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = super().parse({"window": 1, "overlap": 0.0, **given})  # placeholders, for the checks of the rest
        return options | {name: given.get(name) for name in ("window", "overlap")}

    def gather(self, files: Files, content: str, options: Mapping[str, Any]) -> list[Collected]:
        description = read_description(files.one(DESCRIPTION))
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
        made, name = super()._made(files, content, options), read_description(files.one(DESCRIPTION)).name
        return replace(made, name=name, description=made.description.replace(self.card.title, name, 1))

    def _task(self, names: tuple[str, ...], options: Mapping[str, Any]) -> Task:
        description = read_description(self.files(options).one(DESCRIPTION))
        if description.kind == "counting":
            for name in names:
                if not name.replace(".", "", 1).isdigit():
                    raise UserError(f"{DESCRIPTION}: a counting task needs classes that are numbers, not '{name}'")
        return replace(self, kind=description.kind)._plain_task(names, options)

    def _plain_task(self, names: tuple[str, ...], options: Mapping[str, Any]) -> Task:
        return super()._task(names, options)


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
