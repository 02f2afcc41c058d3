"""Contrast between models: towards what the global model sees in a sample, away from what the previous one saw."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from fedsense.bundle import Params
from fedsense.client import Client
from fedsense.models.network import Batch
from fedsense.ops.losses import task_loss


def model_contrast(features: Tensor, batch: Batch, toward: Tensor, away: Tensor, temperature: float) -> Tensor:
    """−log e^{s⁺/τ} / (e^{s⁺/τ} + e^{s⁻/τ}) = softplus((s⁻ − s⁺)/τ) with s = cos(z, ·); mean over the minibatch.

    MOON Eq. 3, FedCoad Eq. 2.
    """
    gap = F.cosine_similarity(features, away, dim=1) - F.cosine_similarity(features, toward, dim=1)
    return (F.softplus(gap / temperature) * batch.mask).sum() / batch.mask.sum()


def seen_by(client: Client, model: Params, previous: Params) -> Params:
    """What two frozen models see in every training sample, for ``fit(..., beside=...)``.

    Both stay as they are for the round, so this is done once a round and not once an epoch.
    """
    toward = client.model.predict(model, client.train.x).features
    away = toward if previous is model else client.model.predict(previous, client.train.x).features
    return {"toward": toward, "away": away}


def classify_and_contrast(client: Client, mu: float, temperature: float) -> Callable[[Params, Batch], Tensor]:
    """Cross-entropy plus μ times the contrast to :func:`seen_by`: MOON Eq. 4, FedCoad Eq. 3."""

    def loss(params: Params, batch: Batch) -> Tensor:
        out = client.model(params, batch)
        seen = batch.beside
        return task_loss(out.logits, batch) + mu * model_contrast(
            out.features, batch, seen["toward"], seen["away"], temperature
        )

    return loss
