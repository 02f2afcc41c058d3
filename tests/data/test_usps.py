"""USPS: the published counts on the real files, and mistakes in files of the official layout."""

import gzip

import numpy as np
import pytest
from test_mnist import gathered

from conftest import real
from fedsense.data import load
from fedsense.errors import UserError

TRAIN = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
TEST = [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


def test_published_counts():
    (pool,) = gathered("usps", real("usps.tar.xz"))
    assert pool.x.shape == (9298, 1, 16, 16)
    assert np.bincount(pool.y[pool.session == 0]).tolist() == TRAIN
    assert np.bincount(pool.y[pool.session == 1]).tolist() == TEST
    assert pool.x.min() == 0
    assert pool.x.max() == 1
    assert pool.y[0] == 6
    # the first row of the file: six -1, then -0.631 at place 8, 0.862 at 9, -0.167 at 10
    np.testing.assert_allclose(pool.x[0, 0, 0, [6, 7, 8, 9, 10]], [0, 0.1845, 0.931, 0.4165, 0], atol=1e-6)


def line(label, values=()):
    """Pixels are -1 but for the first ones given; lines end with a blank, as the official ones do."""
    cells = [*values, *[-1] * (256 - len(values))]
    return f"{label} " + " ".join(f"{cell:.4f}" for cell in cells) + " \n"


def write_usps(folder, train=(*range(10),) * 4, test=(*range(10),), zipped=True):
    """Both files, of these digits (the first pixel says which) or with this text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part, written in (("train", train, "{}.0000"), ("test", test, "{}")):
        text = part if isinstance(part, str) else "".join(line(written.format(d), [d / 10]) for d in part)
        path = folder / f"zip.{name}{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return folder


@pytest.mark.parametrize("zipped", [True, False])
def test_scaled_and_in_place(tmp_path, zipped):
    text = line(7, [0.5, -0.5, *[-1] * 15, 1.0])  # the 18th value is row 1, column 1
    (pool,) = gathered("usps", write_usps(tmp_path, zipped=zipped, train=text))
    assert pool.y.tolist() == [7, *range(10)]
    assert pool.session.tolist() == [0] + [1] * 10
    expected = np.zeros((16, 16), np.float32)
    expected[0, 0], expected[0, 1], expected[1, 1] = 0.75, 0.25, 1
    np.testing.assert_array_equal(pool.x[0, 0], expected)


def test_federation(tmp_path):
    federation = load("usps", root=str(write_usps(tmp_path)), clients=4)
    assert len(federation) == 4
    assert federation.clients[0].input_shape == (1, 16, 16)
    assert sum(len(c.train) + len(c.val) for c in federation) == 40
    assert sum(len(c.test) for c in federation) == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": line(3) + line(12)}, "zip.train.gz: line 2, column 1 ('label'): 12 is none of 0 to 9"),
        ({"test": line("3.5")}, "zip.test.gz: line 1, column 1 ('label'): 3.5 is none of 0 to 9"),
        ({"train": line(3, [0, 1.5])}, "zip.train.gz: line 1, column 3: 1.5 is not within -1 and 1"),
        ({"train": "3 1 2\n"}, "zip.train.gz: line 1 has 3 cells, expected 257: a label and 16 × 16 values"),
        ({"train": line(3) + line(4).replace("-1.0000", "x", 1)}, "zip.train.gz: line 2, column 2 ('pixel 1,1'): "
         "'x' is no number"),
        ({"train": ""}, "zip.train.gz: line 1 has 0 cells, expected 257: a label and 16 × 16 values"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, change, message):
    with pytest.raises(UserError) as error:
        load("usps", root=str(write_usps(tmp_path, **change)))
    assert str(error.value) == f"{tmp_path}/{message}"


@pytest.mark.parametrize("cells", [256, 258])
def test_a_later_line_of_another_width(tmp_path, cells):
    wrong = "3 " + " ".join(["0"] * (cells - 1)) + "\n"
    with pytest.raises(UserError, match=f"zip.train.gz: line 2 has {cells} cells, expected 257"):
        load("usps", root=str(write_usps(tmp_path, train=line(3) + wrong)))
