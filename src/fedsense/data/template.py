"""``fedsense data new``: a commented dataset.toml, filled in from what is in the folder."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shlex
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsense.data.description import DESCRIPTION, SECONDS, Description
from fedsense.data.formats import ENDINGS, likely_separator, without_ending
from fedsense.errors import UserError
from fedsense.work import stream

ROWS = 50  # looked at
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
TIMES = ("time", "timestamp", "t", "seconds", "ms")
LABELS = ("label", "activity", "class", "gt", "people", "count")

TEMPLATE = """\
# What fedsense should know of your recordings.
# One sub-folder per client (person, device, room) with its files, or one file per client, beside this file.
# Look at the result with: fedsense data check {folder}

name = {name}
kind = "classification"     # or "counting": classes are numbers, and being off by one is better than by five
# classes = ["walk", "sit"] # their order; left out: every label that occurs, in alphabetical order

window = 128                # samples in a window, at the rate below
overlap = 0.5               # share of a window that the next one repeats
rate = 50                   # Hz that all recordings are brought to; left out: each client keeps its own

[recording]                 # how the files are written
{layout}
# columns = {{ acc_x = "ax", acc_y = "ay", acc_z = "az" }}   # if your files call them otherwise
# units = {{ acc = "g", gyro = "deg/s" }}   # brought to m/s2 and rad/s; left out: as they are
# time = "timestamp"        # the column that holds the time; rate = 50 if there is none
# time-unit = "ms"          # s, ms, us, ns, or iso: 2026-11-16T08:15:00.020
# label = "activity"        # the column that holds the label; rows with an empty cell are not used
# label-from = "file-name"  # the label is the file's name up to the first "_": walk_01.csv
# label-from = "intervals"  # intervals.csv beside this file has the columns file, start, stop, label
                            # (in the time column's unit; without a time column, seconds from the recording's start)
# separator = ";"           # between the cells of a CSV file: "," ";" or a tab
# decimal = ","             # in the numbers of a CSV file

