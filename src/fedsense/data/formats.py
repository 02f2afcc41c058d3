"""One's own recordings in the formats people keep them in: CSV, Parquet, npz and npy. Pickles are never read."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from fedsense.data.arrays import read_npy, read_npz
from fedsense.data.files import File
from fedsense.data.overlaps import found_origins
from fedsense.data.tables import Array, read_table
from fedsense.data.windows import UNLABELLED, Collected
from fedsense.errors import UserError, nearest

NAMED = {",": "commas", ";": "semicolons", "\t": "tabs"}  # what separates the cells of CSV files
ENDINGS = (".csv", ".csv.gz", ".parquet", ".npz", ".npy")


def read_columns(
    file: File, wanted: Mapping[str, tuple[str, type]], separator: str = ",", decimal: str = "."
) -> dict[str, Array] | Collected:
    """The columns of a CSV, Parquet, npz or npy file: ours → (the file's, ``float`` or ``str``).

    Cells may be empty. An npz file with windows gives them as they are. ``separator`` and ``decimal`` are of CSV files.
    """
    readers: dict[str, Callable[..., dict[str, Array] | Collected]] = {
        ".parquet": _parquet, ".npz": _npz, ".npy": _npy
    }  # fmt: skip
    for ending, reader in readers.items():
        if file.name.lower().endswith(ending):
            return reader(file, wanted)
    text = file.unzipped()
    first = text.split(b"\n", 1)[0].decode("utf-8-sig", "replace")
    likely = likely_separator(first)
    if separator not in first and likely in first:
        raise file.wrong(f"its cells seem to be separated by {NAMED[likely]}; say separator = {json.dumps(likely)}")
    if decimal == ",":
        text = text.replace(b",", b".")
    try:
        table = read_table(file, dict(wanted.values()), missing=True, sep=separator, text=text)
    except UserError as error:
        raise UserError(str(error) + _way_out(str(error))) from error
    return {name: table[column] for name, (column, _) in wanted.items()}


def _way_out(message: str) -> str:
    """What a description can say of a cell that is no number, if it looks like something else."""
    if re.search(r"'[+-]?\d+,\d+' is no number", message):
        return '; say decimal = ","'
    if re.search(r"'\d{4}-\d\d-\d\d[ T].*' is no number", message):
        return '; if it is the time, say time-unit = "iso"'
    return ""


def likely_separator(line: str) -> str:
    """What stands between the cells of a line."""
    return max(NAMED, key=line.count)


def without_ending(name: str) -> str:
    """The name of a file without what says how it is written: anna.phone.csv.gz is anna.phone."""
    longest = max((ending for ending in ENDINGS if name.lower().endswith(ending)), key=len, default="")
    return name[: len(name) - len(longest)]


def line_of(file: File, row: int) -> int:
    """The line of a CSV file that holds a row (from 0); blank lines are no rows."""
    lines = file.unzipped().split(b"\n")
    filled = (number for number, line in enumerate(lines, 1) if line.strip(b" \t\r\xef\xbb\xbf"))
    return next(islice(filled, row + 1, None), len(lines))  # after the header


def place_of(file: File, row: int) -> str:
    """Where a row (from 0) is, in the words of a message."""
    return f"line {line_of(file, row)}" if ".csv" in file.base.lower() else f"row {row + 1}"


def moments(words: Array) -> Array:
    """Seconds since 1970 of dates and times as ISO 8601 writes them; NaN where a word is none."""
    import pandas

    stamps = pandas.DatetimeIndex(pandas.to_datetime(words, format="ISO8601", utc=True, errors="coerce")).as_unit("ns")
    return np.where(stamps.isna(), np.nan, stamps.asi8 / 1e9)


def _parquet(file: File, wanted: Mapping[str, tuple[str, type]]) -> dict[str, Array]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{file.place}: Parquet files need pyarrow; pip install 'fedsense[parquet]'") from error
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(file.read()))
    except (pyarrow.ArrowException, OSError) as error:
        raise file.wrong(f"not a Parquet file, or cut short ({error})") from error
    arrays = {name: np.asarray(table[name].to_numpy()) for name in table.column_names}
    return _picked(file, arrays, wanted)


def _npz(file: File, wanted: Mapping[str, tuple[str, type]]) -> dict[str, Array] | Collected:
    """Columns by name; or ``x`` ``[windows, channels, time]`` and ``y``; or ``x`` ``[time, columns]``."""
    arrays = read_npz(file)
    x = arrays.get("x", np.zeros(0))
    if x.ndim == 3:
        return _cut_already(file, x, arrays.get("y"), wanted)
    if x.ndim == 2:
        names = [column for name, (column, _) in wanted.items() if name not in ("time", "label")]
        if x.shape[1] != len(names):
            raise file.wrong(f"x has {x.shape[1]} columns, expected {len(names)} ({', '.join(names)})")
        arrays |= {name: x[:, i] for i, name in enumerate(names)}
        arrays |= {wanted["label"][0]: arrays["y"]} if "y" in arrays and "label" in wanted else {}
    return _picked(file, arrays, wanted)


def _cut_already(file: File, x: Array, y: Array | None, wanted: Mapping[str, tuple[str, type]]) -> Collected:
    channels = [name for name in wanted if name not in ("time", "label")]
    if x.shape[1] != len(channels):
        raise file.wrong(f"x has {x.shape[1]} channels, expected {len(channels)} ({', '.join(channels)})")
    if y is None or y.shape != x.shape[:1]:
        raise file.wrong(f"x holds {len(x)} windows; y must hold as many labels")
    words = np.array([word(value) for value in y.tolist()], object)
    origin = found_origins(x, np.zeros(len(x)))  # overlapping windows are known by their numbers
    session = np.full(len(x), UNLABELLED)
    return Collected("", x.astype(np.float32), words, origin, session, {"channels": channels, "file": file.name})


def _npy(file: File, wanted: Mapping[str, tuple[str, type]]) -> dict[str, Array]:
    array = read_npy(file)
    if array.ndim != 2 or array.shape[1] != len(wanted):
        names = ", ".join(column for column, _ in wanted.values())
        raise file.wrong(f"its shape is {list(array.shape)}, expected [rows, {len(wanted)}] ({names})")
    return _picked(file, {column: array[:, i] for i, (column, _) in enumerate(wanted.values())}, wanted)


def _picked(file: File, arrays: Mapping[str, Array], wanted: Mapping[str, tuple[str, type]]) -> dict[str, Array]:
    result = {}
    for name, (column, kind) in wanted.items():
        if column not in arrays:
            raise file.wrong(f"there is no column '{column}'; {nearest(column, arrays)}")
        values = np.asarray(arrays[column])
        if values.ndim != 1:
            raise file.wrong(f"column '{column}' has shape {list(values.shape)}, expected one number a row")
        if values.dtype.kind == "M":
            if kind is not str:
                raise file.wrong(f"column '{column}' holds dates; if it is the time, say time-unit = \"iso\"")
            values = values.astype("datetime64[ns]").astype(str)
        if kind is str:
            result[name] = np.array([word(value) for value in values.tolist()], object)
        elif values.dtype.kind in "iufb":
            result[name] = values.astype(np.float64)
        else:
            raise file.wrong(f"column '{column}' holds {values.dtype}, expected numbers")
    if len({len(values) for values in result.values()}) > 1:
        raise file.wrong("its columns have different lengths")
    return result


def word(value: Any) -> str:
    """A label as a word: 3.0 is "3", nothing is ""."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value == int(value) else str(value).strip()
