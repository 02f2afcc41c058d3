"""What the networks share: checks of the input's shape, and images without a channel dimension."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedsense.errors import UserError


class AsImage(nn.Module):
    """Gives images that have no channel dimension, ``[B, H, W]``, one of length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1) if x.ndim == 3 else x


def signal_shape(model: str, input_shape: Sequence[int], least: int) -> tuple[int, int]:
    """Channels and time steps of a signal at least so many steps long."""
    shape = tuple(input_shape)
    if len(shape) != 2 or min(shape) < 1:
        raise UserError(f"{model} reads signals of shape (channels, time steps), but the input has shape {shape}")
    if shape[1] < least:
        raise UserError(
            f"{model} needs at least {least} time steps, but the input has shape {shape} (channels, time steps); "
            "use longer windows or another model"
        )
    return shape[0], shape[1]


def image_shape(model: str, input_shape: Sequence[int], least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of an image at least so large; ``(height, width)`` has one channel."""
    shape = tuple(input_shape)
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise UserError(
            f"{model} reads images of shape (height, width) or (channels, height, width), "
            f"but the input has shape {shape}"
        )
    if min(shape[-2:]) < least:
        raise UserError(
            f"{model} needs images of at least {least} × {least}, but the input has shape {shape}; "
            "use larger images or another model"
        )
    channels = shape[0] if len(shape) == 3 else 1
    return channels, shape[-2], shape[-1]
