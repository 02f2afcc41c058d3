"""What users type."""

from __future__ import annotations

import json
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsense import __version__
from fedsense.cli.compare import compare
from fedsense.cli.data import app as data_app
from fedsense.cli.export import export
from fedsense.cli.fleet import app as fleet_app
from fedsense.cli.gallery import gallery
from fedsense.cli.pack import pack
from fedsense.cli.report import report, watch
from fedsense.cli.reproduce import reproduce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsense.result import Result

app = typer.Typer(
    name="fedsense",
    help="Personalised federated learning for sensing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, and nothing else.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field: --set training.lr=0.1")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder of the result (default: runs/NAME).")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")]
Previous = Annotated[
    bool, typer.Option("--previous", help="With --resume: where the newest checkpoint is damaged, use the one before.")
]


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    datasets = "datasets"
    recipes = "recipes"


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def demo(
    set_: Set = None, out: Out = None, resume: Resume = False, previous: Previous = False, json_: Json = False
) -> None:
    """Watch a federation of very different (synthetic) clients learn; about a minute on two cores."""
    _run("demo", set_ or [], out, resume, previous, json_)


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that comes with fedsense.")],
    set_: Set = None,
    out: Out = None,
    resume: Resume = False,
    previous: Previous = False,
    executor: Annotated[
        str | None,
        typer.Option("--executor", metavar="NAME", help="auto, serial, workers, cohort; flower: its simulation (Ray)."),
    ] = None,
    json_: Json = False,
) -> None:
    """Run a recipe: every method with every seed."""
    flower = executor == "flower"
    overrides = [*(set_ or []), *([] if flower or executor is None else [f"executor={executor}"])]
    _run(recipe, overrides, out, resume, previous, json_, flower)


@app.command("list")
def list_(kind: Annotated[Kind, typer.Argument(help="What to list.")], json_: Json = False) -> None:
    """What there is to choose from."""
    from fedsense.cli.listing import entries

    rows = entries(kind.value)
    if json_:
        print(json.dumps(rows, indent=1))
    else:
        _print_rows(rows)


@app.command()
def join(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `fedsense run` wrote.")],
    data: Annotated[str, typer.Option("--data", metavar="WHAT", help="The newcomers: a dataset, or a folder.")],
    root: Annotated[str | None, typer.Option("--root", metavar="PATH", help="Where the dataset's files are.")] = None,
    samples: Annotated[
        str, typer.Option("--samples", metavar="N,N,…", help="Numbers of labelled samples to try, beside all.")
    ] = "5,10,20,50",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the dataset.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder of the result (default: RUN/joined).")
    ] = None,
    json_: Json = False,
) -> None:
    """Clients that were not there get what a run learned, and learn only what is their own."""
    from fedsense.cli.data import dataset_of
    from fedsense.data import load
    from fedsense.engine.record import without_nan
    from fedsense.errors import FedsenseError, UserError
    from fedsense.experiment import find_runs
    from fedsense.joining import join as join_run
    from fedsense.report.figures import learning_curves, svg

    name, options = dataset_of(data, root, set_ or [])
    try:
        counts = [int(n) for n in samples.split(",") if n.strip()]
    except ValueError as error:
        raise UserError(f"--samples {samples}: give whole numbers, as in --samples 5,10,20") from error
    if min(counts, default=1) < 1:
        raise UserError(f"--samples {samples}: nobody learns from less than one; all of them are tried anyway")
    if run.is_file():
        raise UserError(f"{run} is a file: runs are packed without their models; join where they were run")
    newcomers = load(name, **options)
    folder, results = out or run / "joined", []
    runs = find_runs(run)
    for each in runs:
        print(f"{each.name}: {len(newcomers.everyone)} clients join", file=sys.stderr)
        try:
            joined = join_run(each, newcomers, counts)
        except FedsenseError as error:
            if len(runs) == 1:
                raise
            print(f"{each.name} is left out: {error}", file=sys.stderr)
            continue
        joined.save(folder / each.name)
        results.append((each.name, joined))
    if not results:
        raise UserError(f"nobody could join any run of {run}")
    (folder / "curve.svg").write_text(
        svg(learning_curves([joined for _, joined in results]), "Scores over epochs of joining"), encoding="utf-8"
    )
    if json_:
        points = {place: [vars(point) for point in joined.points] for place, joined in results}
        print(json.dumps(without_nan({"folder": str(folder), "runs": points}), indent=1))
        return
    for place, joined in results:
        metric = next(iter(joined.points[0].joined))
        rows: list[dict[str, str | int]] = [
            {
                "labelled samples": "all" if n == 0 else str(n),
                "clients": str(many),
                f"{metric}, joined": f"{with_run:.3f}",
                "alone": f"{alone:.3f}",
                "gain": f"{with_run - alone:+.3f}",
            }
            for n, (with_run, alone, many) in joined.curve(metric).items()
        ]
        print(f"\n{place}, mean over the clients that have as many samples")
        _print_rows(rows)
        for name, count in joined.left_out.items():
            print(f"left out: {count} samples of '{name}', a class the run does not know", file=sys.stderr)
    print(f"models and the curve are in {folder} (to look at: {folder / 'curve.svg'})")


