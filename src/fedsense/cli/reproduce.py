"""``fedsense reproduce``: a table or figure of a paper, run again; ours beside the published."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedsense.reproduce.cards import Card, Item
    from fedsense.reproduce.outcome import Outcome
    from fedsense.reproduce.plan import Experiment, Plan, Ways


def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(metavar="[PAPER]", help="fedali, fedapa, fedcoad, flic or protohar; or a card's file."),
    ] = None,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="A table or figure: T1, F5, III, 'Fig. S2' (default: all).")
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="SIZE", help="paper: its own settings; small: minutes on two cores.")
    ] = "paper",
    nearest: Annotated[
        bool,
        typer.Option("--nearest", help="Where a dataset is not there, run on the nearest one, under its own name."),
    ] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, metavar="N", help="So many seeds.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field of every recipe.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder (default: runs/reproduce/PAPER-SIZE).")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Folder that holds the datasets (as FEDSENSE_DATA).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and run nothing.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output, and nothing else.")
    ] = False,
) -> None:
    """Run a table or figure of a paper again, and print ours beside the published; goes on where it was stopped."""
    from fedsense.errors import Interrupted, RunFailed, UserError
    from fedsense.reproduce.cards import load_card
    from fedsense.reproduce.plan import Ways, folder_of, scale_of

    if data is not None:
        if not data.is_dir():
            raise UserError(f"--data {data}: there is no such folder")
        os.environ["FEDSENSE_DATA"] = str(data)
    size = scale_of(scale)
    if paper is None:
        _list(json_)
        return
    card = load_card(paper)
    items = [card.item(table)] if table else list(card.items)
    folder = folder_of(card.paper, size, out)
    ways = Ways(size, seeds, tuple(set_ or ()), nearest)
    again = ["fedsense", "reproduce", *(word for word in sys.argv[2:])] if sys.argv[1:2] == ["reproduce"] else []
    if size == "paper" and not (dry_run or json_):
        print("with the paper's own settings, which may take days; --scale small takes minutes")
    failures: list[str] = []
    try:
        outcomes = [_one(card, paper, item, ways, folder, dry_run, json_, failures) for item in items]
    except KeyboardInterrupt as stop:
        command = f"\n  {shlex.join(again)}" if again else ""
        raise Interrupted(f"interrupted; nothing is lost. The same command goes on{command}") from stop
    if json_:
        from fedsense.reproduce.outcome import as_json

        documents = [each if isinstance(each, dict) else as_json(each) for each in outcomes]
        print(json.dumps({"paper": card.paper, "scale": size, "folder": str(folder), "items": documents}, indent=1))
    some = [each for each in outcomes if not isinstance(each, dict) and (each.lines or each.pictures)]
    if some and not json_:
        print(f"all of it is in {folder / 'reproduced.md'}")
    if failures:
        raise RunFailed("\n".join(failures))
    if not dry_run and not some and any(item.runs for item in items):
        raise typer.Exit(2)  # for want of data, as was said


def _one(
    card: Card, paper: str, item: Item, ways: Ways, folder: Path, dry_run: bool, quiet: bool, failures: list[str]
) -> Outcome | dict[str, Any]:
    """Run an item as far as there is data, and say what came of it; what failed is added to ``failures``."""
    from fedsense.reproduce.outcome import collect, keep
    from fedsense.reproduce.plan import make_plan

    say = _say(quiet)
    say(f"\n[bold]{card.paper} {item.id}[/bold]: {item.title}")
    plan = make_plan(card, item, ways)
    lacking = _lacking(paper, plan, ways)
    if item.shows:
        say(f"shows {item.shows}")
    if item.why:
        say(item.why)
    for lack in lacking:
        say(f"[bold]{lack['dataset']}[/bold] is not here; get it: {lack['how']}")
        if lack["nearest"]:
            say(f"  nearest that is here: {lack['nearest']}; run on it, under its own name: {lack['command']}")
    if dry_run:
        return _dry(plan, ways, folder, lacking, say)
    for number, each in enumerate(plan.runs, 1):
        which = f"{number} of {len(plan.runs)}, in {folder / each.name}"
        if failed := _run(each, folder, quiet, which):
            failures.append(failed)
    outcome = collect(plan, card.paper.lower(), folder, lacking)
    if item.own and not lacking:
        outcome = _make(plan, ways, folder, outcome, quiet, failures)
    if item.draw:
        from fedsense.reproduce.pictures import draw

        outcome = outcome.with_pictures(draw(plan, folder, outcome.lines))
    if item.runs or item.why:
        keep(outcome, card, ways.scale, folder)
    if not quiet:
        _print(outcome, folder)
    return outcome


def _lacking(paper: str, plan: Plan, ways: Ways) -> list[dict[str, str]]:
    from fedsense.reproduce.plan import how_to_get

    small = ["--scale", ways.scale] if ways.scale != "paper" else []
    small += ["--seeds", str(ways.seeds)] if ways.seeds else []
    small += [word for text in ways.set for word in ("--set", text)]
    command = shlex.join(["fedsense", "reproduce", paper, plan.item.id, *small, "--nearest"])
    found = []
    for name in plan.lacking:
        near = list(dict.fromkeys(e.nearest for e in plan.experiments.values() if name in e.lacking and e.nearest))
        found.append({"dataset": name, "how": how_to_get(name), "nearest": ", ".join(near),
                      "command": command if near else ""})  # fmt: skip
    return found


def _run(experiment: Experiment, folder: Path, quiet: bool, which: str) -> str:
    """Run what is left of an experiment; what failed, in words."""
    from fedsense.cli.progress import Display
    from fedsense.errors import RunFailed
    from fedsense.experiment import run_recipe

    recipe = experiment.recipe
    place = folder / experiment.name
    with Display(several_seeds=len(recipe.seeds) > 1, to_stderr=quiet) as display:
        display.intro(recipe.model_copy(update={"description": which}))
        try:
            run_recipe(recipe, place, listen=display.listen)  # each run goes on by itself
        except RunFailed as failure:
            return str(failure)
    return ""


def _make(plan: Plan, ways: Ways, folder: Path, outcome: Outcome, quiet: bool, failures: list[str]) -> Outcome:
    """What plain runs do not give: made as far as it is not there yet."""
    from fedsense.cli.progress import Display
    from fedsense.errors import RunFailed
    from fedsense.reproduce.own import job_of, make

    with Display(to_stderr=quiet) as display:
        job = job_of(plan, ways, folder, display.listen, display.console.print)
        try:
            return make(job, outcome)
        except RunFailed as failure:
            failures.append(str(failure))
            return outcome


def _dry(plan: Plan, ways: Ways, folder: Path, lacking: list[dict[str, str]], say: Any) -> dict[str, Any]:
    from fedsense.reproduce.outcome import read_runs

    told: list[dict[str, Any]] = []
    if plan.item.own:
        from fedsense.reproduce.own import job_of

        job = job_of(plan, ways, folder)
        done = sum(job.kept(seed) is not None for seed in job.seeds)
        state = f"waits for {', '.join(plan.lacking)}" if lacking else f"{done} of {len(job.seeds)} seeds done"
        say(f"  {job.folder.name}: {plan.item.own}; seeds {list(job.seeds)}; {state}")
        made = {"folder": str(job.folder), "own": plan.item.own, "seeds": list(job.seeds), "done": done,
                "lacking": plan.lacking}  # fmt: skip
        return {"id": plan.item.id, "title": plan.item.title, "lacking": lacking, "experiments": [made]}
    if plan.item.draw == "counts":
        say("  drawn from the data alone; nothing is run")
        return {"id": plan.item.id, "title": plan.item.title, "lacking": lacking, "experiments": told}
    for each in plan.experiments.values():
        labels, seeds = list(each.recipe.methods()), list(each.recipe.seeds)
        runs = [r for results in read_runs(each, folder).values() for r in results]
        done = sum(result.finished for result in runs)
        told.append({"folder": str(folder / each.name), "command": each.command, "methods": labels, "seeds": seeds,
                     "rounds": each.recipe.rounds, "done": done, "lacking": list(each.lacking)})  # fmt: skip
        state = (
            f"waits for {', '.join(each.lacking)}"
            if each.lacking
            else f"{done} of {len(labels) * len(seeds)} runs done"
        )
        say(f"  {folder / each.name}: {', '.join(labels)}; seeds {seeds}; {each.recipe.rounds} rounds; {state}")
        say(f"    {told[-1]['command']}")
    return {"id": plan.item.id, "title": plan.item.title, "lacking": lacking, "experiments": told}


def _print(outcome: Outcome, folder: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if outcome.has_numbers:
        grid = outcome.grid()
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for number, column in enumerate(grid.header):
            table.add_column(column, justify="right" if number > 1 else "left", overflow="fold")
        last, several = "", len({line.column for line in outcome.lines}) > 1
        for row in grid.rows:
            if last and several and row[0] != last:
                table.add_section()
            table.add_row(*("" if i == 0 and cell == last else cell for i, cell in enumerate(row)))
            last = row[0]
        console.print(table)
    if outcome.lines:
        console.print(outcome.caption(), style="dim")
    for one in outcome.standings:
        console.print(f"\n{one}", markup=False)
    for name in outcome.pictures:
        console.print(f"picture: {folder / name}")


def _list(as_json: bool) -> None:
    """Every table and figure of every paper, and whether it can be run here."""
    from rich.console import Console
    from rich.table import Table

    from fedsense.reproduce.cards import load_card, papers
    from fedsense.reproduce.plan import Ways, make_plan

    console = Console(highlight=False)
    found = []
    for name in papers():
        card = load_card(name)
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold", ratio=1)
        table.add_column(overflow="fold", ratio=1, style="dim")
        for item in card.items:
            plan = make_plan(card, item, Ways())
            state = _state(item, plan)
            table.add_row(item.id, item.title, state)
            found.append({"paper": name, "id": item.id, "title": item.title, "runs": item.runs,
                          "lacking": plan.lacking, "state": state})  # fmt: skip
        if not as_json:
            console.print(f"\n[bold]{name}[/bold]: {card.title}")
            console.print(table)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print("\nfedsense reproduce PAPER TABLE --scale small runs one in minutes; without --scale, as published")


def _state(item: Item, plan: Plan) -> str:
    if not item.runs:
        return item.why
    if not plan.lacking:
        return "can be run here"
    return ("in part: the rest " if plan.ready else "") + f"needs {', '.join(plan.lacking)}"


def _say(quiet: bool) -> Any:
    from rich.console import Console

    console = Console(stderr=quiet, highlight=False, soft_wrap=True)
    return console.print
