"""The three CNNs of FedAPA (Guo et al.), Table II: one feature width, very different sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fedsense.models.layers import AsImage, image_shape
from fedsense.models.network import Network


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm whose state is all float, so that it can be averaged and sent like any weight.

    One value a channel has no variance (a minibatch of one sample, on a 1×1 map). It is then normalised by the running
    statistics, and these stay as they are; PyTorch would stop the run at such a last minibatch.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.num_batches_tracked = None  # an integer, needed only for a cumulative average

    def reset_running_stats(self) -> None:
        # The parent's also resets num_batches_tracked, which is not there.
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] * x.shape[2] * x.shape[3] == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


def convnet4_tiny(input_shape: Sequence[int], classes: int, width: int = 256) -> Network:
    """One block; its pooled maps are the features."""
    return _convnet4("convnet4-tiny", (width,), False, input_shape, classes, width)


def convnet4_middle(input_shape: Sequence[int], classes: int, width: int = 256) -> Network:
    """Two blocks, pooled, then 1×1 to the features."""
    return _convnet4("convnet4-middle", (16, 32), True, input_shape, classes, width)


def convnet4_large(input_shape: Sequence[int], classes: int, width: int = 256) -> Network:
    """Five blocks, pooled, then 1×1 to the features."""
    return _convnet4("convnet4-large", (16, 32, 64, 128, 256), True, input_shape, classes, width)


def _convnet4(
    model: str, maps: tuple[int, ...], mix: bool, input_shape: Sequence[int], classes: int, width: int
) -> Network:
    channels, _, _ = image_shape(model, input_shape)
    layers: list[nn.Module] = [AsImage()]
    for maps_in, maps_out in zip((channels, *maps), maps, strict=False):
        layers += [nn.Conv2d(maps_in, maps_out, 3, stride=2, padding=1, bias=False), BatchNorm(maps_out), nn.ReLU()]
    layers.append(nn.AdaptiveAvgPool2d(1))
    if mix:
        layers.append(nn.Conv2d(maps[-1], width, 1))
    layers.append(nn.Flatten())
    return Network(nn.Sequential(*layers), nn.Linear(width, classes), width)
