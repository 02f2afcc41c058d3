"""Control variates (SCAFFOLD): how far a client goes in a step, on average, and how far all clients do.

They are measured in steps of the parameters divided by the learning rate, so they correct steps, after the optimiser:
w ← w − lr·(c − c_i). Under plain SGD that is SCAFFOLD's shifted gradient; under momentum or Adam the gradient has
another scale than the step, and shifting it would correct too much (with momentum 0.9, ten times).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params
from fedsense.federation import Task
from fedsense.optim import Transform, chain, shift


def corrected(optimiser: Transform, lr: float, own: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> Transform:
    """The optimiser, and after each of its steps −lr·(c − c_i): FedCoad Eq. 4 to 6."""
    return chain(optimiser, shift({name: -lr * (c - own[name]) for name, c in shared.items()}, "parameters"))


def new_variates(
    own: Mapping[str, Tensor],
    shared: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    steps: int,
    lr: float,
) -> Params:
    """c_i − c + (w_start − w_end) / (K·lr), K minibatch steps: SCAFFOLD's option II, FedCoad Eq. 7."""
    reach = steps * lr
    if not reach:  # who took no step has learned nothing of itself
        return dict(own)
    return {name: own[name] - c + (start[name] - end[name]) / reach for name, c in shared.items()}


def variate_change(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> Params:
    """Δ_i, what goes up."""
    return {name: new[name] - old[name] for name in old}


def trainers(task: Task) -> Params:
    """N, all clients that train, as a group of the server's Bundle."""
    return {"clients": torch.tensor(sum(member.samples > 0 for member in task.members.values()))}


def add_changes(server: Bundle, uploads: Mapping[str, Bundle]) -> Params:
    """c + (1/N) Σ Δ_i over those who took part, N being all clients: FedCoad Eq. 8 as an average."""
    everyone = int(server["trainers"]["clients"])
    total = {name: c.clone() for name, c in server["variate"].items()}
    for upload in uploads.values():
        torch._foreach_add_(list(total.values()), [upload["variate"][name] for name in total], alpha=1 / everyone)
    return total
