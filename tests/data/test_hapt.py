"""HAPT: the published counts on the real recordings, and mistakes in files of the official layout."""

import numpy as np
import pytest

from conftest import real
from fedsense.data import find_dataset, load
from fedsense.errors import UserError


def test_published_counts():
    dataset = find_dataset("hapt")
    options = dataset.parse({"root": str(real("hapt.tar.xz"))})
    files = dataset.files(options)
    clients = dataset.gather(files, dataset.content(files), options)
    assert len(clients) == 30
    assert sum(len(client.y) for client in clients) == 10_929
    assert clients[0].x.shape[1:] == (6, 128)
    counts = np.bincount(np.concatenate([client.y for client in clients]), minlength=12)
    assert (counts > 0).all()
    assert counts[:6].sum() > 0.95 * counts.sum()  # transitions are short


def test_federation_of_real_recordings():
    federation = load("hapt", root=str(real("hapt.tar.xz")))
    assert federation.ids == [f"s{i:02d}" for i in range(1, 31)]
    for client in federation:
        means = client.train.x.mean((0, 2))
        assert means.abs().max() < 1e-3
        assert (client.train.x.std((0, 2), correction=0) - 1).abs().max() < 1e-3


def small(folder, acc="0.1 0.2 0.3\n" * 300, gyro="0 0 0\n" * 300, labels="1 1 5 0 149\n1 1 4 150 299\n"):
    raw = folder / "RawData"
    raw.mkdir()
    (raw / "acc_exp01_user01.txt").write_text(acc)
    (raw / "gyro_exp01_user01.txt").write_text(gyro)
    (raw / "labels.txt").write_text(labels)
    return str(folder)


def test_segments_include_their_last_row_and_are_not_mixed(tmp_path):
    federation = load("hapt", root=small(tmp_path), window=50, overlap=0.0, split={"test": 0.34, "val": 0.0})
    only = federation["s01"]
    assert only.train.y.tolist() == [4, 4, 3, 3] or sorted(only.train.y.tolist()) == [3, 3, 4, 4]
    assert sorted(only.test.y.tolist()) == [3, 4]
    assert only.train.origin.tolist()[0] == [0, 0, 50]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acc": "0.1 0.2 0.3\n0.1 x 0.3\n"}, "acc_exp01_user01.txt: line 2, column 2 ('y'): 'x' is no number"),
        ({"acc": "0.1 0.2 0.3\n0.1 0.3\n"}, "acc_exp01_user01.txt: line 2 has 2 cells, expected 3 (x, y, z)"),
        ({"gyro": "0 0 0\n" * 299}, "acc_exp01_user01.txt: has 300 rows, and its gyroscope file 299; get both again"),
        ({"labels": "1 1 13 0 10\n"}, "labels.txt: line 1, column 3 ('activity'): 13 is none of 1 to 12"),
        ({"labels": "1 1 5 0 300\n"}, "labels.txt: line 1: rows 0 to 300, but acc_exp01_user01.txt has rows 0 to 299"),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    with pytest.raises(UserError, match=r"RawData") as error:
        load("hapt", root=small(tmp_path, **change))
    assert str(error.value).endswith(message)
