"""Contrast: between models, towards what one sees in a sample and away from what another does; between samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
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


def pair_loss(features: Tensor, batch: Batch, temperature: float) -> Tensor:
    """Mean over pairs of a minibatch of −log σ(±cos(z_i, z_j)/τ), + for samples of one class, − for others (Meta-HAR).

    Of a minibatch of one sample there are no pairs, and it is 0.
    """
    unit = F.normalize(features, dim=1)
    same = batch.y[:, None] == batch.y
    losses = F.softplus(torch.where(same, -1.0, 1.0) * (unit @ unit.T) / temperature)
    counted = (batch.mask[:, None] * batch.mask).triu(1)  # each pair once
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def tell_pairs(client: Client, temperature: float) -> Callable[[Params, Batch], Tensor]:
    """:func:`pair_loss` of what the head would see."""

    def loss(params: Params, batch: Batch) -> Tensor:
        return pair_loss(client.model(params, batch).features, batch, temperature)

    return loss


def nt_xent(features: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """SimCLR's loss of views ``[2B, d]``, of which rows 2i and 2i + 1 are of one sample; mean over those that count.

    −log exp(cos(z_a, z_b)/τ) / Σ_{c ≠ a} exp(cos(z_a, z_c)/τ), b being a's other view. Rows whose ``mask`` ``[2B]`` is
    0 are in no sum. Of one sample alone it is 0.
    """
    unit = F.normalize(features, dim=1)
    place = torch.arange(len(unit), device=unit.device)
    out = (place[:, None] == place) | (mask == 0)
    chances = (unit @ unit.T / temperature).masked_fill(out, -1e9).log_softmax(1)
    pair = chances.gather(1, (place ^ 1)[:, None]).squeeze(1)
    return -(pair * mask).sum() / mask.sum()
