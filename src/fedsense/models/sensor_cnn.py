"""A network for clients whose sensors differ: signals of any number of channels and any length.

The adapter, a client's own, turns a signal into a point of one latent space that is as wide for everyone; so phones,
watches and caps with different channels, rates and windows can share what comes after it. As in FLIC's networks,
``shared=0`` has no encoder, and ``shared=100`` a layer of so many units that clients may share.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsense.models.flic import _with_shared
from fedsense.models.layers import signal_shape
from fedsense.models.network import Dropout, Network

KERNEL = 5


class MeanAndMaxOverTime(nn.Module):
    """Mean and largest value of each channel, ``[B, channels, time]`` to ``[B, 2 channels]``; any length will do."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean(-1), x.amax(-1)], 1)


def sensor_cnn(
    input_shape: Sequence[int],
    classes: int,
    latent: int = 64,
    width: int = 32,
    shared: int = 0,
    dropout: float = 0.0,
) -> Network:
    """Three convolutions along time, ``width`` maps and then twice as many; ``latent`` is what all clients have."""
    channels, _ = signal_shape("sensor-cnn", input_shape, least=16)  # 16 // 2 // 2 = 4 steps to look back on
    layers: list[nn.Module] = []
    for maps_in, maps in ((channels, width), (width, 2 * width)):
        layers += [nn.Conv1d(maps_in, maps, KERNEL, padding=KERNEL // 2), nn.ReLU(), nn.MaxPool1d(2)]
    layers += [nn.Conv1d(2 * width, 2 * width, KERNEL, padding=KERNEL // 2), nn.ReLU()]
    layers += [MeanAndMaxOverTime(), Dropout(dropout), nn.Linear(4 * width, latent)]
    return _with_shared(nn.Sequential(*layers), latent, shared, classes)
