"""``fedsense pack``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pack(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Folders that `fedsense run` or `fedsense reproduce` wrote."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: NAME.tar.xz, after the first folder.")
    ] = None,
) -> None:
    """Write what runs measured, without their models, to one small file: to keep, to share, to compare."""
    from fedsense.packing import pack as write

    file = out or Path(f"{runs[0].resolve().name}.tar.xz")
    done = write(runs, file)
    print(f"{file}: {done.runs} run{'s' * (done.runs != 1)}, {done.bytes / 1e3:,.0f} kB, without models")
    if done.unfinished:
        print(f"left out, as not finished: {', '.join(map(str, done.unfinished))}")
    print(f"fedsense compare {file} reads it; tar xf {file} makes folders of it, to go on with")
