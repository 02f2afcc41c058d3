"""What was used last, kept in memory up to so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values with their sizes; ``limit()`` is how many bytes they may take together."""

    def __init__(self, limit: Callable[[], float]) -> None:
        self._limit = limit
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._total = 0
        self._lock = RLock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: K, value: V, size: int) -> list[tuple[K, V]]:
        """Keep a value, however large; gives what was used longest ago and has to go for it."""
        gone = []
        with self._lock:
            self.pop(key)
            self._entries[key] = (value, size)
            self._total += size
            while self._total > self._limit() and len(self._entries) > 1:
                oldest, (old, its_size) = self._entries.popitem(last=False)
                self._total -= its_size
                gone.append((oldest, old))
        return gone

    def pop(self, key: K) -> None:
        with self._lock:
            if key in self._entries:
                self._total -= self._entries.pop(key)[1]
