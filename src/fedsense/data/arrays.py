"""Arrays that numpy wrote. Nothing in such a file is ever run: arrays of objects are refused."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense.data.files import LARGEST, File

Array = NDArray[Any]
UNREADABLE = (ValueError, TypeError, KeyError, EOFError, OSError, OverflowError, SyntaxError, zlib.error, MemoryError)
NUMBERS = "biufc"  # kinds of numpy's types


def read_npy(file: File) -> Array:
    """The array of a .npy file."""
    content = file.read()
    if not content.startswith(b"\x93NUMPY"):
        raise file.wrong("is no .npy file; save it with numpy.save")
    try:
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
    except UNREADABLE as error:
        raise _unreadable(file, error) from error


def read_npz(file: File) -> dict[str, Array]:
    """The arrays of a .npz file, by name."""
    with file.open() as opened:
        # read where it lies, if one can go back and forth in it
        stream = opened if isinstance(opened, io.BufferedReader | io.BytesIO) else io.BytesIO(file.read())
        try:
            with zipfile.ZipFile(stream) as box:
                unpacked = sum(entry.file_size for entry in box.infolist())
        except zipfile.BadZipFile as error:
            raise file.wrong("is no whole .npz file (numpy.savez writes them); get it again") from error
        if unpacked > LARGEST:
            raise file.wrong(f"unpacks to more than {LARGEST >> 30} GB; it is not trusted")
        stream.seek(0)
        try:
            with np.load(stream, allow_pickle=False) as arrays:
                return {name: np.asarray(arrays[name]) for name in arrays.files}
        except (*UNREADABLE, zipfile.BadZipFile) as error:
            raise _unreadable(file, error) from error


def wanted(file: File, arrays: dict[str, Array], *names: str) -> list[Array]:
    """The arrays of those names, all there."""
    for name in names:
        if name not in arrays:
            raise file.wrong(f"holds no array '{name}', only {', '.join(arrays) or 'nothing'}")
    return [arrays[name] for name in names]


def _unreadable(file: File, error: BaseException) -> Exception:
    if "Object arrays" in str(error) or "allow_pickle" in str(error):
        return file.wrong("holds Python objects, which are not trusted; save plain arrays of numbers")
    return file.wrong("is damaged or cut short; get it again")
