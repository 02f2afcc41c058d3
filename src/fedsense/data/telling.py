"""What is being read, and how far it is: one line on standard error, only where a person is looking."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_bars: list[Progress] = []  # the one that is shown, if any


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Say what is going on until it is done."""
    if not sys.stderr.isatty() or _bars:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(what, total=None)
        _bars.append(bar)
        try:
            yield
        finally:
            _bars.pop()


def expect(count: int) -> None:
    """So many steps are coming."""
    for bar in _bars:
        for task in bar.task_ids:
            bar.update(task, total=count, completed=0)


def one_done() -> None:
    for bar in _bars:
        for task in bar.task_ids:
            bar.advance(task)
