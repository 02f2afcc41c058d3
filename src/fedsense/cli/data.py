"""``fedsense data``: look at a dataset, describe one's own, download."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedsense.data.check import Report
    from fedsense.data.dataset import Dataset
    from fedsense.federation import Federation
    from fedsense.models.spec import ModelSpec

PICTURES = (".png", ".svg", ".pdf")

app = typer.Typer(help="Look at datasets, describe your own, download.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A dataset; `fedsense list datasets` shows them.")]
Root = Annotated[str | None, typer.Option("--root", metavar="PATH", help="Folder, zip or tar of the dataset's files.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, and nothing else.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option, as in a recipe: --set window=200")
]


@app.command()
def describe(name: Name, json_: Json = False) -> None:
    """What a dataset is, who made it, how to get it, and what its options are."""
    from fedsense.data import find_dataset

    dataset = find_dataset(name)
    card = _card(dataset)
    if json_:
        print(json.dumps(card, indent=1, default=str))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for key, value in card.items():
        if value and key != "options":
            table.add_row(key, Text(value))
    table.add_row("options", Text("\n".join(f"{option} = {value}" for option, value in card["options"].items())))
    Console(highlight=False).print(table)


@app.command()
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FOLDER|RECIPE", help="A dataset, a folder with a dataset.toml, or a recipe: all of its data."
        ),
    ],
    root: Root = None,
    set_: Set = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The network that methods are asked about (default: one that fits).")
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw which client has how much of which class.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where --plot draws to (.png, .svg).")
    ] = None,
    json_: Json = False,
) -> None:
    """Read all of a dataset and say what is in it, client by client, and what to look at before training."""
    from dataclasses import replace

    from fedsense.data.check import examine
    from fedsense.data.files import from_user
    from fedsense.errors import UserError, nearest
    from fedsense.models import MODELS
    from fedsense.models.spec import ModelSpec

    if model is not None and model not in MODELS:
        raise UserError(f"there is no model '{model}'; {nearest(model, MODELS)}", about=model)
    out = None if out is None else from_user(out)
    if out is not None and (out.suffix not in PICTURES or not out.parent.is_dir()):
        raise UserError(f"--out {out}: give a file in a folder that is there, ending in {', '.join(PICTURES)}")
    if _is_recipe(target):
        report, own = _of_recipe(target, root, set_ or [])
        specs = [own]
    else:
        name, options = dataset_of(target, root, set_ or [])
        report = examine(name, **options)
        specs = [ModelSpec.of(fitting) for fitting in _fitting(report.federation)]
    specs = [ModelSpec.of(model)] if model else specs
    report = replace(report, refusals=_refusals(report.federation, specs))
    picture = _draw(report, out) if plot or out else None
    if json_:
        print(json.dumps(report.as_json() | ({"picture": str(picture)} if picture else {}), indent=1))
        return
    _print_report(report)
    if picture:
        print(f"picture: {picture}")


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that holds your recordings.")] = Path(),
    example: Annotated[
        bool, typer.Option("--example", help="Put made-up recordings of a phone and two watches there first.")
    ] = False,
) -> None:
    """Write a commented dataset.toml for your own recordings, filled in from what is in the folder."""
    from fedsense.data.files import from_user
    from fedsense.data.template import write_description, write_example

    folder = from_user(folder)
    if example:
        write_example(folder)
    path = write_description(folder)
    look = f"fedsense data check {shlex.quote(str(folder))}"
    print(f"wrote {path}; fill in what it asks for, then look at the result: {look}")


@app.command()
def fetch(
    name: Name,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Folder to save in (default: FEDSENSE_DATA/NAME).")
    ] = None,
) -> None:
    """Download a dataset from its official source, where that is allowed; goes on where it was stopped."""
    from fedsense.data import find_dataset
    from fedsense.data.fetch import Bar
    from fedsense.data.fetch import fetch as download
    from fedsense.data.files import from_user
    from fedsense.errors import UserError

    card = find_dataset(name).card
    if card.synthetic:
        print(f"{name} is drawn, not downloaded: nothing to fetch")
        return
    if not card.downloads:
        raise UserError(f"dataset '{name}' cannot be fetched: {card.by_hand or 'see ' + card.address}")
    base = os.environ.get("FEDSENSE_DATA")
    if to is None and not base:
        raise UserError("where to? say --to DIR, or set FEDSENSE_DATA to the folder that holds your datasets")
    folder = from_user(to) if to else from_user(str(base)) / name
    print(f"{card.title}: {card.licence}. Source: {card.address}", file=sys.stderr)
    with Bar() as bar:
        paths = download(card.downloads, folder, bar)
    for path in paths:
        print(path)


def _card(dataset: Dataset) -> dict[str, Any]:
    card = dataset.card
    hand = card.by_hand if not card.downloads else ""
    get = f"fedsense data fetch {card.name}" if card.downloads else hand
    return {
        "name": card.name,
        "title": card.title,
        "what": card.what,
        "who": card.who,
        "a client is": card.client,
        "sizes": card.sizes,
        "used by": card.paper,
        "licence": card.licence,
        "citation": card.citation,
        "address": card.address,
        "get it": "comes with fedsense" if card.synthetic else get,
        "layout": "" if card.synthetic else card.layout,
        "notes": card.notes,
        "options": {key.replace("_", "-"): _value(value) for key, value in dataset.defaults().items()},
    }


def _value(value: Any) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(v)}" for key, v in value.items()) + " }"
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=str)


def dataset_of(target: str, root: str | None, overrides: list[str]) -> tuple[str, dict[str, Any]]:
    """The dataset and its options; a folder that holds a description is ``folder`` with that root."""
    from fedsense.data import DATASETS
    from fedsense.data.description import DESCRIPTION
    from fedsense.data.files import from_user
    from fedsense.errors import UserError
    from fedsense.recipe import override

    options: dict[str, Any] = {}
    for text in overrides:
        override(options, text)
    if target in DATASETS:
        return target, {**({"root": root} if root else {}), **options}
    folder = from_user(target)
    if not folder.exists():
        raise UserError(_nothing_there(target), about=target)
    if folder.is_dir() and not any(folder.rglob(DESCRIPTION)):
        raise UserError(f"{target} holds no {DESCRIPTION}; `fedsense data new {shlex.quote(str(folder))}` writes one")
    if root is not None:
        raise UserError(f"--root goes with a dataset's name, and {target} is a folder; leave one of them out")
    return "folder", {"root": str(folder), **options}


def _nothing_there(target: str) -> str:
    """A name may be meant as a dataset's or a folder's; a path is a folder's, and no dataset is near it."""
    from difflib import get_close_matches

    from fedsense.data import DATASETS
    from fedsense.data.description import DESCRIPTION

    if os.sep in target or target.startswith((".", "~")):
        return f"there is no folder {target}; name one that holds a {DESCRIPTION}"
    near = get_close_matches(target.replace("_", "-"), DATASETS, n=1, cutoff=0.7)
    hint = f"did you mean '{near[0]}'?" if near else "`fedsense list datasets` shows the datasets"
    return f"there is neither a dataset nor a folder '{target}'; {hint}"


