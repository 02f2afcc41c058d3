"""``fedsense compare``."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedsense.comparing import Comparison


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

    from fedsense.cli.grids import show_grid
    from fedsense.report.tables import notes, tables

    console = Console(highlight=False)
    for number, (title, grid) in enumerate(tables(found)):
        if number > 1:
            console.print(f"{title}\n", style="bold", markup=False)
        show_grid(console, grid, number == 0)
    for note in notes(found):
        console.print(f"note: {note}", markup=False)
