"""Optimisers from parts that compose: ``chain(clip(50), shift(c - c_i), sgd(0.01, momentum=0.9))``.

A transform changes gradients or parameters in place, one after another. Its memory is a Bundle, so a method can keep it
across rounds like any other state. Tensors of several clients may come stacked, ``together``, with the clients as their
first dimension: every transform here treats each client as it would alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params, nested, within


def _nothing(params: Params) -> Bundle:
    return {}


Stepper = Callable[[list[Tensor]], None]  # changes the gradients, in the order of the parameters, or the parameters


@dataclass(frozen=True)
class Transform:
    """``begin(params, memory, given, together)`` gives the step; ``init(params)`` is the first memory.

    A step is handed the list of gradients, in the order of the parameters, and changes the list, or parameters and
    memory in place. ``given`` holds the tensors of this client that it needs. Transforms of equal ``key`` do the same
    but for what is given; one without a key is taken to be like no other.
    """

    begin: Callable[[Params, Bundle, Bundle, bool], Stepper]
    init: Callable[[Params], Bundle] = _nothing
    given: Bundle = field(default_factory=dict)
    key: tuple[Any, ...] | None = None


def chain(*transforms: Transform) -> Transform:
    """One after another, each on what the one before gave."""

    def init(params: Params) -> Bundle:
        return {slot: v for i, t in enumerate(transforms) for slot, v in nested(str(i), t.init(params)).items()}

    def begin(params: Params, memory: Bundle, given: Bundle, together: bool) -> Stepper:
        steps = [
            t.begin(params, within(memory, str(i)), within(given, str(i)), together) for i, t in enumerate(transforms)
        ]

        def step(grads: list[Tensor]) -> None:
            for one in steps:
                one(grads)

        return step

    given = {slot: v for i, t in enumerate(transforms) for slot, v in nested(str(i), t.given).items()}
    keys = tuple(t.key for t in transforms)
    return Transform(begin, init, given, None if None in keys else ("chain", *keys))


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> Transform:
    """v ← momentum·v + g + weight_decay·w;  w ← w − lr·v."""

    def begin(params: Params, memory: Bundle, given: Bundle, together: bool) -> Stepper:
        values, velocity = list(params.values()), _like(memory["momentum"], params) if momentum else []
        how: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "dampening": 0.0}
        how |= {"nesterov": False, "maximize": False, "is_first_step": False}
        return lambda grads: torch._fused_sgd_(values, grads, velocity, **how)

    init = (lambda params: {"momentum": _zeros(params)}) if momentum else _nothing
    return Transform(begin, init, key=("sgd", lr, momentum, weight_decay))


def adam(
    lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8, weight_decay: float = 0.0
) -> Transform:
    """m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²;  w ← w − lr·m̂/(√v̂ + ε), with weight decay added to g as in torch's Adam.

    Clients that are stepped together have taken equally many steps (see :func:`fedsense.training.fit`).
    """

    def init(params: Params) -> Bundle:
        return {
            "mean": _zeros(params),
            "square": _zeros(params),
            "count": {"steps": torch.zeros((), device=_device(params))},
        }

    def begin(params: Params, memory: Bundle, given: Bundle, together: bool) -> Stepper:
        values, mean, square = list(params.values()), _like(memory["mean"], params), _like(memory["square"], params)
        count = memory["count"]["steps"]
        counts = [count[0] if together else count] * len(values)
        how: dict[str, Any] = {
            "lr": lr,
            "beta1": betas[0],
            "beta2": betas[1],
            "weight_decay": weight_decay,
            "eps": epsilon,
        }

        def step(grads: list[Tensor]) -> None:
            count.add_(1)
            torch._fused_adam_(values, grads, mean, square, [], counts, **how, amsgrad=False, maximize=False)

        return step

    return Transform(begin, init, key=("adam", lr, betas, epsilon, weight_decay))


def shift(by: Mapping[str, Tensor], what: Literal["gradients", "parameters"] = "gradients") -> Transform:
    """Add a constant, in every step: SCAFFOLD's ``c − c_i`` to gradients, or ``−lr·(c − c_i)`` to parameters."""

    def begin(params: Params, memory: Bundle, given: Bundle, together: bool) -> Stepper:
        values, by = list(params.values()), _like(given["by"], params)

        def step(grads: list[Tensor]) -> None:
            if what == "parameters":
                torch._foreach_add_(values, by)
            else:  # not in place: two parameters may share one gradient
                grads[:] = torch._foreach_add(grads, by)

        return step

    return Transform(begin, given={"by": dict(by)}, key=("shift", what))


def keep_between(least: float, most: float) -> Transform:
    """Put every parameter back into an interval, after a step (of the transform before it in a chain)."""

    def begin(params: Params, memory: Bundle, given: Bundle, together: bool) -> Stepper:
        values = list(params.values())

        def step(grads: list[Tensor]) -> None:
            for value in values:
                value.clamp_(least, most)

        return step

    return Transform(begin, key=("keep between", least, most))


def clip(norm: float) -> Transform:
    """Scale gradients down so that their joint norm is at most ``norm``."""

    def begin(params: Params, memory: Bundle, given: Bundle, together: bool) -> Stepper:
        def step(grads: list[Tensor]) -> None:
            if not together:
                total = torch.stack(torch._foreach_norm(grads)).norm()
            else:
                total = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in grads]).norm(dim=0)  # [clients]
            scale = (norm / (total + 1e-6)).clamp(max=1.0)
            # Not in place: two parameters may share one gradient.
            grads[:] = [g * scale.view(-1, *(1,) * (g.ndim - 1)) if together else g * scale for g in grads]

        return step

    return Transform(begin, key=("clip", norm))


def _device(params: Params) -> torch.device | None:
    return next((t.device for t in params.values()), None)


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(t) for name, t in params.items()}


def _like(values: Mapping[str, Tensor], names: Mapping[str, Tensor]) -> list[Tensor]:
    return [values[name] for name in names]
