"""Class prototypes: a group ``{"mean": [C, d], "count": [C]}``; a class that is not known has count 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task
from fedsense.models.network import Batch
from fedsense.ops.losses import classify, cross_entropy

Distance = Literal["l2", "l1", "cosine"]


def no_prototypes(task: Task) -> Params:
    """Of no class anything is known yet."""
    return {"mean": torch.zeros(len(task.classes), task.features), "count": torch.zeros(len(task.classes))}


def class_prototypes(
    client: Client, params: Params, target: Mapping[str, Tensor] | None = None, sharpness: float = 0.0
) -> Params:
    """The mean feature of each class over the client's training data, in inference (ProtoHAR Eq. 4, FedAPA Eq. 4).

    With ``sharpness`` ε the samples of a class are weighted by softmax(ε·cos(z, target of the class)), ProtoHAR Eq. 5;
    a class without a target is averaged plainly.
    """
    z = client.model.predict(params, client.train.x).features  # [n, d]
    member = F.one_hot(client.train.y, len(client.task.classes)).T.to(z)  # [C, n]
    count = member.sum(1)
    weight = member / count.clamp(min=1)[:, None]
    if sharpness and target is not None:
        near = F.cosine_similarity(z, target["mean"][client.train.y], dim=1) * (target["count"] > 0)[client.train.y]
        weight = (sharpness * near).expand_as(member).masked_fill(member == 0, -torch.inf).softmax(1).nan_to_num()
    return {"mean": weight @ z, "count": count}


def held_only(proto: Mapping[str, Tensor]) -> Params:
    """As prototypes are sent: ``mean`` ``[K, d]`` has rows for the K classes only whose ``count`` ``[C]`` is not 0."""
    return {"mean": proto["mean"][proto["count"] > 0], "count": proto["count"]}


def with_absent(sent: Mapping[str, Tensor]) -> Params:
    """The inverse of :func:`held_only`: zeros in the place of absent classes."""
    mean = sent["mean"].new_zeros(len(sent["count"]), sent["mean"].shape[1])
    mean[sent["count"] > 0] = sent["mean"]
    return {"mean": mean, "count": sent["count"]}


def merge_prototypes(groups: Sequence[Mapping[str, Tensor]], uniform: bool = False) -> Params:
    """Σ_i |D_ic| p_ic / Σ_i |D_ic| of each class (``uniform``: Σ over those who have it, alike), and Σ_i |D_ic|."""
    count = torch.stack([group["count"] for group in groups])  # [m, C]
    weight = (count > 0).to(count) if uniform else count
    share = weight / weight.sum(0).clamp(min=1)
    mean = torch.einsum("mc,mcd->cd", share, torch.stack([group["mean"] for group in groups]))
    return {"mean": mean, "count": count.sum(0)}


def keep_known(new: Params, old: Mapping[str, Tensor]) -> Params:
    """Classes of which ``new`` knows nothing as they were in ``old``."""
    known = new["count"] > 0
    return {
        "mean": torch.where(known[:, None], new["mean"], old["mean"]),
        "count": torch.where(known, new["count"], old["count"]),
    }


def prototypes_moved(before: Bundle, after: Bundle) -> dict[str, float]:
    """How far a server's prototypes or anchors moved: by group, the mean distance of those known before and after."""
    found = {}
    for group in before.keys() & after.keys():
        each = [_places(bundle[group]) for bundle in (before, after)]
        if each[0] is None or each[1] is None or each[0][0].shape != each[1][0].shape:
            continue
        if each[0][0].dim() > 2 and before.get("row", {}).keys() != after.get("row", {}).keys():
            continue  # of other clients
        known = each[0][1] & each[1][1]
        if known.any():
            found[group] = float((each[1][0] - each[0][0]).norm(dim=-1)[known].mean())
    return dict(sorted(found.items()))


def _places(group: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """Prototypes of a group and which of them are known; None if it holds none."""
    if "anchors.mean" in group:
        mean = group["anchors.mean"]
        return mean, torch.ones(mean.shape[:-1], dtype=torch.bool, device=mean.device)
    return (group["mean"], group["count"] > 0) if {"mean", "count"} <= group.keys() else None


def likeness(mean: Tensor) -> Tensor:
    """cos(p_ic, p_jc) of every two clients and class, ``[N, C, d]`` to ``[N, N, C]``: FedAPA Eq. 5; 0 without one."""
    unit = F.normalize(mean, dim=-1)
    return torch.einsum("icd,jcd->ijc", unit, unit)


def prototype_gap(features: Tensor, batch: Batch, target: Mapping[str, Tensor], distance: Distance = "l2") -> Tensor:
    """Distance of features ``[B, d]`` to the prototypes of their classes: L_R of ProtoHAR Eq. 10.

    ``l2`` is the squared and ``l1`` the absolute difference, mean over the features; ``cosine`` is 1 − cos. Mean over
    the minibatch, in which samples of a class without prototype count 0.
    """
    goal = target["mean"][batch.y]
    if distance == "cosine":
        gap = 1 - F.cosine_similarity(features, goal, dim=1)
    else:
        gap = ((features - goal) ** 2 if distance == "l2" else (features - goal).abs()).mean(1)
    known = (target["count"] > 0)[batch.y]
    return (gap * known * batch.mask).sum() / batch.mask.sum()


def classify_and_align(client: Client, align: float, distance: Distance = "l2") -> Callable[[Params, Batch], Tensor]:
    """Cross-entropy plus λ times :func:`prototype_gap` to the prototypes given to ``fit``; only the former if λ is 0.

    ProtoHAR Eq. 10; the local losses of FedProto and FedPAC.
    """

    def loss(params: Params, batch: Batch) -> Tensor:
        out = client.model(params, batch)
        return cross_entropy(out.logits, batch) + align * prototype_gap(out.features, batch, batch.given, distance)

    return loss if align else classify(client)


def prototype_contrast(features: Tensor, batch: Batch, sets: Tensor, known: Tensor, temperature: float) -> Tensor:
    """−log softmax_c(cos(z, p_c) / τ) at the sample's class, for each of S sets of prototypes: minibatch means ``[S]``.

    ``sets`` ``[S, C, d]`` hold prototypes of length 1 (:func:`torch.nn.functional.normalize`). A class that is not
    ``known`` ``[C]`` is in no denominator, and samples of it count 0: FedAPA Eq. 9 and 10.
    """
    many, classes, _ = sets.shape
    cosines = (F.normalize(features, dim=1) @ sets.flatten(0, 1).T).view(-1, many, classes)
    chances = (cosines / temperature).masked_fill(~known, -torch.inf).log_softmax(-1)  # [B, S, C]
    own = batch.y[:, None, None].expand(-1, many, 1)
    loss = torch.where(known[batch.y][:, None], -chances.gather(2, own).squeeze(2), 0.0)  # [B, S]
    return (loss * batch.mask[:, None]).sum(0) / batch.mask.sum()
