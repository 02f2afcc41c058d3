"""The only training loop. Methods hand it a loss, parameters, the parts that train and an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.models.network import PARTS, Batch
from fedsense.optim import Transform
from fedsense.work import Schedule

Loss = Callable[[Params, Batch], Tensor]


class Fitted(NamedTuple):
    """What training gave."""

    params: Params
    optimiser: Bundle  # the optimiser's memory; keep it in the client's state to go on with it next round
    loss: float  # mean over the steps
    steps: int


def fit(
    loss: Loss,
    params: Mapping[str, Tensor],
    client: Client,
    schedule: Schedule,
    optimiser: Transform,
    *,
    only: str | tuple[str, ...] = PARTS,
    memory: Bundle | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> Fitted:
    """Minimise ``loss(params, batch)`` over the client's training data; ``params`` themselves are left as they are.

    ``only`` names the parts that train. The others run as in inference: no dropout, running statistics untouched.
    ``memory`` is the optimiser's of an earlier call, to go on with. ``beside`` holds tensors with one row a training
    sample (what a frozen model makes of it, say); a batch carries its rows of them as ``batch.beside``.
    """
    parts = (only,) if isinstance(only, str) else tuple(only)
    # In one order: a sum over tensors (clip) may not depend on the order in which they came out of a file.
    own = {name: params[name].detach().clone() for name in sorted(params)}
    leaves = {
        n: t.requires_grad_() for n, t in own.items() if n.split(".")[0] in parts and n not in client.model.buffers
    }
    if memory is None:
        memory = optimiser.init({name: t.detach() for name, t in leaves.items()})
    else:
        memory = {slot: {name: t.clone() for name, t in values.items()} for slot, values in memory.items()}
    total, steps = torch.zeros((), device=client.device), 0
    for step in schedule.steps(client.samples) if leaves else ():
        value = loss(own, client.batch(step, parts, beside))
        grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            change, memory = optimiser.update(dict(zip(leaves, grads, strict=True)), memory, leaves)
            torch._foreach_add_(list(leaves.values()), list(change.values()))
            total += value.detach()
        steps += 1
    trained = {name: t.detach() for name, t in own.items()}
    return Fitted(trained, memory, float(total) / steps if steps else float("nan"), steps)
