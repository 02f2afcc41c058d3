"""k-means against scikit-learn's, and what is ours to settle."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from fedsense.ops.kmeans import kmeans


@pytest.mark.parametrize("guessed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_equals_scikit_learns(seed, guessed):
    """Same centres from the same beginning; blobs that touch, so that it takes several iterations."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(8, 5))
    owner = np.arange(400) % 8
    points = (truth[owner] + 0.5 * rng.normal(size=(400, 5)) + 3).astype(np.float32)
    start = points[:8].copy()
    theirs = KMeans(8, init=start, n_init=1, max_iter=300, tol=1e-4, algorithm="lloyd").fit(points)
    assert theirs.n_iter_ > 2
    guess = torch.from_numpy(owner if seed % 2 else rng.integers(8, size=400)) if guessed else None  # good, and bad
    centres, labels = kmeans(torch.from_numpy(points), torch.from_numpy(start), guess)
    np.testing.assert_allclose(centres.numpy(), theirs.cluster_centers_, atol=1e-4)
    assert (labels.numpy() == theirs.labels_).mean() > 0.99  # of the last but one centres, where tolerance ended it


def test_by_hand():
    """On a line: 0, 1, 10, 12 from centres 0 and 5 → 0.5 and 11."""
    points = torch.tensor([[0.0], [1.0], [10.0], [12.0]])
    centres, labels = kmeans(points, torch.tensor([[0.0], [5.0]]))
    assert centres.tolist() == [[0.5], [11.0]]
    assert labels.tolist() == [0, 0, 1, 1]


def test_a_centre_nobody_belongs_to_stays():
    points = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    centres, labels = kmeans(points, torch.tensor([[1.0, 0.0], [50.0, 50.0]]))
    torch.testing.assert_close(centres, torch.tensor([[1.0, 0.0], [50.0, 50.0]]))
    assert labels.tolist() == [0, 0]


def test_one_centre_one_point_and_equal_points():
    assert kmeans(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))[0].tolist() == [[3.0, 4.0]]
    centres, _ = kmeans(torch.ones(5, 2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert centres.tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_guesses_do_not_change_the_result():
    generator = torch.Generator().manual_seed(0)
    points, start = torch.randn(300, 3, generator=generator), torch.randn(20, 3, generator=generator)
    plain, labels = kmeans(points, start, tolerance=0)
    for guess in (torch.randint(20, (300,), generator=generator), labels):
        again, found = kmeans(points, start, guess, tolerance=0)
        torch.testing.assert_close(again, plain)
        assert torch.equal(found, labels)


def test_a_guess_that_is_right_at_first_does_not_end_it():
    """Centres begin at a weighted mean, and the first move goes to the plain one: labels may change after it."""
    points = torch.tensor([[0.0], [10.0], *[[0.0], [5.2]] * 5, [4.9], [5.2]])
    start = torch.tensor([[0.005], [9.97]])
    plain = kmeans(points, start)[0]
    first = (points - start.T).abs().argmin(1)
    theirs = KMeans(2, init=start.numpy(), n_init=1).fit(points.numpy()).cluster_centers_
    np.testing.assert_allclose(plain.numpy(), theirs, atol=1e-4)
    torch.testing.assert_close(kmeans(points, start, first)[0], plain)
