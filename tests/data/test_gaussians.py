"""FLIC's toy problems: the sizes the paper reports, classes shared evenly, input spaces of the client's own."""

import numpy as np
import pytest
import torch

from fedsense.data.synthetic.gaussians import assign, toy_linear_map, toy_noisy_features
from fedsense.errors import UserError
from fedsense.federation import SPLITS
from fedsense.work import stream

BOTH = pytest.mark.parametrize("make", [toy_noisy_features, toy_linear_map])


def sizes(make, seeds, **options):
    """Training samples, ``[seeds, clients]``."""
    return np.array([[len(client.train) for client in make(seed=seed, **options)] for seed in seeds])


@BOTH
def test_the_sizes_are_those_of_the_paper(make):
    """About 16k (noisy) and 15k (linear) samples in all; 38 the fewest and 400 the most of a client."""
    drawn = sizes(make, range(16))
    totals = drawn.sum(1)
    # expected share kept: (54.875 + 25) / 2 = 39.94 % of 40,000; a client's deviates by 25 %, so a total by 1,000
    assert totals.mean() == pytest.approx(15_975, abs=600)
    assert totals.std() == pytest.approx(1000, abs=350)
    assert (np.abs(totals[:, None] - [15_000, 16_000]) < 1000).any(0).all()  # single draws come out as both papers'
    assert drawn.max() == 400
    assert (drawn.max(1) == 400).mean() > 0.75  # some client keeps all with probability 1 - 0.975^100 = 0.92
    assert 20 <= drawn.min() <= drawn.min(1).max() < 80
    assert (drawn.min(1) >= 38).any()  # the paper's minimum is on the high side of what is drawn
    assert (drawn.min(1) < 38).any()


def test_a_uniform_draw_would_not_give_the_paper_s_total():
    totals = sizes(toy_noisy_features, range(8), keep="uniform").sum(1)
    assert totals.mean() == pytest.approx(21_000, abs=800)
    assert totals.min() > 17_000
    assert set(sizes(toy_noisy_features, [0], keep="all").ravel()) == {400}


def test_every_class_has_ten_holders_and_test_is_shared_whole():
    federation = toy_noisy_features(seed=1, keep="all")
    train, test = (np.array([*federation.class_counts(split).values()]) for split in ("train", "test"))
    assert set((train > 0).sum(0)) == {10}
    assert set((train > 0).sum(1)) == {2}
    assert set(train[train > 0]) == {200}
    assert set(test[train > 0]) == {100}
    assert test[train == 0].sum() == 0
    subsampled = toy_noisy_features(seed=1)
    assert [len(client.test) for client in subsampled] == [200] * 100
    assert all(len(client.val) == 0 for client in subsampled)


