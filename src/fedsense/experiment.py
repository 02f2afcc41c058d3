"""A recipe carried out: every method with every seed, each in a folder of its own; stopped at any moment, it goes on.

runs/demo/
  recipe.json            the resolved recipe
  summary.json           what ``fedsense run --json`` prints, once all is done
  index.html, curves.svg the same to look at
  fedavg-seed0/
    run.json             what was run, on which clients
    sessions.jsonl       when, with which command and commit, on which machine, how long
    scores.jsonl ledger.jsonl observations.jsonl checkpoints/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedsense.engine.checkpoint import is_packed
from fedsense.engine.executors import Executor
from fedsense.engine.folder import (
    FREE_SETTINGS,
    RECIPE_FILE,
    RUN_FILE,
    alone,
    read_json,
    refuse_fewer_rounds,
    without_folders,
    write_json,
)
from fedsense.engine.rounds import Engine, Listener
from fedsense.engine.settings import HELD_OUT, NEW_CLIENT, Settings
from fedsense.engine.site import forget_peak
from fedsense.errors import FedsenseError, RunFailed, UserError
from fedsense.federation import Federation
from fedsense.packing import opened
from fedsense.recipe import Recipe, make_recipe
from fedsense.result import Result, report_json

SUMMARY_FILE = "summary.json"
FREE = (*FREE_SETTINGS, "description", "paper", "track")  # may differ when an experiment goes on
GROWING = ("seeds", "method")  # may become more


class Place(Protocol):
    """Where clients are, if not in this process: what is known of them, and what reaches them."""

    def federation(self, recipe: Recipe, seed: int) -> Federation: ...

    def settings(self, settings: Settings) -> Settings: ...

    def executor(self, engine: Engine) -> Executor: ...


def choose_folder(recipe: Recipe, out: Path | None, resume: bool) -> Path:
    """``out``, or runs/NAME, or the first free runs/NAME-2, -3, …; with ``resume`` the newest of this recipe that is
    not finished, or else the newest.

    Where there is nothing to resume yet (a run killed at its very beginning), it is begun.
    """
    if out is not None:
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file; --out names a folder")
        if not resume and (out / RECIPE_FILE).exists():
            raise UserError(f"{out} already holds an experiment; go on with it (--resume), or choose another --out")
        return out
    numbered = _numbered(recipe)
    if resume and numbered:
        begun = [n for n, folder in numbered.items() if _is_unfinished(folder, recipe)]
        return numbered[max(begun or numbered)]
    free = next(n for n in range(1, len(numbered) + 2) if n not in numbered)
    return Path("runs") / (recipe.name if free == 1 else f"{recipe.name}-{max(numbered) + 1}")


def unfinished(recipe: Recipe) -> Path | None:
    """What ``resume`` would go on with, if it is not finished."""
    folder = choose_folder(recipe, None, resume=True)
    return folder if _is_unfinished(folder, recipe) else None


def _numbered(recipe: Recipe) -> dict[int, Path]:
    """runs/NAME is 1, runs/NAME-2 is 2, …"""
    name = re.compile(rf"{re.escape(recipe.name)}(?:-(\d+))?")
    return {int(n.group(1) or 1): p for p in Path("runs").glob(f"{recipe.name}*") if (n := name.fullmatch(p.name))}


def _is_unfinished(folder: Path, recipe: Recipe) -> bool:
    if not (folder / RECIPE_FILE).exists() or (folder / SUMMARY_FILE).exists():  # the first is written first
        return False
    try:
        _refuse_changes(read_json(folder / RECIPE_FILE), recipe.model_dump(mode="json"), folder)
    except FedsenseError:
        return False
    return True


def run_name(label: str, seed: int) -> str:
    """The folder of one run."""
    return f"{label.replace(' ', '_')}-seed{seed}"


def run_recipe(
    recipe: Recipe,
    folder: Path,
    resume: bool = False,
    previous: bool = False,
    listen: Callable[[str, int], Sequence[Listener]] = lambda label, seed: (),
    place: Place | None = None,
) -> list[Result]:
    """All runs of a recipe; one that fails does not keep the others from being done."""
    from fedsense.report.page import write as write_page  # brings matplotlib along

    with alone(folder):
        resolved = recipe.model_dump(mode="json")
        if resume and (folder / RECIPE_FILE).exists():
            _refuse_changes(read_json(folder / RECIPE_FILE), resolved, folder)
        results: list[Result] = []
        failures: list[RunFailed] = []
        for seed in recipe.seeds:
            engines = _engines(recipe, seed, folder, listen, place)
            for _, engine in engines:
                engine.claim(write=False)
            if not results:  # only now: a recipe that is refused claims no folder
                write_json(folder / RECIPE_FILE, resolved)
                (folder / SUMMARY_FILE).unlink(missing_ok=True)
            while engines:
                label, engine = engines.pop(0)
                try:
                    engine.run(previous, models=False)
                except RunFailed as failure:
                    failures.append(failure)
                result = Result.of(engine, label, recipe.evaluation.summary)
                result.engine = None  # its models are on disk
                results.append(result)
                worked = engine.executor is not None
                del engine
                if worked:
                    forget_peak()
        write_json(folder / SUMMARY_FILE, report_json(results, folder))
        write_page(folder, results)
        if failures:
            raise RunFailed("\n".join(map(str, failures)) + f"\nwhat was done is in {folder}") from failures[0]
        return results


def _engines(
    recipe: Recipe,
    seed: int,
    folder: Path,
    listen: Callable[[str, int], Sequence[Listener]],
    place: Place | None = None,
) -> list[tuple[str, Engine]]:
    """The runs of one seed; all are built, and so checked, before the first starts."""
    federation = place.federation(recipe, seed) if place else recipe.federation(seed)
    if recipe.evaluation.summary == "validation" and not any(len(client.val) for client in federation):
        raise UserError(f"summary = \"validation\", but no client of '{federation.name}' has validation data")
    if recipe.evaluation.summary == "validation" and set(recipe.evaluation.views) & {*HELD_OUT, NEW_CLIENT}:
        raise UserError('people held out have no validation data; leave out summary = "validation", or their view')
    about = {"recipe": recipe.model_dump(mode="json"), "summary": recipe.evaluation.summary}
    built = []
    for label, method in recipe.methods().items():
        engine = Engine(
            federation,
            method,
            recipe.model_spec(),
            place.settings(recipe.settings(seed)) if place else recipe.settings(seed),
            folder / run_name(label, seed),
            [*listen(label, seed), *_told(recipe, label, seed, folder)],
            {"label": label, **about, **({"fleet": True} if place else {})},
            place.executor if place else None,
        )
        built.append((label, engine))
    return built


def _told(recipe: Recipe, label: str, seed: int, folder: Path) -> list[Listener]:
    """The trackers the recipe names; nothing of them is imported if it names none."""
    if not recipe.track:
        return []
    from fedsense.trackers import trackers

    tables = recipe.model_dump(mode="json")
    about = {"method": label, "seed": seed, **{key: tables[key] for key in ("data", "model", "training", "rounds")}}
    return trackers(recipe.track, recipe.name, run_name(label, seed), folder, about)


def reopen(folder: Path, federation: Federation | None = None) -> Engine:
    """A run as its folder holds it, for its models; ``federation`` is its recipe's, where it was made before."""
    about = read_json(folder / RUN_FILE)
    if "recipe" not in about:
        raise UserError(f"{folder} was not run from a recipe; call fedsense.run(…, out=…) again for its models")
    if about.get("fleet"):
        raise UserError(f"{folder} was run on a fleet: personal models are on the nodes, and only there")
    if is_packed(folder):
        raise UserError(f"{folder} was packed without its models; they are where it was run")
    recipe = make_recipe(about["recipe"])
    seed = about["seed"]
    engine = Engine(
        federation or recipe.federation(seed),
        recipe.methods()[about["label"]],
        recipe.model_spec(),
        recipe.settings(seed),
        folder,
    )
    engine.restore()
    return engine


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or right below ``folder``, which may be a file that `fedsense pack` wrote."""
    folder = opened(folder)
    if (folder / RUN_FILE).is_file():
        return [folder]
    found = [path.parent for path in sorted(folder.glob(f"*/{RUN_FILE}"))]
    if not found:
        raise UserError(f"{folder} holds no runs; give a folder that `fedsense run` wrote, such as runs/demo")
    order = list(planned(folder))
    found.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
    return found


def planned(folder: Path) -> dict[str, tuple[str, int]]:
    """The runs an experiment's recipe asks for, in its order: name → label and seed."""
    if not (folder / RECIPE_FILE).is_file():
        return {}
    recipe = make_recipe(read_json(folder / RECIPE_FILE))
    return {run_name(label, seed): (label, seed) for seed in recipe.seeds for label in recipe.methods()}


