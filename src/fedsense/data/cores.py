"""Work on all cores, with threads: parsers, digests and large arrays let other threads run while they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def on_all_cores(function: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """``function`` of every item, in order; of several mistakes the first is told."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))