def _is_recipe(target: str) -> bool:
    """A recipe is a file whose name says so, or comes with fedsense; a dataset of that name goes first."""
    from fedsense.data import DATASETS
    from fedsense.recipe import builtin_recipes

    return target not in DATASETS and (target.endswith(".toml") or target in builtin_recipes())


def _of_recipe(target: str, root: str | None, overrides: list[str]) -> tuple[Report, ModelSpec]:
    """What there is to know of a recipe's data, and its model."""
    from fedsense.data.check import examine, examine_several
    from fedsense.data.files import from_user
    from fedsense.errors import UserError
    from fedsense.recipe import load_recipe

    if root is not None:
        raise UserError(f"--root goes with a dataset's name, and {target} is a recipe; say --set data.root=…")
    recipe = load_recipe(from_user(target) if target.endswith(".toml") else target, overrides)
    tables = recipe.data_options(recipe.seeds[0])
    if recipe.several:
        return examine_several(tables, recipe.classes, recipe.renamed), recipe.model_spec()
    (options,) = tables.values()
    return examine(**options), recipe.model_spec()


def _fitting(federation: Federation) -> list[str]:
    """Networks for what the federation holds; after the first, those with an adapter, prototypes or BatchNorm."""
    signals, images = ["coad-cnn", "sensor-cnn", "hart"], ["convnet4-tiny", "flic-cnn", "vit-tiny"]
    if len({client.input_shape for client in federation}) == 1:  # it takes any, and would hide that they differ
        signals.append("convnet4-tiny")
    fitting = {1: ["flic-mlp"], 2: signals, 3: images}
    return fitting.get(len(federation.clients[0].input_shape), ["flic-mlp"])


