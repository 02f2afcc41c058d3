"""Losses for one client, over one minibatch: masks instead of boolean indexing, nothing read back from the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsense.bundle import Params
from fedsense.client import Client
from fedsense.models.network import Batch


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of the minibatch's samples."""
    losses = F.cross_entropy(logits, batch.y, reduction="none")
    return (losses * batch.mask).sum() / batch.mask.sum()


def classify(client: Client) -> Callable[[Params, Batch], Tensor]:
    """The plain classification loss of a client's model, as :func:`fedsense.training.fit` takes it."""

    def loss(params: Params, batch: Batch) -> Tensor:
        return cross_entropy(client.model(params, batch).logits, batch)

    return loss


def proximal(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """½ ‖w − w_anchor‖² over the tensors of ``params`` that train."""
    gaps = [((t - anchor[name]) ** 2).sum() for name, t in params.items() if t.requires_grad]
    return 0.5 * torch.stack(gaps).sum()