@app.command()
def pretrain(
    data: Annotated[list[str], typer.Argument(metavar="DATA…", help="Datasets, or folders; labels are not looked at.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write, after every epoch.")] = Path(
        "pretrained.safetensors"
    ),
    root: Annotated[str | None, typer.Option("--root", metavar="PATH", help="Where the dataset's files are.")] = None,
    model: Annotated[str, typer.Option("--model", help="A transformer: hart or vit-tiny.")] = "hart",
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the recordings.")] = 200,
    batch: Annotated[int, typer.Option("--batch", help="Samples in a minibatch.")] = 128,
    lr: Annotated[float, typer.Option("--lr", help="Step size of Adam.")] = 3e-4,
    masked: Annotated[float, typer.Option("--masked", help="Share of the tokens that is hidden.")] = 0.6,
    prototypes: Annotated[int, typer.Option("--prototypes", help="Of the first block; 0 for none.")] = 2048,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto (a GPU if there is one), cpu or cuda.")] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the datasets, or of the model: model.patch=8."),
    ] = None,
    resume: Resume = False,
    json_: Json = False,
) -> None:
    """Train a transformer without labels, for federations to begin with: [model] start = "FILE"."""
    from fedsense.cli.data import dataset_of
    from fedsense.data import load
    from fedsense.engine.origin import duration
    from fedsense.errors import Interrupted, UserError
    from fedsense.pretraining import Epoch
    from fedsense.pretraining import pretrain as train
    from fedsense.recipe import override

    if root is not None and len(data) > 1:
        raise UserError("--root goes with one dataset; of several, keep each where FEDSENSE_DATA says")
    federations = []
    ours = [text.removeprefix("model.") for text in set_ or [] if text.startswith("model.")]
    model_options: dict[str, object] = {}
    for text in ours:
        override(model_options, text)
    for each in data:
        name, options = dataset_of(each, root, [text for text in set_ or [] if not text.startswith("model.")])
        federations.append(load(name, **options))

    def tell(number: int, epoch: Epoch) -> None:
        left = duration((epochs - number - 1) * epoch.seconds)
        print(f"epoch {number + 1}/{epochs}, error {epoch.loss:.4f}, {left} left", file=sys.stderr)

    how = {"model": model, "epochs": epochs, "batch": batch, "lr": lr, "masked": masked, "prototypes": prototypes}
    try:
        done = train(federations, out, resume, tell, device, **how, seed=seed, model_options=model_options)
    except KeyboardInterrupt:
        kept = (
            f"what was learned is in {out}, and --resume goes on with it" if out.is_file() else "nothing was kept yet"
        )
        raise Interrupted(f"stopped; {kept}") from None
    if json_:
        print(json.dumps({"file": str(out), "history": [vars(epoch) for epoch in done.history]}, indent=1))
        return
    first, last = done.history[0], done.history[-1]
    print(f"error of what was hidden: {first.loss:.4f} in the first epoch, {last.loss:.4f} in the last")
    print(f'{out}: begin with it by [model] start = "{out}", or --set model.start={out}')


# as help lists them, after those above
for command in (compare, report, watch, export, pack, reproduce, gallery):
    app.command()(command)
app.add_typer(data_app, name="data")
app.add_typer(fleet_app, name="fleet")


def _run(
    source: str,
    overrides: Sequence[str],
    out: Path | None,
    resume: bool,
    previous: bool,
    as_json: bool,
    flower: bool = False,
) -> None:
    from fedsense.cli.progress import Display
    from fedsense.errors import Interrupted, UserError
    from fedsense.experiment import choose_folder, run_recipe, unfinished
    from fedsense.recipe import load_recipe
    from fedsense.result import report_json

    if previous and not resume:
        raise UserError("--previous goes with --resume")
    recipe = load_recipe(source, overrides)
    folder = choose_folder(recipe, out, resume)
    if out is None and not resume and (begun := unfinished(recipe)):
        print(f"{begun} is not finished, and --resume goes on with it; this begins anew, in {folder}", file=sys.stderr)
    again = ["fedsense", *(["demo"] if source == "demo" else ["run", source])]
    again += [word for override in overrides for word in ("--set", override)]
    again += ["--out", str(folder), "--resume", *(["--executor", "flower"] if flower else [])]
    try:
        with Display(several_seeds=len(recipe.seeds) > 1, to_stderr=as_json) as display:
            display.intro(recipe)
            if flower:
                from fedsense.cli.fleet import need_flower

                need_flower()
                from fedsense.flower.simulation import simulate

                results = simulate(recipe, folder, resume)
            else:
                results = run_recipe(recipe, folder, resume, previous, display.listen)
    except KeyboardInterrupt as stop:
        raise Interrupted(f"interrupted; nothing is lost. Go on with\n  {shlex.join(again)}") from stop
    if as_json:
        print(json.dumps(report_json(results, folder), indent=1))
        return
    _print_table(results)
    print(f"everything is in {folder} (to look at: {folder / 'index.html'})")


def _print_table(results: Sequence[Result]) -> None:
    from rich.console import Console

    from fedsense.cli.grids import show_grid
    from fedsense.result import comparison, costs

    console = Console(highlight=False)
    show_grid(console, comparison(results), stacked=True)
    show_grid(console, costs(results))


def _print_rows(rows: Sequence[dict[str, str | int]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in rows[0]:
        if column != "group":
            table.add_column(column, overflow="fold", no_wrap=column == "name")
    group: str | int | None = None
    for row in rows:
        cells = dict(row)
        if (new := cells.pop("group", None)) != group:
            if group is not None:
                table.add_section()
            group = new
            table.add_row("", f"[bold]{group}[/bold]")
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells.values()))
    Console().print(table)
