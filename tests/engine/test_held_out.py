"""The server's model on people who took no part: each of them, and all of them together."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score

from conftest import blobs, quick, run
from fedsense.engine.settings import Settings
from fedsense.errors import UserError
from fedsense.experiment import run_recipe
from fedsense.federation import Samples
from fedsense.recipe import make_recipe
from fedsense.result import Result

VIEWS = ("global", "held-out", "held-out-pooled")


def with_newcomers():
    federation = blobs(clients=6)
    return federation.with_clients(federation.clients[:4], newcomers=federation.clients[4:])


def test_newcomers_are_scored_on_all_they_recorded_and_together():
    engine = run(quick("fedavg"), with_newcomers(), views=VIEWS, metrics=("accuracy", "macro-f1"))
    scores = engine.record.scores[-1]["scores"]
    assert set(scores) == set(VIEWS)
    assert set(scores["held-out"]["test"]["accuracy"]) == {"c04", "c05"}
    assert set(scores["held-out"]["val"]["accuracy"].values()) == {None}
    said, true = [], []
    for newcomer in engine.federation.newcomers:
        everything = Samples.join(newcomer.splits)
        client = engine.site.client(newcomer.id)
        guess = engine.method.predict(client, engine.server["model"], everything.x).argmax(1).numpy()
        assert scores["held-out"]["test"]["accuracy"][newcomer.id] == pytest.approx(
            (guess == everything.y.numpy()).mean()
        )
        said.append(guess)
        true.append(everything.y.numpy())
    pooled = scores["held-out-pooled"]["test"]
    assert pooled["accuracy"]["everyone"] == pytest.approx((np.concatenate(said) == np.concatenate(true)).mean())
    expected = f1_score(np.concatenate(true), np.concatenate(said), average="macro")
    assert pooled["macro-f1"]["everyone"] == pytest.approx(expected)


def test_newcomers_do_not_take_part():
    whole, fewer = with_newcomers(), blobs(clients=6)
    fewer = fewer.with_clients(fewer.clients[:4])
    a, b = run(quick("fedavg"), whole, views=("held-out",)), run(quick("fedavg"), fewer, views=("global",))
    assert all(c in {"c00", "c01", "c02", "c03"} for line in a.record.ledger for c in line["clients"])
    assert all((t == b.server["model"][n]).all() for n, t in a.server["model"].items())


def test_a_method_without_a_model_for_all_has_no_such_score():
    engine = run(quick("local"), with_newcomers(), views=("personal", "held-out"))
    assert set(engine.record.scores[-1]["scores"]) == {"personal"}


def test_the_weighted_mean_is_by_what_they_recorded(tmp_path):
    federation = with_newcomers()
    first, second = federation.newcomers
    federation = replace(federation, newcomers=(first, second.change(lambda _, s: s.take(slice(2)))))
    engine = run(quick("fedavg"), federation, views=VIEWS, folder=tmp_path)
    for result in (Result.of(engine, "fedavg"), Result.read(tmp_path)):
        rows = {row.view: row for row in result.rows() if row.metric == "accuracy"}
        sizes, values = {"c04": 24 + 4 + 8 + 20, "c05": 6}, rows["held-out"].clients
        expected = sum(sizes[c] * values[c] for c in sizes) / sum(sizes.values())
        assert rows["held-out"].weighted_mean == pytest.approx(expected)
        assert rows["held-out-pooled"].weighted_mean == rows["held-out-pooled"].mean == pytest.approx(expected)
        assert set(result.test_sizes) == {"c00", "c01", "c02", "c03"}


def test_mistakes_are_named_before_the_first_round():
    with pytest.raises(UserError, match=r"view 'held-out' scores people who take no part.*held-out = 0\.2 in \[data\]"):
        run(quick("fedavg"), blobs(), views=("held-out",))
    odd = blobs(clients=5, shape=(3, 6)).clients[4]
    with pytest.raises(UserError, match=r"client 'c04' is held out, and nobody trains its model \(small_net.*\[3, 6\]"):
        run(quick("fedavg"), replace(blobs(), newcomers=(odd,)), views=("held-out-pooled",))
    with pytest.raises(UserError, match="there is no view 'heldout'; did you mean 'held-out'"):
        Settings(views=("heldout",))


@pytest.fixture
def recipe():
    return {
        "name": "met-nobody",
        "rounds": 2,
        "data": {"name": "synthetic-imu", "clients": 5, "samples": 16, "held-out": 2},
        "model": {"name": "coad-cnn"},
        "evaluation": {"views": ["global", "held-out", "held-out-pooled"], "metrics": ["accuracy"]},
        "training": {"epochs": 1},
        "method": [{"name": "fedavg"}],
    }


def test_a_recipe_with_people_held_out_runs_and_shows_them(recipe, tmp_path):
    (result,) = run_recipe(make_recipe(recipe), tmp_path)
    assert [len(row.clients) for row in result.rows()] == [3, 2, 1]
    page = (tmp_path / "index.html").read_text()
    assert "Held out: the server" in page
    assert "held-out-pooled accuracy" in page


def test_people_held_out_choose_no_round(recipe, tmp_path):
    recipe["evaluation"]["summary"] = "validation"
    recipe["data"] |= {"val": 0.3, "samples": 80}
    with pytest.raises(UserError, match='people held out have no validation data; leave out summary = "validation"'):
        run_recipe(make_recipe(recipe), tmp_path)
