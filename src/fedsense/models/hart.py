"""HART, a transformer for activity recognition (Ek, Portet and Lalanda, 2022), as FedAli's authors use it.

Each sensor (three channels) is cut into patches of 16 steps. In a block, a quarter of the dimensions attends within the
first sensor, another within the last, and a light convolution over the patches mixes the half between them. The
adapter makes tokens of a client's own sensors, the encoder is the blocks and a mean over tokens.

Departures: attention weights are not dropped, and whole samples only in the second half of a block; heads of the light
convolution are neighbouring dimensions, where the authors reshape without transposing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsense.models.layers import signal_shape
from fedsense.models.network import Dropout, Network
from fedsense.models.transformer import Attention, Block, MeanOverTokens, Positions

WIDTH, PATCH, BLOCKS = 192, 16, 6
KERNELS = (3, 7, 15, 31, 31, 31)


class SensorTokens(nn.Module):
    """``[B, channels, T]`` to ``[B, T // 16, 192]``: patches of each sensor by weights of its own, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sensors = channels // 3 if channels % 3 == 0 and WIDTH % (channels // 3) == 0 else 1
        self.sensors = nn.Conv1d(channels, WIDTH, PATCH, PATCH, groups=sensors)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.sensors(x)
        return tokens.mT

    @staticmethod
    def pieces(x: Tensor) -> Tensor:
        """What each token is made of ``[B, Z, channels · 16]``."""
        return x.unfold(2, PATCH, PATCH).transpose(1, 2).flatten(2)


class LightConvolution(nn.Module):
    """Convolves tokens ``[B, Z, d]`` along Z; d / heads neighbouring dimensions share a kernel that sums to 1."""

    def __init__(self, length: int, heads: int = 4) -> None:
        super().__init__()
        self.kernels = nn.Parameter(torch.empty(heads, length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.kernels)

    def forward(self, x: Tensor) -> Tensor:
        heads, length = self.kernels.shape
        places = torch.arange(x.shape[1], device=x.device)
        apart = places - places[:, None] + length // 2  # [Z, Z]: where in the kernel s stands, seen from t
        within = (apart >= 0) & (apart < length)
        matrix = self.kernels.softmax(-1)[:, apart.clamp(0, length - 1)] * within  # [heads, Z, Z]
        mixed = torch.einsum("hts,bshc->bthc", matrix, x.view(*x.shape[:-1], heads, -1))
        return mixed.flatten(-2)


class SensorMix(nn.Module):
    """Attention on dimensions 0–48 and 144–192, a light convolution on those between."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.edge = WIDTH // 4
        self.attention = Attention(self.edge, heads=3, key=48, branches=2)
        self.convolution = LightConvolution(length)

    def forward(self, x: Tensor) -> Tensor:
        first, middle, last = torch.split(x, [self.edge, WIDTH - 2 * self.edge, self.edge], -1)
        attended = self.attention(torch.cat([first, last], -1))
        return torch.cat([attended[..., : self.edge], self.convolution(middle), attended[..., self.edge :]], -1)


def hart(input_shape: Sequence[int], classes: int, dropout: float = 0.3) -> Network:
    """Signals with channels in threes (accelerometer, gyroscope); others are read as one sensor."""
    channels, steps = signal_shape("hart", input_shape, least=PATCH)
    adapter = nn.Sequential(SensorTokens(channels), Positions(steps // PATCH, WIDTH))
    depths = [dropout * i / (BLOCKS - 1) for i in range(BLOCKS)]
    blocks = [
        Block(SensorMix(length), WIDTH, 2 * WIDTH, nn.SiLU(), dropout, depth)
        for length, depth in zip(KERNELS, depths, strict=True)
    ]
    encoder = nn.Sequential(*blocks, nn.LayerNorm(WIDTH, eps=1e-6), MeanOverTokens())
    head = nn.Sequential(nn.Linear(WIDTH, 1024), nn.SiLU(), Dropout(dropout), nn.Linear(1024, classes))
    return Network(encoder, head, WIDTH, adapter)
