"""Alignment with anchors against numbers worked out by hand, scipy and POT."""

import builtins
import math

import numpy as np
import ot
import ot.gaussian
import pytest
import torch
from scipy.linalg import sqrtm

from fedsense.errors import UserError
from fedsense.ops import barycentre, between_means, bures, class_weights, draw, mmd, transport, wasserstein
from fedsense.ops.alignment import WIDTHS, _polar
from fedsense.tape import Tape

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(*shape, generator=generator(seed), dtype=dtype)


def minibatch(many=12, classes=4, width=3, seed=0, dtype=DOUBLE):
    """Embeddings, labels of all classes but the last, a mask with two that do not count, and anchors."""
    z, mean = normal(many, width, seed=seed, dtype=dtype), 3 * normal(classes, width, seed=seed + 1, dtype=dtype)
    y = torch.arange(many) % (classes - 1)
    mask = torch.ones(many, dtype=dtype)
    mask[[1, many - 1]] = 0
    factor = torch.eye(width, dtype=dtype) + 0.3 * normal(classes, width, width, seed=seed + 2, dtype=dtype).tril()
    return z, y, mask, mean, factor


def spread(singular, seed=0, dtype=DOUBLE):
    """A matrix with these singular values."""
    many = len(singular)
    left, right = (torch.linalg.qr(normal(many, many, seed=seed + i))[0] for i in (0, 1))
    return (left @ torch.diag(torch.tensor(singular, dtype=DOUBLE)) @ right).to(dtype)


def points_of(mean, factor, many=5, seed=9):
    return draw(mean, factor, normal(len(mean), many, mean.shape[1], seed=seed, dtype=mean.dtype))


def of(distance, z, y, mask, mean, factor):
    """Any of the distances, by what it takes."""
    if distance is between_means:
        return distance(z, y, mask, mean)
    return distance(z, y, mask, *((mean, factor) if distance is wasserstein else (points_of(mean, factor),)))


# Of four classes: polar factors by one matrix of all samples (9³ ≤ 4·6³), or by one of each class's dimensions.
BOTH_WAYS = pytest.mark.parametrize(("many", "width"), [(9, 6), (40, 2)])
ALL = [between_means, wasserstein, mmd, transport]
TOGETHER = ALL[:3]


def test_weights_by_hand():
    """Class 0 has samples 0 and 2 (its third is padding), class 1 has sample 1, class 2 none."""
    got = class_weights(torch.tensor([0, 1, 0, 0]), torch.tensor([1.0, 1.0, 1.0, 0.0]), 3)
    assert got.tolist() == [[0.5, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]


def test_between_means_by_hand():
    """Class 0: mean of (1,1) and (3,5) is (2,3), anchor (0,0): 13. Class 1: (4,0) to (4,2): 4. Class 2 has none."""
    z, y = torch.tensor([[1.0, 1.0], [4.0, 0.0], [3.0, 5.0], [99.0, 99.0]]), torch.tensor([0, 1, 0, 1])
    mean = torch.tensor([[0.0, 0.0], [4.0, 2.0], [7.0, 7.0]])
    assert between_means(z, y, torch.tensor([1.0, 1.0, 1.0, 0.0]), mean).item() == 17.0


def test_wasserstein_by_hand():
    """Samples (±√2, 0), (0, ±√2) about (1, 0): mean (1, 0), covariance I. Anchor N(0, diag(4, 9)).

    ‖v − m‖² = 1, and B² of diagonal covariances is Σ (σ − σ̂)² = (2 − 1)² + (3 − 1)² = 5.
    """
    r = math.sqrt(2)
    z = torch.tensor([[1 + r, 0.0], [1 - r, 0.0], [1.0, r], [1.0, -r]], dtype=DOUBLE)
    y, mask, mean = torch.zeros(4).long(), torch.ones(4, dtype=DOUBLE), torch.zeros(1, 2, dtype=DOUBLE)
    factor = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]], dtype=DOUBLE)
    assert wasserstein(z, y, mask, mean, factor).item() == pytest.approx(6.0)
    assert wasserstein(z, y, mask, mean, torch.eye(2, dtype=DOUBLE)[None]).item() == pytest.approx(1.0)
    assert wasserstein(z, y, mask, mean, None).item() == pytest.approx(1.0)


