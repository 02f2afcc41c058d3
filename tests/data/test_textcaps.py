"""TextCaps: FLIC's federation of image and caption vectors, on vectors the test makes up."""

import numpy as np
import pytest
import torch

from fedsense.data import load
from fedsense.errors import UserError
from fedsense.models import build_model
from fedsense.work import stream

PAIRS = 400


def vectors(pairs=PAIRS):
    """Every value says which pair and which coordinate it is of; captions are negative."""
    label = np.arange(pairs) % 4
    image = np.arange(pairs)[:, None] + np.arange(512) / 1024
    text = -(np.arange(pairs)[:, None] + np.arange(768) / 1024)
    return {"image": image.astype(np.float32), "text": text.astype(np.float32), "label": label}


def write(folder, **changes):
    np.savez(folder / "textcaps.npz", **{k: v for k, v in (vectors() | changes).items() if v is not None})
    return str(folder)


def test_each_client_has_one_source_and_two_classes(tmp_path):
    federation = load("textcaps", root=write(tmp_path), clients=20)
    assert federation.task.classes == ("bottle", "car", "food", "book")
    widths = {"image": [], "text": []}
    for client in federation:
        source = client.traits["source"]
        widths[source].append(client.input_shape[0])
        assert len(client.train.y.unique()) == 2
        assert (client.train.x.sign() == (1 if source == "image" else -1)).float().mean() > 0.99
        pair = client.train.x.abs().floor().long()
        assert (pair == pair[:, :1]).all()  # rows are not mixed
        assert torch.equal(pair[:, 0] % 4, client.train.y)
    assert [len(w) for w in widths.values()] == [10, 10]
    assert 461 <= min(widths["image"]) < max(widths["image"]) <= 512  # up to a tenth, 51, are gone
    assert 692 <= min(widths["text"]) < max(widths["text"]) <= 768
    assert len(set(widths["image"])) > 5


def test_a_client_lacks_the_same_coordinates_in_every_split(tmp_path):
    for client in load("textcaps", root=write(tmp_path), clients=6):
        places = [(samples.x.abs() % 1 * 1024).round().long() for samples in (client.train, client.val, client.test)]
        kept = places[0][0]
        assert (kept.diff() > 0).all()
        assert all((rows == kept).all() for rows in places)


def test_a_pair_is_on_one_side_in_both_sources(tmp_path):
    federation = load("textcaps", root=write(tmp_path), clients=10, pruned=0.0, val=0.25)
    sides = {}
    for client in federation:
        for split in ("train", "val", "test"):
            for pair in client.split(split).x[:, 0].abs().long().tolist():
                assert sides.setdefault(pair, split) == split
    assert len(sides) == PAIRS
    counts = {split: sum(side == split for side in sides.values()) for split in ("train", "val", "test")}
    assert counts == {
        "train": 240,
        "val": 80,
        "test": 80,
    }  # a fifth is tested on, a quarter of the rest is for validation
    assert {client.input_shape for client in federation} == {(512,), (768,)}


def test_files_apart_are_the_same(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "apart").mkdir()
    for name, array in vectors().items():
        np.save(tmp_path / "apart" / f"{name}.npy", array)
    first = load("textcaps", root=write(tmp_path / "one"), clients=8)
    assert first.fingerprint == load("textcaps", root=str(tmp_path / "apart"), clients=8).fingerprint


def test_names_say_the_order_of_the_labels(tmp_path):
    names = np.array(["Book", "Food", "Car", "Bottle"])
    for client in load("textcaps", root=write(tmp_path, names=names), clients=4, pruned=0.0):
        pair = client.train.x[:, 0].abs().long()
        assert torch.equal(3 - pair % 4, client.train.y)


def test_flic_mlp_learns_from_every_width(tmp_path):
    for client in load("textcaps", root=write(tmp_path), clients=4):
        assert build_model("flic-mlp", client.input_shape, 4).network(client.train.x[:2]).logits.shape == (2, 4)


def test_noise_of_another_width_is_taken(tmp_path):
    both = stream(0, "clip").normal(size=(2, PAIRS, 32)).astype("float32")
    federation = load("textcaps", root=write(tmp_path, image=both[0], text=both[1]), clients=4, pruned=0)
    assert {client.input_shape for client in federation} == {(32,)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": None}, "textcaps.npz: holds no array 'text', only image, label"),
        ({"label": np.array([0, 4] * 200)}, "textcaps.npz: label 4 of row 1 is none of 0 to 3"),
        ({"label": np.zeros(400)}, "textcaps.npz: label is float64 of shape [400], expected whole numbers [n]"),
        ({"image": np.zeros((3, 512))}, "textcaps.npz: image is float64 of shape [3, 512], expected numbers "
         "[400, width], a row a label"),
        ({"names": np.array(["bottle", "care", "food", "book"])}, "textcaps.npz: names 'care', which is none of the "
         "classes; did you mean 'car'?"),
        ({"label": np.array([{}] * 400, dtype=object)}, "textcaps.npz: holds Python objects, which are not trusted; "
         "save plain arrays of numbers"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, change, message):
    with pytest.raises(UserError) as error:
        load("textcaps", root=write(tmp_path, **change))
    assert str(error.value) == f"{tmp_path}/{message}"


def test_values_that_are_not_finite(tmp_path):
    image = vectors()["image"]
    image[5] = np.nan
    with pytest.raises(UserError, match="are not finite"):
        load("textcaps", root=write(tmp_path, image=image), clients=4)


def test_wrong_options_and_damage(tmp_path):
    with pytest.raises(UserError, match=r"pruned = 1; give a share from 0 up to, not including, 1"):
        load("textcaps", root=write(tmp_path), pruned=1.0)
    path = tmp_path / "textcaps.npz"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(
        UserError, match=r"textcaps.npz: is no whole .npz file \(numpy.savez writes them\); get it again"
    ):
        load("textcaps", root=str(tmp_path))
