"""Wi-CaL: the real features, and mistakes in a file of the same layout."""

import numpy as np
import pytest
from test_mnist import gathered

from conftest import real
from fedsense.data import load
from fedsense.data.splits import shared
from fedsense.errors import UserError
from fedsense.models import build_model


def test_published_counts():
    clients = gathered("wical", real("wical-counting.npz"))
    assert [client.id for client in clients] == [f"room{r}-day{d}" for r in (0, 1) for d in (1, 2, 3)]
    assert [len(client.y) for client in clients] == [1194] * 3 + [2189] * 3
    assert all(np.bincount(client.y).tolist() == [199] * (6 if "room0" in client.id else 11) for client in clients)
    with np.load(real("wical-counting.npz")) as arrays:
        mine = (arrays["room"] == 1) & (arrays["session"] == 2)
        np.testing.assert_array_equal(clients[4].x[:, 0], arrays["X"][mine])
        np.testing.assert_array_equal(clients[4].y, arrays["people"][mine])


def test_rows_resemble_their_neighbours_as_half_overlap_makes_them():
    """Why neighbours are taken to share measurements: correlation falls from the first to the second and then stays."""
    (first, *_) = gathered("wical", real("wical-counting.npz"))
    rows = first.x[first.y == 3][:, 0].astype(float)
    rows = (rows - rows.mean(0)) / rows.std(0)
    one, two, three = ((rows[lag:] * rows[:-lag]).mean() for lag in (1, 2, 3))
    assert one - two > 0.2
    assert abs(two - three) < 0.05


def test_the_last_of_each_count_is_tested_on_and_shares_nothing():
    federation = load("wical", root=str(real("wical-counting.npz")))
    assert federation.task.kind == "counting"
    assert federation.task.counts == tuple(range(11))
    for client in federation:
        assert client.input_shape == (1, 420)
        assert shared(client.train.origin, client.test.origin) == 0
        assert shared(client.train.origin, client.val.origin) == 0
        assert shared(client.val.origin, client.test.origin) == 0
        for count in client.train.y.unique():
            train, test = (s.origin[s.y == count, 1] for s in (client.train, client.test))
            assert (len(train), len(test)) == (138, 40)  # 199 less 40, 20 for validation, and one at each border
            assert train.max() < test.min()
        assert abs(float(client.train.x.mean())) < 1e-3
        assert float(client.train.x.std()) == pytest.approx(1, abs=1e-3)


def small(folder, **changes):
    people = np.repeat([0, 2, 1], 10)
    arrays = {
        "X": np.arange(30 * 420, dtype=np.float32).reshape(30, 420),
        "room": np.zeros(30, np.int8),
        "session": np.repeat([1, 2], 15),
        "people": people,
    }
    np.savez(folder / "wical.npz", **{k: v for k, v in (arrays | changes).items() if v is not None})
    return str(folder / "wical.npz")


@pytest.mark.parametrize(
    ("form", "shape", "models"),
    [
        ("signal", (1, 420), ("flic-mlp", "convnet4-tiny", "convnet4-large", "coad-cnn")),
        ("vector", (420,), ("flic-mlp",)),
    ],
)
def test_models_take_it(tmp_path, form, shape, models):
    client = load("wical", root=small(tmp_path), form=form, normalise="none").clients[0]
    assert client.input_shape == shape
    assert client.train.x[0].flatten()[:3].tolist() == [0, 1, 2]
    for model in models:
        assert build_model(model, client.input_shape, 11).network(client.train.x[:4]).logits.shape == (4, 11)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"people": None}, "holds no array 'people', only X, room, session"),
        ({"people": np.full(30, 11)}, "people of row 0 is 11, which is none of 0 to 10"),
        ({"room": np.zeros(29, int)}, "room is int64 of shape [29], expected whole numbers [30]"),
        ({"session": np.zeros(30)}, "session is float64 of shape [30], expected whole numbers [30]"),
        ({"X": np.zeros(30)}, "X is float64 of shape [30], expected numbers [n, features]"),
        ({"X": np.array([None] * 30)}, "holds Python objects, which are not trusted; save plain arrays of numbers"),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    with pytest.raises(UserError) as error:
        load("wical", root=small(tmp_path, **change))
    assert str(error.value) == f"{tmp_path}/wical.npz: {message}"