def test_wasserstein_of_one_sample_is_its_squared_distance_and_the_anchors_trace():
    """(3,4) to N(0, LLᵀ), L = (1 0; 2 3): 25 + 1 + 4 + 9. The gradient to z is that of the squared distance alone."""
    z, mean = torch.tensor([[3.0, 4.0]], requires_grad=True), torch.zeros(2, 2)
    factor = torch.tensor([[[1.0, 0.0], [2.0, 3.0]]] * 2, requires_grad=True)
    value = wasserstein(z, torch.tensor([1]), torch.ones(1), mean, factor)
    assert value.item() == 39.0
    by_z, by_factor = torch.autograd.grad(value, [z, factor])
    assert by_z.tolist() == [[6.0, 8.0]]
    assert by_factor.tolist() == [[[0.0, 0.0], [0.0, 0.0]], [[2.0, 0.0], [4.0, 6.0]]]


@BOTH_WAYS
def test_wasserstein_is_pots_and_scipys(many, width):
    """Classes of fewer samples than dimensions, and of more."""
    z, y, mask, mean, factor = minibatch(many, 4, width)
    theirs = pots = 0.0
    for c in range(3):
        own = z[(y == c) & (mask > 0)].numpy()
        m, s = own.mean(0), np.cov(own.T, bias=True) + 1e-14 * np.eye(width)  # they need a full rank
        v, t = mean[c].numpy(), (factor[c] @ factor[c].T).numpy()
        root = sqrtm(t)
        theirs += ((v - m) ** 2).sum() + np.trace(t + s) - 2 * np.trace(sqrtm(root @ s @ root)).real
        pots += ot.gaussian.bures_wasserstein_distance(v, m, t, s) ** 2
    assert wasserstein(z, y, mask, mean, factor).item() == pytest.approx(theirs, rel=1e-6)
    assert wasserstein(z, y, mask, mean, factor).item() == pytest.approx(pots, rel=1e-5)
    unit = torch.eye(width, dtype=DOUBLE).expand_as(factor)
    torch.testing.assert_close(wasserstein(z, y, mask, mean, unit), wasserstein(z, y, mask, mean, None))


@BOTH_WAYS
def test_polar_factors_are_those_of_each_class(many, width):
    _, y, mask, *_ = minibatch(many)
    member = (class_weights(y, mask, 4) > 0).double()
    rows = normal(many, width) * mask[:, None] * torch.tensor([1e-5, 1.0, 1e5, 1.0], dtype=DOUBLE)[y][:, None]
    got = _polar(rows, member)
    for c in range(3):
        own = member[c] > 0
        u, _, v = torch.linalg.svd(rows[own], full_matrices=False)
        torch.testing.assert_close(got[own], u @ v)
    assert got[mask == 0].abs().max() == 0


def test_polar_factor_of_a_singular_matrix_is_over_singular_values_that_are_not_zero():
    """(2 0; 0 0; 0 0) has the polar factor (1 0; 0 0; 0 0); zeros have zeros."""
    for member in (torch.ones(1, 3), torch.ones(1, 3).double()):
        rows = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
        torch.testing.assert_close(_polar(rows, member), rows / 2)
        assert _polar(rows * 0, member).abs().max() == 0


@pytest.mark.parametrize("distance", ALL)
@BOTH_WAYS
def test_gradients_are_those_of_finite_differences(distance, many, width):
    z, y, mask, mean, factor = minibatch(many, 4, width)
    inputs = [t.clone().requires_grad_() for t in (z, mean, factor)]
    inputs = inputs[: 2 if distance is between_means else 3]
    assert torch.autograd.gradcheck(lambda z, mean, factor=None: of(distance, z, y, mask, mean, factor), inputs)


