"""The least value of a quadratic form on the simplex: by hand, against scipy, and what holds for any form."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from fedsense.ops import least_on_simplex


def least(form):
    return least_on_simplex(torch.as_tensor(np.array(form, float))).numpy()


def by_scipy(form):
    many, largest = len(form), form.diagonal().max()
    return minimize(
        lambda a: a @ form @ a / largest,
        np.full(many, 1 / many),
        jac=lambda a: 2 * form @ a / largest,
        bounds=[(0, 1)] * many,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    ).x


def by_nnls(form):
    """Q = L Lᵀ: the β ≥ 0 for which Lᵀβ is nearest to L⁻¹1, over its sum."""
    root = np.linalg.cholesky(form)
    beta = nnls(root.T, np.linalg.solve(root, np.ones(len(form))))[0]
    return beta / beta.sum()


def made(seed, many, width, noise, scale=1.0):
    """diag(V) + A Aᵀ; singular if there is no noise and width is less than many."""
    rng = np.random.default_rng(seed)
    points = scale * rng.normal(size=(many, width))
    return np.diag(noise * rng.uniform(0.1, 1, many)) + points @ points.T


def test_a_diagonal_form_gives_shares_in_inverse_proportion():
    """1/1 : 1/2 : 1/4 = 4 : 2 : 1."""
    np.testing.assert_allclose(least(np.diag([1.0, 2.0, 4.0])), np.array([4, 2, 1]) / 7, atol=1e-10)


def test_one_that_others_cannot_better_has_all():
    """From the first corner to the second the slope of (1, 2; 2, 5) is 2·(2 − 1) > 0, of (1, 1; 1, 3) it is 0."""
    np.testing.assert_allclose(least([[1, 2], [2, 5]]), [1, 0], atol=1e-12)
    np.testing.assert_allclose(least([[1, 1], [1, 3]]), [1, 0], atol=1e-6)
    assert least([[7.0]]).tolist() == [1.0]


def test_inside_and_at_the_edge_by_hand():
    """(2, −1; −1, 3) gives 2a² − 2ab + 3b², with b = 1 − a 7a² − 8a + 3, which is least at a = 4/7."""
    np.testing.assert_allclose(least([[2, -1], [-1, 3]]), [4 / 7, 3 / 7], atol=1e-10)
    third = [[2, -1, 9], [-1, 3, 9], [9, 9, 99]]
    np.testing.assert_allclose(least(third), [4 / 7, 3 / 7, 0], atol=1e-10)


def test_of_many_that_are_least_the_most_even():
    np.testing.assert_allclose(least(np.zeros((4, 4))), np.full(4, 0.25))
    np.testing.assert_allclose(least(np.ones((4, 4))), np.full(4, 0.25), atol=1e-3)
    np.testing.assert_allclose(least([[1, 1, 0], [1, 1, 0], [0, 0, 2]]), [1 / 3, 1 / 3, 1 / 3], atol=1e-3)


@pytest.mark.parametrize("scale", [0.01, 1.0])
@pytest.mark.parametrize("many", [2, 3, 6, 15])
def test_scipy_finds_the_same(many, scale):
    for seed in range(10):
        form = made(seed, many, 4, 1.0, scale)
        ours, theirs = least(form), by_scipy(form)
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        assert ours @ form @ ours <= theirs @ form @ theirs * (1 + 1e-9)


@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_scipys_nnls_finds_the_same_where_slsqp_is_inexact(scale):
    """The condition number is up to 10⁷."""
    for seed, many in itertools.product(range(10), (3, 15, 40)):
        form = made(seed, many, 4, 1.0, scale)
        np.testing.assert_allclose(least(form), by_nnls(form), atol=1e-6)


def test_large_and_small_numbers_do_not_matter():
    form = made(3, 8, 3, 0.5)
    for factor in (1e-20, 1e20):
        np.testing.assert_allclose(least(form * factor), least(form), atol=1e-9)


def test_where_exchanging_many_at_once_goes_in_circles():
    """Found by trying: exchanges of all at once alone never end here."""
    points = np.array([[7, -1, 2, 5], [15, -15, -6, 6], [-3, 9, 8, -7], [-1, -1, 2, -2], [4, 8, 2, 9]])
    form = points @ points.T + 0.1 * np.eye(5)
    np.testing.assert_allclose(least(form), by_nnls(form), atol=1e-6)


@settings(max_examples=200)
@given(
    st.integers(0, 10**6),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([0.0, 1e-6, 0.1, 10.0]),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_on_the_simplex_and_no_worse_than_anywhere_else(seed, many, width, noise, scale):
    form = made(seed, many, width, noise, scale)
    shares = least(form)
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)
    value, rounding = shares @ form @ shares, 1e-9 * form.diagonal().max()
    elsewhere = np.random.default_rng(seed).dirichlet(np.full(many, 0.3), size=50)
    others = [*np.eye(many), np.full(many, 1 / many), *elsewhere]
    assert all(value <= other @ form @ other + rounding for other in others)
    slope = form @ shares  # what is convex has no smaller value anywhere if no direction to a corner goes down
    assert slope.min() >= value - rounding
