"""Projections of each client's samples on their own."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import fedsense
from conftest import blobs, plain_net, quick, run
from fedsense.data.projections import projected
from fedsense.errors import UserError
from fedsense.federation import ClientData, Federation, Samples
from fedsense.models.spec import ModelSpec
from fedsense.recipe import make_recipe

each = pytest.mark.parametrize("how", ["t-sne", "mds", "pca"])


def few(**options) -> Federation:
    return blobs(**{"clients": 2, "train": 14, "val": 4, "test": 6, **options})


def everything(client: ClientData) -> torch.Tensor:
    return torch.cat([split.x for split in client.splits])


@each
def test_all_clients_come_to_one_width_and_keep_the_rest(how):
    wide = dataclasses.replace(few(shape=(5, 20)).clients[1], id="wide")
    federation = few(clients=1).with_clients([*few(clients=1), wide], newcomers=(few().clients[1],))
    made = projected(federation, how)
    assert [c.input_shape for c in made.everyone] == [(64,)] * 3
    assert how in made.description
    for before, after in zip(federation.everyone, made.everyone, strict=True):
        assert after.id == before.id
        for old, new in zip(before.splits, after.splits, strict=True):
            assert torch.equal(old.y, new.y)
            assert new.x.dtype == torch.float32
            assert len(new.x) == len(old.x)
        x = everything(after)
        assert float(x.mean(0).abs().max()) < 1e-5
        assert float((x**2).mean()) == pytest.approx(1.0, rel=1e-4)


@each
def test_a_projection_depends_on_seed_and_client_alone(how):
    federation = few()
    one, again = projected(federation, how, 4), projected(few(clients=1), how, 4)
    assert torch.equal(everything(one["c00"]), everything(again["c00"]))
    other = everything(projected(few(clients=1), how, 4, seed=1)["c00"])
    assert torch.equal(everything(one["c00"]), other) == (how != "t-sne"), "only t-SNE begins at random"


def test_labels_take_no_part():
    federation = few(clients=1)
    blind = federation.change(lambda c: c.change(lambda _, s: dataclasses.replace(s, y=torch.zeros_like(s.y))))
    assert torch.equal(*(everything(projected(f, width=4)["c00"]) for f in (federation, blind)))


@each
@pytest.mark.parametrize("width", [2, 64])
@pytest.mark.parametrize("inputs", [10, 80])
def test_groups_stay_apart(how, width, inputs):
    """The neighbours of a test sample among training samples are of its group, and a line tells groups apart."""
    rng = np.random.default_rng(0)

    def drawn(count):
        y = np.arange(count) % 2
        return rng.normal(0, 1, (count, inputs)) + 2 * y[:, None], y

    federation = Federation.from_arrays({"a": {"train": drawn(48), "test": drawn(12)}}, classes=2)
    client = projected(federation, how, width)["a"]
    for judge in (KNeighborsClassifier(3), LogisticRegression()):
        assert judge.fit(client.train.x, client.train.y).score(client.test.x, client.test.y) == 1.0


@pytest.mark.parametrize("how", ["mds", "pca"])
def test_distances_stay_where_there_is_room(how):
    """12 numbers in 64: all distances, but for one factor."""
    federation = few(clients=1)
    before, after = (everything(f["c00"]).flatten(1) for f in (federation, projected(federation, how)))
    ratio = torch.pdist(before) / torch.pdist(after)
    assert float(ratio.max() / ratio.min()) == pytest.approx(1.0, abs=1e-3)


def test_mds_keeps_distances_better_than_principal_components_where_there_is_not():
    federation = few(clients=1, shape=(30,))

    def stress(how):
        before, after = (everything(f["c00"]) for f in (federation, projected(federation, how, 2)))
        a, b = torch.pdist(before), torch.pdist(after)
        scale = (a * b).sum() / (b * b).sum()
        return float(((a - scale * b) ** 2).sum())

    assert stress("mds") < 0.9 * stress("pca")


@each
def test_survives_few_samples_and_samples_that_are_all_the_same(how):
    for sizes in ({"train": 1, "val": 0, "test": 0}, {"train": 1, "val": 0, "test": 1}, {"train": 3, "val": 0}):
        client = projected(few(clients=1, **sizes), how)["c00"]
        assert client.input_shape == (64,)
        assert everything(client).isfinite().all()
    same = Samples(torch.ones(5, 3), torch.zeros(5, dtype=torch.int64))
    flat = ClientData("flat", same, same.take(slice(0)), same)
    assert not everything(projected(few().with_clients([flat]), how)["flat"]).any()


def test_bytes_are_taken_as_shares():
    x = np.random.default_rng(0).integers(0, 256, (12, 1, 3, 3))
    made = [
        everything(projected(Federation.from_arrays({"a": {"train": (values, np.zeros(12))}}, 2), "pca")["a"])
        for values in (x.astype(np.uint8), (x / 255).astype(np.float32))
    ]
    torch.testing.assert_close(*made)


def test_fedrep_runs_on_it_whatever_the_inputs_were():
    wide = dataclasses.replace(few(shape=(5, 4)).clients[1], id="wide")
    federation = projected(few(clients=1).with_clients([*few(clients=1), wide]), "pca", width=8)
    engine = run(quick("fedrep"), federation, model=ModelSpec.of(plain_net), rounds=1)
    assert set(engine.states) == {"c00", "wide"}


def test_wrong_projections_are_refused():
    with pytest.raises(UserError, match=r"no projection 'tsne'.*t-sne"):
        projected(few(), "tsne")
    with pytest.raises(UserError, match="width is 0"):
        projected(few(), width=0)


def test_as_an_option_of_data(tmp_path):
    federation = fedsense.load("toy-linear-map", clients=60, projection="pca")
    assert {client.input_shape for client in federation} == {(64,)}
    with pytest.raises(UserError, match="projection"):
        make_recipe(
            {"data": {"name": "toy-linear-map", "projection": "sne"}, "model": "flic-mlp", "method": "fedrep"}, "mine"
        )
