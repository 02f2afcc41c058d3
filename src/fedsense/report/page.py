"""One page that shows an experiment; it opens from disk and needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jinja2

from fedsense import __version__
from fedsense.engine.folder import read_json, write_atomically
from fedsense.report.figures import curves, svg
from fedsense.result import Result, comparison, costs


def write(folder: Path, results: Sequence[Result]) -> None:
    """``index.html`` and ``curves.svg`` in the experiment's folder."""
    shown = [result for result in results if result.history and result.history[-1]["scores"]]
    if not shown:
        return
    picture = svg(curves(shown))
    template = (resources.files("fedsense") / "report" / "page.html").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(template)
    text = page.render(
        name=folder.name,
        synthetic=any(r.synthetic for r in shown),
        clients=len(shown[0].test_sizes),
        rounds=max(r.done for r in shown),
        tables=[comparison(shown), costs(shown)],
        picture=picture,
        recipe=json.dumps(read_json(folder / "recipe.json"), indent=2),
        version=__version__,
    )
    write_atomically(folder / "curves.svg", picture.encode())
    write_atomically(folder / "index.html", text.encode())
