"""Several datasets in one recipe, as a user meets them: checked, refused, run, resumed, looked at."""

import json

import pytest

from fedsense.result import Result

RECIPE = """\
name = "mixed"
rounds = 2
classes = ["walking", "sitting", "stairs-up"]

[[data]]
label = "phones"
name = "synthetic-imu"
clients = 2
samples = 24

[[data]]
label = "watches"
name = "synthetic-imu"
clients = 2
samples = 24
window = 40
rate = 20.0
seed = 5

[model]
name = "sensor-cnn"
width = 4
shared = 8

[evaluation]
views = ["personal"]

[training]
epochs = 1

[[method]]
name = "local"

[[method]]
name = "hetfedrep"
"""


@pytest.fixture
def here(here, tmp_path):
    """Runs a command beside mixed.toml: (exit code, output, errors)."""
    (tmp_path / "mixed.toml").write_text(RECIPE)
    return here


def test_run_resume_compare_and_models(here, tmp_path):
    code, out, err = here("run", "mixed.toml")
    assert code == 0, err
    said = " ".join(out.split())
    assert "phones: " in said
    assert "of other classes left out (" in said
    assert "classes: walking, sitting, stairs-up" in said
    assert said.count("classes: walking") == 1, "once, not for every method"
    folder = tmp_path / "runs" / "mixed"
    recipe = json.loads((folder / "recipe.json").read_text())
    assert recipe["classes"] == ["walking", "sitting", "stairs-up"]
    assert [table["label"] for table in recipe["data"]] == ["phones", "watches"]
    assert "watches" in (folder / "index.html").read_text()
    code, out, err = here("run", "mixed.toml", "--set", "rounds=3", "--resume", "--json")
    assert code == 0, err
    clients = json.loads(out)["results"][0]["clients"]
    assert [name.split("/")[0] for name in clients] == ["phones", "phones", "watches", "watches"]
    code, _, err = here("run", "mixed.toml", "--set", "rounds=3", "--resume", "--set", "data.phones.samples=30")
    assert code == 2
    assert "'data.phones.samples' differs from what" in err
    assert here("compare", "runs/mixed")[0] == 0
    run = Result.read(folder / "hetfedrep-seed0")
    client = next(name for name in run.test_sizes if name.startswith("watches/"))
    model = run.personal_model(client)
    assert model.classes == ("walking", "sitting", "stairs-up")


def test_a_method_that_shares_a_whole_model_is_refused_before_round_one(here, tmp_path):
    code, _, err = here("run", "mixed.toml", "--set", 'method=["fedavg"]', "--set", "model.name=coad-cnn")
    assert code == 2, "coad-cnn has no such options"
    code, _, err = here("run", "mixed.toml", "--set", 'method=["fedavg"]', "--set", "model=flic-mlp")
    assert code == 2
    assert "fedavg shares 'adapter.1.weight', but client 'phones/p0000" in err
    assert "client 'watches/p0000" in err
    assert "flic or hetfedrep" in err
    assert "docs/how-to/mixed-sensors.md" in err
    assert not (tmp_path / "runs" / "mixed" / "recipe.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["classes=['walking', 'siting']"], "no data has a class 'siting'; did you mean 'sitting'"),
        (["data.phones.rename={walkng='going'}"], "'phones' has no class 'walkng'; did you mean 'walking'"),
        (["data.0.name=hapt"], "where is dataset 'hapt'?"),
        (["classes=['stairs-up', 'siting']", "data.0.samples=0"], "samples"),
    ],
)
def test_mistakes(here, settings, message):
    flags = [word for setting in settings for word in ("--set", setting)]
    for command in (["run"], ["data", "check"]):
        code, _, err = here(*command, "mixed.toml", *flags)
        assert code == 2
        assert message in err


def test_check_of_all_data_of_a_recipe(here, tmp_path):
    code, out, err = here("data", "check", "mixed.toml", "--plot")
    assert code == 0, err
    assert "6×128" in out
    assert "6×40" in out
    assert "phones/p0000" in out
    assert "fedavg, with sensor-cnn: " not in out, "both shapes have six channels: one model serves them"
    assert next(tmp_path.glob("*-clients.png")).read_bytes().startswith(b"\x89PNG")
    code, out, _ = here("data", "check", "mixed.toml", "--json", "--set", "classes=all", "--model", "flic-mlp",
                        "--set", "data.watches.rename.running=jogging")  # fmt: skip
    report = json.loads(out)
    assert code == 0
    assert report["dataset"] == "phones + watches"
    assert {client.split("/")[0] for client in report["clients"]} == {"phones", "watches"}
    assert "only 'watches' has jogging" in report["warnings"]
    assert "fedavg" in report["refused_by"]
    assert not {"local", "hetfedrep"} & set(report["refused_by"])
    code, out, _ = here("data", "check", "demo", "--json", "--set", "data.clients=2")
    assert code == 0
    assert json.loads(out)["dataset"] == "synthetic-imu"
    code, _, err = here("data", "check", "mixed.toml", "--root", "x")
    assert code == 2
    assert "--root goes with a dataset's name, and mixed.toml is a recipe" in err
    code, _, err = here("data", "check", "nowhere.toml")
    assert code == 2
    assert "no recipe file 'nowhere.toml'" in err


EVERYTHING = """\
name = "everything"
rounds = 2
classes = "all"

[[data]]
label = "own"
name = "folder"
root = "kitchen"

[[data]]
label = "slow"
name = "synthetic-imu"
clients = 2
samples = 24
window = 40
rate = 20.0

[[data]]
label = "caps"
name = "synthetic-eeg"
clients = 2
samples = 24
electrodes = [8, 8]

[[data]]
label = "large-caps"
name = "synthetic-eeg"
clients = 2
samples = 24
electrodes = [22, 22]
seed = 1

[model]
name = "flic-mlp"
shared = 10

[evaluation]
views = ["personal"]

[training]
epochs = 2

[[method]]
name = "local"

[[method]]
name = "hetfedrep"

[[method]]
name = "flic"
pretrain = 2
"""


def test_phones_watches_and_caps_at_different_rates_in_one_recipe(here, tmp_path):
    (tmp_path / "everything.toml").write_text(EVERYTHING)
    assert here("data", "new", "kitchen", "--example")[0] == 0
    code, out, err = here("data", "check", "everything.toml", "--json")
    assert code == 0, err
    report = json.loads(out)
    shapes = {tuple(client["shape"]) for client in report["clients"].values()}
    assert {shape[0] for shape in shapes if len(shape) == 2} == {6, 3}
    assert {36, 253, 6} <= {shape[0] for shape in shapes}, "8 · 9 / 2, 22 · 23 / 2, phones"
    assert (6, 40) in shapes
    assert "fedavg" in report["refused_by"]
    assert not {"local", "hetfedrep", "flic", "fedapa"} & set(report["refused_by"])
    code, out, err = here("run", "everything.toml", "--json")
    assert code == 0, err
    rows = [row for row in json.loads(out)["results"] if row["metric"] == "accuracy"]
    assert [row["method"] for row in rows] == ["local", "hetfedrep", "flic"]
    for row in rows:
        assert set(row["clients"]) == set(report["clients"])
    code, _, err = here("run", "everything.toml", "--set", 'method=["fedavg"]', "--out", "other")
    assert code == 2
    assert "fedavg shares 'adapter.1.weight'" in err
