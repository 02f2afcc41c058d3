"""CIFAR: real images in the binary layout, and both layouts written by the test."""

import pickle

import numpy as np
import pytest
from test_mnist import gathered
from test_safepickle import python2

from conftest import real
from fedsense.data import find_dataset, load
from fedsense.data.cifar import CLASSES, COARSE, FINE
from fedsense.errors import UserError


def test_real_images():
    (pool,) = gathered("cifar10", real("cifar10-subset.tar.xz"), part=True)
    assert pool.x.shape == (12_000, 3, 32, 32)
    assert pool.x.dtype == np.uint8
    assert (pool.session == 0).sum() == 10_000
    assert (pool.session == 1).sum() == 2_000
    assert [CLASSES[label] for label in pool.y[:5]] == ["frog", "truck", "truck", "deer", "automobile"]
    assert pool.x[0, 0, 0, :4].tolist() == [0x3B, 0x2B, 0x32, 0x44]  # red of the first row, as a hex dump shows it
    assert np.bincount(pool.y[:10_000]).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    ships = pool.x[pool.y == CLASSES.index("ship")].mean((0, 2, 3))
    frogs = pool.x[pool.y == CLASSES.index("frog")].mean((0, 2, 3))
    assert ships.argmax() == 2  # sea and sky are blue,
    assert frogs.argmin() == 2  # and frogs are not


def pictures(labels):
    """Red, green and blue planes that begin with the label, 100 and 200 more than their number's place."""
    x = np.zeros((len(labels), 3, 32, 32), np.uint8)
    x[:, 0, 0, 0], x[:, 1, 31, 31], x[:, 2, 0, 5] = labels, 100, 200
    return x.reshape(len(labels), 3072)


def record(labels, x):
    return np.concatenate([np.array(labels, np.uint8).reshape(len(x), -1), x], axis=1).tobytes()


def write10(folder, kind="binary", batches=range(1, 6), **changes):
    """Batch i holds images 0 to 9 of the class i - 1 and of class 9; the test batch one of each class."""
    files = {f"data_batch_{i}": [i - 1, 9] * 5 for i in batches} | {"test_batch": [*range(10)]}
    for name, labels in files.items():
        x = pictures(labels)
        content = {
            "binary": lambda labels=labels, x=x: record(labels, x),
            "python 2": lambda labels=labels, x=x: python2(x, labels),
            "python": lambda labels=labels, x=x: pickle.dumps({b"data": x, b"labels": labels, b"batch_label": b"b"}),
        }[kind]()
        (folder / f"{name}{'.bin' if kind == 'binary' else ''}").write_bytes(changes.get(name, content))
    return folder


@pytest.mark.parametrize("kind", ["binary", "python", "python 2"])
def test_layouts_agree(tmp_path, kind):
    (pool,) = gathered("cifar10", write10(tmp_path, kind), part=True)
    assert pool.y.tolist() == [label for i in range(5) for label in [i, 9] * 5] + [*range(10)]
    assert pool.session.tolist() == [0] * 50 + [1] * 10
    assert (pool.x[:, 0, 0, 0] == pool.y).all()
    assert (pool.x[:, 1, 31, 31] == 100).all()
    assert (pool.x[:, 2, 0, 5] == 200).all()
    assert pool.x.sum() == pool.y.sum() + 60 * 300


@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_cifar100(tmp_path, kind, labels):
    fine, coarse = [4, 99, 0], [0, 13, 4]  # beaver, worm, apple
    for name in ("train", "test"):
        x = pictures(fine)
        batch = {"data": x, "fine_labels": fine, "coarse_labels": coarse, "filenames": ["a", "b", "c"]}
        binary = record(np.stack([coarse, fine], axis=1), x)
        path = tmp_path / (f"{name}.bin" if kind == "binary" else name)
        path.write_bytes(binary if kind == "binary" else pickle.dumps(batch, 2))
    (pool,) = gathered("cifar100", tmp_path, part=True, labels=labels)
    assert pool.y.tolist() == (fine if labels == "fine" else coarse) * 2
    assert (pool.x[:, 0, 0, 0] == fine * 2).all()
    federation = load("cifar100", root=str(tmp_path), labels=labels, part=True, partition="iid", clients=1)
    assert federation.task.classes == (FINE if labels == "fine" else COARSE)


def test_classes_are_as_many_as_there_should_be():
    assert (len(CLASSES), len(FINE), len(COARSE)) == (10, 100, 20)
    assert [*FINE] == sorted(set(FINE))
    assert [*COARSE] == sorted(set(COARSE))


def test_dealt_as_fedali_does(tmp_path):
    for name in ("cifar10", "cifar100"):
        defaults = find_dataset(name).defaults()
        assert (defaults["partition"], defaults["clients"]) == ({"kind": "dirichlet", "alpha": 0.3}, 20)
    partition = {"kind": "dirichlet", "alpha": 0.3, "min_partition_size": 3}
    federation = load("cifar10", root=str(write10(tmp_path)), part=True, clients=4, partition=partition)
    assert len(federation) == 4
    assert sum(len(c.train) + len(c.val) for c in federation) == 50
    assert all(c.input_shape == (3, 32, 32) for c in federation)


EVIL = b"cos\nsystem\n(S'true'\ntR."


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("binary", {"data_batch_2": b"\0" * 5000}, "data_batch_2.bin: has 5000 bytes, no multiple of 3073: it is cut "
         "short; get it again"),
        ("binary", {"test_batch": b"\x0a" * 3073}, "test_batch.bin: label 10 of image 0 is none of 0 to 9"),
        ("python", {"data_batch_3": EVIL}, "data_batch_3: names os.system, which is not trusted: it could run "
         "anything; only plain data is read"),
        ("python", {"data_batch_3": pickle.dumps({"data": 1})},
         "data_batch_3: holds no 'labels'; is it a batch of CIFAR?"),
        ("python", {"data_batch_3": pickle.dumps({"data": 1, "labels": []})},
         "data_batch_3: 'data' is no array of bytes [n, 3072]"),
        ("python", {"test_batch": pickle.dumps({"data": pictures([1, 2]), "labels": [1]})},
         "test_batch: 'labels' is no list of 2 whole numbers"),
        ("python", {"test_batch": pickle.dumps({"data": pictures([1, 2]), "labels": [1, 2]})[:-9]},
         "test_batch: is damaged or cut short, or no pickle at all; get it again"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, kind, change, message):
    with pytest.raises(UserError) as error:
        load("cifar10", root=str(write10(tmp_path, kind, **change)), part=True)
    assert str(error.value) == f"{tmp_path}/{message}"


def test_the_whole_can_be_demanded(tmp_path):
    with pytest.raises(UserError, match=r"data_batch_1.bin: holds 10 images, expected 10000; .* part = true"):
        load("cifar10", root=str(write10(tmp_path, batches=range(1, 6))), part=False)
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(record([3] * 10_000, np.zeros((10_000, 3072), np.uint8)))
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(UserError, match=r"holds no file 'data_batch_2.bin'; expected: .*; part = true takes fewer"):
        load("cifar10", root=str(tmp_path), part=False)
