"""ALP: a layer that aligns embeddings with prototypes by optimal transport (FedAli, Ek et al., Section 3.1).

Prototypes are buffers: no gradient reaches them. A client's local prototypes follow its own embeddings by a moving
average while it trains; the global ones come from the server (:mod:`fedsense.methods.fedali`). In training embeddings
are drawn towards global prototypes, in inference towards local ones.

A layer as built, ``ALP(width)``, is closed: it gives back what it was given, so the network is its backbone. ``open``
puts prototypes into it; FedAli does this with its own hyper-parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsense.errors import UserError, nearest

Matching = Literal["transport", "cosine", "euclidean"]
Sets = Literal["both", "local", "global"]
Update = Literal["soft", "hard", "appendix"]
Inference = Literal["batch", "sample"]
PIECE = 64  # of a row that is searched for its largest value
LOCAL, GLOBAL, ALIGNED = "local_prototypes", "global_prototypes", "aligned"  # how the layer's tensors are called


def unit(x: Tensor) -> Tensor:
    """Rows of length 1; rows of zeros stay zeros, and so do rows whose length is not finite."""
    return F.normalize(x, dim=-1)


def scaling(kernels: Sequence[Tensor], iterations: int, counted: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """u ``[N]`` and v ``[P]`` of Sinkhorn–Knopp, Eq. 4: diag(u) K diag(v) is the transport plan.

    K ``[N, P]`` comes in pieces side by side, and v in as many. Rows are scaled first, then columns: in the end each
    column sums to 1. Rows that do not count get u = 0.
    """
    v = [kernel.new_ones(kernel.shape[1]) for kernel in kernels]
    for _ in range(iterations):
        first, *others = (kernel @ part for kernel, part in zip(kernels, v, strict=True))
        rows = sum(others, first)
        u = 1 / rows if counted is None else counted / rows
        v = [1 / (kernel.mT @ u) for kernel in kernels]
    return u, v


def _unless_one(v: Tensor, x: Tensor, counted: Tensor | None) -> Tensor:
    """v, or ones if there is one embedding only: a plan from it gives every prototype as much, and chooses nothing."""
    if counted is None:
        return v if len(x) > 1 else torch.ones_like(v)
    return torch.where(counted.sum() > 1, v, 1.0)


def largest(x: Tensor) -> Tensor:
    """Where each row's largest is ``[N, P]``, by pieces: a maximum is found ten times as fast without its place."""
    if x.shape[1] % PIECE or x.shape[1] == PIECE:
        return torch.max(x, 1).indices
    pieces = x.reshape(len(x), -1, PIECE)
    piece = pieces.amax(2).max(1).indices  # [N]
    within = pieces.take_along_dim(piece[:, None, None], 1).squeeze(1).max(1).indices
    found: Tensor = piece * PIECE + within
    return found


