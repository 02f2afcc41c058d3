"""The Python a notebook user would guess."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import safetensors.torch
import torch

import fedsense
from conftest import blobs, plain_net
from fedsense.methods import FedAvg
from fedsense.models import Network


def run(federation=None, **kwargs):
    kwargs = {"model": plain_net, "rounds": 3, "progress": False, "workers": 1, **kwargs}
    return fedsense.run(federation or blobs(), **kwargs)


def test_run_gives_a_table_a_history_and_personal_models():
    federation = blobs()
    result = run(federation, method="fedavg", epochs=2, lr=0.1)
    table = result.table()
    assert "personal accuracy" in str(table)
    assert "fedavg" in str(table)
    assert "final (round 3)" in str(table)
    assert "<table>" in table._repr_html_()
    assert [line["round"] for line in result.history] == [1, 2, 3]
    mine = result.personal_model("c01")
    data = federation["c01"].test
    probabilities = mine.probabilities(data.x.numpy())
    assert probabilities.shape == (len(data), 3)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    right = np.mean([said == federation.task.classes[y] for said, y in zip(mine.predict(data.x), data.y, strict=True)])
    assert right == pytest.approx(result.history[-1]["scores"]["personal"]["test"]["accuracy"]["c01"])


def test_a_personal_model_can_be_taken_home(tmp_path):
    mine = run().personal_model("c02")
    mine.save(tmp_path / "mine.safetensors")
    back = safetensors.torch.load_file(tmp_path / "mine.safetensors")
    assert all(torch.equal(back[name], mine.params[name]) for name in mine.params)
    with pytest.raises(fedsense.UserError, match=r"takes samples of shape \[2, 6\]"):
        mine.predict(np.zeros((1, 3, 6)))


def test_options_of_method_and_run_side_by_side():
    result = run(method="fedprox", mu=0.5, epochs=1, participation=0.5, metrics="accuracy", views=["global"])
    assert result.engine.method.mu == 0.5
    assert len(result.ledger[0]["clients"]) == 2
    assert list(result.history[0]["scores"]) == ["global"]
    with pytest.raises(fedsense.UserError, match="did you mean 'epochs'"):
        run(epoch=3)
    with pytest.raises(fedsense.UserError, match="'lr' is 'fast'; expected a number"):
        run(lr="fast")
    with pytest.raises(fedsense.UserError, match="no client 'c9'"):
        result.personal_model("c9")


def test_compare_several():
    a, b = run(method="local"), run(method="fedavg")
    text = str(fedsense.compare(a, b))
    assert "local" in text
    assert "fedavg" in text
    assert "–" in text, "local has no global view"
    weighted = str(fedsense.compare(a, b, weighted=True))
    assert "±" not in weighted


def test_kept_in_a_folder_it_goes_on(tmp_path):
    first = run(rounds=2, out=tmp_path / "run")
    longer = run(rounds=4, out=tmp_path / "run")
    assert longer.history[:2] == first.history
    whole = run(rounds=4)
    assert longer.history == whole.history
    for other in ({"method": "local"}, {"lr": 0.3}, {"seed": 2}, {"every": 2}, {"federation": blobs(seed=3)}):
        with pytest.raises(fedsense.UserError, match="began with something else"):
            run(**{"rounds": 4, "out": tmp_path / "run", **other})
    with pytest.raises(fedsense.UserError, match="more, not fewer"):
        run(rounds=3, out=tmp_path / "run")
    assert fedsense.Result.read(tmp_path / "run").table().rows == longer.table().rows
    with pytest.raises(fedsense.UserError, match="not run from a recipe"):
        fedsense.Result.read(tmp_path / "run").personal_model("c00")


def test_a_method_of_ones_own_works_and_runs_in_workers():
    @dataclass(frozen=True, kw_only=True)
    class Half(FedAvg):
        """FedAvg that goes half the way."""

        name: ClassVar[str] = "half"

        def aggregate(self, server, uploads):
            new = super().aggregate(server, uploads)["model"]
            return {"model": {name: (t + server["model"][name]) / 2 for name, t in new.items()}}

    a = run(method=Half(epochs=1), workers=2)
    b = run(method=Half(), epochs=1, workers=1)
    assert a.history == b.history
    assert a.method == "half"


def test_a_network_of_ones_own_is_repeatable_and_keeps_its_start():
    """PyTorch's dropout is replaced by a seeded one; layers draw from a seeded generator; a zero head stays zero."""

    def network(input_shape, classes):
        head = torch.nn.Linear(8, classes)
        torch.nn.init.zeros_(head.weight)
        layers = [torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.Dropout(0.5), torch.nn.Tanh()]
        return Network(torch.nn.Sequential(*layers), head, features=8)

    a, b = (run(model=network, epochs=1, workers=workers) for workers in (1, 2))
    assert a.history == b.history
    first = a.engine.site.first_server["model"]
    assert first["head.weight"].abs().max() == 0
    assert first["encoder.1.weight"].abs().max() > 0
    assert not torch.equal(
        first["encoder.1.weight"], run(model=network, seed=1).engine.site.first_server["model"]["encoder.1.weight"]
    )
    with pytest.raises(fedsense.UserError, match=r"must give a fedsense\.models\.Network"):
        run(model=lambda input_shape, classes: torch.nn.Linear(2, 2))

    def attentive(input_shape, classes):
        return Network(torch.nn.MultiheadAttention(6, 2, dropout=0.1), torch.nn.Linear(6, classes), features=6)

    with pytest.raises(fedsense.UserError, match="draws from the global generator"):
        run(model=attentive)


