"""A recipe on Flower's simulation runtime (Ray, extra ``[fleet-sim]``): for people with a cluster.

Every client is a node of its own, wherever Ray has room. On one machine fedsense's own executors are many times faster.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsense.errors import FedsenseError, RunFailed, UserError
from fedsense.flower.client import app as client_app
from fedsense.flower.server import run_on
from fedsense.recipe import Recipe
from fedsense.result import Result


def simulate(recipe: Recipe, folder: Path, resume: bool = False) -> list[Result]:
    """All runs of a recipe, in ``folder``."""
    if find_spec("ray") is None:
        raise UserError("Flower's simulation needs Ray: pip install 'fedsense[fleet-sim]'")
    from flwr.simulation import run_simulation

    counts = {len(recipe.federation(seed)) for seed in recipe.seeds}
    if len(counts) > 1:
        raise UserError("seeds of this recipe have different numbers of clients; run them one by one (--set seeds=[0])")
    (nodes,) = counts
    done: list[Result] = []
    failed: list[FedsenseError] = []
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        try:
            done.extend(run_on(grid, recipe, {"out": str(folder), "resume": resume, "nodes": nodes, "quorum": 1.0}))
        except FedsenseError as error:  # Flower would show it as a traceback
            failed.append(error)

    os.environ["FEDSENSE_KEEP"] = str((folder / "keep").resolve())
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(app, client_app, nodes, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    if failed:
        raise failed[0]
    if not done:
        raise RunFailed(f"Flower's simulation ended without a result; see {folder / 'fleet.log'}")
    return done
