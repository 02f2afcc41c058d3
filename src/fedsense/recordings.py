"""Recordings that are made when they are first asked for: memory grows with the clients that are used.

Of what was made, a process keeps what was used last, up to ``FEDSENSE_MEMORY`` GB (default 1); the rest is made anew,
the same to the bit, when it is asked for again. So a change in place may be lost: ``ClientData.change`` gives a copy.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedsense.errors import FedsenseError, RunFailed, UserError
from fedsense.recent import Recent

if TYPE_CHECKING:
    from fedsense.federation import Samples

    Splits = tuple[Samples, Samples, Samples]  # train, val, test

DEFAULT = "1"  # GB
SMALL = 1 << 15  # bytes that are not worth memory of their own; a process may have about 65,000 such pieces


def limit() -> float:
    """Bytes of made recordings a process keeps."""
    given = os.environ.get("FEDSENSE_MEMORY") or DEFAULT
    try:
        return float(given) * 1e9
    except ValueError as error:
        raise UserError(f"FEDSENSE_MEMORY is '{given}'; give a number of GB") from error


_numbers = count()
_made: Recent[int, Splits] = Recent(limit)


class Recordings:
    """The three splits of one client, of which sizes and shape are known beforehand.

    ``key`` names what ``make`` gives: equal keys promise equal recordings. ``passed`` are checks done when it is made.
    """

    def __init__(
        self,
        who: str,
        make: Callable[[], Splits],
        sizes: tuple[int, int, int],
        shape: tuple[int, ...],
        key: str = "",
        passed: frozenset[str] = frozenset(),
    ) -> None:
        self.sizes, self.shape, self.key, self.passed = sizes, shape, key, passed
        self._who, self._make = who, make
        self._number = next(_numbers)

    def __del__(self) -> None:
        if _made is not None:  # it is, when the interpreter ends
            _made.pop(self._number)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_number"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _number=next(_numbers))  # a copy has a place of its own, here or in another process

    @property
    def here(self) -> Splits | None:
        """The splits, if they are in memory."""
        return _made.get(self._number)

    def splits(self) -> Splits:
        if (found := self.here) is not None:
            return found
        try:
            made = _apart(self._promised(self._make()))
        except FedsenseError:
            raise
        except Exception as error:
            note = f"the recordings of client '{self._who}' cannot be made: {type(error).__name__}: {error}"
            raise RunFailed(note) from error
        _made.put(self._number, made, sum(part.nbytes for split in made for part in split.tensors))
        return made

    def checked(self, name: str, check: Callable[[Splits], Splits]) -> Recordings:
        """The same, gone through ``check`` when they are made; it keeps sizes and shape."""
        if name in self.passed:
            return self
        made_by = self._make  # not splits(), which would keep them twice
        return Recordings(
            self._who, lambda: check(self.here or made_by()), self.sizes, self.shape, self.key, self.passed | {name}
        )

    def _promised(self, made: Splits) -> Splits:
        sizes, shapes = [len(split) for split in made], {split.shape for split in made if len(split)} or {self.shape}
        if sizes != [*self.sizes] or shapes != {self.shape}:
            raise UserError(
                f"client '{self._who}': there were to be {[*self.sizes]} samples (train, val, test) of shape "
                f"{[*self.shape]}, but {sizes} of shape {' and '.join(str([*shape]) for shape in sorted(shapes))} were "
                "made; let sizes and input_shape say what make() gives"
            )
        return made


def _apart(splits: Splits) -> Splits:
    """The splits in memory of their own.

    On the heap, where short-lived arrays come and go between them, they leave holes that fit nothing: a process that
    keeps 1 GB of recordings grew to 5 GB.
    """
    total = sum(-(-part.nbytes // 64) * 64 for split in splits for part in split.tensors)
    if total < SMALL:
        return splits
    try:
        block = torch.frombuffer(mmap.mmap(-1, total, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
    except OSError:  # no more of them
        return splits
    used = 0

    def moved(tensor: Tensor) -> Tensor:
        nonlocal used
        here = block[used : used + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        used += -(-tensor.nbytes // 64) * 64
        return here.copy_(tensor)

    train, val, test = (split.each(moved) for split in splits)
    return train, val, test
