"""What clients keep between rounds: in memory up to a limit, and on disk what was used longest ago.

The file on disk has no name: it goes with the process, however that ends, and nobody else can find it.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from fedsense.bundle import Bundle, from_bytes, nested, to_bytes
from fedsense.errors import RunFailed
from fedsense.recent import Recent

DEFAULT_MB = 2000
BLOCK = 1 << 12  # places in the file are multiples of it, so that most of those given back fit what comes next

Key = tuple[str, str]  # shelf and client


class Store:
    """Bundles on named shelves; all shelves share ``megabytes`` of memory."""

    def __init__(self, megabytes: float = DEFAULT_MB, folder: Path | None = None) -> None:
        """What does not fit goes to a file in ``folder``, or in the system's folder of temporary files."""
        self._megabytes, self._folder = megabytes, folder
        self._recent: Recent[Key, Bundle] = Recent(lambda: megabytes * 1e6)
        self._places: dict[Key, Place] = {}  # where on disk a Bundle is, as it is now
        self._file: _File | None = None

    def shelf(self, name: str) -> Shelf:
        return Shelf(self, name)

    @property
    def spilled(self) -> int:
        """Bytes on disk."""
        return sum(place.length for place in self._places.values())

    def get(self, key: Key) -> Bundle:
        bundle = self._recent.get(key)
        if bundle is None:
            assert self._file is not None
            bundle = from_bytes(self._file.read(self._places[key]))
            self._keep(key, bundle)
        return bundle

    def put(self, key: Key, bundle: Bundle) -> None:
        self._leave(key)
        self._keep(key, bundle)

    def remove(self, key: Key) -> None:
        self._leave(key)
        self._recent.pop(key)

    def _keep(self, key: Key, bundle: Bundle) -> None:
        for other, old in self._recent.put(key, bundle, size(bundle)):
            if other not in self._places:
                self._places[other] = self._write(to_bytes(old))

    def _write(self, data: bytes) -> Place:
        try:
            if self._file is None:
                self._file = _File(self._folder)
            return self._file.write(data)
        except OSError as error:
            raise RunFailed(
                f"what clients keep does not fit into {self._megabytes:g} MB of memory, nor on disk ({error}); free "
                "some, name a folder with more room (TMPDIR, or --out), or give more memory (state_memory, in MB)"
            ) from error

    def _leave(self, key: Key) -> None:
        if place := self._places.pop(key, None):
            assert self._file is not None
            self._file.give_back(place)


class Shelf(MutableMapping[str, Bundle]):
    """Client → Bundle, as a dict would have it."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._clients: dict[str, None] = {}

    def __getitem__(self, client: str) -> Bundle:
        if client not in self._clients:
            raise KeyError(client)
        return self._store.get((self._name, client))

    def __setitem__(self, client: str, bundle: Bundle) -> None:
        self._clients[client] = None
        self._store.put((self._name, client), bundle)

    def __delitem__(self, client: str) -> None:
        del self._clients[client]
        self._store.remove((self._name, client))

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


class Kept(Mapping[str, Bundle]):
    """All that each client keeps in one Bundle: its state, and the model it trained last where that is elsewhere."""

    def __init__(self, states: Mapping[str, Bundle], trained: Mapping[str, Bundle]) -> None:
        self._states, self._trained = states, trained

    def __getitem__(self, client: str) -> Bundle:
        model = {"trained": self._trained[client]["model"]} if client in self._trained else {}
        return nested("state", self._states[client]) | model

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


class Place(NamedTuple):
    """A piece of the file."""

    start: int
    length: int

    @property
    def room(self) -> int:
        return -(-self.length // BLOCK) * BLOCK


class _File:
    """Pieces of bytes in a file without a name; what is given back is used again."""

    def __init__(self, folder: Path | None) -> None:
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        except OSError:  # a folder that is only read from
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._free: dict[int, list[int]] = {}  # room → where there is so much

    def write(self, data: bytes) -> Place:
        place = Place(self._end, len(data))
        if free := self._free.get(place.room):
            place = Place(free.pop(), len(data))
        else:
            self._end += place.room
        rest = memoryview(data)
        while rest:
            rest = rest[os.pwrite(self._file.fileno(), rest, place.start + len(data) - len(rest)) :]
        return place

    def read(self, place: Place) -> bytes:
        data = bytearray()
        while len(data) < place.length:
            piece = os.pread(self._file.fileno(), place.length - len(data), place.start + len(data))
            if not piece:
                raise EOFError("the file of what clients keep ends too early")
            data += piece
        return bytes(data)

    def give_back(self, place: Place) -> None:
        self._free.setdefault(place.room, []).append(place.start)


def size(bundle: Bundle) -> int:
    """Bytes of its tensors."""
    return sum(tensor.nbytes for params in bundle.values() for tensor in params.values())
