"""Tables on a terminal, however narrow: no number is cut off, and words are broken only where there is no room."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from fedsense.result import Grid

NAME_WIDTH = 14  # in a table of scores names of methods up to this stay in one piece


def show_grid(console: object, grid: Grid, stacked: bool = False) -> None:
    """A table and its caption, in pieces if it is too wide; ``stacked``: a column's view above its metric."""
    from rich.console import Console
    from rich.markup import escape

    assert isinstance(console, Console)
    if stacked:
        pieces = [("", piece) for piece in side_by_side(grid, console.width)]
    else:
        pieces = dataset_by_dataset(grid, console.width)
    for title, piece in pieces:
        if title:
            console.print(title, markup=False)
        table = _stacked(piece) if stacked else _table(piece, console.width)
        for row in piece.rows:
            table.add_row(*map(escape, row))
        console.print(table)
        if len(pieces) > 1:
            console.print()
    console.print(grid.caption + "\n", style="dim", markup=False)


def side_by_side(grid: Grid, space: int) -> list[Grid]:
    """Columns of numbers that do not fit beside one another go below, views whole if they can be, names before each."""
    columns = list(zip(grid.header, *grid.rows, strict=True))
    names = [n for n, column in enumerate(grid.header) if _is_text(n, column)]
    widths = [max(max(map(len, head.split(" ", 1))), *map(len, cells), 0) + 1 for head, *cells in columns]
    taken = sum(min(widths[n], NAME_WIDTH + 1) for n in names)
    views: dict[str, list[int]] = {}
    for n, head in enumerate(grid.header):
        if n not in names:
            views.setdefault(head.split(" ")[0], []).append(n)
    lines: list[list[int]] = [[]]
    for view in views.values():
        whole = taken + sum(widths[n] for n in view) <= space
        for group in [view] if whole else [[n] for n in view]:
            if lines[-1] and taken + sum(widths[n] for n in lines[-1] + group) > space:
                lines.append([])
            lines[-1] += group
    return [replace(grid, header=[grid.header[n] for n in names + line],
                    rows=[[row[n] for n in names + line] for row in grid.rows]) for line in lines]  # fmt: skip


def dataset_by_dataset(grid: Grid, space: int) -> list[tuple[str, Grid]]:
    """The table; or one for each dataset, its name above it, where words would have to be broken otherwise."""
    if "dataset" not in grid.header or _words_fit(grid, space):
        return [("", grid)]
    at = grid.header.index("dataset")
    return [
        (
            name,
            replace(grid, header=_without(grid.header, at), rows=[_without(r, at) for r in grid.rows if r[at] == name]),
        )
        for name in dict.fromkeys(row[at] for row in grid.rows)
    ]


def _without(cells: list[str], at: int) -> list[str]:
    return [*cells[:at], *cells[at + 1 :]]


def _is_text(number: int, column: str) -> bool:
    from fedsense.result import WORDS

    return not number or column in WORDS


def _told(grid: Grid, space: int) -> tuple[list[bool], int, list[list[str]]]:
    """Which columns hold words, what numbers leave for them, and what they hold."""
    columns = [[title, *cells] for title, *cells in zip(grid.header, *grid.rows, strict=True)]
    words = [_is_text(number, column) for number, column in enumerate(grid.header)]
    numbers = sum(max(map(len, column)) for column, text in zip(columns, words, strict=True) if not text)
    told = [column for column, text in zip(columns, words, strict=True) if text]
    return words, space - numbers - 2 * (len(words) - 1), told


def _words_fit(grid: Grid, space: int) -> bool:
    _, left, told = _told(grid, space)
    return sum(map(_longest_word, told)) <= left


def _longest_word(column: list[str]) -> int:
    return max(len(word) for cell in column for word in [*cell.split(), ""])


def _table(grid: Grid, space: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    words, left, told = _told(grid, space)
    widths = iter(share_width(left, told))
    for title, text in zip(grid.header, words, strict=True):
        width = next(widths) if text else None
        table.add_column(title, justify="left" if text else "right", overflow="fold", no_wrap=not text, width=width)
    return table


def _stacked(grid: Grid) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for number, (title, *cells) in enumerate(zip(grid.header, *grid.rows, strict=True)):
        text = _is_text(number, title)
        table.add_column(
            title.replace(" ", "\n", 1),
            justify="left" if text else "right",
            overflow="fold",
            no_wrap=not text,
            min_width=min(max(map(len, cells), default=0), NAME_WIDTH) if text else None,
        )
    return table


def share_width(space: int, columns: list[list[str]]) -> list[int]:
    """How wide columns of words are, so that as few words as can be are broken: as much for each as is left for it."""
    title = [len(column[0]) for column in columns]
    word = [_longest_word(column) for column in columns]
    whole = [max(map(len, column)) for column in columns]
    least, most = (word, whole) if sum(word) <= space else (title, word)
    widths = least
    for level in range(max(most, default=0) + 1):
        wider = [min(top, max(bottom, level)) for bottom, top in zip(least, most, strict=True)]
        if sum(wider) > space:
            break
        widths = wider
    return widths
