"""One's own recordings in the formats people keep them in: CSV, Parquet, npz and npy. Pickles are never read."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsense.data.arrays import read_npy, read_npz
from fedsense.data.files import File
from fedsense.data.overlaps import found_origins
from fedsense.data.tables import Array, read_table
from fedsense.data.windows import UNLABELLED, Collected
from fedsense.errors import UserError, nearest

ENDINGS = (".csv", ".csv.gz", ".parquet", ".npz", ".npy")


def read_columns(
    file: File, wanted: Mapping[str, tuple[str, type]], exact: Sequence[str] = (), sep: str = ","
) -> dict[str, Array] | Collected:
    """The columns of a CSV, Parquet, npz or npy file: ours → (the file's, ``float`` or ``str``).

    Cells may be empty, but for those of the ``exact`` columns. An npz file with windows gives them as they are.
    """
    readers: dict[str, Callable[..., dict[str, Array] | Collected]] = {
        ".parquet": _parquet, ".npz": _npz, ".npy": _npy
    }  # fmt: skip
    for ending, reader in readers.items():
        if file.name.lower().endswith(ending):
            return reader(file, wanted)
    columns = dict(wanted.values())
    table = read_table(file, columns, missing=True, sep=sep)
    for column in exact:
        if (empty := np.flatnonzero(~np.isfinite(table[column]))).size:
            raise file.wrong(f"line {empty[0] + 2}, column '{column}': the cell is empty")
    return {name: table[column] for name, (column, _) in wanted.items()}


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
