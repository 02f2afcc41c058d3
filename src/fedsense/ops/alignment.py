"""How far a minibatch's embedded samples are from the anchors of their classes (FLIC), and how anchors are averaged.

The anchor of class c is a Gaussian N(v_c, L_c L_cᵀ): ``mean`` ``[C, k]`` and ``factor`` ``[C, k, k]``, which may be any
square matrices (by use lower triangular); a factor of ``None`` is the identity. Distances are those of one client over
one minibatch, ``z`` ``[B, k]`` with labels ``y`` and ``mask`` (1 for a sample, 0 for padding), summed over the classes
that the minibatch has samples of: the sum over c ∈ Y_i in the second term of FLIC's Eq. 3. A class without any adds
exactly 0, and exactly 0 to every gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedsense.errors import UserError
from fedsense.models.layout import transformed

Averaging = Literal["factors", "exact"]

# Widths of the kernels of :func:`mmd`. Two draws from one anchor N(v, I) are 2k apart, squared, so 2k is the unit. The
# paper draws the anchors' means from a Gaussian "with a very large variance" (its authors' code: 100), so samples start
# about 50 such units from their anchor: the widest kernels pull them over, the narrow ones compare the shapes.
WIDTHS = (0.25, 1.0, 4.0, 16.0, 64.0)
ITERATIONS = 500  # of the barycentre, at most; a handful is usual
CLOSE = 1e-9  # relative change of a covariance at which the barycentre is found


def class_weights(y: Tensor, mask: Tensor, classes: int) -> Tensor:
    """Weights ``[classes, B]`` whose product with samples gives class means: 1 over the number of the class's samples.

    Samples of other classes, and what is padding, have weight 0; a class without samples has no other.
    """
    return _weights(y, mask, classes)[0]


def _weights(y: Tensor, mask: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """:func:`class_weights`, and 1 for each class that is there, else 0, ``[classes]``."""
    # Not F.one_hot, which looks at the labels' values.
    member = (torch.arange(classes, device=y.device)[:, None] == y) * mask
    count = member.sum(1)
    return member / count.clamp(min=1)[:, None], count.clamp(max=1)


def between_means(z: Tensor, y: Tensor, mask: Tensor, mean: Tensor) -> Tensor:
    """Σ_c ‖v_c − m̂_c‖², m̂_c the mean of the class's samples: W₂² between Gaussians of equal covariance."""
    weight, present = _weights(y, mask, len(mean))
    gap = mean * present[:, None] - weight @ z
    return (gap * gap).sum()


def wasserstein(z: Tensor, y: Tensor, mask: Tensor, mean: Tensor, factor: Tensor | None) -> Tensor:
    """Σ_c ‖v_c − m̂_c‖² + B²(Σ_c, Σ̂_c): W₂² between an anchor and the Gaussian with its samples' mean and covariance.

    Σ̂_c is the empirical covariance (1/n), and B² the squared Bures distance,

        B²(Σ, Σ̂) = tr Σ + tr Σ̂ − 2 tr (Σ^½ Σ̂ Σ^½)^½.

    A class with one sample z has Σ̂ = 0, and its distance is ‖v − z‖² + tr Σ. (The paper says ‖v − z‖², where Σ is
    constant; tr Σ stays here, so that the distance is continuous, and pulls the covariance towards that of one point.)

    With Σ = L Lᵀ, and X the class's samples less their mean, over √n, as columns, Σ̂ = X Xᵀ and

        tr (Σ^½ Σ̂ Σ^½)^½ = ‖Lᵀ X‖_*  (the sum of the singular values) = ⟨polar(Lᵀ X), Lᵀ X⟩,

    where polar(M) = U Vᵀ for M = U S Vᵀ, over singular values that are not 0, is also the gradient of ‖M‖_*. So it is
    taken for a constant: no root of a matrix is ever differentiated, and gradients are finite whatever the ranks and
    condition numbers. They are first derivatives only. Where Σ and Σ̂ are nearly equal, rounding may leave a value a
    little below 0.
    """
    weight, present = _weights(y, mask, len(mean))
    means = weight @ z
    gap = mean * present[:, None] - means
    member = (weight > 0).to(z)
    x = (z - member.mT @ means) * weight.sum(0).sqrt()[:, None]  # [B, k], the rows of all classes' Xᵀ
    if factor is None:
        projected, spread = x, present.sum() * z.shape[-1]
    else:
        # The row xᵀ L_c of each sample: the products with all factors, of which those of other classes go.
        products = (x @ factor.movedim(0, 1).flatten(1)).reshape(len(z), len(factor), -1)  # [B, C, k]
        projected = (products * member.mT[:, :, None]).sum(1)
        spread = (factor * factor * present[:, None, None]).sum()
    nuclear = (_polar(projected.detach(), member) * projected).sum()
    return (gap * gap).sum() + spread + (x * x).sum() - 2 * nuclear