def _refusals(federation: Federation, models: list[ModelSpec]) -> dict[str, str]:
    """Method → why it would not run on this federation with any of the models, the first of which is told of."""
    from fedsense.engine.site import Site
    from fedsense.errors import UserError
    from fedsense.methods import METHODS

    refused = {}
    for name, method in METHODS.items():
        why = []
        for model in models:
            try:
                Site(federation, method(), model, seed=0)
                break
            except UserError as error:
                why.append(f"with {' and '.join(model.names)}: {error}")
        else:
            refused[name] = why[0]
    return refused


def _draw(report: Report, out: Path | None) -> Path:
    from fedsense.report.figures import class_counts

    path = out or Path(f"{_file_name(report.federation.name)}-clients.png")
    class_counts(report.federation).savefig(path, dpi=120)
    return path


def _file_name(text: str) -> str:
    """The text as part of a file's name: no folders, nothing hidden, no option, and short enough for any disk."""
    return re.sub(r"[^\w.-]+", "-", text).lstrip(".-")[:60] or "dataset"


def _print_report(report: Report) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    total = len(report.federation.task.classes)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for column in (
        "client",
        "input",
        "train",
        "val",
        "test",
        "classes",
        "missing",
        "constant",
        "Hz",
        "jitter",
        "leaks",
    ):
        side: Literal["left", "right"] = "left" if column in ("client", "input") else "right"
        table.add_column(column, justify=side, no_wrap=column != "client", overflow="fold")  # long ids fold
    for client in report.clients:
        table.add_row(
            client.id + (" (held out)" if client.newcomer else ""),
            "×".join(map(str, client.shape)),
            *(f"{count:,}" for count in client.windows.values()),
            f"{len(client.classes)}/{total}",
            f"{client.missing:,}",
            str(len(client.constant)),
            "–" if client.rate is None else f"{client.rate:g}",
            "–" if client.jitter is None else f"{client.jitter:.0%}",
            f"{client.shared + client.duplicates:,}",
        )
    console.print(table)
    console.print(f"{report.federation.description}; classes: {', '.join(report.federation.task.classes)}", style="dim")
    _print_list(console, "look at", report.warnings)
    _print_list(console, "would be refused by", _alike(report.refusals))


def _alike(refusals: Mapping[str, str]) -> list[str]:
    """Methods and why they refuse; those that say the same but for their name, in one line."""
    groups: dict[str, list[str]] = {}
    for name, why in refusals.items():
        groups.setdefault(re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "…", why), []).append(name)
    return [f"{', '.join(names)}, {refusals[names[0]]}" for names in groups.values()]


def _print_list(console: Any, title: str, lines: list[str], most: int = 15) -> None:
    if lines:
        console.print(f"\n{title}:")
        for line in lines[:most]:
            console.print(f"  - {line}")
        if len(lines) > most:
            console.print(f"  … and {len(lines) - most} more (--json has all)")
