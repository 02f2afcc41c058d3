"""TensorBoard, MLflow and Weights & Biases, told how runs go: ``track = ["tensorboard", "mlflow", "wandb"]``.

A tracker is told what the run's record says, so it misses nothing and tells nothing twice: how far it got is kept in
the run's folder (``tracked-NAME.json``), and a run that goes on begins there. Whatever goes wrong with it, the run goes
on; one warning says so.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fedsense.engine.folder import write_json
from fedsense.engine.record import totals
from fedsense.engine.rounds import Engine, Listener
from fedsense.errors import UserError, nearest
from fedsense.evaluation.summary import curve


class Tracker(Listener):
    """One run's numbers, round by round, told to another program."""

    name: ClassVar[str]
    package: ClassVar[str]  # what is imported, to see that it is there
    install: ClassVar[str]

    def __init__(self, experiment: str, run: str, folder: Path, about: Mapping[str, Any] | None = None) -> None:
        """``folder`` is the experiment's; the run's own is below it, under the run's name."""
        self.experiment, self.run, self.folder, self.about = experiment, run, folder, dict(about or {})
        self.known: dict[str, Any] = {"round": 0}  # what was told so far, and under which name
        self._broken = False

    @classmethod
    def check(cls) -> None:
        """Say how to get the package, if it is not there."""
        try:
            importlib.import_module(cls.package)
        except ImportError as error:
            raise UserError(
                f"track = [\"{cls.name}\"] needs the package {cls.install}: pip install 'fedsense[{cls.name}]' "
                f"({error}); or leave it out",
                about=cls.name,
            ) from error

    def started(self, engine: Engine) -> None:
        self._safely(self._start)
        self._catch_up(engine)

    def round_done(self, engine: Engine, round: int) -> None:
        self._catch_up(engine)

    def stopped(self, engine: Engine) -> None:
        self._safely(self.close, engine.round >= engine.settings.rounds)

    def _start(self) -> None:
        if self._memory.is_file():
            self.known.update(json.loads(self._memory.read_bytes()))
        self.open()
        self._remember()

    def _catch_up(self, engine: Engine) -> None:
        """Tell what the record has and was not told yet."""
        for line in engine.record.ledger:
            round = line["round"]
            if self.known["round"] < round <= min(engine.round, engine.settings.rounds):
                self._safely(self.tell, round, numbers(engine, round))
                self.known["round"] = round
                self._safely(self._remember)

    @property
    def _memory(self) -> Path:
        return self.folder / self.run / f"tracked-{self.name}.json"

    def _remember(self) -> None:
        if not self._broken:
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._memory, self.known)

    def _safely(self, what: Any, *arguments: Any) -> None:
        if self._broken:
            return
        try:
            what(*arguments)
        except Exception as error:
            self._broken = True
            warnings.warn(
                f"{self.name} was told no more of {self.run} ({type(error).__name__}: {error}); the run goes on",
                stacklevel=2,
            )

    def open(self) -> None:
        """Begin, or go on where ``known`` says."""
        raise NotImplementedError

    def tell(self, round: int, values: Mapping[str, float]) -> None:
        raise NotImplementedError

    def close(self, done: bool) -> None: ...


class TensorBoard(Tracker):
    """Event files in the experiment's folder: ``tensorboard --logdir runs/NAME/tensorboard``."""

    name, package, install = "tensorboard", "torch.utils.tensorboard", "tensorboard"

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder / "tensorboard" / self.run))

    def tell(self, round: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, round)
        self.writer.flush()

    def close(self, done: bool) -> None:
        self.writer.close()


class MLflow(Tracker):
    """An MLflow run where MLFLOW_TRACKING_URI says, else in files: ``mlflow ui --backend-store-uri RUN/mlruns``."""

    name, package, install = "mlflow", "mlflow", "mlflow-skinny"

    def open(self) -> None:
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI")
        if not place:  # files, as one folder is what a run is; MLflow 3 asks to be told that this is meant
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            place = (self.folder / "mlruns").resolve().as_uri()
        self.client = MlflowClient(place)
        if "id" not in self.known:
            there = self.client.get_experiment_by_name(self.experiment)
            number = there.experiment_id if there else self.client.create_experiment(self.experiment)
            self.known["id"] = self.client.create_run(number, run_name=self.run).info.run_id
            for key, value in self.about.items():
                self.client.log_param(self.known["id"], key, str(value)[:500])
        self.client.update_run(self.known["id"], status="RUNNING")

    def tell(self, round: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self.client.log_metric(self.known["id"], key, value, step=round)

    def close(self, done: bool) -> None:
        self.client.set_terminated(self.known["id"], "FINISHED" if done else "KILLED")


class Wandb(Tracker):
    """A run of Weights & Biases, as its own settings (``wandb login``, WANDB_MODE, WANDB_PROJECT) say."""

    name, package, install = "wandb", "wandb", "wandb"

    def open(self) -> None:
        wandb = importlib.import_module("wandb")
        self.known.setdefault("id", os.urandom(4).hex())
        self.log = wandb.init(
            project=os.environ.get("WANDB_PROJECT", self.experiment),
            name=self.run,
            id=self.known["id"],
            resume="allow",
            dir=str(self.folder),
            config=self.about,
            reinit="create_new",
        )

    def tell(self, round: int, values: Mapping[str, float]) -> None:
        self.log.log(dict(values), step=round)

    def close(self, done: bool) -> None:
        self.log.finish(exit_code=0 if done else 1)


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, MLflow, Wandb)}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse one that is not known; whether its package is there is asked when it is used."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"there is no tracker '{name}'; {nearest(name, TRACKERS)}", about=name)


def trackers(
    names: Sequence[str], experiment: str, run: str, folder: Path, about: Mapping[str, Any] | None = None
) -> list[Listener]:
    """Listeners for one run."""
    check_trackers(names)
    for name in names:
        TRACKERS[name].check()
    return [TRACKERS[name](experiment, run, folder, about) for name in names]


def numbers(engine: Engine, round: int) -> dict[str, float]:
    """What a round gave: every view's metrics (means over clients), the mean training loss, MB, seconds."""
    values: dict[str, float] = {}
    for line in engine.record.scores:
        if line["round"] == round:
            for view, splits in line["scores"].items():
                for metric in splits["test"]:
                    values[f"{view}/{metric}"] = curve([line], view, metric)[0][1]
    lines = [line for line in engine.record.ledger if line["round"] == round]
    spent = totals(lines)
    values |= {"MB/down": spent["bytes_down"] / 1e6, "MB/up": spent["bytes_up"] / 1e6, "seconds": spent["seconds"]}
    losses = [
        c["metrics"]["loss"] for line in lines for c in line["clients"].values() if "loss" in c.get("metrics", {})
    ]
    if known := [loss for loss in losses if loss is not None]:
        values["loss"] = sum(known) / len(known)
    return {key: value for key, value in values.items() if math.isfinite(value)}
