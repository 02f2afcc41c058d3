"""``fedsense compare``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from fedsense.comparing import Comparison
    from fedsense.result import Grid

NAME_WIDTH = 14  # in a table of scores names of methods up to this stay in one piece


class Format(StrEnum):
    """What a comparison is written as."""

    table = "table"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"


class Spread(StrEnum):
    """What a standard deviation is over."""

    clients = "clients"
    seeds = "seeds"


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Experiments, single runs, or folders of experiments.")
    ],
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="METHOD", help="Compare all with this one; default: every two methods."),
    ] = None,
    view: Annotated[
        str | None, typer.Option("--view", help="What is tested: personal (default), generalisation, global, …")
    ] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="What is tested; default: the runs' first.")] = None,
    summary: Annotated[
        str | None,
        typer.Option("--summary", metavar="WHICH", help="final, last-K, validation, or best-on-test."),
    ] = None,
    weighted: Annotated[bool, typer.Option("--weighted", help="Weight clients by their test samples.")] = False,
    spread: Annotated[
        Spread, typer.Option("--spread", help="In the table of scores, what ± is over.")
    ] = Spread.clients,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="SCORE", help="Rounds and MB to reach 0.8, or 95% of --against's score."),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.table,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it there.")] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="SVG", help="Ranks over datasets and their critical difference.")
    ] = None,
    frontier: Annotated[
        Path | None, typer.Option("--frontier", metavar="SVG", help="Scores over megabytes and over seconds.")
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output, and nothing else.")
    ] = False,
) -> None:
    """Compare methods over clients, seeds and datasets: who is better, how sure, at what cost, and whom it harms."""
    from fedsense.comparing import compare_results, read
    from fedsense.engine.folder import write_atomically
    from fedsense.errors import UserError

    for path in (out, picture, frontier):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise UserError(
                f"{path} cannot be written: {'it is a folder' if path.is_dir() else 'its folder is not there'}"
            )
    for path in (picture, frontier):
        if path is not None and path.suffix.lower() != ".svg":
            raise UserError(f"{path}: pictures are drawn as SVG; name it {path.with_suffix('.svg')}")
    found = compare_results(read(folders), summary, weighted, view, metric, against, target, spread.value)
    if picture is not None or frontier is not None:
        _draw(found, picture, frontier)
    kind = Format.json if json_ else format_
    if kind is Format.table and out is None:
        _show(found)
    else:
        text = _text(found, kind, folders[0] if len(folders) == 1 else None)
        if out is None:
            print(text.rstrip("\n"))
        else:
            write_atomically(out, (text.rstrip("\n") + "\n").encode())
            print(f"written to {out}", file=sys.stderr)


def _text(found: Comparison, kind: Format, folder: Path | None) -> str:
    from fedsense.report import tables
    from fedsense.result import report_json

    if kind is Format.json:
        document = {**report_json(found.results, folder, found.selection), "comparison": found.as_dict()}
        return json.dumps(document, indent=1)
    writers = {
        Format.table: tables.plain,
        Format.markdown: tables.markdown,
        Format.latex: tables.latex,
        Format.csv: tables.tidy,
    }
    return writers[kind](found)


def _draw(found: Comparison, picture: Path | None, frontier: Path | None) -> None:
    from fedsense.engine.folder import write_atomically
    from fedsense.errors import UserError
    from fedsense.report.comparing import costs, critical_difference
    from fedsense.report.figures import svg

    if picture is not None:
        if found.ranks.ranks is None:
            raise UserError(f"--picture {picture}: {found.ranks.why_not}; --frontier draws scores over their cost")
        write_atomically(
            picture, svg(critical_difference(found.ranks), "Average ranks and their critical difference").encode()
        )
    if frontier is not None:
        write_atomically(
            frontier,
            svg(costs(found.costs, found.view, found.metric), f"{found.view} {found.metric} over its costs").encode(),
        )


def _show(found: Comparison) -> None:
    from rich.console import Console

    from fedsense.report.tables import notes, tables

    console = Console(highlight=False)
    for number, (title, grid) in enumerate(tables(found)):
        if number > 1:
            console.print(f"{title}\n", style="bold", markup=False)
        show_grid(console, grid, number == 0)
    for note in notes(found):
        console.print(f"note: {note}", markup=False)


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


def show_grid(console: object, grid: Grid, stacked: bool = False) -> None:
    """A table and its caption, in pieces if it is too wide; ``stacked``: a column's view above its metric."""
    from rich.console import Console
    from rich.markup import escape

    assert isinstance(console, Console)
    if stacked:
        pieces = [("", piece) for piece in side_by_side(grid, console.width)]
    else:
        pieces = by_dataset(grid, console.width)
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


def by_dataset(grid: Grid, space: int) -> list[tuple[str, Grid]]:
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
