"""The CNN of ProtoHAR (Cheng et al., JBHI 2023): three convolutions along time, alike for every channel."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedsense.models.layers import signal_shape
from fedsense.models.network import Network

KERNEL = 9


class TimeByChannel(nn.Module):
    """Signals ``[B, channels, time]`` as the paper's one-channel images ``[B, 1, time, channels]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).unsqueeze(1)


def protohar_cnn(input_shape: Sequence[int], classes: int, width: int = 384, channel_pool: int = 2) -> Network:
    """Features are the embedding after its ReLU, the space of the prototypes.

    Each max-pool halves time, and the channels too while there are two or more. The authors' code does not pool the
    channels of three-channel sets (WISDM, UniMiB SHAR); ``channel_pool=1`` is that reading.
    """
    channels, steps = signal_shape("protohar-cnn", input_shape, least=36)  # ((36 - 16) // 2 - 8) // 2 = 1
    layers: list[nn.Module] = [TimeByChannel(), nn.Conv2d(1, 16, (KERNEL, 1)), nn.ReLU()]
    steps -= KERNEL - 1
    for maps_in, maps in ((16, 32), (32, 64)):
        across = channel_pool if channels >= channel_pool else 1
        layers += [nn.Conv2d(maps_in, maps, (KERNEL, 1)), nn.ReLU(), nn.MaxPool2d((2, across))]
        steps, channels = (steps - KERNEL + 1) // 2, channels // across
    layers += [nn.Flatten(), nn.Linear(64 * steps * channels, width), nn.ReLU()]
    return Network(nn.Sequential(*layers), nn.Linear(width, classes), width)
