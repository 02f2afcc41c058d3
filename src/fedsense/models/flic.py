"""The networks of FLIC (Rakotomamonjy et al., TMLR 2024): a client's own embedding φ, then what clients may share.

The adapter is φ and gives the latent space of the anchors. ``shared=0`` is FLIC-Class: no encoder, and the head is
linear on the latent space. ``shared=100`` is FLIC-HL: the encoder is the shared layer α.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from fedsense.errors import UserError
from fedsense.models.layers import AsImage, image_shape
from fedsense.models.network import Dropout, Network


def flic_mlp(
    input_shape: Sequence[int],
    classes: int,
    latent: int = 64,
    hidden: int = 64,
    shared: int = 0,
    dropout: float = 0.0,
    leaky: bool = False,
) -> Network:
    """φ of three linear layers on the flattened input; brain signals use ``leaky=True, dropout=0.5``."""
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise UserError(f"flic-mlp needs at least one input value, but the input has shape {shape}")
    bend = nn.LeakyReLU if leaky else nn.ReLU
    adapter = nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(math.prod(shape), hidden), bend(), Dropout(dropout)),
        *(nn.Linear(hidden, hidden), bend(), Dropout(dropout)),
        nn.Linear(hidden, latent),
    )
    return _with_shared(adapter, latent, shared, classes)


def flic_cnn(input_shape: Sequence[int], classes: int, latent: int = 64, shared: int = 0) -> Network:
    """φ for digits: two convolutions, then linear. The authors pool before the sigmoid."""
    channels, height, width = image_shape("flic-cnn", input_shape, least=16)  # ((16 - 4) // 2 - 4) // 2 = 1
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    adapter = nn.Sequential(
        AsImage(),
        *(nn.Conv2d(channels, 32, 5), nn.MaxPool2d(2), nn.Sigmoid()),
        *(nn.Conv2d(32, 20, 5), Dropout(0.5, whole_channels=True), nn.MaxPool2d(2), nn.Sigmoid()),
        *(nn.Flatten(), nn.Linear(20 * rows * columns, latent)),
    )
    return _with_shared(adapter, latent, shared, classes)


def _with_shared(adapter: nn.Module, latent: int, shared: int, classes: int) -> Network:
    if not shared:
        return Network(nn.Identity(), nn.Linear(latent, classes), latent, adapter)
    encoder = nn.Sequential(nn.Linear(latent, shared), nn.LeakyReLU())  # alpha
    return Network(encoder, nn.Linear(shared, classes), shared, adapter)
