"""``fedsense gallery``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def gallery(
    paper: Annotated[
        str, typer.Argument(metavar="PAPER", help="fedali, fedapa, fedcoad, flic, protohar, a card's file, or a title.")
    ],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN…]", help="Other experiments to show, as `fedsense run` wrote them."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The page (default: PAPER.md).")] = None,
    reproduced: Annotated[
        Path | None,
        typer.Option(
            "--reproduced", metavar="DIR", help="What `fedsense reproduce` wrote, or packed (default: its own default)."
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="SIZE", help="What was reproduced: paper or small.")
    ] = "small",
) -> None:
    """Write a page of what was run for a paper, ours beside the published; runs nothing."""
    from fedsense.errors import UserError
    from fedsense.packing import opened
    from fedsense.reproduce.cards import load_card, papers
    from fedsense.reproduce.gallery import write_gallery
    from fedsense.reproduce.plan import folder_of, scale_of

    size = scale_of(scale)
    known = paper.lower() in papers() or Path(paper).is_file()
    if not known and not runs:
        load_card(paper)  # says which papers there are
    card = load_card(paper) if known else None
    title = card.paper if card else paper
    file = out or Path(f"{title.lower()}.md")
    if file.is_dir():
        raise UserError(f"{file} is a folder; --out names the page to write, such as {file / f'{title.lower()}.md'}")
    folder = opened(reproduced) if reproduced and reproduced.is_file() else folder_of(title, size, reproduced)
    told = write_gallery(card, title, folder, size, runs or [], file)
    print(f"{file}: {told}")
