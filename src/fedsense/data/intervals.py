"""A table that says which stretch of which recording has which label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import escape

import numpy as np

from fedsense.data.description import SECONDS, Description, Layout
from fedsense.data.files import File, Files, ends_as
from fedsense.data.formats import line_of, moments
from fedsense.data.tables import Array, read_table
from fedsense.errors import UserError

HEADER: dict[str, type] = {"file": str, "start": str, "stop": str, "label": str}


@dataclass(frozen=True)
class Interval:
    """From ``start`` up to, not including, ``stop``, in seconds on the recording's clock."""

    line: int  # of the table
    start: float
    stop: float
    label: str


@dataclass(frozen=True)
class Intervals:
    """The intervals of every recording."""

    table: File
    of: Mapping[str, Sequence[Interval]]  # name of a recording's file → its intervals

    def labels(self, file: File, clock: Array) -> Array:
        """The label at each time of the clock; "" where there is none."""
        labels = np.full(len(clock), "", object)
        for interval in self.of.get(file.name, ()):
            within = (clock >= interval.start) & (clock < interval.stop)
            if not within.any():
                raise self.table.wrong(
                    f"line {interval.line}: no row of {file.base} is within; it goes from {clock.min():g} to "
                    f"{clock.max():g} s. Is the unit that of its time?"
                )
            labels[within] = interval.label
        return labels


def read_intervals(files: Files, description: Description, clients: Mapping[str, Sequence[File]]) -> Intervals | None:
    """The table, where any client's labels come from it: file, start, stop, label.

    Times are as in the time column; without one, they are seconds from the recording's start.
    """
    layouts = {file.name: description.layout(client) for client, group in clients.items() for file in group}
    if not any(layout.label_from == "intervals" for layout in layouts.values()):
        return None
    table = files.one(description.intervals)
    first = table.unzipped().split(b"\n", 1)[0]
    rows = read_table(table, HEADER, sep=";" if first.count(b";") > first.count(b",") else ",")
    recordings = [file for group in clients.values() for file in group]
    found: dict[str, list[Interval]] = {}
    for row, name in enumerate(rows["file"]):
        line = line_of(table, row)
        file = _named(table, line, name, recordings)
        start, stop = (_moment(table, line, side, rows[side][row], layouts[file.name]) for side in ("start", "stop"))
        mine = found.setdefault(file.name, [])
        if stop <= start:
            raise table.wrong(f"line {line}: stop ({rows['stop'][row]}) must be after start ({rows['start'][row]})")
        if any(start < other.stop and other.start < stop for other in mine):
            raise table.wrong(
                f"line {line}: {rows['start'][row]} to {rows['stop'][row]} overlaps with another interval of the file"
            )
        mine.append(Interval(line, start, stop, rows["label"][row]))
    return Intervals(table, found)


def _named(table: File, line: int, name: str, recordings: Sequence[File]) -> File:
    same = [file for file in recordings if ends_as(file.name, escape(name))]
    if not same:
        raise table.wrong(f"line {line}, column 'file': there is no recording '{name}'")
    if len(same) > 1:
        raise table.wrong(f"line {line}, column 'file': '{name}' is {same[0].name} and {same[1].name}; name the folder")
    return same[0]


def _moment(table: File, line: int, column: str, text: str, layout: Layout) -> float:
    unit = layout.time_unit if layout.time else "s"
    try:
        if unit == "iso":
            return float(moments(np.array([text], object))[0])
        return float(text) * SECONDS[unit]
    except (ValueError, UserError) as error:
        what = "date and time" if unit == "iso" else "number"
        raise table.wrong(f"line {line}, column '{column}': '{text}' is no {what}") from error