def find_experiments(folder: Path) -> list[Path]:
    """The run folders at, right below, or in the experiments right below ``folder``, or a packed file."""
    folder = opened(folder)
    if (folder / RUN_FILE).is_file() or any(folder.glob(f"*/{RUN_FILE}")):
        return find_runs(folder)
    inside = sorted({path.parent.parent for path in folder.glob(f"*/*/{RUN_FILE}")})
    return [run for experiment in inside for run in find_runs(experiment)] or find_runs(folder)


def _refuse_changes(before: Mapping[str, Any], after: Mapping[str, Any], folder: Path) -> None:
    before, after = without_folders(before), without_folders(after)
    before = {"finish": False, **before}  # of experiments begun before there was any finishing
    for key in sorted({*before, *after}):
        then, now = before.get(key), after.get(key)
        if key in GROWING and then and now and all(one in now for one in then):
            continue
        if key not in FREE and then != now:
            for where, was, is_ in _differing(then, now, key):
                raise UserError(
                    f"'{where}' differs from what {folder} began with ({_briefly(was)} then, {_briefly(is_)} now); "
                    "resume with the same recipe, or start anew in another folder (--out)"
                )
    refuse_fewer_rounds(folder, before, after)


def _differing(then: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The places where two tables of a recipe differ, as one would write them in --set; what is not there is None."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in sorted({*then, *now}):
            yield from _differing(then.get(key), now.get(key), f"{path}.{key}")
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (was, is_) in enumerate(zip(then, now, strict=True)):
            name = was.get("label") or was.get("name") if isinstance(was, Mapping) else None
            yield from _differing(was, is_, f"{path}.{name or number}")
    elif then != now:
        yield path, then, now


def _briefly(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
