"""Digits: FLIC's federation of MNIST and USPS, on small files and on the real ones."""

import numpy as np
import pytest
import torch
from test_mnist import write_mnist
from test_usps import write_usps

from conftest import real
from fedsense.data import load
from fedsense.errors import UserError
from fedsense.models import build_model

MANY = (*range(10),) * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("digits")
    write_mnist(root / "a", train=MANY, test=(*range(10),) * 8)
    write_usps(root / "b", train=MANY, test=(*range(10),) * 8)
    return root


def test_each_client_has_one_source_and_three_classes(folder):
    federation = load("digits", root=str(folder), clients=20, val=0.0)
    shapes = {client.id: client.input_shape for client in federation}
    assert sorted(shapes.values()) == [(1, 16, 16)] * 10 + [(1, 28, 28)] * 10
    assert [name.split("-")[1] for name in federation.ids] == [f"{i:03d}" for i in range(20)]
    for client in federation:
        assert client.traits["source"] == client.id.split("-")[0]
        assert client.input_shape == ((1, 28, 28) if client.traits["source"] == "mnist" else (1, 16, 16))
        classes = client.train.y.unique()
        assert len(classes) == 3
        assert torch.equal(classes, client.test.y.unique())


def test_all_images_are_shared_out_evenly_and_none_twice(folder):
    federation = load("digits", root=str(folder), clients=20, val=0.0)
    for source in ("mnist", "usps"):
        clients = [client for client in federation if client.traits["source"] == source]
        counts = np.stack([np.bincount(client.train.y, minlength=10) for client in clients])
        assert counts.sum(0).tolist() == [40] * 10
        assert ((counts > 0).sum(0) == 3).all()  # 10 clients with 3 classes: each class has 3 holders
        assert set(counts[counts > 0].tolist()) == {13, 14}  # of 40 images
        places = np.concatenate([client.train.origin[:, 1].numpy() for client in clients])
        assert sorted(places.tolist()) == [*range(400)]
        tested = np.concatenate([client.test.origin[:, 1].numpy() for client in clients])
        assert sorted(tested.tolist()) == [*range(400, 480)]  # the official test part


def test_images_belong_to_their_labels(folder):
    for client in load("digits", root=str(folder), clients=8):
        first = client.train.x[:, 0, 0, 0]
        scale = client.train.y / 255 if client.traits["source"] == "mnist" else (client.train.y / 10 + 1) / 2
        np.testing.assert_allclose(first.numpy(), scale.numpy(), atol=1e-6)


def test_same_seed_same_federation(folder, tmp_path):
    first = load("digits", root=str(folder), clients=10, seed=1)
    again = load("digits", mnist=str(folder / "a"), usps=str(folder / "b"), clients=10, seed=1)
    other = load("digits", root=str(folder), clients=10, seed=2)
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


def test_options(folder):
    federation = load("digits", root=str(folder), clients=12, classes_per_client=5, samples=7, held_out=2, val=0.25)
    assert (len(federation), len(federation.newcomers)) == (10, 2)
    for client in (*federation, *federation.newcomers):
        assert len(client.train) == 7
        assert sorted(np.bincount(client.train.y, minlength=10).tolist()) == [0] * 5 + [1] * 3 + [2] * 2
    whole = load("digits", root=str(folder), clients=12, val=0.25)
    assert sum(len(client.val) for client in whole) == 2 * 100
    dropped = load("digits", root=str(folder), clients=12, skew={"kind": "drop-classes", "count": 1})
    assert all(len(client.train.y.unique()) == 2 for client in dropped)


def test_resize_brings_usps_to_the_size_of_mnist(folder):
    small = load("digits", root=str(folder), clients=6)
    large = load("digits", root=str(folder), clients=6, resize=True)
    assert small.ids == large.ids
    assert {client.input_shape for client in large} == {(1, 28, 28)}
    before, after = (next(c for c in f if c.traits["source"] == "usps") for f in (small, large))
    assert torch.equal(before.train.y, after.train.y)
    # at scale 16 / 28 the centre of the first new pixel lies in the old first, beyond the centre of which nothing is
    np.testing.assert_allclose(after.train.x[:, 0, 0, 0], before.train.x[:, 0, 0, 0], atol=1e-6)
    # the second's centre is 1.5 * 16 / 28 - 0.5 = 0.357 of the way from the first old pixel to the second
    share = 1.5 * 16 / 28 - 0.5
    expected = (1 - share) * before.train.x[:, 0, 0, 0] + share * before.train.x[:, 0, 0, 1]
    np.testing.assert_allclose(after.train.x[:, 0, 0, 1], expected, atol=1e-6)


def test_flic_cnn_takes_both_sizes(folder):
    for client in load("digits", root=str(folder), clients=4):
        network = build_model("flic-cnn", client.input_shape, 10).network
        assert network(client.train.x[:3]).logits.shape == (3, 10)


def test_where_the_files_are(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSENSE_DATA", str(tmp_path))
    with pytest.raises(UserError, match="dataset 'mnist' is not in FEDSENSE_DATA"):
        load("digits", clients=4)
    (tmp_path / "mnist").symlink_to(folder / "a")
    (tmp_path / "usps").symlink_to(folder / "b")
    apart = load("digits", clients=4)
    for name in ("mnist", "usps"):
        (tmp_path / name).unlink()
    (tmp_path / "digits").symlink_to(folder)
    assert load("digits", clients=4).fingerprint == apart.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_client": 11}, "dataset 'digits': classes_per_client = 11; give 1 to 10"),
        ({"clients": 0}, "dataset 'digits': clients = 0; give at least 1"),
        ({"samples": 2}, "dataset 'digits': samples = 2; give at least 3, one a class"),
        ({"val": 1.0}, "dataset 'digits': val = 1.0; give a share from 0 up to, not including, 1"),
        ({"resise": True}, "dataset 'digits' has no option 'resise'; did you mean 'resize'?"),
        ({"clients": 700}, "classes-each: 105 clients want class 0, which has 36 samples to train on; ask for fewer "
         "clients, or for fewer classes a client"),
    ],
)  # fmt: skip
def test_mistakes_are_named(folder, options, message):
    with pytest.raises(UserError) as error:
        load("digits", root=str(folder), **options)
    assert str(error.value) == message


def test_the_real_ones():
    federation = load("digits", mnist=str(real("mnist.tar")), usps=str(real("usps.tar.xz")))
    assert len(federation) == 100
    sizes = {
        source: [len(c.train) + len(c.val) for c in federation if c.traits["source"] == source]
        for source in ("mnist", "usps")
    }
    assert (sum(sizes["mnist"]), sum(sizes["usps"])) == (60_000, 7_291)
    assert sum(len(c.test) for c in federation) == 12_007
    assert all(len(c.train.y.unique()) == 3 for c in federation)
    assert all(len(c.test) >= 3 for c in federation)
