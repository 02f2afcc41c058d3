"""WISDM v1.1 (raw): a phone in the trouser pocket, six activities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedsense.data.card import Card, Download
from fedsense.data.dataset import Signals
from fedsense.data.files import File, Files
from fedsense.data.tables import MISSING, Array, read_table, stacked
from fedsense.data.windows import LONGEST_GAP, Recording
from fedsense.errors import UserError, nearest

ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")
AXES = ("x", "y", "z")
COLUMNS: dict[str, type] = {"user": int, "activity": str, "time": int} | dict.fromkeys(AXES, float)
RATE = 20.0  # Hz


def read(files: Files) -> Iterator[Recording]:
    """One recording a stretch without a jump of the clock: accelerometer (m/s², gravity included)."""
    file = files.one("WISDM_ar_v1.1_raw.txt")
    table = read_records(file, COLUMNS, ACTIVITIES)
    user, time, activity = table["user"], table["time"], table["activity"]
    signal = stacked(table, AXES)
    # Stamps stand still or are 0 for long stretches, so rows are taken to be 50 ms apart, as everybody does; only a
    # jump between two stamps that were set tells that the recording was broken off.
    jumps = (np.abs(np.diff(time)) > LONGEST_GAP * 1e9) & (time[1:] != 0) & (time[:-1] != 0)
    breaks = np.flatnonzero(jumps | (np.diff(user) != 0) | (np.diff(activity) != 0)) + 1
    pieces = [piece for piece in np.split(np.arange(len(user)), breaks) if len(piece)]
    for piece in sorted(pieces, key=lambda rows: int(user[rows[0]])):
        who = f"s{user[piece[0]]:02d}"
        yield Recording(
            who, signal[piece], activity[piece], RATE, tuple(f"acc_{axis}" for axis in AXES), traits={"person": who}
        )


def read_records(file: File, columns: Mapping[str, type], activities: Sequence[str]) -> dict[str, Array]:
    """The columns of a text of records ``cell,cell,…;``, activities by number; a record cut short is left out.

    Official files hold two records on a line, empty lines, a comma before the semicolon, and records without their
    last cells. The sign of every number is kept.
    """
    import pandas

    text = file.read()
    single = np.frombuffer(text.replace(b"\r", b"").replace(b";", b"\n") + b"\n", np.uint8)
    ends = np.flatnonzero(single == ord("\n"))
    lengths = np.diff(ends, prepend=-1)
    commas = np.diff(np.searchsorted(np.flatnonzero(single == ord(",")), ends), prepend=0)
    trailing = (single[np.maximum(ends - 1, 0)] == ord(",")) & (lengths > 1)
    cells = commas - trailing + 1
    if (cells > len(columns)).any():
        raise _mistake(file, text, columns, activities)
    sound = cells == len(columns)
    if not sound.any():
        raise file.wrong(f"holds no record '{','.join(columns)};'")
    if trailing.any() or not (sound | (lengths <= 1)).all():  # an empty line is no trouble
        kept = np.repeat(sound, lengths)
        kept[(ends - 1)[trailing]] = False
        single = single[kept]
    try:
        table = read_table(file, columns, header=False, missing=True, text=single.tobytes())
    except UserError as error:
        raise _mistake(file, text, columns, activities) from error
    place, names = pandas.factorize(table["activity"])
    if not set(names) <= set(activities):
        raise _mistake(file, text, columns, activities)
    return table | {"activity": np.array([activities.index(name) for name in names], np.int64)[place]}


def _mistake(file: File, text: bytes, columns: Mapping[str, type], activities: Sequence[str]) -> UserError:
    """The first record that is wrong, looked for the slow way: its line is that of the file."""
    for number, line in enumerate(text.decode("utf-8", "replace").split("\n"), 1):
        for record in line.split(";"):
            cells = [cell.strip() for cell in record.strip().removesuffix(",").split(",")]
            if len(cells) > len(columns):
                return file.wrong(
                    f"line {number} has {len(cells)} cells, expected {len(columns)} ({', '.join(columns)})"
                )
            if len(cells) < len(columns):
                continue
            for place, (name, cell) in enumerate(zip(columns, cells, strict=True), 1):
                if fault := _fault(cell, columns[name], activities):
                    return file.wrong(f"line {number}, column {place} ('{name}'): {fault}")
    return file.wrong(f"is not made of records '{','.join(columns)};'")


def _fault(cell: str, kind: type, activities: Sequence[str]) -> str:
    if kind is str:
        return "" if cell in activities else f"activity '{cell}' is unknown; {nearest(cell, activities)}"
    if kind is float and cell in MISSING:
        return ""
    try:
        kind(cell)
    except ValueError:
        return f"'{cell}' is no {'whole ' if kind is int else ''}number"
    return ""


DATASET = Signals(
    card=Card(
        name="wisdm",
        title="WISDM v1.1",
        what="a phone in the front trouser pocket; walking, jogging, stairs, sitting, standing; accelerometer, 20 Hz",
        who="36 volunteers, watched by a member of the team, under controlled conditions",
        licence="the authors' own terms: keep their readme.txt with the data and cite them",
        citation="J. R. Kwapisz, G. M. Weiss, S. A. Moore, 'Activity recognition using cell phone accelerometers', "
        "SensorKDD, 2010",
        address="https://www.cis.fordham.edu/wisdm/dataset.php",
        layout="WISDM_ar_v1.1/WISDM_ar_v1.1_raw.txt, records user,activity,time,x,y,z;",
        sizes="1,098,207 records: walking 424,400, jogging 342,177, upstairs 122,869, downstairs 100,427, sitting "
        "59,939, standing 48,395",
        client="a person (36)",
        paper="FedCoad: windows of 200 with half overlap",
        notes="Records that are cut short (no z) are left out; readers differ by a handful of rows for that. Stamps "
        "are 0 or stand still in places: rows are taken as 50 ms apart, and a recording is cut where the "
        "clock jumps more than 0.5 s. A window holds one activity and the sign of z is kept; in FedCoad's "
        "code windows cross activities and the sign is lost.",
        downloads=(
            Download(
                "https://www.cis.fordham.edu/wisdm/includes/datasets/latest/WISDM_ar_latest.tar.gz",
                "WISDM_ar_latest.tar.gz",
            ),
        ),
    ),
    read=read,
    wanted=("WISDM_ar_v1.1_raw.txt",),
    classes=tuple(name.lower() for name in ACTIVITIES),
    rate=RATE,
    window=200,
)