def test_values_that_are_missing():
    federation = blobs()
    federation.clients[0].train.x[0, 0, 0] = float("nan")
    with pytest.raises(fedsense.UserError, match='say missing="drop"'):
        run(federation)
    assert run(federation, missing="drop").ledger[0]["clients"].keys() == set(federation.ids)


def test_labels_by_name_and_labels_that_are_none():
    x = np.zeros((3, 2, 6))

    def make(y, ids="anna"):
        return fedsense.Federation.from_arrays({ids: {"train": (x, y)}}, classes=["walking", "sitting"])

    assert make(np.array(["sitting", "walking", "sitting"])).clients[0].train.y.tolist() == [1, 0, 1]
    assert make(np.array(["sitting", "walking", "sitting"], dtype=object)).clients[0].train.y.tolist() == [1, 0, 1]
    assert make([1.0, 0.0, 1.0]).clients[0].train.y.tolist() == [1, 0, 1]
    assert make([0, 1, 0], ids=7).ids == ["7"]
    with pytest.raises(fedsense.UserError, match=r"client 'anna', train: label 'siting' is none .* 'sitting'"):
        make(["siting"] * 3)
    with pytest.raises(fedsense.UserError, match=r"label 0.5 is no class number"):
        make([0.5, 0, 1])
    with pytest.raises(fedsense.UserError, match=r"'rounds' is 'three'; expected a whole number"):
        run(rounds="three")
    for nothing in ([], [3], [[]]):
        with pytest.raises(fedsense.UserError, match=r"give the results to compare"):
            fedsense.compare(*nothing)
    with pytest.raises(fedsense.UserError, match=r"holds no runs"):
        fedsense.compare("runs/demo")


def test_values_of_counts():
    with pytest.raises(fedsense.UserError, match="3 classes, but 2 values"):
        fedsense.Task(("0", "1", "2"), kind="counting", values=(0, 1))


def test_personal_model_from_disk(tmp_path):
    from fedsense.experiment import run_recipe
    from fedsense.recipe import make_recipe
    from fedsense.result import Result

    recipe = make_recipe(
        {
            "rounds": 2,
            "data": {"name": "synthetic-imu", "clients": 2, "samples": 24},
            "model": "flic-mlp",
            "training": {"epochs": 1},
            "method": ["fedavg"],
        }
    )
    (result,) = run_recipe(recipe, tmp_path)
    client = next(iter(result.test_sizes))
    before = result.personal_model(client).params
    files = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}
    for _ in range(2):
        after = Result.read(tmp_path / "fedavg-seed0").personal_model(client).params
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert files == {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}, "reading changes nothing"
    assert "synthetic" in (tmp_path / "index.html").read_text()


