"""k-means from given centres, exact, and quick where points lie near the centres they are guessed to belong to."""

from __future__ import annotations

import torch
from torch import Tensor

AT_ONCE = 8192  # points whose distances to all centres are computed together


def kmeans(
    points: Tensor, centres: Tensor, guess: Tensor | None = None, iterations: int = 300, tolerance: float = 1e-4
) -> tuple[Tensor, Tensor]:
    """Centres ``[k, d]`` and the number of each point's, by Lloyd's algorithm.

    It stops as scikit-learn's does: when no point changes its centre, or when the centres' squared movements sum to
    ``tolerance`` times the mean variance of a coordinate. A centre nobody belongs to stays where it is.

    ``guess`` changes only the time it takes. A point no further from its centre than half the way to the nearest other
    centre belongs to it for certain; and no other centre is nearer than ``second`` (Hamerly 2010).
    """
    middle = points.mean(0)  # small numbers, so that little is lost in |x|² − 2xc + |c|²
    points, centres = points - middle, centres - middle
    enough = tolerance * float(points.var(0, unbiased=False).mean())
    many = len(centres)
    label = points.new_zeros(len(points), dtype=torch.int64) if guess is None else guess.clone()
    second = points.new_zeros(len(points))
    for iteration in range(iterations):
        before = label.clone()
        own = (points - centres[label]).norm(dim=1)
        unsure = (own > torch.maximum(_half_way(centres)[label], second)).nonzero()[:, 0]
        for rows in unsure.split(AT_ONCE):
            near, found = _distances(points[rows], centres).topk(min(2, many), largest=False)
            label[rows], second[rows] = found[:, 0], near[:, -1]
        members = torch.bincount(label, minlength=many)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, label, points)
        moved = torch.where(members > 0, sums / members.clamp(min=1), centres)
        way = (moved - centres).norm(dim=1)
        centres, second = moved, second - way.max()
        settled = iteration > 0 and torch.equal(label, before)  # at first it was only guessed
        if settled or float(way.square().sum()) <= enough:
            break
    return centres + middle, label


def _half_way(centres: Tensor) -> Tensor:
    """Of each centre, half the distance to the nearest other one; a little less, for rounding."""
    away = _distances(centres, centres).fill_diagonal_(torch.inf)
    return away.amin(1) / 2 * (1 - 1e-4)


def _distances(x: Tensor, centres: Tensor) -> Tensor:
    squares = x.square().sum(1, keepdim=True) + centres.square().sum(1)
    return torch.addmm(squares, x, centres.T, alpha=-2).clamp_(min=0).sqrt_()