@pytest.mark.parametrize(("clients", "kept", "classes"), [(100, 2, 20), (7, 3, 5), (3, 2, 20), (4, 6, 6), (1, 1, 2)])
def test_holders_are_as_even_as_can_be(clients, kept, classes):
    for seed in range(5):
        holds = assign(clients, kept, classes, stream(seed))
        assert set(holds.sum(1)) == {kept}
        assert np.ptp(holds.sum(0)) <= 1
        assert holds.sum(0).max() == -(-clients * kept // classes)


def test_no_example_is_given_twice():
    federation = toy_noisy_features(clients=10, samples=60, test_samples=40, noise=(0, 0), seed=3)
    points = torch.cat([client.split(name).x for client in federation for name in SPLITS])
    assert len(torch.unique(points, dim=0)) == len(points)


def test_what_is_kept_is_drawn_among_all_classes_together():
    federation = toy_noisy_features(clients=20, classes_per_client=2, classes=2, samples=2000, seed=4)
    counts = np.array([*federation.class_counts().values()])
    assert (counts[:, 0] != counts[:, 1]).any()  # not so many of each class
    share = counts[:, 0] / counts.sum(1)
    assert share.mean() == pytest.approx(0.5, abs=0.05)


@BOTH
def test_classes_are_gaussians_with_identity_covariance_around_drawn_means(make):
    flat = {"noise": (0, 0)} if make is toy_noisy_features else {"widths": (5, 5)}
    federation = make(clients=1, classes_per_client=20, samples=4000, keep="all", seed=2, **flat)
    client = federation.clients[0]
    x, y = client.train.x.double().numpy(), client.train.y.numpy()
    means = np.stack([x[y == label].mean(0) for label in range(20)])
    within = np.cov((x - means[y]).T)
    if make is toy_linear_map:  # covariance of the mapped points is MᵀM: undo it
        factor = np.linalg.inv(np.linalg.cholesky(within))
        means, within = means @ factor.T, factor @ within @ factor.T
        spread = 0.5
    else:
        spread = 0.8
    np.testing.assert_allclose(within, np.eye(5), atol=0.03)
    assert means.std() == pytest.approx(spread, rel=0.2)  # of 100 numbers, so 7 % at one deviation
    test = np.stack([client.test.x.numpy()[client.test.y.numpy() == label].mean(0) for label in range(20)])
    train = np.stack([x[y == label].mean(0) for label in range(20)])
    assert np.abs(test - train).max() < 6 * np.sqrt(x.var(0).max() / 1000)  # one mean, both splits


def test_noise_features_are_one_to_ten_and_tell_nothing():
    federation = toy_noisy_features(seed=0)
    widths = np.array([client.input_shape[0] for client in federation])
    assert set(widths) == set(range(6, 16))
    client = max(federation, key=lambda c: len(c.train))
    noise = client.train.x[:, 5:]
    assert float(noise.mean()) == pytest.approx(0, abs=0.1)
    assert float(noise.std()) == pytest.approx(1, abs=0.1)
    assert client.test.x.shape[1] == client.train.x.shape[1] == client.val.x.shape[1] == client.traits["features"]


def test_the_linear_map_has_rank_five_and_widths_from_three_to_a_hundred():
    federations = [toy_linear_map(clients=200, seed=seed) for seed in range(5)]
    widths = np.array([client.input_shape[0] for federation in federations for client in federation])
    assert (widths.min(), widths.max()) == (3, 100)
    assert len(set(widths)) == 98
    for client in federations[0].clients[:20]:
        together = torch.cat([client.train.x, client.test.x]).double()
        assert int(torch.linalg.matrix_rank(together, rtol=1e-5)) == min(5, client.input_shape[0])  # one map for both


@BOTH
def test_the_seed_decides_everything(make):
    first, again, other = (make(clients=8, samples=50, test_samples=20, seed=seed) for seed in (5, 5, 6))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


@BOTH
def test_sound_and_says_that_it_is_synthetic(make):
    federation = make(clients=3, samples=40, test_samples=20).check()
    assert federation.synthetic
    assert federation.description.startswith("Synthetic: ")
    assert federation.name == make.__name__.replace("_", "-")
    assert all(client.train.x.dtype == torch.float32 and client.train.y.dtype == torch.int64 for client in federation)


def test_a_class_nobody_holds():
    federation = toy_noisy_features(clients=3, samples=2000, keep="all")
    counts = np.array([*federation.class_counts().values()])
    assert len(federation.task.classes) == 20
    assert (counts.sum(0) == 0).sum() == 14
    assert set(counts.sum(1)) == {4000}


def test_uneven_shares_differ_by_one_and_a_tiny_client_keeps_a_sample():
    federation = toy_noisy_features(clients=6, classes_per_client=2, classes=3, samples=10, test_samples=4, keep="all")
    counts = np.array([*federation.class_counts().values()])
    assert counts.sum(0).tolist() == [10, 10, 10]
    assert set(counts[counts > 0]) == {2, 3}
    tiny = toy_noisy_features(clients=40, classes_per_client=1, classes=2, samples=20, test_samples=20)
    assert min(len(client.train) for client in tiny) == 1


@BOTH
@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"classes_per_client": 0},
        {"classes_per_client": 21},
        {"classes": 1, "classes_per_client": 1},
        {"classes": 0},
        {"samples": 9},
        {"test_samples": 9},
        {"dimension": 0},
        {"deviation": -1.0},
        {"deviation": float("nan")},
        {"keep": "half"},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_wrong_options_are_named(make, wrong):
    with pytest.raises(UserError, match=f"{make.__name__.replace('_', '-')}: {next(iter(wrong))} = ") as caught:
        make(**wrong)
    assert "\n" not in str(caught.value)


def test_wrong_ranges_are_named():
    with pytest.raises(UserError, match=r"toy-noisy-features: noise = \[5, 2\]"):
        toy_noisy_features(noise=(5, 2))
    with pytest.raises(UserError, match=r"toy-linear-map: widths = \[0, 2\]"):
        toy_linear_map(widths=(0, 2))
