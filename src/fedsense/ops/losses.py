"""Losses for one client, over one minibatch: masks instead of boolean indexing, nothing read back from the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedsense.bundle import Params
from fedsense.client import Client
from fedsense.models.network import Batch


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of the minibatch's samples."""
    # Not F.cross_entropy: over several clients (vmap) PyTorch takes it apart, in Python and into four times as many
    # operations; the first time that takes a second. What depends on the mask alone is done once a training.
    chances = logits.log_softmax(-1).gather(-1, batch.y.unsqueeze(-1))
    return (chances * (batch.mask / -batch.mask.sum()).unsqueeze(-1)).sum()


def task_loss(output: Tensor, batch: Batch) -> Tensor:
    """ℓ of the task: cross-entropy of logits; where labels are no class numbers but values, the mean squared error."""
    if not batch.y.is_floating_point():
        return cross_entropy(output, batch)
    return ((output.squeeze(-1) - batch.y) ** 2 * (batch.mask / batch.mask.sum())).sum()


def classify(client: Client) -> Callable[[Params, Batch], Tensor]:
    """The plain loss of a client's model, as :func:`fedsense.training.fit` takes it."""

    def loss(params: Params, batch: Batch) -> Tensor:
        return task_loss(client.model(params, batch).logits, batch)

    return loss


def mean_loss(client: Client, params: Params) -> float:
    """The plain loss over all of a client's training data, in inference."""
    x, y = client.train.x, client.train.y
    whole = Batch(x, y, torch.ones(len(y), device=client.device), torch.tensor(0))
    return float(task_loss(client.model.predict(params, x).logits, whole))


def proximal(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """½ ‖w − w_anchor‖² over the tensors of the anchor."""
    gaps = [((params[name] - t) ** 2).sum() for name, t in anchor.items()]
    return 0.5 * torch.stack(gaps).sum()


def anchor(client: Client, params: Mapping[str, Tensor]) -> Params:
    """What a client's parameters are to stay near, for ``fit(..., given=...)``: all that trains of a model."""
    return {name: params[name] for name in sorted(params) if name not in client.model.buffers}


def classify_near(client: Client, strength: float) -> Callable[[Params, Batch], Tensor]:
    """The plain loss, and strength/2 times the squared distance to the :func:`anchor` that was given."""
    plain = classify(client)

    def loss(params: Params, batch: Batch) -> Tensor:
        return plain(params, batch) + strength * proximal(params, batch.given)

    return loss
