"""A recipe carried out: every method with every seed, each in a folder of its own; stopped at any moment, it goes on.

runs/demo/
  recipe.json            the resolved recipe
  summary.json           what ``fedsense run --json`` prints, once all is done
  index.html, curves.svg the same to look at
  fedavg-seed0/
    run.json             what was run, on which clients
    scores.jsonl ledger.jsonl checkpoints/
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedsense import __version__
from fedsense.engine.checkpoint import write_atomically
from fedsense.engine.rounds import Engine, Listener
from fedsense.errors import RunFailed, UserError
from fedsense.federation import Federation
from fedsense.recipe import Recipe, make_recipe
from fedsense.result import RUN_FILE, Result, report_json

RECIPE_FILE, SUMMARY_FILE = "recipe.json", "summary.json"
# What may differ when a run goes on: how far, and where it runs. Neither changes a number of the rounds already done.
FREE = ("rounds", "workers", "device", "description")


def choose_folder(recipe: Recipe, out: Path | None, resume: bool) -> Path:
    """``out``, or runs/NAME, or the first free runs/NAME-2, -3, …; with ``resume`` the newest that exists."""
    if out is not None:
        if not resume and (out / RECIPE_FILE).exists():
            raise UserError(f"{out} already holds an experiment; go on with it (--resume), or choose another --out")
        if resume and not (out / RECIPE_FILE).exists():
            raise UserError(f"{out} holds no experiment to resume; leave --resume out to start one")
        return out
    runs = Path("runs")
    taken = [p for p in runs.glob(f"{recipe.name}*") if re.fullmatch(rf"{re.escape(recipe.name)}(-\d+)?", p.name)]
    numbered = {int(p.name.removeprefix(recipe.name).lstrip("-") or 1): p for p in taken}
    if resume:
        if not numbered:
            raise UserError(f"there is no runs/{recipe.name} to resume; say which folder with --out")
        return numbered[max(numbered)]
    free = next(n for n in range(1, len(numbered) + 2) if n not in numbered)
    return runs / (recipe.name if free == 1 else f"{recipe.name}-{max(numbered) + 1}")


def run_recipe(
    recipe: Recipe,
    folder: Path,
    resume: bool = False,
    previous: bool = False,
    listen: Callable[[str, int], Sequence[Listener]] = lambda label, seed: (),
) -> list[Result]:
    """All runs of a recipe; one that fails does not keep the others from being done."""
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        resolved = recipe.model_dump(mode="json")
        if resume:
            _refuse_changes(json.loads((folder / RECIPE_FILE).read_bytes()), resolved, folder)
        write_atomically(folder / RECIPE_FILE, json.dumps(resolved, indent=1).encode())
        results, failures = [], []
        for seed in recipe.seeds:
            federation = recipe.federation(seed)
            for label, engine in _engines(recipe, federation, seed, folder, listen):
                try:
                    engine.run(previous=previous)
                except RunFailed as failure:
                    failures.append(failure)
                results.append(Result.of(engine, label, recipe.evaluation.summary))
        document = report_json(results, folder)
        write_atomically(folder / SUMMARY_FILE, json.dumps(document, indent=1).encode())
        write_page(folder, results)
        if failures:
            raise RunFailed("\n".join(map(str, failures)) + f"\nwhat was done is in {folder}") from failures[0]
        return results


def _engines(
    recipe: Recipe,
    federation: Federation,
    seed: int,
    folder: Path,
    listen: Callable[[str, int], Sequence[Listener]],
) -> Iterator[tuple[str, Engine]]:
    """The runs of one seed; all are built, and so checked, before the first starts."""
    fingerprint = federation.fingerprint()
    built = []
    for label, method in recipe.methods().items():
        place = folder / f"{label.replace(' ', '_')}-seed{seed}"
        engine = Engine(federation, method, recipe.model_spec(), recipe.settings(seed), place, listen(label, seed))
        _describe(engine, recipe, label, fingerprint)
        built.append((label, engine))
    while built:
        yield built.pop(0)  # not kept here: a finished run's memory can go


def _describe(engine: Engine, recipe: Recipe, label: str, fingerprint: str) -> None:
    """Write run.json, or refuse to go on if the data are no longer the same."""
    assert engine.folder is not None
    path = engine.folder / RUN_FILE
    if path.exists() and json.loads(path.read_bytes())["fingerprint"] != fingerprint:
        raise UserError(
            f"the data of '{engine.federation.name}' differ from those {engine.folder} began with; "
            "a run goes on only with the same data: start anew in another folder (--out)"
        )
    engine.folder.mkdir(parents=True, exist_ok=True)
    about = {
        "label": label,
        "method": engine.method.name,
        "parameters": asdict(engine.method),
        "seed": engine.settings.seed,
        "recipe": recipe.model_dump(mode="json"),
        "federation": engine.federation.name,
        "synthetic": engine.federation.synthetic,
        "fingerprint": fingerprint,
        "classes": engine.federation.task.classes,
        "clients": {
            c.id: {"train": len(c.train), "val": len(c.val), "test": len(c.test), **c.traits} for c in engine.federation
        },
        "versions": {"fedsense": __version__, "torch": torch.__version__},
    }
    write_atomically(path, json.dumps(about, indent=1, default=str).encode())


def reopen(folder: Path) -> Engine:
    """A run as its folder holds it, for its models."""
    about = json.loads((folder / RUN_FILE).read_bytes())
    recipe = make_recipe(about["recipe"])
    seed = about["seed"]
    engine = Engine(
        recipe.federation(seed), recipe.methods()[about["label"]], recipe.model_spec(), recipe.settings(seed), folder
    )
    engine.restore()
    return engine


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or right below ``folder``."""
    if (folder / RUN_FILE).is_file():
        return [folder]
    found = [path.parent for path in sorted(folder.glob(f"*/{RUN_FILE}"))]
    if not found:
        raise UserError(f"{folder} holds no runs; give a folder that `fedsense run` wrote, such as runs/demo")
    if (folder / RECIPE_FILE).is_file():  # the recipe's order
        recipe = make_recipe(json.loads((folder / RECIPE_FILE).read_bytes()))
        order = [f"{label.replace(' ', '_')}-seed{seed}" for seed in recipe.seeds for label in recipe.methods()]
        found.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
    return found


def write_page(folder: Path, results: Sequence[Result]) -> None:
    """The result to look at."""
    from fedsense.report.page import write

    write(folder, results)


def _refuse_changes(before: Mapping[str, Any], after: Mapping[str, Any], folder: Path) -> None:
    for key in sorted({*before, *after}):
        if key not in FREE and before.get(key) != after.get(key):
            raise UserError(
                f"'{key}' differs from what {folder} began with ({before.get(key)!r} then, {after.get(key)!r} now); "
                "resume with the same recipe, or start anew in another folder (--out)"
            )
    if after["rounds"] < before["rounds"]:
        raise UserError(f"{folder} was to have {before['rounds']} rounds; a resumed run can have more, not fewer")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two processes must not write to one folder; the lock goes with the process, however it ends."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"another process is running in {folder}; wait for it, or choose another --out") from error
        yield
