"""The one-dimensional CNN of FedCoad (Iwan et al., FITEE 2025) with its projection head g."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedsense.models.layers import signal_shape
from fedsense.models.network import Dropout, Network


class XavierConv1d(nn.Conv1d):
    """Xavier-normal weights, zero bias, as the authors start every layer."""

    def reset_parameters(self) -> None:
        _xavier(self)


class XavierLinear(nn.Linear):
    """Xavier-normal weights, zero bias, as the authors start every layer."""

    def reset_parameters(self) -> None:
        _xavier(self)


class MaxOverTime(nn.Module):
    """The largest value of each channel, ``[B, channels, time]`` to ``[B, channels]``; any length will do."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax(-1)


def coad_cnn(input_shape: Sequence[int], classes: int, width: int = 256, dropout: float = 0.1) -> Network:
    """Features are the output of the projection g, which the contrastive loss compares (no ReLU after it)."""
    channels, _ = signal_shape("coad-cnn", input_shape, least=46)  # 46 - 23 - 15 - 7 = 1
    layers: list[nn.Module] = []
    for channels_in, channels_out, kernel in ((channels, 32, 24), (32, 64, 16), (64, 96, 8)):
        layers += [XavierConv1d(channels_in, channels_out, kernel), nn.ReLU(), Dropout(dropout)]
    layers += [MaxOverTime(), XavierLinear(96, width), nn.ReLU(), XavierLinear(width, width)]
    return Network(nn.Sequential(*layers), XavierLinear(width, classes), width)


def _xavier(layer: nn.Conv1d | nn.Linear) -> None:
    nn.init.xavier_normal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