def _polar(rows: Tensor, member: Tensor) -> Tensor:
    """Of each class's rows of ``[B, k]``, as a matrix M_c = U S Vᵀ, U Vᵀ over the singular values that are not 0.

    ``member`` ``[C, B]`` is 1 where a row is of a class. Singular values below about 10⁻⁷ ‖M_c‖ count as 0.
    """
    # U Vᵀ = (M Mᵀ)^-½ M = M (Mᵀ M)^-½. In double precision eigenvalues are off by 10⁻¹⁶ of the largest, and their roots
    # by 10⁻⁸: squaring M costs nothing that single precision had. Every class is brought to length 1 beforehand.
    many, width, classes = *rows.shape, len(member)
    exact, among = rows.double(), member.double()
    squares = among.mT @ (among @ (exact * exact).sum(1))
    exact = exact * torch.where(squares > 0, squares.rsqrt(), 0.0)[:, None]
    if many**3 <= classes * width**3:
        # Rows of different classes as if they were orthogonal: one matrix of all, with all their singular values.
        same = among.mT @ among
        out = (_inverse_root((exact @ exact.mT) * same) * same) @ exact
    else:
        own = among[:, :, None] * exact  # [C, B, k]
        out = (own @ _inverse_root(own.mT @ own)).sum(0)
    return out.to(rows)


def _inverse_root(square: Tensor) -> Tensor:
    """A^-½ over the eigenvalues that are not 0, of symmetric matrices of trace about 1."""
    # What is not finite stays so in the loss, which is how a training that diverges is noticed; eigh would fail.
    values, vectors = torch.linalg.eigh(square.nan_to_num(0.0, 0.0, 0.0))
    least = square.shape[-1] * torch.finfo(square.dtype).eps
    inverse = torch.where(values > least, values.clamp(min=least).rsqrt(), 0.0)
    root: Tensor = (vectors * inverse.unsqueeze(-2)) @ vectors.mT
    return root


def bures(a: Tensor, b: Tensor) -> Tensor:
    """The squared Bures distance tr A + tr B − 2 tr (A^½ B A^½)^½ of covariances ``[..., k, k]``; never below 0."""
    # min ‖A^½ − B^½ Q‖² over rotations Q: unlike the difference of traces it is exact where A and B are nearly equal.
    left, right = _root(a.double()), _root(b.double())
    return (left - right @ _rotation(right.mT @ left)).square().sum((-2, -1)).to(a)


def _root(covariance: Tensor) -> Tensor:
    """A^½; eigenvalues that are rounding errors are 0."""
    values, vectors = torch.linalg.eigh(covariance)
    least = values[..., -1:].clamp(min=0) * (values.shape[-1] * torch.finfo(values.dtype).eps)
    root: Tensor = (vectors * torch.where(values > least, values, 0.0).sqrt().unsqueeze(-2)) @ vectors.mT
    return root


def _rotation(matrix: Tensor) -> Tensor:
    """The orthogonal matrix nearest to a square one (any of them, if there are several)."""
    u, _, v = torch.linalg.svd(matrix)
    rotation: Tensor = u @ v
    return rotation


def mmd(z: Tensor, y: Tensor, mask: Tensor, points: Tensor, widths: Sequence[float] = WIDTHS) -> Tensor:
    """Σ_c of the squared maximum mean discrepancy between a class's samples and its anchor's ``points`` ``[C, J, k]``.

    With κ(a, b) = Σ_w exp(−‖a − b‖² / 2kw), over ``widths`` w, the mean κ between samples, plus that between points,
    less twice that across; each over all pairs, a point with itself too (biased, never below 0 but for rounding).
    """
    weight, present = _weights(y, mask, len(points))
    member = (weight > 0).to(z)
    # Seen from the middle of the class's points, distances are the same, and their squares are not lost to rounding.
    middle = points.detach().mean(1)
    x = z * mask[:, None] - member.mT @ middle  # [B, k]
    q = points - middle[:, None]  # [C, J, k]
    lengths, theirs = (x * x).sum(-1), (q * q).sum(-1)  # [B], [C, J]
    products = (x @ q.flatten(0, 1).mT).reshape(len(z), len(q), -1)  # [B, C, J]
    among = lengths[:, None] + lengths - 2 * x @ x.mT
    across = lengths[:, None] + member.mT @ theirs - 2 * (products * member.mT[:, :, None]).sum(1)  # [B, J]
    between = theirs[:, :, None] + theirs[:, None] - 2 * q @ q.mT

    def kernel(squares: Tensor) -> Tensor:
        terms = [(squares / (-2 * z.shape[-1] * width)).exp() for width in widths]
        return torch.stack(terms).sum(0)

    return (
        (kernel(among) * (weight.mT @ weight)).sum()
        + (kernel(between).mean((1, 2)) * present).sum()
        - 2 * (kernel(across).mean(1) * weight.sum(0)).sum()
    )


