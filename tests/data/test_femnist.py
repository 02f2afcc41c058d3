"""FEMNIST: LEAF's files, written by the test."""

import json
import zipfile

import numpy as np
import pytest
from test_mnist import gathered

from fedsense.data import load
from fedsense.errors import UserError


def images(labels, shift=0):
    """Paper is 1; pixel 29 (row 1, column 1) says the label, in shares of 255."""
    x = np.ones((len(labels), 784))
    x[:, 29] = (np.asarray(labels) + shift) / 255
    return x.tolist()


def leaf(writers, **changes):
    data = {name: {"x": images(labels), "y": list(labels)} for name, labels in writers.items()}
    content = {"users": [*writers], "num_samples": [len(y) for y in writers.values()], "user_data": data}
    return json.dumps(content | changes)


def write(root, **files):
    """``train_0=text`` becomes data/train/all_data_0_niid_05_keep_0_train_9.json."""
    for name, text in files.items():
        folder, _, number = name.rpartition("_")
        path = root / "data" / folder / f"all_data_{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def split(tmp_path):
    return write(
        tmp_path,
        train_0=leaf({"f0001_41": [0, 1, 35, 61], "f0000_14": [2, 3]}),
        train_1=leaf({"f0002_07": [4] * 8}),
        test_0=leaf({"f0001_41": [9], "f0000_14": [2]}),
        test_1=leaf({"f0002_07": [4, 5]}),
        all_data_0=leaf({"unwanted": [0]}),  # LEAF leaves what it made the parts of
    )


def test_one_client_a_writer_and_leafs_own_parts(split):
    clients = gathered("femnist", split)
    assert [client.id for client in clients] == ["f0001_41", "f0000_14", "f0002_07"]
    first = clients[0]
    assert first.y.tolist() == [0, 1, 35, 61, 9]
    assert first.session.tolist() == [0, 0, 0, 0, 1]
    assert first.x.shape == (5, 1, 28, 28)
    assert first.x.dtype == np.uint8
    assert first.x[:, 0, 1, 1].tolist() == [0, 1, 35, 61, 9]
    assert (first.x == 255).sum() == 5 * 783
    assert first.traits == {"writer": "f0001_41"}


def test_federation(split):
    federation = load("femnist", root=str(split), split={"val": 0.0})
    assert len(federation.task.classes) == 62
    names = [federation.task.classes[label] for label in federation["f0001_41"].train.y]
    assert names == ["0", "1", "Z", "z"]
    assert federation["f0002_07"].test.y.tolist() == [4, 5]
    np.testing.assert_array_equal(federation["f0001_41"].train.x[:, 0, 1, 1], [0, 1, 35, 61])


def test_flic_takes_some_writers_and_the_digits(split):
    federation = load("femnist", root=str(split), writers=2, classes=[*"0123456789"], split={"val": 0.0})
    assert federation.ids == ["f0001_41", "f0000_14"]
    assert federation["f0001_41"].train.y.tolist() == [0, 1]
    assert federation["f0001_41"].test.y.tolist() == [9]
    assert [client.id for client in gathered("femnist", split, min_samples=4)] == ["f0001_41", "f0002_07"]
    assert [client.id for client in gathered("femnist", split, min_samples=4, writers=1)] == ["f0001_41"]


def test_files_of_other_writers_are_not_read(split):
    for part in ("train", "test"):
        (split / "data" / part / "all_data_1.json").write_text("{")
    assert [client.id for client in gathered("femnist", split, writers=2)] == ["f0001_41", "f0000_14"]
    with pytest.raises(UserError, match=r"all_data_1.json: is no whole JSON"):
        gathered("femnist", split)


def test_a_split_by_writer_is_refused(tmp_path):
    write(tmp_path, train_0=leaf({"f1": [1, 2]}), test_0=leaf({"f2": [1, 2]}))
    with pytest.raises(UserError, match=r"test/ in .* holds none of the writers of train/; let LEAF split by sample"):
        load("femnist", root=str(tmp_path))


def test_all_data_is_split_at_random_and_read_from_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "leaf.zip", "w") as box:
        box.writestr("femnist/data/all_data/all_data_0.json", leaf({"f1": [3] * 20 + [7] * 20}))
    federation = load("femnist", root=str(tmp_path / "leaf.zip"))
    only = federation["f1"]
    assert [len(only.split(name)) for name in ("train", "val", "test")] == [32, 4, 4]
    assert sorted(only.test.y.tolist()) == [3, 3, 7, 7]


def test_pixels_that_are_no_bytes_are_kept(tmp_path):
    data = {"f1": {"x": [[0.1234] * 784] * 4, "y": [1, 1, 1, 1]}}
    (client,) = gathered("femnist", write(tmp_path, all_data_0=leaf({"f1": []}, user_data=data)))
    assert client.x.dtype == np.float32
    np.testing.assert_allclose(client.x, 0.1234, rtol=1e-6)


def test_parts_of_either_kind_are_on_one_scale(tmp_path):
    odd = {"f1": {"x": [[0.1234] * 784], "y": [1]}}
    write(tmp_path, train_0=leaf({"f1": [51, 51]}), test_0=leaf({"f1": []}, user_data=odd))
    (client,) = gathered("femnist", tmp_path)
    np.testing.assert_allclose(client.x[:, 0, 1, 1], [0.2, 0.2, 0.1234], rtol=1e-6)


HELD = {"x": images([1, 2]), "y": [1, 2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"users": ["f1"],\n "user_da', "is no whole JSON (line 2); make it again with LEAF"),
        ("[1, 2]", "lacks 'users' or 'user_data'; is it a file of LEAF?"),
        (leaf({}, users=["f1"]), "writer 'f1' has no 'x' and 'y' in 'user_data'"),
        (leaf({"f1": [1, 62]}), "writer 'f1': label 62 is none of 0 to 61"),
        (leaf({"f1": [1, 1.5]}), "writer 'f1': label 1.5 is none of 0 to 61"),
        (leaf({"f1": []}, user_data={"f1": HELD | {"y": [1]}}),
         "writer 'f1': 'x' has shape [2, 784] and 'y' [1], expected [n, 784] and [n]"),
        (leaf({"f1": []}, user_data={"f1": HELD | {"x": [[0.5] * 784, [0.5] * 783]}}),
         "writer 'f1': an image of 'x' is no list of 784 numbers"),
        (leaf({"f1": []}, user_data={"f1": HELD | {"x": [[2.0] * 784] * 2}}),
         "writer 'f1': a pixel is not within 0 and 1"),
        (leaf({"f1": []}, user_data={"f1": HELD | {"x": [[float("nan")] * 784] * 2}}),
         "writer 'f1': a pixel is not within 0 and 1"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        load("femnist", root=str(write(tmp_path, train_0=text)))
    assert str(error.value) == f"{tmp_path}/data/train/all_data_0.json: {message}"


def test_too_many_writers_and_no_test_part(split):
    for path in split.glob("data/test/*"):
        path.rename(path.with_suffix(".gone"))
    with pytest.raises(UserError, match=r"holds no file 'test/\*.json'; expected: LEAF's data/train"):
        load("femnist", root=str(split))
    for path in split.glob("data/test/*"):
        path.rename(path.with_suffix(".json"))
    with pytest.raises(UserError, match=r"3 writers in .* have 1 images or more, and 4 are wanted; ask for fewer"):
        load("femnist", root=str(split), writers=4)
    with pytest.raises(UserError, match="writers = 0; give at least 1"):
        load("femnist", root=str(split), writers=0)
