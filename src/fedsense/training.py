"""The only training loop. Methods hand it a loss, parameters, the parts that train and an optimiser.

A method asks for one client. The loop runs for it alone, or for several clients that ask for the same at once: their
parameters are stacked, the loss of one client is computed for all (``torch.vmap``), and the gradient of the sum holds
the gradient of each. Which of the two it is, the executor decides; the method never knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedsense.bundle import Bundle
from fedsense.client import Client
from fedsense.flows import FEATURES, Alone, Fit, Fitted, Flow, Loss, Together
from fedsense.models.network import PARTS
from fedsense.optim import Transform
from fedsense.replay import Recorder
from fedsense.work import Schedule

__all__ = ["FEATURES", "Fit", "Fitted", "Loss", "fit", "train"]


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
    given: Mapping[str, Tensor] | None = None,
) -> Fitted:
    """Minimise ``loss(params, batch)`` over the client's training data; ``params`` themselves are left as they are.

    ``only`` names the parts that train. The others run as in inference: no dropout, running statistics untouched.
    ``memory`` is the optimiser's of an earlier call, to go on with. ``beside`` holds tensors with one row a training
    sample (what a frozen model makes of it, say); a batch carries its rows of them as ``batch.beside``. ``given`` holds
    the other tensors of this client that the loss needs (prototypes, a model to stay near), as ``batch.given``. A loss
    that keeps such tensors to itself is right, too, but cannot be computed for several clients at once.

    Where only the head trains, what it sees may be given, too, as ``beside={FEATURES: ...}``; then the samples
    themselves are not looked at.
    """
    parts = (only,) if isinstance(only, str) else tuple(only)
    for name, rows in (beside or {}).items():
        if len(rows) != client.samples:
            raise ValueError(f"beside['{name}'] has {len(rows)} rows; the client has {client.samples} training samples")
    if beside and FEATURES in beside and parts != ("head",):
        raise ValueError("features can stand for samples only where the head alone trains: only='head'")
    asked = Fit(loss, params, client, schedule, optimiser, parts, memory, beside or {}, given or {})
    return train([asked])[0] if client.join is None else client.join(asked)


@torch.no_grad()  # gradients are asked for where they are computed
def train(asked: Sequence[Fit]) -> list[Fitted]:
    """The loop: for one client, or for several that ask for the same."""
    flow: Flow = Alone(asked[0]) if len(asked) == 1 else Together(asked)
    gradients = Recorder(asked[0], flow)
    for batch in flow:
        values, *grads = gradients(batch)
        flow.step(grads)
        flow.noted.append(values)
    return flow.results()