def test_everything_exported_is_there():
    import fedsense.training

    for name in fedsense.__all__:
        assert getattr(fedsense, name) is not None
        assert not isinstance(getattr(fedsense, name), type(fedsense)), f"{name} is hidden by a module of that name"
    assert set(dir(fedsense)) == set(fedsense.__all__)
    with pytest.raises(AttributeError):
        fedsense.nothing  # noqa: B018


def test_bad_federations_are_explained():
    good = blobs()
    x, y = np.zeros((4, 2, 6), "float32"), np.array([0, 1, 2, 0])

    def make(**splits):
        return fedsense.Federation.from_arrays({"anna": {"train": (x, y), **splits}}, classes=3)

    bad = x.copy()
    bad[2, 1, 3] = np.nan
    with pytest.raises(
        fedsense.UserError, match=r"client 'anna': 1 of 48 values in train are not finite .*sample 2, channel 1"
    ):
        run(make(train=(bad, y)))
    assert len(make(train=(bad, y)).check("drop").clients[0].train) == 3
    assert make(train=(bad, y)).check("zero").clients[0].train.x.sum() == 0
    with pytest.raises(fedsense.UserError, match="holds label 3, but there are 3 classes"):
        run(make(train=(x, y + 1)))
    with pytest.raises(fedsense.UserError, match="holds label -1"):
        run(make(train=(x, y - 1)))
    with pytest.raises(fedsense.UserError, match=r"test samples have shape \[2, 5\]"):
        run(make(test=(x[:, :, :5], y)))
    with pytest.raises(fedsense.UserError, match="one label a sample"):
        make(train=(x, y[:2]))
    with pytest.raises(fedsense.UserError, match="did you mean 'test'"):
        make(tests=(x, y))
    with pytest.raises(fedsense.UserError, match="no 'train'"):
        fedsense.Federation.from_arrays({"anna": {"test": (x, y)}}, classes=3)
    with pytest.raises(fedsense.UserError, match="occur twice"):
        good.with_clients([good.clients[0], good.clients[0]])
    with pytest.raises(fedsense.UserError, match="no clients"):
        good.with_clients([])


def test_infinite_values_and_overflowing_sums():
    x, y = np.full((2, 1, 3), 3e38, "float32"), np.array([0, 1])
    federation = fedsense.Federation.from_arrays({"a": {"train": (x, y)}}, classes=2)
    assert federation.check() == federation, "large is not infinite"
    x[0, 0, 0] = np.inf
    with pytest.raises(fedsense.UserError, match="1 of 6 values"):
        fedsense.Federation.from_arrays({"a": {"train": (x, y)}}, classes=2).check()


def test_several_architectures_are_dealt_out():
    result = run(method="local", model=["flic-mlp", "coad-cnn"], federation=blobs(shape=(2, 50)), epochs=1, rounds=1)
    members = result.engine.site.task.members
    assert [members[c].architecture for c in sorted(members)] == ["flic-mlp", "coad-cnn"] * 2
    with pytest.raises(fedsense.UserError, match=r"fedavg shares .* \(flic-mlp\).*\(coad-cnn\)"):
        run(method="fedavg", model=["flic-mlp", "coad-cnn"], federation=blobs(shape=(2, 50)))


def test_a_clients_own_architecture_wins():
    federation = blobs(shape=(2, 50))
    first = dataclasses.replace(federation.clients[0], model="flic-mlp")
    mixed = federation.with_clients([first, *federation.clients[1:]])
    result = run(method="local", model="coad-cnn", federation=mixed, epochs=1, rounds=1)
    assert result.engine.site.task.members["c00"].architecture == "flic-mlp"


def test_the_same_picture_is_the_same_file():
    from fedsense.report.figures import curves, svg

    result = run(rounds=2)
    first, second = (svg(curves([result]), "a < b") for _ in range(2))
    assert first == second
    assert first.startswith("<svg")
    assert svg(curves([run(rounds=3)]), "a < b") != first
    assert "<title>a &lt; b</title>" in first
