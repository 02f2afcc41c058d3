"""MNIST: the published counts on the real files, and mistakes in files of the official layout."""

import gzip
import hashlib
import struct
import tarfile

import numpy as np
import pytest

from conftest import real
from fedsense.data import find_dataset, load
from fedsense.errors import UserError

TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def gathered(name, root, **own):
    dataset = find_dataset(name)
    options = dataset.parse({"root": str(root), **own})
    return dataset.gather(dataset.files(options), f"test {root}", options)


def test_published_counts():
    (pool,) = gathered("mnist", real("mnist.tar"))
    assert pool.x.shape == (70_000, 1, 28, 28)
    assert pool.x.dtype == np.uint8
    assert np.bincount(pool.y[pool.session == 0]).tolist() == TRAIN
    assert np.bincount(pool.y[pool.session == 1]).tolist() == TEST
    assert pool.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    train = pool.x[:60_000]
    assert train.mean() / 255 == pytest.approx(0.1307, abs=5e-5)  # as everyone normalises it
    assert train.std() / 255 == pytest.approx(0.3081, abs=5e-5)


def test_checksums_of_the_card_are_those_of_the_files():
    expected = {download.name: (download.bytes, download.md5) for download in find_dataset("mnist").card.downloads}
    with tarfile.open(real("mnist.tar")) as box:
        members = [member for member in box if member.isfile()]
        found = {m.name.split("/")[-1]: box.extractfile(m).read() for m in members}
    assert {name: (len(data), hashlib.md5(data).hexdigest()) for name, data in found.items()} == expected


def idx(values, magic=None, count=None):
    values = np.asarray(values, np.uint8)
    magic = 0x0801 + values.ndim - 1 if magic is None else magic
    sizes = (len(values) if count is None else count, *values.shape[1:])
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + values.tobytes()


def pictures(labels):
    """The label is the first pixel of the first row, and twice that the last pixel of the last."""
    x = np.zeros((len(labels), 28, 28), np.uint8)
    x[:, 0, 0], x[:, 27, 26] = labels, 2 * np.asarray(labels)
    return x


def write_mnist(folder, train=(*range(10),) * 4, test=(*range(10),), zipped=True, **changes):
    """The four files; ``changes`` give the bytes of one instead."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "train_images": idx(pictures(train)),
        "train_labels": idx(train),
        "t10k_images": idx(pictures(test)),
        "t10k_labels": idx(test),
    }
    for name, data in (files | changes).items():
        part, what = name.split("_")
        kind = "idx3" if what == "images" else "idx1"
        path = folder / f"{part}-{what}-{kind}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(data) if zipped else data)
    return folder


@pytest.mark.parametrize("zipped", [True, False])
def test_every_pixel_is_where_it_was(tmp_path, zipped):
    (pool,) = gathered("mnist", write_mnist(tmp_path / "MNIST" / "raw", zipped=zipped))
    assert pool.x.shape == (50, 1, 28, 28)
    assert pool.x[:, 0, 0, 0].tolist() == pool.y.tolist() == [*range(10)] * 5
    assert (pool.x[:, 0, 27, 26] == 2 * pool.y).all()
    assert pool.x.sum() == 3 * pool.y.sum()
    assert pool.session.tolist() == [0] * 40 + [1] * 10


def test_dealt_to_clients_and_scaled(tmp_path):
    write_mnist(tmp_path)
    write_mnist(tmp_path, zipped=False)  # torchvision leaves both
    federation = load("mnist", root=str(tmp_path), clients=3, split={"val": 0.25})
    assert federation.ids == ["client-000", "client-001", "client-002"]
    assert sum(len(c.train) for c in federation) == 30
    assert sum(len(c.val) for c in federation) == 10
    assert sum(len(c.test) for c in federation) == 10
    for client in federation:
        np.testing.assert_array_equal(client.train.x[:, 0, 0, 0].numpy(), client.train.y.numpy())  # bytes stay bytes


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train_images", b"\0\0\x08", "is cut short: 3 bytes, and its header alone has 16; get it again"),
        (
            "train_images",
            idx(pictures([1]), magic=2049),
            "begins with 2049, expected 2051; is it an idx file of MNIST?",
        ),
        ("t10k_labels", idx([1], magic=1), "begins with 1, expected 2049; is it an idx file of MNIST?"),
        ("t10k_images", idx(np.zeros((10, 16, 16))), "images are 16 × 16, expected 28 × 28"),
        ("train_images", idx(pictures([1]), count=2), "has 784 bytes of values, expected 1568; get it again"),
        ("train_labels", idx([1, 2]), "holds 2 labels, and train-images-idx3-ubyte.gz 40 images; get both again"),
        ("t10k_labels", idx([0, 1, 2, 10, 4, 5, 6, 7, 8, 9]), "label 10 of image 3 is none of 0 to 9"),
    ],
)
def test_mistakes_are_named(tmp_path, name, content, message):
    with pytest.raises(UserError) as error:
        load("mnist", root=str(write_mnist(tmp_path, **{name: content})))
    file = name.replace("_", "-") + ("-idx3" if "images" in name else "-idx1")
    assert str(error.value) == f"{tmp_path}/{file}-ubyte.gz: {message}"


def test_truncated_gzip_and_missing_file(tmp_path):
    path = write_mnist(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz is damaged or cut short .*; get it again"):
        load("mnist", root=str(tmp_path))
    path.unlink()
    with pytest.raises(UserError, match=r"holds no file 'train-images-idx3-ubyte.gz'; expected: train-images"):
        load("mnist", root=str(tmp_path))