@pytest.mark.parametrize("distance", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@BOTH_WAYS
def test_absent_classes_and_padding_have_no_gradient_at_all(distance, dtype, many, width):
    """Class 3 has no sample, and class 2 only padding."""
    z, y, mask, mean, factor = minibatch(many, 4, width, dtype=dtype)
    mask = mask * (y != 2)
    inputs = [t.requires_grad_() for t in (z, mean, factor)]
    by_z, by_mean, by_factor = torch.autograd.grad(
        of(distance, z, y, mask, mean, factor), inputs, allow_unused=True, materialize_grads=True
    )
    assert (by_z[mask == 0] == 0).all()
    assert (by_z[mask > 0].abs().sum(1) > 0).all()
    assert (by_mean[2:] == 0).all()
    assert (by_factor[2:] == 0).all()
    assert (by_mean[:2].abs().sum(1) > 0).all()
    nothing = of(distance, z, y, mask * 0, mean, factor)
    assert nothing.item() == 0.0
    assert (torch.autograd.grad(nothing, z)[0] == 0).all()


@pytest.mark.parametrize("distance", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@BOTH_WAYS
def test_padding_changes_nothing(distance, dtype, many, width):
    z, y, mask, mean, factor = minibatch(many, 4, width, dtype=dtype)
    other, labels = z.clone(), y.clone()
    other[mask == 0], labels[mask == 0] = 1e4, 3
    plain, filled = (x.requires_grad_() for x in (z, other))
    values = [of(distance, plain, y, mask, mean, factor), of(distance, filled, labels, mask, mean, factor)]
    assert torch.equal(*values)
    assert torch.equal(*(torch.autograd.grad(v, x)[0] for v, x in zip(values, (plain, filled), strict=True)))
    left_out = of(distance, z[mask > 0], y[mask > 0], mask[mask > 0], mean, factor)
    torch.testing.assert_close(left_out, values[0].detach(), check_dtype=True)


ILL = {
    "condition 1e12": [1.0, 1e-2, 1e-4, 1e-6],  # of the factor; squared, of the covariance
    "rank two": [2.0, 1.0, 0.0, 0.0],
    "all the same": [1.0, 1.0, 1.0, 1.0],
    "repeated": [3.0, 3.0, 1e-3, 1e-3],
    "nothing": [0.0] * 4,
    "huge": [1e6, 1e6, 1.0, 1e-6],
}


@pytest.mark.parametrize("samples", ILL.values(), ids=ILL)
@pytest.mark.parametrize("anchor", ILL.values(), ids=ILL)
@pytest.mark.parametrize("classes", [2, 100])  # all but two have no samples; of 100, polar factors are found at once
def test_wasserstein_has_finite_gradients_in_single_precision(samples, anchor, classes):
    """Eight samples ±(columns of a matrix), and as many of another class."""
    own = spread(samples, dtype=torch.float32)
    z = torch.cat([own.T, -own.T])
    z = torch.cat([z, normal(*z.shape, dtype=torch.float32)]).requires_grad_()
    y = (torch.arange(len(z)) >= len(z) // 2).long()
    mean = torch.zeros(classes, 4, requires_grad=True)
    factor = torch.stack([spread(anchor, seed=5), *[spread([1.0] * 4, seed=7)] * (classes - 1)])
    factor = factor.float().requires_grad_()
    value = wasserstein(z, y, torch.ones(len(z)), mean, factor)
    grads = torch.autograd.grad(value, [z, mean, factor])
    assert all(g.isfinite().all() for g in grads)
    exact = sum(
        _closed_form(z[y == c].detach().double(), mean[c].detach().double(), factor[c].detach().double())
        for c in (0, 1)
    )
    scale = float(factor[:2].detach().square().sum() + z.detach().square().sum())
    assert value.item() == pytest.approx(exact, abs=2e-6 * scale)
    # ∂/∂L = 2 (L − X polar): no longer than what is apart.
    assert grads[2].norm() <= 2 * (factor.norm() + z.norm())


def _closed_form(z, v, factor):
    m = z.mean(0)
    return float((v - m).square().sum() + bures(factor @ factor.T, (z - m).T @ (z - m) / len(z)))


def test_gradients_do_not_grow_with_the_condition():
    """Σ̂ = diag(1, ε²), Σ = I: ∂B²/∂z is bounded, though the root of Σ̂ has the derivative 1/2ε.

    z = (±√2, 0), (0, ±√2 ε): the value is (1 − ε)², and moving the last two outwards changes it by −2 (1 − ε).
    """
    r, y, mask, mean = math.sqrt(2), torch.zeros(4).long(), torch.ones(4), torch.zeros(1, 2)
    for epsilon in (0.5, 1e-3, 1e-5):
        z = torch.tensor([[r, 0.0], [-r, 0.0], [0.0, r * epsilon], [0.0, -r * epsilon]], requires_grad=True)
        value = wasserstein(z, y, mask, mean, torch.eye(2)[None])
        assert value.item() == pytest.approx((1 - epsilon) ** 2, abs=1e-5)
        by_z = torch.autograd.grad(value, z)[0]
        # Σ̂₂₂ = 2 (r t)² / 4 = t² at t = ε; d/dt (1 − t)² = Σ_j ∂/∂z_j2 · (± r), both alike.
        outwards = -(1 - epsilon) / r
        torch.testing.assert_close(
            by_z, torch.tensor([[0, 0], [0, 0], [0, outwards], [0, -outwards]]), atol=1e-5, rtol=1e-5
        )


def test_what_is_not_finite_stays_so():
    """A training that diverged is noticed by its loss; it does not fail in the middle of a minibatch."""
    z, y, mask, mean, factor = minibatch()
    for bad in (math.nan, math.inf):
        z[0, 0] = bad
        for distance in (between_means, wasserstein, transport):
            assert not of(distance, z, y, mask, mean, factor).isfinite()


def covariance(singular, seed):
    factor = spread(singular, seed)
    return factor @ factor.T


def test_bures_by_hand_and_against_pot_and_scipy():
    """Of diagonal ones (2 − 1)² + (3 − 5)² = 5."""
    a, b = torch.diag(torch.tensor([4.0, 9.0])), torch.diag(torch.tensor([1.0, 25.0]))
    assert bures(a, b).item() == pytest.approx(5.0)
    a, b = covariance([3.0, 1.0, 0.5], 0), covariance([1.0, 2.0, 0.1], 5)
    root = sqrtm(a.numpy())
    theirs = np.trace(a + b) - 2 * np.trace(sqrtm(root @ b.numpy() @ root)).real
    assert bures(a, b).item() == pytest.approx(theirs, rel=1e-10)
    assert bures(a, b).item() == pytest.approx(ot.gaussian.bures_distance(a.numpy(), b.numpy()) ** 2, rel=1e-10)
    both = bures(torch.stack([a, b]), torch.stack([b, b]))
    assert both[0].item() == pytest.approx(theirs)
    assert both.shape == (2,)


def test_bures_is_exact_for_near_and_for_singular_matrices():
    """B²(A, (1+ε)² A) = ε² tr A: by traces alone, all digits of it would be lost at ε = 1e-8."""
    for singular in ([3.0, 1.0, 0.5], [1.0, 1e-3, 1e-6], [2.0, 0.0, 0.0]):
        a = covariance(singular, 3)
        assert 0 <= bures(a, a).item() < 1e-25
        assert bures(a, a * (1 + 1e-8) ** 2).item() == pytest.approx(1e-16 * a.trace().item(), rel=1e-5)
        assert bures(a, torch.zeros(3, 3, dtype=DOUBLE)).item() == pytest.approx(a.trace().item())
    one, two = torch.diag(torch.tensor([1.0, 0.0])), torch.diag(torch.tensor([0.0, 1.0]))
    assert bures(one, two).item() == pytest.approx(2.0)


def test_mmd_by_hand():
    """One sample at 0 and one point at 2, k = 1: 1 + 1 − 2 exp(−4 / 2w) for each width w."""
    got = mmd(torch.zeros(1, 1), torch.tensor([0]), torch.ones(1), torch.full((1, 1, 1), 2.0))
    assert got.item() == pytest.approx(sum(2 - 2 * math.exp(-2 / w) for w in WIDTHS), rel=1e-6)
    got = mmd(torch.zeros(1, 1), torch.tensor([0]), torch.ones(1), torch.full((1, 1, 1), 2.0), widths=(2.0,))
    assert got.item() == pytest.approx(2 - 2 / math.e)


def test_mmd_against_a_literal_loop():
    z, y, mask, mean, factor = minibatch(many=9, width=3)
    points = points_of(mean, factor, many=4)

    def mean_kernel(a, b):
        return np.mean([[sum(math.exp(-((p - q) ** 2).sum() / (6 * w)) for w in WIDTHS) for q in b] for p in a])

    expected = 0.0
    for c in range(3):
        own, theirs = z[(y == c) & (mask > 0)].numpy(), points[c].numpy()
        expected += mean_kernel(own, own) + mean_kernel(theirs, theirs) - 2 * mean_kernel(own, theirs)
    assert mmd(z, y, mask, points).item() == pytest.approx(expected)


def test_mmd_pulls_from_afar_and_rests_where_samples_are_the_points():
    """Anchors of FLIC: k = 64, means of variance 100; samples about the origin. In single precision."""
    mean, y, mask = 10 * normal(3, 64, dtype=torch.float32), torch.arange(30) % 3, torch.ones(30)
    points = points_of(mean, None, many=10)
    z = normal(30, 64, seed=4, dtype=torch.float32).requires_grad_()
    far = torch.autograd.grad(mmd(z, y, mask, points), z)[0]
    together = class_weights(y, mask, 3) @ far  # samples that are close together also push each other apart
    assert (torch.nn.functional.cosine_similarity(-together, mean) > 0.9).all()
    assert (-together * mean).sum() > 0.1
    there = points.movedim(0, 1).flatten(0, 1).clone().requires_grad_()
    value = mmd(there, y, mask, points)
    assert value.abs().item() < 1e-5
    assert torch.autograd.grad(value, there)[0].abs().max() < 1e-6


def test_transport_by_hand():
    """On a line, 0 and 10 to points 11 and 2: the nearer to the nearer, (2² + 1²)/2. Another class: 5 to 4 and 6: 1."""
    z = torch.tensor([[0.0], [10.0], [5.0]], requires_grad=True)
    points = torch.tensor([[[11.0], [2.0]], [[4.0], [6.0]], [[0.0], [0.0]]])
    value = transport(z, torch.tensor([0, 0, 1]), torch.ones(3), points)
    assert value.item() == pytest.approx(2.5 + 1)
    # d/dz ½ (z − 2)² at 0 is −2, ½ (z − 11)² at 10 is −1; 5 is pulled both ways alike.
    assert torch.autograd.grad(value, z)[0].flatten().tolist() == pytest.approx([-2.0, -1.0, 0.0])


def test_transport_is_pots_emd2():
    z, y, mask, mean, factor = minibatch(many=20)
    points = points_of(mean, factor, many=7)
    theirs = 0.0
    for c in range(3):
        own = z[(y == c) & (mask > 0)].numpy()
        theirs += ot.emd2(ot.unif(len(own)), ot.unif(7), ot.dist(own, points[c].numpy()))
    assert transport(z, y, mask, points).item() == pytest.approx(theirs)


def test_transport_needs_pot_and_one_client_at_a_time(monkeypatch):
    z, y, mask, mean, factor = minibatch()
    points = points_of(mean, factor)
    with pytest.raises(RuntimeError, match="one client after another"):
        torch.vmap(transport)(*(torch.stack([t, t]) for t in (z, y, mask, points)))
    tape = Tape([z])
    with tape:
        value = transport(z, y, mask, points)
    assert not tape.finish([value])
    plain = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "ot":
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'fedsense\[ot\]'"):
        transport(z, y, mask, points)


@pytest.mark.parametrize("distance", TOGETHER)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@BOTH_WAYS
def test_clients_side_by_side_are_clients_one_by_one(distance, dtype, many, width):
    """The third client has no sample of class 0, nor the fourth any at all."""
    clients = [minibatch(many, 4, width, seed=seed, dtype=dtype) for seed in range(4)]
    clients[2][2].mul_(clients[2][1] != 0)
    clients[3][2].mul_(0)
    columns = [torch.stack(column) for column in zip(*clients, strict=True)]
    if distance is mmd:
        columns[3:] = [torch.stack([points_of(mean, factor) for *_, mean, factor in clients])]
    elif distance is between_means:
        del columns[4]
    together = [t.requires_grad_(t.is_floating_point()) for t in columns]
    alone = [[t[i].detach().requires_grad_(t.is_floating_point()) for t in columns] for i in range(4)]
    values = torch.vmap(distance)(*together)
    wanted = [0, *range(3, len(together))]
    grads = torch.autograd.grad(values.sum(), [together[i] for i in wanted])
    for i, own in enumerate(alone):
        value = distance(*own)
        torch.testing.assert_close(values[i], value)
        for grad, theirs in zip(grads, torch.autograd.grad(value, [own[j] for j in wanted]), strict=True):
            torch.testing.assert_close(grad[i], theirs)


@pytest.mark.parametrize("distance", TOGETHER)
@pytest.mark.parametrize("together", [False, True])
@BOTH_WAYS
def test_they_can_be_played_from_a_tape(distance, together, many, width):
    """Recorded forwards and backwards on one minibatch; on another the tape gives the bits of a computation."""

    def inputs(seed):
        z, y, mask, mean, factor = minibatch(many, 4, width, seed=seed, dtype=torch.float32)
        y = (y + seed) % 4
        if not together:
            return [z, y, mask, mean, factor]
        return [torch.stack([t, t.flip(0)]) for t in (z, y, mask, mean, factor)]

    def one(z, y, mask, mean, factor):
        if distance is mmd:
            return mmd(z, y, mask, draw(mean, factor, xi))
        return of(distance, z, y, mask, mean, factor)

    def compute(z, y, mask, mean, factor):
        leaves = [t.detach().requires_grad_() for t in (z, mean, factor)]
        given = (leaves[0], y, mask, *leaves[1:])
        values = torch.vmap(one)(*given) if together else one(*given)
        each = torch.ones_like(values)
        grads = torch.autograd.grad([values], leaves, [each], allow_unused=True, materialize_grads=True)
        return [values.detach(), *grads]

    xi = normal(4, 5, width, dtype=torch.float32)
    first, other = inputs(0), inputs(7)
    tape = Tape(first)
    with tape:
        recorded = compute(*first)
    assert tape.finish(recorded), tape.why
    play = tape.ready()
    for now in (other, first):
        with torch.no_grad():
            played = play(now)
        assert all(torch.equal(a, b) for a, b in zip(played, compute(*now), strict=True))


def test_barycentre_by_hand():
    """Two clients, weights 1 and 3; of class 1 only the second is asked; of class 2 nobody."""
    means = torch.tensor([[[0.0], [1.0], [5.0]], [[4.0], [2.0], [5.0]]])
    factors = torch.tensor([[[[1.0]], [[9.0]], [[1.0]]], [[[5.0]], [[2.0]], [[1.0]]]])
    weights = torch.tensor([[1.0, 0.0, 0.0], [3.0, 3.0, 0.0]])
    for how in ("factors", "exact"):  # in one dimension they are the same
        mean, factor = barycentre(means, factors, weights, how)
        assert mean.flatten().tolist() == [3.0, 2.0, 0.0]
        assert factor.flatten().tolist() == pytest.approx([4.0, 2.0, 0.0])
    mean, factor = barycentre(means, None, torch.tensor([1.0, 3.0]))
    assert mean.flatten().tolist() == [3.0, 1.75, 5.0]
    assert factor is None


def test_averaged_factors_are_not_the_barycentre():
    """diag(1, 9) and diag(9, 1) as factors diag(1, 3) and, turned by a rotation, a factor of diag(9, 1).

    The barycentre of covariances that commute has the mean of their roots: diag(2, 2)² = 4 I, whatever the factors.
    """
    one, two = torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([[0.0, 3.0], [-1.0, 0.0]])
    factors, means = torch.stack([one, two])[:, None], torch.zeros(2, 1, 2)
    _, plain = barycentre(means, factors, torch.ones(2), "factors")
    _, exact = barycentre(means, factors, torch.ones(2), "exact")
    torch.testing.assert_close(plain[0], torch.tensor([[0.5, 1.5], [-0.5, 1.5]]))
    torch.testing.assert_close(exact[0], 2 * torch.eye(2))


def test_exact_barycentre_is_pots():
    factors = torch.stack([spread([3.0, 1.0, 0.3, 0.1], seed=s) for s in range(0, 30, 3)]).view(5, 2, 4, 4)
    means, weights = normal(5, 2, 4), torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0], dtype=DOUBLE)
    mean, factor = barycentre(means, factors, weights, "exact")
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal(dim1=-2, dim2=-1) >= 0).all()
    for c in range(2):
        covariances = (factors[:, c] @ factors[:, c].mT).numpy()
        m, s = ot.gaussian.bures_wasserstein_barycenter(
            means[:, c].numpy(), covariances, (weights / weights.sum()).numpy(), num_iter=1000, eps=1e-12
        )
        np.testing.assert_allclose(mean[c], m, rtol=1e-10)
        np.testing.assert_allclose(factor[c] @ factor[c].T, s, rtol=1e-6, atol=1e-8)


