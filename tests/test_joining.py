"""Clients that were not there: they learn only what is their own, from the run's folder alone."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedsense
from conftest import quick, run
from fedsense.cli import main
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import Settings
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.joining import _class_by_class, join
from fedsense.methods import FedHeNN
from fedsense.models.spec import ModelSpec
from fedsense.work import stream

MODEL = ModelSpec(("flic-mlp",), {"latent": 6, "hidden": 8, "shared": 7})
CLASSES = ("sit", "walk", "run")


def people(*sizes, train=24, test=30, classes=CLASSES, first=0):
    """Gaussian classes in four dimensions, of which each person sees a projection of its own."""
    centres = {name: stream("centre", name).normal(0, 2.5, 4) for name in classes}

    def draw(who, width, split, count):
        rng = stream(who, split)
        y = rng.integers(0, len(classes), count)
        seen = stream(who, "map").normal(0, 1, (4, width))
        x = np.stack([centres[classes[i]] for i in y]) + rng.normal(0, 1, (count, 4))
        return (x @ seen).astype("float32"), y

    return Federation.from_arrays(
        {
            f"p{first + i}": {s: draw(first + i, w, s, n) for s, n in (("train", train), ("test", test))}
            for i, w in enumerate(sizes)
        },
        classes=classes,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    method = quick("flic", optimiser="adam", lr=0.02, batch=10, epochs=6, pretrain=20, lambda_align=0.01)
    run(method, people(5, 8, 11, 14), place, MODEL, rounds=4)
    return place


def test_who_was_there_is_no_newcomer(folder):
    with pytest.raises(UserError, match=r"the very clients .* was trained with, whose scores it has; name others"):
        join(folder, people(5, 8, 11, 14))


def test_people_a_recipe_had_are_no_newcomers_however_their_windows_are_dealt(folder, tmp_path):
    """Real recordings are split by the seed, and the people are the same."""
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    others = people(5, 8, 11, 14, train=20)
    about = json.loads(path.read_text()) | {"recipe": {}, "synthetic": False, "federation": others.name}
    path.write_text(json.dumps(about))
    with pytest.raises(UserError, match="the very clients"):
        join(tmp_path / "run", others)
    assert len(join(tmp_path / "run", people(5, 8, 11, 14, 9)).models) == 5, "one of them is new"


def test_newcomers_get_a_model_from_the_folder_alone(folder):
    joined = join(folder, people(9, 23, first=10), samples=(6, 12, 500))
    assert {(p.client, p.samples) for p in joined.points} == {(c, n) for c in ("p10", "p11") for n in (6, 12, 24)}
    assert sorted(joined.curve("accuracy")) == [0, 6, 12]
    assert joined.curve("accuracy")[0][0] > 0.7
    assert {n: many for n, (_, _, many) in joined.curve("accuracy").items()} == {6: 2, 12: 2, 0: 2}
    server = fedsense.engine.checkpoint.load(folder / "checkpoints", False).server
    for client, width in (("p10", 9), ("p11", 23)):
        model = joined.models[client]
        assert model["adapter.1.weight"].shape == (8, width)
        for name, value in server["encoder"].items():
            assert torch.equal(model[name], value), "what is shared is not trained"


def test_joining_twice_gives_the_same(folder):
    first, again = (join(folder, people(9, first=10), samples=(6,)) for _ in range(2))
    assert first.points == again.points


def test_classes_are_matched_by_name_and_unknown_ones_left_out(folder):
    others = people(9, classes=("run", "sit", "swim"), first=20, train=40)
    joined = join(folder, others)
    assert joined.left_out.keys() == {"swim"}
    assert joined.points[0].joined["accuracy"] > 0.6, "with the numbers of another roster it would be below chance"
    with pytest.raises(UserError, match="its own are swim, fly"):
        join(folder, people(9, classes=("swim", "fly"), first=20))


def test_fewer_samples_are_among_more_and_classes_take_turns():
    y = np.array([0] * 30 + [1] * 3 + [2] * 9)
    order = _class_by_class(y, 0, "p")
    assert sorted(order.tolist()) == list(range(42))
    assert sorted(y[order[:9]].tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (y[order[30:]] == 0).all()


def test_what_cannot_be_joined_says_so(folder, tmp_path):
    run(quick("fedavg"), people(5, 5), tmp_path / "avg", ModelSpec(("flic-mlp",), {"latent": 6, "hidden": 8}))
    with pytest.raises(UserError, match=r"'adapter.1.weight' of shape \[8, 5\].*shape \[9\], has \[8, 9\]"):
        join(tmp_path / "avg", people(9, first=10))
    same = join(tmp_path / "avg", people(5, first=10))
    assert same.points[0].joined["accuracy"] > 0.4
    shutil.copytree(folder, tmp_path / "begun", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(UserError, match="no checkpoint yet"):
        join(tmp_path / "begun", people(9, first=10))


def test_a_client_with_just_as_many_samples_counts_there(folder):
    few, many = people(9, train=10, first=10), people(9, train=30, first=11)
    both = few.with_clients([*few.clients, *many.clients])
    assert {n: many for n, (_, _, many) in join(folder, both, samples=(10, 20)).curve("accuracy").items()} == {
        10: 2,
        20: 1,
        0: 2,
    }


def test_one_network_a_client_whatever_its_samples(tmp_path):
    model = ModelSpec(("flic-mlp", "sensor-cnn"), {"latent": 6})
    signals = people(64, 64).change(lambda c: c.change(lambda _, s: replace(s, x=s.x.view(len(s.x), 4, 16))))
    run(quick("fedhenn"), signals, tmp_path, model, rounds=1)
    new = people(64, 64, first=10).change(lambda c: c.change(lambda _, s: replace(s, x=s.x.view(len(s.x), 4, 16))))
    rounds, finish = [], FedHeNN.finish

    def noted(self, client, state, down, work):
        rounds.append((work.round, client.model.architecture))
        return finish(self, client, state, down, work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedHeNN, "finish", noted)
        join(tmp_path, new, samples=(6, 12), workers=1)
    assert {round for round, _ in rounds} == {2}, "the round whose points the server's kernel is of"
    assert sorted(kind for _, kind in rounds) == ["flic-mlp"] * 3 + ["sensor-cnn"] * 3


def test_a_regression_is_joined_by_regressions(tmp_path, folder):
    def values(*sizes, first=0, name="speed"):
        made = {
            f"v{first + i}": {
                split: (stream(i, split).normal(size=(20, w)).astype("float32"), stream(i, split).uniform(size=20))
                for split in ("train", "test")
            }
            for i, w in enumerate(sizes)
        }
        return Federation.from_arrays(made, [name], kind="regression")

    run(quick("flic"), values(4, 6), tmp_path, MODEL, metrics=("rmse",), views=("personal",))
    joined = join(tmp_path, values(9, first=10), samples=(5,))
    assert set(joined.points[0].joined) == {"rmse"}
    with pytest.raises(UserError, match="but 'mine' is a regression"):
        join(folder, values(9, first=10))
    with pytest.raises(UserError, match="predicts 'speed', but 'mine' has 'height'"):
        join(tmp_path, values(9, first=10, name="height"))


def test_what_is_not_defined_is_left_out_of_means(tmp_path, folder):
    joined = join(folder, people(9, first=10), samples=(6,))
    point = joined.points[0]
    holes = replace(joined, points=(replace(point, joined={"accuracy": math.nan}), *joined.points))
    assert math.isfinite(holes.curve("accuracy")[6][0])
    holes.save(tmp_path)
    assert json.loads((tmp_path / "join.json").read_text())["points"][0]["joined"] == {"accuracy": None}


def test_newcomers_that_do_not_fit_are_refused_before_round_one():
    federation = people(5, 5)
    both = federation.with_clients(federation.clients, newcomers=people(9, first=10).clients)
    with pytest.raises(UserError, match=r"client 'p10', whose samples have shape \[9\], has \[8, 9\]"):
        Engine(both, quick("fedavg"), MODEL, Settings(views=("personal", "new-client")))


def test_the_new_client_view_is_joining(tmp_path):
    federation = people(5, 8, 11)
    both = federation.with_clients(federation.clients, newcomers=people(9, 23, first=10).clients)
    method = quick("flic", optimiser="adam", lr=0.02, batch=10, epochs=6, pretrain=20, lambda_align=0.01)
    engine = Engine(
        both, method, MODEL, Settings(rounds=3, views=("personal", "new-client"), workers=1, every=3), tmp_path
    )
    engine.run()
    scores = engine.record.scores[-1]["scores"]["new-client"]["test"]["accuracy"]
    assert scores.keys() == {"p10", "p11"}
    assert min(scores.values()) > 0.5
    result = fedsense.Result.of(engine, "flic")
    assert any(row.view == "new-client" for row in result.rows())
    assert result.new_sizes == {"p10": 30, "p11": 30} == fedsense.Result.read(tmp_path).new_sizes
    with pytest.raises(UserError, match="nobody of 'mine' is held out"):
        Engine(federation, method, MODEL, Settings(views=("new-client",)))


def test_as_a_user_types_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "toy.toml"
    recipe.write_text(
        'name = "toy"\nrounds = 1\n[data]\nname = "toy-linear-map"\nclients = 40\n'
        '[model]\nname = "flic-mlp"\nlatent = 4\nhidden = 4\n'
        '[evaluation]\nviews = ["personal"]\n[[method]]\nname = "flic"\npretrain = 1\nepochs = 1\n'
    )
    with pytest.raises(SystemExit) as stop:
        main(["run", str(recipe), "--out", "toy"])
    assert not stop.value.code
    command = ["join", "toy", "--data", "toy-linear-map", "--set", "clients=40", "--set", "seed=5", "--samples", "5"]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert not stop.value.code
    said = capsys.readouterr().out
    assert "labelled samples" in said
    assert (tmp_path / "toy/joined/curve.svg").read_text().startswith("<svg")
    assert len(list((tmp_path / "toy/joined/flic-seed0/models").iterdir())) >= 20
    with pytest.raises(SystemExit):
        main([*command, "--json"])
    points = json.loads(capsys.readouterr().out)["runs"]["flic-seed0"]
    assert {"client", "samples", "joined", "alone"} <= points[0].keys()
    with pytest.raises(SystemExit) as stop:
        main(["join", "toy", "--data", "toy-linear-map", "--samples", "few"])
    assert stop.value.code
    assert "give whole numbers" in capsys.readouterr().err