# What is different for one client: any of the above.
# [clients.NAME]
# rate = 25
"""

# what is written after a line that fedsense filled in
REMARKS = {
    "columns": "the columns to learn from; sensor_axis is a good name",
    "time-unit": "a guess, look at it",
    "rate": "Hz of the recordings: no column looks like the time, so fill this in",
    "label": "fill this in: no column looks like the label",
}


def write_description(folder: Path) -> Path:
    """Write the template into the folder, and give its path."""
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; make it and put your recordings there, one sub-folder per client"
        )
    path = folder / DESCRIPTION
    if path.exists():
        raise UserError(f"{path} is there already; edit it, or move it away first")
    intervals = (folder / Description().intervals).is_file()
    layouts = {client: table.layout(intervals) for client, table in _tables(folder).items()}
    usual = max(layouts.values(), key=[*layouts.values()].count, default=Table().layout(intervals))
    text = TEMPLATE.format(
        folder=shlex.quote(str(folder)), name=_value(folder.resolve().name or "mine"), layout=_lines(usual)
    )
    for client, layout in layouts.items():
        other = {key: value for key, value in layout.items() if usual.get(key) != value}
        other |= {"time": ""} if "time" in usual and "time" not in layout else {}  # takes it back
        other |= {"label-from": "column"} if "label-from" in usual and "label" in layout else {}
        if other:
            text += f"\n[clients.{_key(client)}]\n{_lines(other)}\n"
    path.write_text(text, encoding="utf-8")
    return path


def _lines(layout: Mapping[str, Any]) -> str:
    lines = []
    for key, value in layout.items():
        remark = REMARKS.get(key) if bool(value) != (key == "label") else None  # of a label, where none was found
        lines.append(f"{key} = {_value(value)}" + (f"   # {remark}" if remark else ""))
    return "\n".join(lines)


def write_example(folder: Path) -> None:
    """Made-up recordings: three people who sit, walk and run; a watch has no gyroscope, and one runs at 25 Hz."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name a folder that is to be made")
    for person, rate, sensors in (("anna-phone", 50, "acc gyro"), ("bert-watch", 50, "acc"), ("cleo-watch", 25, "acc")):
        (folder / person).mkdir(parents=True)
        channels = [f"{sensor}_{axis}" for sensor in sensors.split() for axis in "xyz"]
        for take in (1, 2):
            rng = stream("example", person, take)
            rows = [["timestamp", *channels, "activity"]]
            for number, (activity, stride, size) in enumerate(
                (("sit", 0.0, 0.05), ("walk", 1.0, 2.0), ("run", 1.5, 6.0))
            ):
                times = np.arange(60 * rate) / rate
                swing = size * np.sin(2 * np.pi * (stride * times[:, None] + rng.random(len(channels))))
                signal = swing + rng.normal(0, 0.2, swing.shape) + np.where(np.arange(len(channels)) == 2, 9.8, 0)
                stamps = 1000 * (60 * number + times)
                rows += [
                    [f"{t:.0f}", *(f"{v:.3f}" for v in row), activity] for t, row in zip(stamps, signal, strict=True)
                ]
            with (folder / person / f"take{take}.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(rows)


@dataclass(frozen=True)
class Table:
    """The beginning of a client's first table."""

    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    separator: str = ","

    def layout(self, intervals: bool) -> dict[str, Any]:
        """What a description says of such files."""
        time = next((name for name in self.header if name.lower() in TIMES), None)
        label = next((name for name in self.header if name.lower() in LABELS), None)
        columns = [name for name in self.header if name not in ("", time, label) and self._numbers(name)]
        found: dict[str, Any] = {"columns": columns or ["acc_x", "acc_y", "acc_z"]}
        found |= {"time": time, "time-unit": self.unit(time)} if time else {"rate": 50}
        if label or not intervals:
            found["label"] = label or ""
        else:
            found["label-from"] = "intervals"
        found |= {"separator": self.separator} if self.separator != "," else {}
        return found | ({"decimal": ","} if self._decimal_commas() else {})

    def unit(self, time: str) -> str:
        """The unit of time that makes for a likely rate: 2 Hz to 2 kHz."""
        cells = [cell.replace(",", ".") for cell in self._cells(time)]
        stamps = np.unique([float(cell) for cell in cells if _is_number(cell)])
        if cells and not len(stamps):
            return "iso"
        step = float(np.median(np.diff(stamps))) if len(stamps) > 2 else 20.0
        return next((unit for unit, scale in SECONDS.items() if 0.0005 <= step * scale <= 0.5), "ms")

    def _cells(self, name: str) -> list[str]:
        place = self.header.index(name)
        return [row[place] for row in self.rows if len(row) > place and row[place]]

    def _decimal_commas(self) -> bool:
        cells = [cell for row in self.rows for cell in row]
        return self.separator != "," and any(DECIMAL_COMMA.fullmatch(cell) for cell in cells)

    def _numbers(self, name: str) -> bool:
        """Is it a column of numbers? One that says nothing may be."""
        cells = self._cells(name)
        return not cells or any(_is_number(cell.replace(",", ".")) for cell in cells)


def _tables(folder: Path) -> dict[str, Table]:
    """Client → its first table, if that has a header."""
    found: dict[str, Table] = {}
    for path in sorted(p for p in folder.rglob("*") if p.name.lower().endswith(ENDINGS)):
        inside = path.relative_to(folder)
        client = inside.parts[0] if len(inside.parts) > 1 else without_ending(path.name)
        if client in found or inside == Path(Description().intervals):
            continue
        if (table := _beginning(path)) is not None:
            found[client] = table
    return found


def _beginning(path: Path) -> Table | None:
    """The first rows, as words; None where there is no header, or nothing that can be read."""
    ending = path.name.lower().rpartition(".")[2]
    try:
        if ending == "npz":
            return _of_npz(path)
        if ending == "parquet":
            return _of_parquet(path)
        return _of_csv(path) if ending in ("csv", "gz") else None
    except (OSError, ValueError, ImportError, EOFError, zipfile.BadZipFile):  # `data check` says what is wrong with it
        return None


def _of_csv(path: Path) -> Table | None:
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", errors="replace") as file:
        lines = [line for line, _ in zip(file, range(ROWS), strict=False)]
    if not lines or "\0" in lines[0] or "\ufffd" in lines[0]:
        return None
    separator = likely_separator(lines[0])
    header, *rows = (tuple(cell.strip() for cell in row) for row in csv.reader(lines, delimiter=separator))
    return None if any(map(_is_number, header)) else Table(header, tuple(rows), separator)


def _of_npz(path: Path) -> Table | None:
    """Columns by name; of an array of windows or rows the columns have no names."""
    with np.load(path, allow_pickle=False) as arrays:
        columns = {name: arrays[name] for name in arrays.files if name not in ("x", "y")}
    columns = {name: values[:ROWS].tolist() for name, values in columns.items() if values.ndim == 1}
    rows = tuple(tuple(str(value) for value in row) for row in zip(*columns.values(), strict=False))
    return Table(tuple(columns), rows) if columns else None


def _of_parquet(path: Path) -> Table | None:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
        rows = next(file.iter_batches(ROWS)).to_pylist()
    except (ArrowException, StopIteration):
        return None
    header = tuple(file.schema_arrow.names)
    return Table(header, tuple(tuple("" if row[n] is None else str(row[n]) for n in header) for row in rows))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    """As TOML writes it, which for these kinds is as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
