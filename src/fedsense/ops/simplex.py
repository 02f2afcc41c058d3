"""Shares that add up to 1: the least value of a quadratic form on the simplex (FedPAC)."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-12  # of the largest diagonal element; what rounding took from a form that is nowhere negative
SLACK = 1e-10  # what is less below 0 counts as 0
PATIENCE = 3  # exchanges of many without progress before they are made one by one


def least_on_simplex(form: Tensor) -> Tensor:
    """argmin αᵀQα over α ≥ 0, Σα = 1, in double precision, for a symmetric ``form`` Q ``[n, n]``, never below 0.

    Where several α are least (Q is singular), the most even of them, but for rounding.

    α = β/Σβ, where β is the least of ½βᵀQβ − Σβ over β ≥ 0 alone: Qβ ≥ 1, with equality wherever β > 0. Which these are
    is found by block principal pivoting (Júdice and Pires, 1994): solve Qβ = 1 for those, exchange all that violate a
    condition, and if that makes their number no smaller for a while, only the last of them, which is slow, but ends.
    """
    largest = form.diagonal().max()
    if not largest > 0:
        return torch.full((len(form),), 1 / len(form), dtype=torch.float64)
    q = (form + form.mT).double() / (2 * largest)
    q = q + RIDGE * torch.eye(len(q), dtype=q.dtype)
    held = torch.ones(len(q), dtype=torch.bool)  # where β may be above 0
    fewest, patience = len(q) + 1, PATIENCE
    for _ in range(10 * len(q) + 100):
        beta = torch.zeros(len(q), dtype=q.dtype)
        at = held.nonzero().squeeze(1)
        beta[at] = torch.linalg.solve(q[at[:, None], at], torch.ones(len(at), dtype=q.dtype))
        wrong = torch.where(held, beta, q @ beta - 1) < -SLACK
        many = int(wrong.sum())
        if not many:
            break
        if many < fewest:
            fewest, patience = many, PATIENCE
        else:
            patience -= 1
        if patience < 0:
            wrong[: int(wrong.nonzero().max())] = False
        held = held ^ wrong
    beta = beta.clamp(min=0)
    return beta / beta.sum()
