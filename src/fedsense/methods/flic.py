"""FLIC: clients with different feature spaces (Rakotomamonjy et al., TMLR 2024), Algorithms 1 and S2.

server  α, anchors μ        client  adapter φ_i, head β_i
down    α, anchors          up      α_i, anchors μ_i, n

Each client maps its inputs into a common space by φ_i (its adapter), where class c is to lie around an anchor
μ_c = N(v_c, L_c L_cᵀ) that all share. Eq. 3, with samples Z_c of the anchors:

    F_i = task loss + λ1 Σ_c W₂²(μ_c, φ_i's samples of class c) + λ2 Σ_c loss of g(Z_c) against c

In a regression the anchor of a value is N(m(y), I), m(y) = y a + (1 − y) b; values are best scaled to 0…1.

Left open by the paper, and how it is settled: weights of clients drop out of what one client minimises. A minibatch
has as many Z_c as samples of class c, drawn once a round for each of the client's samples. W₂² with ``alignment =
"means"`` is ‖v_c − m_c‖², for anchors whose spread is neither learned nor matched, as in the paper's experiments; with
"gaussian" it is the full closed form. Averages are divided by the weights of who took part. Anchors begin ``spread``
apart: with the authors' 10 the embedding needs about a thousand steps to get there (docs/results/flic.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params, part
from fedsense.client import Client
from fedsense.errors import UserError, nearest
from fedsense.federation import Task
from fedsense.method import Reply, share_one_model
from fedsense.methods.hetfedrep import HetFedRep
from fedsense.models.network import PARTS, Batch
from fedsense.ops import average, size, task_loss
from fedsense.ops.alignment import barycentre, between_means, class_weights, draw, mmd, transport, wasserstein
from fedsense.training import Loss, fit
from fedsense.work import Work, stream

DRAWN = 64  # points of an anchor that stand for it, where distributions are compared by samples


@dataclass(frozen=True, kw_only=True)
class Flic(HetFedRep):
    """Embeddings of one's own into a common space, where classes gather around shared anchors."""

    batch: int = 100
    epochs: int = 10  # of which one is the shared part's
    optimiser: Literal["sgd", "adam"] = "adam"
    lr: float = 0.001
    lambda_align: float = 0.001  # λ1
    lambda_calibrate: float = 0.001  # λ2
    alignment: Literal["means", "gaussian", "mmd", "transport"] = (
        "means"  # W₂²; or kernels, or transport between samples
    )
    covariance: Literal["identity", "learned"] = "identity"  # of an anchor; learned through its factor L
    barycentre: Literal["factors", "exact"] = "factors"  # of learned covariances
    anchors: Literal["after", "along", "fixed"] = "after"  # they move with α (Algorithm 1), with φ and β, or never
    spread: float = 1.0  # standard deviation of the anchors' first means; 10 in the authors' code
    pretrain: int = 100  # epochs of alignment alone, before round one
    pretrain_batch: int | None = None  # if None, batch
    realign: int = 0  # epochs of alignment alone after every local update (the authors' code)
    shared_from: int = 1  # the first round in which α trains (21 in the authors' code)
    base: Literal["fedrep", "fedavg-ft", "l2gd"] = "fedrep"  # Table 2: what of θ_i is shared
    mixing: float = 0.5  # ω of L2GD: θ_i = ω α + (1 − ω) β_i
    meta_classes: tuple[tuple[str, ...], ...] = ()  # classes that share an anchor (S1.4)

    name: ClassVar[str] = "flic"
    paper: ClassVar[str] = "Rakotomamonjy et al., TMLR 2024"
    group: ClassVar[str] = "different inputs"
    equation: ClassVar[str] = "L + λ₁ Σ_c W₂²(μ_c, φᵢ's samples of class c) + λ₂ Σ_c ℓ(g(Z_c), c), Z_c drawn from μ_c"
    assumes: ClassVar[str] = "one encoder behind adapters to one latent width; classes all share, or values"
    use: ClassVar[str] = "for devices with other sensors, rates or numbers of channels"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_below(0, "lambda_align", "lambda_calibrate", "pretrain", "realign", "mixing")
        self.refuse_below(1, "shared_from", "pretrain_batch")
        self.refuse_unless_positive("spread")
        if self.mixing > 1:
            raise UserError(f"flic: mixing is {self.mixing:g}; it is a share of the shared weights, 0 to 1", "mixing")
        if self.covariance == "learned" and self.alignment == "means":
            raise UserError(
                'flic: covariance = "learned", but alignment = "means" does not look at it; say alignment = "gaussian"',
                about="covariance",
            )
        object.__setattr__(self, "meta_classes", tuple(tuple(group) for group in self.meta_classes))

    @property
    def own(self) -> tuple[str, ...]:  # type: ignore[override]
        return {"fedrep": ("adapter", "head"), "fedavg-ft": ("adapter",), "l2gd": PARTS}[self.base]

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """α; under L2GD a second set of encoder and head, named ``shared.encoder…``."""
        return {"fedrep": ("encoder",), "fedavg-ft": ("encoder", "head"), "l2gd": ("shared",)}[self.base]

    @property
    def prepares(self) -> bool:
        return self.pretrain > 0

    def requires(self, task: Task) -> None:
        share_one_model(self, task, ("encoder", "head") if self.base == "l2gd" else self.shared)
        held = {name for member in task.members.values() for name in member.buffers}
        if self.base == "l2gd" and any(not name.startswith("adapter.") for name in held):
            raise UserError(
                'flic: base = "l2gd" mixes shared and own weights, which cannot be done with running statistics '
                f"('{min(held)}'); use a network without BatchNorm in its encoder and head, or another base"
            )
        members = list(task.members.values())
        for member in members:
            if not member.latent or member.latent != members[0].latent:
                raise UserError(
                    f"flic needs one latent space, but the adapter of client '{members[0].id}' "
                    f"({members[0].architecture}) gives {_width(members[0].latent)} and that of '{member.id}' "
                    f"({member.architecture}) {_width(member.latent)}; use a model with an adapter (flic-mlp, "
                    "flic-cnn, sensor-cnn), and one width for all"
                )
        _anchor_of(self.meta_classes, task)
        if task.kind == "regression" and (self.alignment != "means" or self.covariance != "identity"):
            raise UserError("flic: in a regression anchors are N(m(y), I); leave alignment and covariance as they are")

    def init_server(self, task: Task, params: Params) -> Bundle:
        width, many = next(iter(task.members.values())).latent, int(_anchor_of(self.meta_classes, task).max()) + 1
        drawn = stream(task.seed, "anchors").standard_normal((many, width))
        anchors = {"anchors.mean": torch.from_numpy(self.spread * drawn).float()}
        if self.covariance == "learned":
            anchors["anchors.factor"] = torch.eye(width).repeat(many, 1, 1)
        alpha = part(params, "encoder", "head") if self.base == "l2gd" else part(params, *self.shared)
        if self.base == "l2gd":
            alpha = {f"shared.{name}": value for name, value in alpha.items()}
        return {"encoder": alpha, "anchors": anchors}

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        """Pre-training: φ_i ← arg min Σ_c W₂²(μ_c, φ_i's samples of class c)."""
        start = params | down["encoder"] | down["anchors"]
        work = replace(work, batch=self.pretrain_batch or work.batch)
        return {"head": part(self._aligned(client, start, work, self.pretrain), *self.own)}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        head_epochs = max(1, self.epochs - self.encoder_epochs) if self.head_epochs is None else self.head_epochs
        alike = self.base == "fedavg-ft"  # all of θ trains at once, and is shared
        mine = (*self.own, *self.shared) if alike else self.own
        theirs = () if alike or work.round < self.shared_from else self.shared
        if self.lambda_align or self.lambda_calibrate:  # else nothing speaks of the anchors
            mine += ("anchors",) * (self.anchors == "along")
            theirs += ("anchors",) * (self.anchors == "after")
        start = down["encoder"] | down["anchors"] | state["head"]
        loss, more = self._objective(client), self._more(client, start, work)
        # φ_i, β_i ← M steps on F_i (lines 7 to 11); α_i, μ_i ← steps on F_i (lines 13 and 14)
        own = fit(loss, start, client, work.epochs(head_epochs, "head"), self.optim(self.head_lr), only=mine, **more)
        done = fit(
            loss, own.params, client, work.epochs(self.encoder_epochs, "encoder"), self.optim(), only=theirs, **more
        )
        params = self._aligned(client, done.params, work, self.realign)
        return Reply(
            state={"head": part(params, *self.own)},
            upload={"encoder": part(params, *self.shared), "anchors": part(params, "anchors"), "size": size(client)},
            model=self.model(params),
            metrics={"loss": own.loss},
        )

    def finish(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        """φ_i and β_i alone, to α and the anchors as they are at the end; so, too, a client that comes later (S1.4)."""
        start = down["encoder"] | down["anchors"] | state["head"]
        mine = (*self.own, *self.shared) if self.base == "fedavg-ft" else self.own
        schedule, more = work.epochs(self.epochs, "head"), self._more(client, start, work)
        done = fit(self._objective(client), start, client, schedule, self.optim(self.head_lr), only=mine, **more)
        return Reply(
            state={"head": part(done.params, *self.own)}, model=self.model(done.params), metrics={"loss": done.loss}
        )

    def join(self, client: Client, down: Bundle, work: Work) -> Reply:
        width, own = down["anchors"]["anchors.mean"].shape[1], client.model.latent(client.data.input_shape)
        if own != width:
            raise UserError(
                f"the run's anchors lie in a space of {width} dimensions, but the adapter of '{client.id}' gives "
                f"{_width(own)}; give it the run's network and latent width"
            )
        return super().join(client, down, work)

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        """α ← Σ ω_i α_i / Σ ω_i; anchors ← their barycentre (lines 18 and 19)."""
        uniform = self.weights == "uniform"
        anchors = average(uploads, "anchors", uniform)
        if self.covariance == "learned" and self.barycentre == "exact":
            each = [upload["anchors"] for upload in uploads.values()]
            weights = torch.tensor([1.0 if uniform else float(upload["size"]["n"]) for upload in uploads.values()])
            means, factors = (torch.stack([a[f"anchors.{what}"] for a in each]) for what in ("mean", "factor"))
            _, middle = barycentre(means, factors, weights, "exact")
            assert middle is not None
            anchors["anchors.factor"] = middle
        return {"encoder": average(uploads, "encoder", uniform), "anchors": anchors}

    def personalise(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Params:
        return self.model(client.initial | state["head"] | down["encoder"])

    def model(self, params: Mapping[str, Tensor]) -> Params:
        """The client's network θ_i out of what trains."""
        own = part(params, *PARTS)
        if self.base != "l2gd":
            return own
        alpha = {name.removeprefix("shared."): value for name, value in part(params, "shared").items()}
        return own | {name: self.mixing * a + (1 - self.mixing) * own[name] for name, a in alpha.items()}

    def _objective(self, client: Client) -> Loss:
        """F_i, Eq. 3."""

        def loss(params: Params, batch: Batch) -> Tensor:
            whole = self.model(params)
            out = client.model(whole, self._modes(batch))
            value = task_loss(out.logits, batch)
            if self.lambda_align:
                assert out.latent is not None
                value = value + self.lambda_align * self._apart(out.latent, params, batch)
            if self.lambda_calibrate:
                value = value + self.lambda_calibrate * self._calibration(client, whole, params, batch)
            return value

        return loss

    def _aligned(self, client: Client, start: Params, work: Work, epochs: int) -> Params:
        if not epochs:
            return start

        def loss(params: Params, batch: Batch) -> Tensor:
            latent = client.model(self.model(params), batch).latent
            assert latent is not None
            return self._apart(latent, params, batch)

        more = {"given": self._more(client, start, work)["given"]}
        return fit(loss, start, client, work.epochs(epochs, "align"), self.optim(), only="adapter", **more).params

    def _apart(self, latent: Tensor, params: Params, batch: Batch) -> Tensor:
        """Σ_c W₂²(μ_c, ν_c) over the classes of the minibatch; in a regression the mean of ‖φ(x) − m(y)‖²."""
        if batch.y.is_floating_point():
            gap = (latent - _on_the_line(params["anchors.mean"], batch.y)).square().sum(1)
            return (gap * batch.mask).sum() / batch.mask.sum()
        mean, factor, y = params["anchors.mean"], params.get("anchors.factor"), self._anchors_of(batch)
        if self.alignment == "means":
            return between_means(latent, y, batch.mask, mean)
        if self.alignment == "gaussian":
            return wasserstein(latent, y, batch.mask, mean, factor)
        points = draw(mean, factor, batch.given["points"].expand(len(mean), -1, -1))
        return (mmd if self.alignment == "mmd" else transport)(latent, y, batch.mask, points)

    def _calibration(self, client: Client, whole: Params, params: Params, batch: Batch) -> Tensor:
        """Σ_c of the mean loss of g(Z_c) against c; of a meta-class, against any of its classes."""
        mean, xi = params["anchors.mean"], batch.beside["xi"]
        if batch.y.is_floating_point():
            drawn = _on_the_line(mean, batch.y) + xi
            return task_loss(client.model.onward(whole, drawn).logits, batch)
        factor, y = params.get("anchors.factor"), self._anchors_of(batch)
        noise = xi if factor is None else (factor[y] @ xi.unsqueeze(-1)).squeeze(-1)
        chances = client.model.onward(whole, mean[y] + noise).logits.log_softmax(-1)
        if self.meta_classes:
            others = batch.given["anchor"] != y[:, None]  # [B, C]
            right = chances.masked_fill(others, -torch.inf).logsumexp(-1)
        else:
            right = chances.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        return -(right * class_weights(y, batch.mask, len(mean)).sum(0)).sum()

    def _anchors_of(self, batch: Batch) -> Tensor:
        """The anchor each sample belongs to."""
        return batch.given["anchor"][batch.y] if self.meta_classes else batch.y

    def _modes(self, batch: Batch) -> Batch:
        """Under L2GD encoder and head train whichever of their two sets does."""
        return batch._replace(parts=PARTS) if self.base == "l2gd" else batch

    def _more(self, client: Client, start: Params, work: Work) -> dict[str, Any]:
        """What the objective needs of a client beside its samples: standard normal ξ, and which anchors there are."""
        width = start["anchors.mean"].shape[1]
        beside, given = {}, {}
        if self.lambda_calibrate:
            beside["xi"] = _normal(work, "xi", (client.samples, width), client)
        if self.alignment in ("mmd", "transport"):
            given["points"] = _normal(work, "points", (DRAWN, width), client)
        if self.meta_classes:
            given["anchor"] = _anchor_of(self.meta_classes, client.task).to(client.device)
        return {"beside": beside, "given": given}


def _normal(work: Work, purpose: str, shape: tuple[int, ...], client: Client) -> Tensor:
    return torch.from_numpy(work.rng(purpose).standard_normal(shape, dtype="float32")).to(client.device)


def _anchor_of(meta_classes: tuple[tuple[str, ...], ...], task: Task) -> Tensor:
    """The number of each class's anchor: its own, or that of its meta-class; a class in none has one of its own."""
    if task.kind == "regression":  # the two ends of a line
        return torch.arange(2)
    if not meta_classes:
        return torch.arange(len(task.classes))
    places = {name: number for number, group in enumerate(meta_classes) for name in group}
    if unknown := sorted(set(places) - set(task.classes)):
        raise UserError(
            f"flic: meta_classes names '{unknown[0]}', which is no class; {nearest(unknown[0], task.classes)}",
            about="meta_classes",
        )
    if sum(map(len, meta_classes)) > len(places):
        raise UserError("flic: meta_classes has a class in two groups; give each class one", about="meta_classes")
    for name in task.classes:
        places.setdefault(name, max(places.values()) + 1)
    return torch.tensor([places[name] for name in task.classes])


def _on_the_line(ends: Tensor, y: Tensor) -> Tensor:
    """m(y) = y a + (1 − y) b, the anchor of a value."""
    return y[:, None] * ends[0] + (1 - y[:, None]) * ends[1]


def _width(latent: int) -> str:
    return f"vectors of {latent}" if latent else "no vectors"