def transport(z: Tensor, y: Tensor, mask: Tensor, points: Tensor) -> Tensor:
    """Σ_c of W₂² between a class's samples and its anchor's ``points`` ``[C, J, k]``, each as what it is: points.

    A linear programme finds which sample goes to which point (POT's network simplex). That plan is constant: it is the
    gradient of the least cost with respect to the costs. Clients cannot be trained side by side with it.
    """
    if transformed():
        raise RuntimeError("optimal transport is solved for one client after another: torch.vmap cannot do it")
    try:
        import ot
    except ImportError as error:
        raise UserError("alignment by optimal transport needs POT; pip install 'fedsense[ot]'") from error
    total = z[:0].sum()
    for c, theirs in enumerate(points):
        own = z[(y == c) & (mask > 0)]
        if not len(own):
            continue
        costs = (own[:, None] - theirs).square().sum(-1)  # [n, J]
        known = costs.detach().double().nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
        plan = ot.emd([], [], known, numItermax=10**7)  # [] is: all alike
        total = total + (torch.as_tensor(plan).to(costs) * costs).sum()
    return total


def barycentre(
    means: Tensor, factors: Tensor | None, weights: Tensor, how: Averaging = "factors"
) -> tuple[Tensor, Tensor | None]:
    """The mean anchors of n clients, ``means`` ``[n, C, k]``, ``factors`` ``[n, C, k, k]``: their mean and factor.

    ``weights`` are those of clients ``[n]``, or of each client's classes ``[n, C]``; of every class they are divided by
    their sum. Means are averaged. Factors, by ``how``, are averaged as they are (``factors``: FLIC, step 19), or are
    Cholesky factors of the covariances' Wasserstein barycentre, argmin_Σ Σ_i w_i B²(Σ, Σ_i) (``exact``).

    A class whose weights sum to 0 comes out as zeros: who calls this has to put in what it was before.
    """
    weights = (weights if weights.ndim == 2 else weights[:, None].expand(-1, means.shape[1])).to(means)
    total = weights.sum(0)
    share = weights / torch.where(total > 0, total, 1.0)
    mean = torch.einsum("nc,nck->ck", share, means)
    if factors is None:
        return mean, None
    if how == "factors":
        return mean, torch.einsum("nc,ncij->cij", share, factors)
    return mean, _lower(_middle(share.double(), factors.double())).to(factors)


def _middle(share: Tensor, factors: Tensor) -> Tensor:
    """A with A Aᵀ the Wasserstein barycentre, by the fixed-point iteration of Álvarez-Esteban et al. (2016)."""
    # Their S ← S^-½ (Σ w_i (S^½ Σ_i S^½)^½)² S^-½ is S ← T S T, where T = Σ w_i T_i, and T_i is the map that takes
    # N(0, S) to N(0, Σ_i). With S = A Aᵀ and Σ_i = L_i L_iᵀ that is T_i A = L_i Q_i, where Q_i is the rotation nearest
    # to L_iᵀ A; and A ← Σ w_i L_i Q_i needs no inverse: any Σ_i may be singular.
    covariance = torch.einsum("nc,ncij,nckj->cik", share, factors, factors)
    middle = _root(covariance)
    for _ in range(ITERATIONS):
        middle = torch.einsum("nc,ncij,ncjk->cik", share, factors, _rotation(factors.mT @ middle))
        before, covariance = covariance, middle @ middle.mT
        if ((covariance - before).abs().amax((1, 2)) <= CLOSE * before.abs().amax((1, 2))).all():
            break
    return middle


def _lower(factor: Tensor) -> Tensor:
    """The lower triangular factor, diagonal not below 0, of the same covariance; which may be singular."""
    r: Tensor = torch.linalg.qr(factor.mT).R
    return (r * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).unsqueeze(-1)).mT


def draw(mean: Tensor, factor: Tensor | None, xi: Tensor) -> Tensor:
    """v_c + L_c ξ for standard normal ``xi`` ``[C, J, k]``: J points of each anchor (FLIC's Algorithm S2, step 8)."""
    return mean[:, None] + (xi if factor is None else xi @ factor.mT)
