"""Gradient transforms that compose: ``chain(clip(50), shift(c - c_i), sgd(0.01, momentum=0.9))``.

A transform turns gradients into the step that is added to the parameters. Its memory is a Bundle, so a method can keep
it across rounds like any other state. A transform may write into the gradients and the memory it is given: both belong
to the caller, :func:`fedsense.training.fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params, nested, within


def _nothing(params: Params) -> Bundle:
    return {}


@dataclass(frozen=True)
class Transform:
    """``update(gradients, memory, params)`` gives (step, memory); ``init(params)`` gives the first memory."""

    update: Callable[[Params, Bundle, Params], tuple[Params, Bundle]]
    init: Callable[[Params], Bundle] = _nothing


def chain(*transforms: Transform) -> Transform:
    """One after another, each on what the one before gave."""

    def init(params: Params) -> Bundle:
        return {slot: v for i, t in enumerate(transforms) for slot, v in nested(str(i), t.init(params)).items()}

    def update(step: Params, memory: Bundle, params: Params) -> tuple[Params, Bundle]:
        after: Bundle = {}
        for i, transform in enumerate(transforms):
            step, own = transform.update(step, within(memory, str(i)), params)
            after |= nested(str(i), own)
        return step, after

    return Transform(update, init)


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> Transform:
    """v ← momentum·v + g + weight_decay·w;  step −lr·v."""

    def update(grads: Params, memory: Bundle, params: Params) -> tuple[Params, Bundle]:
        step = list(grads.values())
        if weight_decay:
            torch._foreach_add_(step, _like(params, grads), alpha=weight_decay)
        if momentum:
            velocity = _like(memory["momentum"], grads)
            torch._foreach_mul_(velocity, momentum)
            torch._foreach_add_(velocity, step)
            step = velocity
        return _named(grads, torch._foreach_mul(step, -lr)), memory

    return Transform(update, (lambda params: {"momentum": _zeros(params)}) if momentum else _nothing)


def adam(
    lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8, weight_decay: float = 0.0
) -> Transform:
    """m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²;  step −lr·m̂/(√v̂ + ε), with weight decay added to g as in torch's Adam."""

    def init(params: Params) -> Bundle:
        return {"mean": _zeros(params), "square": _zeros(params), "count": {"steps": torch.tensor(0)}}

    def update(grads: Params, memory: Bundle, params: Params) -> tuple[Params, Bundle]:
        g = list(grads.values())
        if weight_decay:
            torch._foreach_add_(g, _like(params, grads), alpha=weight_decay)
        mean, square = _like(memory["mean"], grads), _like(memory["square"], grads)
        torch._foreach_lerp_(mean, g, 1 - betas[0])
        torch._foreach_mul_(square, betas[1])
        torch._foreach_addcmul_(square, g, g, 1 - betas[1])
        count = memory["count"]["steps"] + 1
        t = int(count)
        below = torch._foreach_sqrt(square)
        torch._foreach_div_(below, (1 - betas[1] ** t) ** 0.5)
        torch._foreach_add_(below, epsilon)
        step = torch._foreach_mul(mean, -lr / (1 - betas[0] ** t))
        torch._foreach_div_(step, below)
        return _named(grads, step), {**memory, "count": {"steps": count}}

    return Transform(update, init)


def shift(by: Mapping[str, Tensor]) -> Transform:
    """Add a constant to what flows through: SCAFFOLD's ``c − c_i`` on gradients; after an optimiser, on the step."""

    def update(step: Params, memory: Bundle, params: Params) -> tuple[Params, Bundle]:
        torch._foreach_add_(list(step.values()), [by[name] for name in step])
        return step, memory

    return Transform(update)


def clip(norm: float) -> Transform:
    """Scale gradients down so that their joint norm is at most ``norm``."""

    def update(grads: Params, memory: Bundle, params: Params) -> tuple[Params, Bundle]:
        values = list(grads.values())
        total = torch.stack(torch._foreach_norm(values)).norm()
        torch._foreach_mul_(values, (norm / (total + 1e-6)).clamp(max=1.0))
        return grads, memory

    return Transform(update)


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(t) for name, t in params.items()}


def _like(values: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> list[Tensor]:
    return [values[name] for name in names]


def _named(names: Mapping[str, Tensor], values: tuple[Tensor, ...] | list[Tensor]) -> Params:
    return dict(zip(names, values, strict=True))
