"""Flower's ServerApp: a recipe's runs, on the nodes of a fleet; its folder is like that of any other experiment."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsense.engine.folder import alone, read_json, write_json
from fedsense.engine.record import totals, without_nan
from fedsense.engine.rounds import Engine, Listener
from fedsense.errors import UserError
from fedsense.evaluation.summary import curve
from fedsense.experiment import choose_folder, run_recipe
from fedsense.flower.fleet import Fleet, Terms, log
from fedsense.flower.pace import quicken
from fedsense.flower.processes import end_with_parent
from fedsense.recipe import Recipe, load_recipe, make_recipe
from fedsense.result import Result

LEFT_BEHIND = 30.0  # seconds
STATUS_FILE, LOG_FILE = "status.json", "fleet.log"


def server_app(recipe: Path | None = None) -> ServerApp:
    """The app; ``recipe`` is used where the run's configuration names none."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        end_with_parent(signal.SIGKILL)  # a server that goes on must not find this one at work
        quicken()
        config = dict(context.run_config)
        run_on(grid, read_recipe(str(config.get("recipe") or recipe or "")), config, str(context.run_id))

    return app


def read_recipe(source: str) -> Recipe:
    """A recipe file, one that comes with fedsense, or one that is already resolved."""
    return make_recipe(read_json(Path(source)), source) if source.endswith(".json") else load_recipe(source)


def run_on(grid: Grid, recipe: Recipe, config: Mapping[str, Any], flower_run: str = "") -> list[Result]:
    """All runs of a recipe. ``config``: ``out``, ``resume``, and the terms (``deadline``, ``quorum``, ``nodes``, …)."""
    out = Path(str(config["out"])) if config.get("out") else None
    resume = bool(config.get("resume", False))
    folder = choose_folder(recipe, out, resume)
    folder.mkdir(parents=True, exist_ok=True)
    terms = Terms(**{f.name: _number(f.type, config[f.name]) for f in fields(Terms) if f.name in config})
    handler = logging.FileHandler(folder / LOG_FILE)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    _wait_for_the_one_before(folder)
    fleet = Fleet(grid, folder, terms)
    status = Status(fleet, flower_run)
    status.change(state="waiting for nodes")
    try:
        results = run_recipe(recipe, folder, resume, listen=lambda label, _: [status.of(label)], place=fleet)
        status.change(state="finished")
        return results
    except Exception as error:
        log.error("%s", error)
        status.change(state="failed", error=str(error))
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def _wait_for_the_one_before(folder: Path) -> None:
    """A server that was killed a moment ago may not have ended yet."""
    end = time.monotonic() + LEFT_BEHIND
    while True:
        try:
            with alone(folder):
                return
        except UserError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _number(kind: Any, value: Any) -> Any:
    return int(value) if kind == "int" else float(value)


class Status(Listener):
    """Writes down how it goes, for ``fedsense fleet status``."""

    def __init__(self, fleet: Fleet, flower_run: str, label: str = "", known: dict[str, Any] | None = None) -> None:
        self.fleet, self.label = fleet, label
        self._known = {"flower_run": flower_run} if known is None else known

    def of(self, label: str) -> Status:
        """The same, for another run."""
        return Status(self.fleet, "", label, self._known)

    def started(self, engine: Engine) -> None:
        self._tell(engine, "running")
        log.info("%s, seed %s: from round %s", self.label, engine.settings.seed, engine.round + 1)

    def round_done(self, engine: Engine, round: int) -> None:
        self._tell(engine, "running")
        log.info("%s: round %s of %s done", self.label, round, engine.settings.rounds)

    def stopped(self, engine: Engine) -> None:
        self._tell(engine, "done" if engine.round >= engine.settings.rounds else "stopped")

    def _tell(self, engine: Engine, state: str) -> None:
        ledger, scores = engine.record.ledger, engine.record.scores
        latest = scores[-1]["scores"] if scores else {}
        first = {view: next(iter(splits["test"])) for view, splits in latest.items()}
        cost = totals(ledger)
        self.change(
            state=state,
            run=self.label,
            seed=engine.settings.seed,
            round=engine.round,
            rounds=engine.settings.rounds,
            scores={f"{view} {metric}": curve(scores[-1:], view, metric)[0][1] for view, metric in first.items()},
            bytes_down=cost["bytes_down"],
            bytes_up=cost["bytes_up"],
            bytes_scoring=sum(line.get("bytes", 0) for line in scores),
            failed=ledger[-1].get("failed", {}) if ledger else {},
        )

    def change(self, **status: Any) -> None:
        self._known |= {**status, "clients": {client: str(node) for client, node in sorted(self.fleet.home.items())}}
        write_json(self.fleet.folder / STATUS_FILE, without_nan({**self._known, "at": time.time()}))
