"""Views of a sample: what random changes make of it that leave what it shows as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsense.federation import in_shares

APART = 1 << 20  # seeds of views lie so far from those of dropout, which are a step's seed and the numbers that follow


def two_views(
    x: Tensor, seed: Tensor, jitter: float = 0.0, scale: float = 0.0, negate: float = 0.0, reverse: float = 0.0
) -> Tensor:
    """Of every sample ``[B, channels, ...]`` two views, one after the other: ``[2B, channels, ...]``.

    Noise of standard deviation ``jitter`` on every value, a factor 1 + N(0, ``scale``²) for every channel, all values
    negated and the last dimension (time) reversed with the given chances; each only if it is above 0. Reversed are only
    samples that have a last dimension beside channels. What is drawn depends on the seed only, and for a sample not on
    those that follow it: filled up minibatches have the same views.
    """
    x = in_shares(x).repeat_interleave(2, 0)
    each, channel = (x[(slice(None),) * kept + (slice(1),) * (x.ndim - kept)] for kept in (1, 2))  # [2B, 1 or C, 1…]
    if reverse and x.ndim > 2:
        x = torch.where(uniform(seed + APART, each) < reverse, x.flip(-1), x)
    if negate:
        x = torch.where(uniform(seed + APART + 1, each) < negate, -x, x)
    if scale:
        x = x * (1 + scale * _normal(seed + APART + 2, channel))
    if jitter:
        x = x + jitter * _normal(seed + APART + 3, x)
    return x


def uniform(seed: Tensor, like: Tensor) -> Tensor:
    """Numbers from 0 to 1 in the shape of ``like``, from a seed; over several clients (vmap) each from its own."""
    drawn: Tensor = _Uniform.apply(seed, like)  # type: ignore[no-untyped-call]
    return drawn


def _normal(seed: Tensor, like: Tensor) -> Tensor:
    """Not ``torch.randn``, whose first numbers depend on how many are asked for."""
    tiny = 2.0**-25  # half of what numbers of ``uniform`` are multiples of
    drawn: Tensor = torch.special.ndtri(uniform(seed, like) * (1 - 2 * tiny) + tiny)
    return drawn


class _Uniform(torch.autograd.Function):
    @staticmethod
    def forward(seed: Tensor, like: Tensor) -> Tensor:
        generator = torch.Generator(device=like.device).manual_seed(int(seed))
        return torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=generator)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, seed: Tensor, like: Tensor) -> tuple[Tensor, int]:
        likes = like.movedim(in_dims[1], 0) if in_dims[1] is not None else [like] * info.batch_size
        seeds = seed if in_dims[0] is not None else [seed] * info.batch_size
        return torch.stack([_Uniform.forward(s, x) for s, x in zip(seeds, likes, strict=True)]), 0
