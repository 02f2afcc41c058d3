"""Trackers are told every round once, also of a run that was stopped; and cannot stop a run."""

import json
import subprocess
import sys

import pytest

from fedsense.cli import _run as cli
from fedsense.experiment import run_recipe
from fedsense.recipe import make_recipe
from fedsense.trackers import TRACKERS, Tracker

RECIPE = {
    "name": "tracked",
    "rounds": 4,
    "executor": "serial",
    "data": {"name": "synthetic-imu", "clients": 3, "samples": 24, "classes-per-client": 3},
    "model": {"name": "flic-mlp"},
    "evaluation": {"every": 2, "views": ["personal", "global"], "metrics": ["accuracy"]},
    "training": {"epochs": 1},
    "method": [{"name": "fedavg"}],
}


def run(folder, **changes):
    return run_recipe(make_recipe({**RECIPE, **changes}), folder)


class Noting(Tracker):
    """Keeps what it is told; fails on demand."""

    name, package, install = "noting", "json", "nothing"
    told: list = []  # noqa: RUF012
    fails_at = None

    def open(self):
        self.told.append("open")

    def tell(self, round, values):
        if round == self.fails_at:
            raise OSError("disk full")
        self.told.append((round, values))

    def close(self, done):
        self.told.append(f"close {done}")


@pytest.fixture
def noting(monkeypatch):
    monkeypatch.setitem(TRACKERS, "noting", Noting)
    monkeypatch.setattr(Noting, "told", [])
    monkeypatch.setattr(Noting, "fails_at", None)
    return Noting


def test_every_round_is_told_with_its_scores(noting, tmp_path):
    (result,) = run(tmp_path, track=["noting"])
    assert [t if isinstance(t, str) else t[0] for t in noting.told] == ["open", 1, 2, 3, 4, "close True"]
    values = dict(noting.told[1:-1])
    assert "personal/accuracy" not in values[1]  # scored every second round
    clients = result.history[0]["scores"]["personal"]["test"]["accuracy"]
    assert values[2]["personal/accuracy"] == pytest.approx(sum(clients.values()) / 3)
    assert values[2].keys() == {"personal/accuracy", "global/accuracy", "MB/down", "MB/up", "seconds", "loss"}
    assert values[3]["MB/up"] == pytest.approx(result.cost["bytes_up"] / 4 / 1e6)  # the same in every round


def test_a_run_that_goes_on_tells_no_round_twice(noting, tmp_path):
    run(tmp_path, track=["noting"], rounds=2)
    run(tmp_path, track=["noting"])
    assert [t[0] for t in noting.told if isinstance(t, tuple)] == [1, 2, 3, 4]


def test_a_tracker_that_comes_late_is_told_what_was_before(noting, tmp_path):
    run(tmp_path, rounds=3)
    run(tmp_path, track="noting")
    assert [t[0] for t in noting.told if isinstance(t, tuple)] == [1, 2, 3, 4]


def test_a_tracker_that_fails_is_left_behind_with_one_warning(noting, tmp_path, monkeypatch):
    monkeypatch.setattr(Noting, "fails_at", 2)
    with pytest.warns(UserWarning, match="noting was told no more of fedavg-seed0.*disk full.*goes on") as said:
        (result,) = run(tmp_path, track=["noting"])
    assert len(said) == 1
    assert result.done == 4
    assert [t[0] for t in noting.told if isinstance(t, tuple)] == [1]
    monkeypatch.setattr(Noting, "fails_at", None)
    run(tmp_path, track=["noting"], rounds=5)
    assert [t[0] for t in noting.told if isinstance(t, tuple)] == [1, 2, 3, 4, 5]  # mended, it is told the rest


def test_unknown_and_missing_trackers_are_explained(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no tracker 'tensorbord'; did you mean 'tensorboard'"):
        make_recipe({**RECIPE, "track": ["tensorbord"]})
    monkeypatch.setattr(TRACKERS["wandb"], "package", "no_such_package")
    with pytest.raises(ValueError, match=r"needs the package wandb: pip install 'fedsense\[wandb\]'"):
        run(tmp_path, track=["wandb"])


def test_nothing_of_them_is_imported_without_need():
    code = (
        "import sys, fedsense.cli.commands; print([m for m in ('tensorboard', 'mlflow', 'wandb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_a_recipe_without_trackers_does_not_speak_of_them(tmp_path):
    run(tmp_path, rounds=1)
    assert "track" not in json.loads((tmp_path / "recipe.json").read_text())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_what_the_run_has(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(tmp_path, track=["tensorboard"], rounds=2)
    (result,) = run(tmp_path, track=["tensorboard"])
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "fedavg-seed0"))
    events.Reload()
    points = events.Scalars("personal/accuracy")
    assert [p.step for p in points] == [2, 4]
    wanted = [sum(line["scores"]["personal"]["test"]["accuracy"].values()) / 3 for line in result.history]
    assert [p.value for p in points] == pytest.approx(wanted, rel=1e-6)  # it keeps 32 bits
    assert [p.step for p in events.Scalars("loss")] == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_has_what_the_run_has(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run(tmp_path, track=["mlflow"], rounds=2)
    (result,) = run(tmp_path, track=["mlflow"])
    client = tracking.MlflowClient((tmp_path / "mlruns").resolve().as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("tracked").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["method"] == "fedavg"
    points = client.get_metric_history(found.info.run_id, "personal/accuracy")
    wanted = [sum(line["scores"]["personal"]["test"]["accuracy"].values()) / 3 for line in result.history]
    assert [p.step for p in points] == [2, 4]
    assert [p.value for p in points] == pytest.approx(wanted)


@pytest.mark.filterwarnings("ignore")  # its own
def test_wandb_runs_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(tmp_path, track=["wandb"], rounds=2)
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"personal/accuracy" in written.read_bytes()
    assert json.loads((tmp_path / "fedavg-seed0" / "tracked-wandb.json").read_text())["round"] == 2


def test_wandb_is_called_as_it_documents(tmp_path, monkeypatch):
    """A stand-in with wandb's interface, where the package itself is not there: the same id when a run goes on."""
    calls = []

    class Run:
        def log(self, values, step):
            calls.append((step, sorted(values)[:1]))

        def finish(self, exit_code):
            calls.append(exit_code)

    class Module:
        @staticmethod
        def init(**options):
            calls.append(options)
            return Run()

    monkeypatch.setitem(sys.modules, "wandb", Module)
    run(tmp_path, track=["wandb"], rounds=2)
    run(tmp_path, track=["wandb"], rounds=3)
    first, again = (call for call in calls if isinstance(call, dict))
    assert first["id"] == again["id"]
    assert (first["project"], first["name"], first["resume"]) == ("tracked", "fedavg-seed0", "allow")
    assert [call[0] for call in calls if isinstance(call, tuple)] == [1, 2, 3]


def test_one_line_of_a_recipe_will_do(tmp_path, monkeypatch, noting, capfd):
    monkeypatch.chdir(tmp_path)
    assert cli(["run", "demo", "--set", "rounds=1", "--set", 'track=["noting"]', "--set", 'method=["fedavg"]',
                "--set", "data.clients=3", "--set", "data.samples=24"]) == 0, capfd.readouterr().err  # fmt: skip
    assert [t[0] for t in noting.told if isinstance(t, tuple)] == [1]