class _Unit(torch.autograd.Function):
    """:func:`unit` and the lengths, with a gradient of few steps: (g − ⟨g, y⟩y) / length."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-12)
        return x / length, length

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        y, length = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, y).unsqueeze(-1)
        across: Tensor = torch.addcmul(grad, along, y, value=-1) / length
        return across


class ALP(nn.Module):
    """Aligns embeddings ``[B, Z, width]`` or ``[B, width]``.

    ``beta`` says how far they are drawn to prototypes, ``gamma`` how slowly local prototypes move.

    ``matching``, ``sets`` and ``glu=False`` are Table 4: how embeddings find prototypes, which of the two sets serve
    (``"local"``: in training, too, and the others are not looked at; ``"global"``: in inference, too, while local ones
    go on learning for the server), and matched prototypes as they are.

    ``update``: "soft" moves a local prototype to the mean of its ⌈BZ/G⌉ best embeddings, weighted by the plan;
    "appendix" is the paper's pseudo-code, which takes embeddings of length 1 and weights that do not sum to 1, so that
    prototypes shrink; "hard" moves it to the mean of the embeddings whose best prototype it is.

    ``inference``: "batch" transports all embeddings of a minibatch together, as the paper, so that a sample's output
    depends on its company; "sample" takes the nearest prototype by cosine.
    """

    local_prototypes: Tensor
    global_prototypes: Tensor
    aligned: Tensor
    counted: Tensor | None = None  # which samples count, where minibatches of several clients were filled up

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.prototypes, self.number = width, 0, 0

    def open(
        self,
        prototypes: int,
        beta: float = 0.2,
        gamma: float = 0.999,
        *,
        glu: bool = True,
        matching: Matching = "transport",
        sets: Sets = "both",
        update: Update = "soft",
        inference: Inference = "batch",
        epsilon: float = 0.05,
        iterations: int = 3,
    ) -> ALP:
        if prototypes < 1 or iterations < 1:
            what, many = ("prototype", prototypes) if prototypes < 1 else ("iteration", iterations)
            raise UserError(f"an ALP layer needs at least one {what}, and was given {many}")
        for name, value in (("beta", beta), ("gamma", gamma)):
            if not 0 <= value <= 1:
                raise UserError(f"an ALP layer's {name} is between 0 and 1, and was given {value}")
        if not epsilon >= 0.02:  # e^(1/ε) must fit into single precision
            raise UserError(f"an ALP layer's epsilon is at least 0.02, and was given {epsilon}")
        choices = {"matching": (matching, Matching), "sets": (sets, Sets), "update": (update, Update)}
        for name, (word, words) in {**choices, "inference": (inference, Inference)}.items():
            if word not in get_args(words):
                raise UserError(f"an ALP layer has no {name} '{word}'; {nearest(word, get_args(words))}")
        self.prototypes, self.beta, self.gamma = prototypes, beta, gamma
        self.matching, self.sets, self.update, self.inference = matching, sets, update, inference
        self.epsilon, self.iterations = epsilon, iterations
        for name in (LOCAL, GLOBAL):
            self.register_buffer(name, torch.empty(prototypes, self.width))
        self.register_buffer(ALIGNED, torch.zeros(()))  # 1 once prototypes were learned; before, β counts as 0
        self.gate = nn.Parameter(torch.empty(2 * self.width, self.width)) if glu else None  # of value · σ(gate)
        self.gate_bias = nn.Parameter(torch.empty(2 * self.width)) if glu else None
        self.reset_parameters()
        return self

    @property
    def mixes(self) -> bool:
        """Whether what is made of a sample in use depends on the others."""
        return bool(self.prototypes and self.beta and self.matching == "transport" and self.inference == "batch")

    def reset_parameters(self) -> None:
        """From a stream of its own, so that the backbone starts as it would without this layer."""
        if not self.prototypes or self.local_prototypes.is_meta:
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch.initial_seed() % 2**62 + 1 + self.number)
            nn.init.normal_(self.local_prototypes)
            nn.init.normal_(self.global_prototypes)
            nn.init.zeros_(self.aligned)
            if self.gate is not None and self.gate_bias is not None:
                nn.init.xavier_uniform_(self.gate)
                nn.init.zeros_(self.gate_bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.prototypes or not self.beta:
            return x
        tokens = x.flatten(0, -2)  # [N, d], N = B Z
        with torch.no_grad():
            table, chosen = self._match(tokens.detach(), math.prod(x.shape[1:-1]))
        aligned = torch.lerp(tokens, self._processed(table, chosen), self.beta * self.aligned)  # Eq. 6, 7
        return _Unit.apply(aligned)[0].view(x.shape)  # type: ignore[no-any-return, no-untyped-call]

    def _processed(self, table: Tensor, chosen: Tensor) -> Tensor:
        """GLU(P̂) ``[N, d]``; of few prototypes all are processed, and then looked up."""
        if self.gate is None:
            return table.index_select(0, chosen)
        rows = table if len(table) < len(chosen) else table.index_select(0, chosen)
        value = F.glu(F.linear(rows, self.gate, self.gate_bias))
        return value.index_select(0, chosen) if len(table) < len(chosen) else value

    def _match(self, x: Tensor, per_sample: int) -> tuple[Tensor, Tensor]:
        """The prototypes in use and, of each embedding ``[N, d]``, the number of its own; local ones move."""
        if not self.training:
            table = self.global_prototypes if self.sets == "global" else self.local_prototypes
            close = self._closeness(x, table)  # [N, G]
            if self.mixes:
                (v,) = scaling([close.exp_()], self.iterations)[1]
                close.mul_(_unless_one(v, x, None))
            return table, largest(close)
        counted = None if self.counted is None else self.counted.repeat_interleave(per_sample)
        # Of the two halves of C, each lies in memory as it will be searched: by prototypes, and by embeddings.
        local = self._closeness(self.local_prototypes, x)
        common = None if self.sets == "local" else self._closeness(x, self.global_prototypes)
        if self.matching == "transport":
            halves = [local.exp_().mT] if common is None else [local.exp_().mT, common.exp_()]
            u, (v, *w) = scaling(halves, self.iterations, counted)
            plan = local * u  # C but for v, which is the same for all embeddings
            if common is not None:
                common.mul_(_unless_one(w[0], x, counted))  # C but for u, which is the same for all prototypes
            if common is None or self.update == "hard":
                local = local * _unless_one(v, x, counted)[:, None]
        else:
            if counted is not None:
                local = local.masked_fill(counted == 0, -torch.inf)
            plan = (local - local.amax(1, keepdim=True)).exp_()
            v = 1 / plan.sum(1)
        if common is None:  # what is matched are the prototypes before they move
            table, chosen = self.local_prototypes.clone(), local.argmax(0)
        else:
            table, chosen = self.global_prototypes, largest(common)
        self._move(x, plan, v, local.argmax(0) if self.update == "hard" else None, counted)
        return table, chosen

    def _closeness(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The logarithm of C₀ in Eq. 4, cos / ε; or minus the Euclidean distance."""
        if self.matching == "euclidean":
            return -torch.cdist(rows, columns)
        return (unit(rows) / self.epsilon) @ unit(columns).mT

    def _move(self, x: Tensor, plan: Tensor, ends: Tensor, best: Tensor | None, counted: Tensor | None) -> None:
        """Eq. 5: p ← γp + (1 − γ)x̂, of every local prototype; ``plan`` ``[G, N]`` lacks a factor ``ends`` ``[G]``."""
        if best is not None:  # of each embedding: the update is hard
            hits = (best == torch.arange(self.prototypes, device=x.device)[:, None]).to(x.dtype)  # [G, N]
            hits = hits if counted is None else hits * counted
            many = hits.sum(1, keepdim=True)
            towards = torch.where(many > 0, hits @ x / many.clamp(min=1), self.local_prototypes)
        else:
            towards = self._best(x, plan, ends, counted)
        self.local_prototypes.mul_(self.gamma).add_(towards, alpha=1 - self.gamma)

    def _best(self, x: Tensor, plan: Tensor, ends: Tensor, counted: Tensor | None) -> Tensor:
        """x̂ ``[G, d]``: of each prototype's ⌈N/G⌉ best embeddings, the mean weighted by the plan."""
        most = -(-len(x) // self.prototypes)
        if most == 1 and self.update == "soft":
            return x.index_select(0, largest(plan))
        weights, rows = plan.topk(most, dim=1)  # [G, k]
        if counted is not None:  # as many as there are embeddings that count
            many = (counted.sum() / self.prototypes).ceil()
            weights = weights * (torch.arange(most, device=x.device) < many)
        if self.update == "appendix":
            return torch.einsum("gk,gkd->gd", weights * ends[:, None], unit(x)[rows])
        weights = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        return torch.einsum("gk,gkd->gd", weights, x[rows])


def open_layers(network: nn.Module, prototypes: int, **options: object) -> list[ALP]:
    """Open the layers that are closed: ``prototypes`` in the first of all, half as many in each that follows."""
    layers = [module for module in network.modules() if isinstance(module, ALP)]
    for number, layer in enumerate(layers):
        if not layer.prototypes:
            layer.number = number
            layer.open(max(1, prototypes >> number), **options)  # type: ignore[arg-type]
    return layers


def prototype_layers(names: Iterable[str]) -> list[str]:
    """The ALP layers that are open, by the names of a network's tensors."""
    return [name.removesuffix(f".{LOCAL}") for name in names if name.endswith(f".{LOCAL}")]


def moved(now: Tensor, before: Tensor) -> Tensor:
    """The mean distance between prototypes ``[G, d]`` and where they were."""
    mean: Tensor = torch.linalg.vector_norm(now - before, dim=1).mean()
    return mean
