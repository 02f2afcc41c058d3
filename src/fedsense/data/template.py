"""``fedsense data new``: a commented dataset.toml, filled in from what is in the folder."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsense.data.own import DESCRIPTION, SECONDS
from fedsense.errors import UserError
from fedsense.work import stream

TIMES = ("time", "timestamp", "t", "seconds", "ms")
LABELS = ("label", "activity", "class", "gt", "people", "count")

TEMPLATE = """\
# What fedsense should know of your recordings.
# One sub-folder per client (person, device, room) with its files, or one file per client, beside this file.
# Look at the result with: fedsense data check {folder}

name = "{name}"
kind = "classification"     # or "counting": classes are numbers, and being off by one is better than by five
# classes = ["walk", "sit"] # their order; left out: every label that occurs, in alphabetical order

window = 128                # samples in a window, at the rate below
overlap = 0.5               # share of a window that the next one repeats
rate = 50                   # Hz that all recordings are brought to; left out: each client keeps its own

[recording]                 # how the files are written
columns = {columns}
                            # the columns to learn from; sensor_axis is a good name. If your files call them
                            # otherwise: columns = {{ acc_x = "ax", acc_y = "ay", acc_z = "az" }}
{separator}           # between the cells of a CSV file
# units = {{ acc = "g", gyro = "deg/s" }}   # brought to m/s2 and rad/s; left out: as they are
{time}
label = "{label}"           # the column that holds the label; rows with an empty cell are not used
# label-from = "file-name"  # the label is the file's name up to the first "_": walk_01.csv
# label-from = "intervals"  # intervals.csv beside this file has the columns file, start, stop, label
                            # (in the time column's unit; without a time column, from the recording's start)

# What is different for one client: any of the above.
# [clients.NAME]
# columns = ["acc_x", "acc_y", "acc_z"]
# rate = 25
"""

WITH_TIME = """\
time = "{time}"
time-unit = "{unit}"            # s, ms, us or ns: this is a guess, check it"""
WITHOUT_TIME = """\
rate = 50                   # Hz of the recordings; or the column that holds the time:
# time = "timestamp"
# time-unit = "ms"          # s, ms, us or ns"""


def write_description(folder: Path) -> Path:
    """Write the template into the folder, and give its path."""
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; make it and put your recordings there, one sub-folder per client"
        )
    path = folder / DESCRIPTION
    if path.exists():
        raise UserError(f"{path} is there already; edit it, or move it away first")
    tables = _tables(folder)
    usual = max(
        tables.values(), key=lambda table: [t.header for t in tables.values()].count(table.header), default=Table()
    )
    time = next((name for name in usual.header if name.lower() in TIMES), None)
    label = next((name for name in usual.header if name.lower() in LABELS), None)

    def signals(table: Table) -> str:
        return _list([name for name in table.header if name not in (time, label)])

    text = TEMPLATE.format(
        folder=folder,
        name=folder.resolve().name or "mine",
        columns=signals(usual) if usual.header else _list(["acc_x", "acc_y", "acc_z"]),
        separator=f"separator = {_list([usual.separator])[1:-1]}" if usual.separator != "," else '# separator = ";"',
        time=WITH_TIME.format(time=time, unit=usual.unit(time)) if time else WITHOUT_TIME,
        label=label or "label",
    )
    for client, table in tables.items():
        if table.header != usual.header:
            text += f"\n[clients.{_key(client)}]\ncolumns = {signals(table)}\n"
    path.write_text(text, encoding="utf-8")
    return path


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

    def unit(self, time: str) -> str:
        """The unit of time that makes for a likely rate: 2 Hz to 2 kHz."""
        place = self.header.index(time)
        stamps = [float(row[place]) for row in self.rows if len(row) > place and _is_number(row[place])]
        step = float(np.median(np.abs(np.diff(stamps)))) if len(stamps) > 2 else 20.0
        return next((unit for unit, scale in SECONDS.items() if 0.0005 <= step * scale <= 0.5), "ms")


def _tables(folder: Path) -> dict[str, Table]:
    """Client → its first table, if that has a header."""
    found: dict[str, Table] = {}
    for path in sorted(p for p in folder.rglob("*") if p.name.lower().endswith((".csv", ".csv.gz"))):
        inside = path.relative_to(folder)
        client = inside.parts[0] if len(inside.parts) > 1 else path.name.split(".")[0]
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8-sig", errors="replace") as file:
            lines = [line for line, _ in zip(file, range(50), strict=False)]
        if client in found or not lines or "\0" in lines[0] or "\ufffd" in lines[0]:
            continue
        separator = max(",;\t", key=lines[0].count)
        header, *rows = (tuple(cell.strip() for cell in row) for row in csv.reader(lines, delimiter=separator))
        if not any(_is_number(cell) for cell in header):
            found[client] = Table(header, tuple(rows), separator)
    return found


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _list(names: list[str]) -> str:
    return json.dumps(names, ensure_ascii=False)