def cost(covariance, factors, weights):
    return sum(w * bures(covariance, f @ f.T) for w, f in zip(weights, factors, strict=True))


@pytest.mark.parametrize("singular", [[1.0, 1e-3, 1e-6], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_exact_barycentre_of_singular_covariances(singular, dtype):
    """Finite, and no covariance near it is nearer to all: tried are random ones, and those of clients."""
    factors = torch.stack([spread(singular, seed=s) for s in (0, 5, 9)]).to(dtype)
    weights = torch.tensor([0.2, 0.3, 0.5])
    _, factor = barycentre(torch.zeros(3, 1, 3, dtype=dtype), factors[:, None], weights, "exact")
    assert factor.dtype == dtype
    assert factor.isfinite().all()
    factors, factor = factors.double(), factor[0].double()
    least = cost(factor @ factor.T, factors, weights)
    others = [*factors, *(factor + 0.05 * normal(3, 3, seed=s) for s in range(20))]
    assert all(least <= cost(other @ other.T, factors, weights) + 1e-6 for other in others)


def test_exact_barycentre_of_equals_is_what_they_are():
    factor = spread([2.0, 1.0, 1e-4])
    lower = torch.linalg.cholesky(factor @ factor.T)
    _, got = barycentre(torch.zeros(3, 1, 3, dtype=DOUBLE), lower.expand(3, 1, 3, 3), torch.ones(3), "exact")
    torch.testing.assert_close(got[0], lower, rtol=1e-6, atol=1e-9)


def test_draws():
    """v + Lξ, L = (1 0; 2 3), ξ = (1, 1): (1, 5) from v; and their mean and covariance are the anchor's."""
    mean, factor = torch.tensor([[10.0, 20.0]]), torch.tensor([[[1.0, 0.0], [2.0, 3.0]]])
    xi = torch.ones(1, 1, 2)
    assert draw(mean, factor, xi).tolist() == [[[11.0, 25.0]]]
    assert draw(mean, None, xi).tolist() == [[[11.0, 21.0]]]
    many = draw(mean, factor, normal(1, 100_000, 2, dtype=torch.float32))[0]
    torch.testing.assert_close(many.mean(0), mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(torch.cov(many.T), factor[0] @ factor[0].T, atol=0.15, rtol=0)
