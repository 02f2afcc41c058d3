"""One page that shows runs; it opens from disk and needs nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedsense.engine.folder import RECIPE_FILE, read_json, write_atomically
from fedsense.report.figures import curves, svg
from fedsense.report.gather import Document, document
from fedsense.result import Result


def write(folder: Path, results: Sequence[Result]) -> None:
    """``index.html`` and ``curves.svg`` in the experiment's folder."""
    shown = [result for result in results if result.history and result.history[-1]["scores"]]
    if not shown:
        return
    found = document(folder.name, shown, read_json(folder / RECIPE_FILE))
    found["left_out"].append(
        ["Confusion matrices, class × client, embeddings", f"they need models and recordings: fedsense report {folder}"]
    )
    write_atomically(folder / "curves.svg", svg(curves(shown), f"{folder.name}: scores over rounds").encode())
    write_atomically(folder / "index.html", page(found).encode())


def page(found: Document) -> str:
    """The whole page: template, style, program and data in one file."""
    parts = {name: (resources.files("fedsense") / "report" / f"page.{name}").read_text("utf-8") for name in PARTS}
    data = json.dumps(found, allow_nan=False, separators=(",", ":"), default=str)
    fill = {
        "{{ title }}": html.escape(found["name"]),
        "{{ style }}": parts["css"],
        "{{ program }}": parts["js"],
        "{{ data }}": data.replace("<", "\\u003c"),  # nothing in the data ends the element it stands in
    }
    text = parts["html"]
    for mark, value in fill.items():  # the data last, so that nothing in them is taken for a mark
        text = text.replace(mark, value, 1)
    return text


PARTS = ("html", "css", "js")
