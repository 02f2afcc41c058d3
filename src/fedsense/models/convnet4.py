"""The three CNNs of FedAPA (Guo et al.), Table II: one feature width, very different sizes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedsense.models.layers import AsImage, image_shape
from fedsense.models.network import Network


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
        layers += [
            nn.Conv2d(maps_in, maps_out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(maps_out),
            nn.ReLU(),
        ]
    layers.append(nn.AdaptiveAvgPool2d(1))
    if mix:
        layers.append(nn.Conv2d(maps[-1], width, 1))
    layers.append(nn.Flatten())
    return Network(nn.Sequential(*layers), nn.Linear(width, classes), width)
