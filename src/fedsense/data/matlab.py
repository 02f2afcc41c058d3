"""MATLAB files: a damaged one, or one of another shape, is named in one line."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense.data.files import File
from fedsense.errors import UserError

Array = NDArray[Any]


def read_mat(file: File) -> dict[str, Any]:
    """The variables of a MATLAB file, up to version 7.2, by name."""
    from scipy.io import loadmat  # takes a second to import

    stream: Any = io.BytesIO(file.read())  # which scipy reads, though its types say paths only
    try:
        found = loadmat(stream)
    except NotImplementedError as error:
        raise file.wrong("is MATLAB 7.3, which is not read; save it in MATLAB with -v7") from error
    except Exception as error:  # scipy trusts what it reads, so damage may show as any error
        raise UserError(f"{file.place} is no MATLAB file, or damaged or cut short; get it again") from error
    return {name: value for name, value in found.items() if not name.startswith("__")}


def variable(file: File, variables: Mapping[str, Any], name: str) -> Array:
    """The variable of that name."""
    if name not in variables:
        raise file.wrong(f"holds no variable '{name}'; it holds {', '.join(variables) or 'none'}")
    return np.asarray(variables[name])


def matrix(file: File, variables: Mapping[str, Any], name: str, columns: int) -> Array:
    """The variable of that name, ``[rows, columns]`` numbers."""
    values = variable(file, variables, name)
    if values.ndim != 2 or values.shape[1] != columns or values.dtype.kind not in "iuf":
        kind = "numbers" if values.dtype.kind in "iuf" else "no numbers"
        size = " × ".join(str(length) for length in values.shape)
        raise file.wrong(f"'{name}' is {size} {kind}, expected rows of {columns} numbers")
    return values
