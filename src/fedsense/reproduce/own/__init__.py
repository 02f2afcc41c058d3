"""Figures that plain runs of a recipe do not give: each has a module here, and its card names it (``own = "…"``).

theorem1     FLIC's Theorem 1 on a toy regression (Figure 2)
projections  FLIC's classes projected without alignment (Figure 3)
anchors      FLIC's samples on their way to the anchors (Figures 5 and S4)
losses       FLIC's loss curves in three ways to learn (Figure S1)
pretrained   FedAli from scratch and pre-trained (Figure 3)
prototypes   how far FedAli's prototypes still move (Figure 5)

A module has two functions: ``measure(job, seed)`` does the work of a seed and gives plain numbers, which are kept, so
that nothing done is done again; ``show(job, found)`` makes lines and pictures of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsense.engine.folder import alone, read_json, write_atomically, write_json
from fedsense.engine.rounds import Listener
from fedsense.errors import UserError, nearest
from fedsense.experiment import FREE as MAY_DIFFER
from fedsense.recipe import Recipe
from fedsense.reproduce.cards import Item
from fedsense.reproduce.outcome import Line, Outcome
from fedsense.reproduce.plan import Experiment, Plan, Ways

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODULES = {
    "theorem1": "theorem1",
    "projections": "projections",
    "anchors": "anchors",
    "anchors-tested": "anchors",
    "losses": "losses",
    "pretrained": "pretrained",
    "prototypes": "prototypes",
}
SEEDS = 5  # where no recipe says how many; small: 1
FREE = {"seeds", *MAY_DIFFER} - {"rounds"}  # of a recipe: changes no number of a seed

Found = Mapping[str, Any]  # what a seed gave: numbers, lists and dicts of them
Shown = tuple[list[Line], dict[str, "Figure"]]  # lines, and pictures by what their names have after the item's


@dataclass(frozen=True)
class Job:
    """A figure to be made: from what, and where it is kept."""

    item: Item
    folder: Path
    seeds: tuple[int, ...]
    small: bool
    experiment: Experiment | None = None  # of the card's setting, if it names one
    listen: Callable[[str, int], Sequence[Listener]] = lambda label, seed: ()
    tell: Callable[[str], object] = lambda text: None

    @property
    def recipe(self) -> Recipe:
        if self.experiment is None:
            raise UserError(f"{self.item.id}: own = '{self.item.own}' is made from a recipe; name a setting")
        return self.experiment.recipe

    def file(self, seed: int) -> Path:
        return self.folder / f"seed{seed}.json"

    def about(self) -> dict[str, Any]:
        """What numbers depend on; kept beside them."""
        whole = {} if self.experiment is None else self.recipe.model_dump(mode="json")
        recipe = {key: value for key, value in whole.items() if key not in FREE}
        about: dict[str, Any] = json.loads(json.dumps({"own": self.item.own, "small": self.small, "recipe": recipe}))
        return about

    def kept(self, seed: int) -> Found | None:
        """What the seed gave before, if it was made in the same way."""
        if not self.file(seed).is_file():
            return None
        before = read_json(self.file(seed))
        return before["found"] if before.get("about") == self.about() else None

    def line(self, row: str, column: str, values: Sequence[float | None]) -> Line:
        """Ours, a value a seed."""
        mine = [value for value in values if value is not None]
        mean, std = (statistics.fmean(mine) if mine else None), (statistics.stdev(mine) if len(mine) > 1 else None)
        data, instead = (self.experiment.datasets, self.experiment.instead) if self.experiment else ("", "")
        return Line(row, column, None, None, mean, std, len(mine), data, None, published_on=instead)


def job_of(
    plan: Plan,
    ways: Ways,
    folder: Path,
    listen: Callable[[str, int], Sequence[Listener]] = lambda label, seed: (),
    tell: Callable[[str], object] = lambda text: None,
) -> Job:
    """How an item of its own would be made."""
    item, small = plan.item, ways.scale == "small"
    if item.own not in MODULES:
        raise UserError(f"{item.id}: there is no own = '{item.own}'; {nearest(item.own, MODULES)}")
    experiment = next(iter(plan.experiments.values()), None)
    instead = f"-{experiment.datasets.replace(' ', '')}" if experiment and experiment.instead else ""
    seeds = experiment.recipe.seeds if experiment else tuple(range(ways.seeds or (1 if small else SEEDS)))
    return Job(item, folder / f"{item.id}{instead}", seeds, small, experiment, listen, tell)


def make(job: Job, outcome: Outcome) -> Outcome:
    """Measure what is not kept yet, and show all of it: the outcome with lines and pictures."""
    import torch

    from fedsense.engine.origin import session
    from fedsense.report.figures import svg

    module = import_module(f"{__name__}.{MODULES[job.item.own]}")
    with alone(job.folder):
        found = {seed: kept for seed in job.seeds if (kept := job.kept(seed)) is not None}
        if len(found) < len(job.seeds):
            with session(job.folder, torch.device("cpu"), lambda: len(found)), _one_thread():
                for seed in job.seeds:
                    if seed not in found:
                        job.tell(f"{job.item.id}, seed {seed} ({len(found) + 1} of {len(job.seeds)})")
                        measured = module.measure(job, seed)
                        write_json(job.file(seed), {"about": job.about(), "found": measured})
                        found[seed] = json.loads(json.dumps(measured))  # as it will be read
        lines, figures = module.show(job, {seed: found[seed] for seed in job.seeds})
    pictures = []
    for name, figure in figures.items():
        pictures.append(f"{job.item.id}{f'-{name}' if name else ''}.svg")
        write_atomically(job.folder.parent / pictures[-1], svg(figure, job.item.title).encode())
    return replace(outcome, lines=lines, pictures=pictures, runs=[{"folder": str(job.folder)}])


@contextmanager
def _one_thread() -> Iterator[None]:
    """The sums here are small, and their results shall not depend on the number of cores."""
    import torch
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
