"""The EEG caps that differ: tangent vectors against SciPy, Wishart draws, electrodes of the subject's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import eigvalsh, inv, logm, sqrtm
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedsense.data.synthetic.eeg import (
    SITES,
    Options,
    cap,
    draw_subject,
    potentials,
    riemannian_mean,
    synthetic_eeg,
    tangent_vectors,
    trials,
    wishart,
)
from fedsense.errors import UserError
from fedsense.federation import SPLITS
from fedsense.work import stream


def options(**changes):
    plain = Options(
        samples=60,
        classes=4,
        electrodes=(4, 9),
        sources=12,
        degrees=120,
        feature_skew=1.0,
        val=0.1,
        test=0.25,
        seed=3,
    )
    return replace(plain, **changes)


def some_covariances(count=7, size=5):
    factors = stream("covariances").standard_normal((count, size, 3 * size))
    return factors @ factors.swapaxes(1, 2) / (3 * size)


def by_scipy(covariance, mean):
    """The tangent vector, written as its definition, entry by entry."""
    inverse = inv(sqrtm(mean))
    log = logm(inverse @ covariance @ inverse)
    size = len(mean)
    return np.array([log[i, j] * (1 if i == j else 2**0.5) for i in range(size) for j in range(i, size)])


def test_tangent_vectors_are_scipy_s():
    covariances = some_covariances()
    mean = riemannian_mean(covariances)
    vectors = tangent_vectors(covariances, mean)
    assert vectors.shape == (7, 15)
    np.testing.assert_allclose(vectors[2], by_scipy(covariances[2], mean), atol=1e-10)


def test_tangent_vectors_by_hand():
    """At the identity, diag(e, e²) has logarithm diag(1, 2); turned by 45°, [[1.5, -0.5], [-0.5, 1.5]]."""
    turn = np.array([[1, 1], [-1, 1]]) / np.sqrt(2)
    straight = np.diag(np.exp([1.0, 2.0]))
    vectors = tangent_vectors(np.stack([straight, turn.T @ straight @ turn]), np.eye(2))
    np.testing.assert_allclose(vectors, [[1, 0, 2], [1.5, -0.5 * 2**0.5, 1.5]], atol=1e-12)


def test_the_length_of_a_tangent_vector_is_the_distance():
    one, other = some_covariances(2)
    distance = np.sqrt((np.log(eigvalsh(one, other)) ** 2).sum())  # affine-invariant, by generalised eigenvalues
    assert np.linalg.norm(tangent_vectors(one[None], other)) == pytest.approx(distance)


def test_the_mean_is_where_tangent_vectors_sum_to_zero():
    covariances = some_covariances(20)
    mean = riemannian_mean(covariances)
    np.testing.assert_allclose(tangent_vectors(covariances, mean).mean(0), 0, atol=1e-9)
    # of matrices that commute it is the geometric mean, and of two the midpoint A^½ (A^-½ B A^-½)^½ A^½
    np.testing.assert_allclose(riemannian_mean(np.stack([np.diag([1.0, 4.0]), np.diag([9.0, 4.0])])), np.diag([3, 4]))
    a, b = covariances[:2]
    root = sqrtm(a)
    midpoint = root @ sqrtm(inv(root) @ b @ inv(root)) @ root
    np.testing.assert_allclose(riemannian_mean(covariances[:2]), midpoint, atol=1e-9)
    np.testing.assert_allclose(riemannian_mean(a[None]), a, atol=1e-12)


def test_wishart_draws_have_the_right_mean_and_variance():
    sigma = some_covariances(1, 4)[0]
    drawn = wishart(np.broadcast_to(sigma, (20_000, 4, 4)), 30, stream(1))
    np.testing.assert_allclose(drawn.mean(0), sigma, atol=0.01)
    # Var C_ij = (Σ_ij² + Σ_ii Σ_jj) / degrees
    diagonal = np.diag(sigma)
    np.testing.assert_allclose(drawn.var(0), (sigma**2 + np.outer(diagonal, diagonal)) / 30, rtol=0.06)
    assert np.linalg.eigvalsh(drawn).min() > 0


def test_potentials_of_a_dipole_by_hand():
    """0.2 below the sensor, 1/0.2² = 25; at right angles to it nothing; it falls with distance."""
    up = np.array([[0.0, 0.0, 1.0]])
    assert potentials(up, 0.8 * up, up)[0, 0] == pytest.approx(25)
    assert potentials(np.array([[1.0, 0.0, 0.8]]), 0.8 * up, up)[0, 0] == pytest.approx(0)
    nearness = (cap(SITES) @ up[0]).argsort()[::-1]
    seen = potentials(cap(SITES), 0.8 * up, up)[nearness, 0]
    assert (np.diff(seen[:10]) <= 1e-9).all()


def test_a_cap_is_spread_over_the_upper_half():
    sites = cap(SITES)
    np.testing.assert_allclose(np.linalg.norm(sites, axis=1), 1)
    assert sites[:, 2].min() > 0
    apart = np.linalg.norm(sites[:, None] - sites, axis=-1) + 2 * np.eye(SITES)
    assert apart.min() > 0.25


def test_a_class_lowers_the_power_of_its_own_source():
    for number in range(10):
        subject = draw_subject(number, options())
        ratio = subject.power / subject.power.max(0)
        lowered = np.argwhere(ratio < 1)
        assert lowered.tolist() == [[0, 0], [1, 3], [2, 6], [3, 9]]
        np.testing.assert_allclose(subject.covariances, subject.covariances.swapaxes(1, 2))
        byhand = subject.mixing @ np.diag(subject.power[1]) @ subject.mixing.T + np.diag(subject.noise)
        np.testing.assert_allclose(subject.covariances[1], byhand)


def test_electrodes_and_widths_differ_between_subjects():
    federation = synthetic_eeg(clients=12, samples=40).check()
    counts = [client.traits["electrodes"] for client in federation]
    assert len(set(counts)) > 4
    assert 8 <= min(counts) <= max(counts) <= 16
    for client, count in zip(federation, counts, strict=True):
        assert client.input_shape == (count * (count + 1) // 2,)
        assert len(set(client.traits["sites"].split())) == count
        for name in SPLITS:
            samples = client.split(name)
            assert samples.x.shape == (len(samples), *client.input_shape)
            assert samples.x.dtype == torch.float32
            assert samples.y.dtype == torch.int64
    assert len({client.traits["sites"] for client in federation}) == 12
    drawn = [len(draw_subject(number, options(electrodes=(4, 9))).sites) for number in range(200)]
    assert set(drawn) == set(range(4, 10))


def test_features_are_tangent_vectors_at_the_mean_of_training_trials_alone():
    client = synthetic_eeg(clients=1, samples=60, electrodes=(4, 9), seed=3).clients[0]
    _, covariances, label, split = trials(0, options())
    mean = riemannian_mean(covariances[split == 0])
    for place, name in enumerate(SPLITS):
        samples = client.split(name)
        assert samples.y.tolist() == label[split == place].tolist()
        np.testing.assert_allclose(samples.x[1], by_scipy(covariances[split == place][1], mean), atol=1e-5)
        assert samples.origin[:, 0].tolist() == np.flatnonzero(split == place).tolist()
    np.testing.assert_allclose(client.train.x.mean(0), 0, atol=1e-5)
    assert client.test.x.mean(0).abs().max() > 1e-3


def test_splits_hold_every_class_and_share_no_trial():
    for client in synthetic_eeg(clients=4, samples=40, seed=1):
        assert [len(client.split(name)) for name in SPLITS] == [26, 4, 10]
        assert set(client.train.y.tolist()) == set(client.test.y.tolist()) == set(range(4))
        everything = torch.cat([client.split(name).x for name in SPLITS])
        assert len(torch.unique(everything, dim=0)) == 40
        numbers = torch.cat([client.split(name).origin[:, 0] for name in SPLITS])
        assert sorted(numbers.tolist()) == [*range(40)]


def test_a_linear_classifier_tells_classes_apart():
    scores = []
    for client in synthetic_eeg(clients=6, samples=160, seed=0):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
        model.fit(client.train.x.numpy(), client.train.y.numpy())
        scores.append(model.score(client.test.x.numpy(), client.test.y.numpy()))
    assert min(scores) > 0.35  # chance is 0.25
    assert 0.6 < np.mean(scores) < 0.95


def test_without_feature_skew_subjects_differ_in_their_electrodes_alone():
    alike = [draw_subject(number, options(feature_skew=0.0, electrodes=(SITES, SITES))) for number in range(2)]
    np.testing.assert_array_equal(alike[0].covariances, alike[1].covariances)
    caps = [draw_subject(number, options(feature_skew=0.0)).sites.tolist() for number in range(5)]
    assert len({tuple(sites) for sites in caps}) == 5
    different = [draw_subject(number, options(electrodes=(SITES, SITES))) for number in range(2)]
    assert np.abs(different[0].mixing / different[1].mixing - 1).mean() > 0.1


def test_the_seed_decides_everything_and_a_client_does_not_depend_on_how_many_there_are():
    first, again, other = (synthetic_eeg(clients=3, samples=24, seed=seed) for seed in (5, 5, 6))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    few = synthetic_eeg(clients=2, samples=24, seed=5)
    assert few.fingerprint == first.with_clients(first.clients[:2]).fingerprint
    for one, *others in zip(few, first.clients[:2], again.clients[:2], strict=True):
        assert all(torch.equal(one.split(s).x, two.split(s).x) for s in SPLITS for two in others)
    assert not torch.equal(few.clients[0].train.x[:, :6], other.clients[0].train.x[:, :6])


def test_sizes_and_widths_are_known_before_anything_is_made_and_are_the_real_ones():
    federation = synthetic_eeg(clients=8, samples=50, classes=3, electrodes=(3, 9), val=0.15, seed=2)
    promised = [[(len(split), *split.shape) for split in client.splits] for client in federation]
    assert not any(client.train.recordings.here for client in federation)
    assert promised == [[tuple(split.x.shape) for split in client.splits] for client in federation]


def test_says_that_it_is_synthetic():
    federation = synthetic_eeg(clients=1, samples=24, classes=2)
    assert federation.synthetic
    assert federation.description.startswith("Synthetic: ")
    assert federation.name == "synthetic-eeg"
    assert len(federation.task.classes) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"samples": 6},
        {"classes": 1},
        {"electrodes": (0, 4)},
        {"electrodes": (9, 8)},
        {"electrodes": (8, 33)},
        {"sources": 3},
        {"degrees": 15},
        {"feature_skew": -1.0},
        {"feature_skew": float("nan")},
        {"val": 0.5, "test": 0.5},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_wrong_options_are_named(wrong):
    with pytest.raises(UserError, match=f"synthetic-eeg: {next(iter(wrong))} = ") as caught:
        synthetic_eeg(**wrong)
    assert "\n" not in str(caught.value)
