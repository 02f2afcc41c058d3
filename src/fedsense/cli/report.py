"""``fedsense report`` and ``fedsense watch``: runs to look at."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders that `fedsense run` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file to write (default: report.html, of one RUN inside it)."),
    ] = None,
    summary: Annotated[
        str | None,
        typer.Option("--summary", metavar="WHICH", help="final, last-K, validation, or best-on-test."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """One page of runs, in a file of its own: words, tables, figures."""
    from fedsense.comparing import read
    from fedsense.engine.folder import RECIPE_FILE, read_json, write_atomically
    from fedsense.errors import UserError
    from fedsense.evaluation.summary import check_selection
    from fedsense.report.deep import deepen
    from fedsense.report.gather import document, light_lines
    from fedsense.report.page import page
    from fedsense.result import by_dataset, experiment_names, tell_apart

    file = out or (folders[0] if len(folders) == 1 and folders[0].is_dir() else Path()) / "report.html"
    if file.is_dir():
        raise UserError(f"{file} is a folder; --out names the file to write, such as {file / 'report.html'}")
    if summary is not None:
        check_selection(summary)
    results = by_dataset(tell_apart(read(folders, light_lines)))
    name = ", ".join(dict.fromkeys(folder.resolve().name for folder in folders))
    named = experiment_names(results)
    recipes = {called: read_json(path) for place, called in named.items() if (path := place / RECIPE_FILE).is_file()}
    recipe = next(iter(recipes.values())) if len(recipes) == 1 else recipes or None
    found = document(name, results, recipe, selection=summary)
    deepen(found, results, lambda text: print(text, file=sys.stderr))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, page(found).encode())
    if json_:
        print(json.dumps({"file": str(file), "left_out": found["left_out"]}, indent=1))
        return
    for what, why in found["left_out"]:
        print(f"left out: {what}: {why}", file=sys.stderr)
    print(f"{file} ({file.stat().st_size / 1e6:.1f} MB): open it in a browser")


def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `fedsense run` writes to.")],
    host: Annotated[str, typer.Option("--host", help="The address to serve at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0: any that is free.")] = 0,
) -> None:
    """The same page, live, while a run goes on."""
    from fedsense.report.watch import Watched, is_loopback, serve

    watched = Watched(folder)
    try:
        with serve(watched, host, port) as server:
            if not is_loopback(host):
                print(
                    "warning: whoever reaches this machine can see the page; it asks for no password", file=sys.stderr
                )
            shown = f"[{host}]" if ":" in host else host
            print(f"{folder} is at http://{shown}:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
            server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        print("no longer served", file=sys.stderr)
