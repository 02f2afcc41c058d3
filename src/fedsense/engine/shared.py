"""Bundles between processes on one machine: tensors are written once into memory both can see, never into a pipe."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any

import torch
from torch import Tensor

ALIGNED = 64  # bytes: a cache line, and what vector instructions like


class Region:
    """A piece of memory that one process writes and forked ones read; it grows as needed."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("fedsense")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        self._map: mmap.mmap | None = None
        self._filled = 0
        self._places: dict[int, tuple[Tensor, list[Any]]] = {}

    def clear(self) -> None:
        """What was written is not needed any more."""
        self._filled, self._places = 0, {}

    def write(self, tensor: Tensor) -> list[Any]:
        """Where the tensor now is: type, shape, place. One that was written before (the very object) is not again."""
        if (known := self._places.get(id(tensor))) is not None:
            return known[1]
        start, size = self._filled, tensor.numel() * tensor.element_size()
        self._filled += -(-size // ALIGNED) * ALIGNED
        place = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), start]
        if size:
            self._see(self._filled, grow=True)
            self.read(place).copy_(tensor.detach())
        self._places[id(tensor)] = (tensor, place)  # keeps it, so that no other gets its id
        return place

    def read(self, place: list[Any]) -> Tensor:
        """The tensor at a place, in the shared memory itself."""
        kind, shape, start = getattr(torch, place[0]), place[1], place[2]
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=kind)
        whole = self._see(start + count * kind.itemsize)
        return torch.frombuffer(whole, dtype=kind, count=count, offset=start).view(shape)

    def close(self) -> None:
        os.close(self._file)

    def _see(self, size: int, grow: bool = False) -> mmap.mmap:
        """A view of at least so many bytes; tensors in an older, smaller view stay what they are."""
        if self._map is None or len(self._map) < size:
            have = os.fstat(self._file).st_size
            if grow and have < size:
                have = max(2 * have, size, mmap.PAGESIZE)
                os.ftruncate(self._file, have)
            self._map = mmap.mmap(self._file, have)
        return self._map
