"""What the transformers share: blocks with a place for prototypes, attention, stochastic depth, positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsense.models.alp import ALP
from fedsense.models.network import Dropout


class Positions(nn.Module):
    """Adds what is learned of each place ``[Z, d]``."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(places, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class Attention(nn.Module):
    """Self-attention over tokens ``[B, Z, branches · width]``; branches attend side by side, each with its own weights.

    A branch has ``heads`` heads of ``key`` dimensions each.
    """

    def __init__(self, width: int, heads: int, key: int, branches: int = 1) -> None:
        super().__init__()
        self.width, self.heads, self.key, self.branches = width, heads, key, branches
        inner = heads * key
        self.inward = nn.Parameter(torch.empty(branches, width, 3 * inner))  # queries, keys and values
        self.inward_bias = nn.Parameter(torch.empty(branches, 3 * inner))
        self.outward = nn.Parameter(torch.empty(branches, inner, width))
        self.outward_bias = nn.Parameter(torch.empty(branches, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's, each of queries, keys and values for itself."""
        inner = self.heads * self.key
        bound = math.sqrt(6 / (self.width + inner))
        for weight in (self.inward, self.outward):
            nn.init.uniform_(weight, -bound, bound)
        for bias in (self.inward_bias, self.outward_bias):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, places, _ = x.shape
        rows = x.reshape(batch * places, self.branches, self.width).transpose(0, 1)  # [branches, B Z, width]
        inner = torch.baddbmm(self.inward_bias[:, None], rows, self.inward)
        q, k, v = (  # [branches, B, heads, Z, key]
            inner.view(self.branches, batch, places, 3, self.heads, self.key).permute(3, 0, 1, 4, 2, 5)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(self.branches, batch * places, -1)
        out = torch.baddbmm(self.outward_bias[:, None], mixed, self.outward)
        return out.transpose(0, 1).reshape(batch, places, -1)


class DropPath(Dropout):
    """Leaves a whole sample out with probability p (stochastic depth)."""

    def forward(self, x: Tensor) -> Tensor:
        return x if not self.training or self.p == 0 else x * self.mask(x[:, :1, :1])


class Block(nn.Module):
    """x + mix(ALP(LN(x))), then x + MLP(LN(x)): prototypes align what is mixed, and not what is passed on."""

    def __init__(
        self, mix: nn.Module, width: int, hidden: int, bend: nn.Module, dropout: float, drop_path: float
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.align = ALP(width)
        self.mix = mix
        self.mlp = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6),
            *(nn.Linear(width, hidden), bend, Dropout(dropout), nn.Linear(hidden, width)),
            DropPath(drop_path),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.align(self.norm(x)))
        onward: Tensor = self.mlp(x)
        return x + onward


class MeanOverTokens(nn.Module):
    """``[B, Z, d]`` to ``[B, d]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)
