"""A tiny vision transformer for small images, as FedAli's appendix C: 6 blocks, 3 heads, 192 dimensions.

What the paper leaves open is taken from HART, which it says has the same configuration: 384 units between, a mean over
tokens. Patches are 4 × 4, so that an image of 32 × 32 has 64 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from fedsense.models.layers import AsImage, image_shape
from fedsense.models.network import Network
from fedsense.models.transformer import Attention, Block, MeanOverTokens, Positions

WIDTH, BLOCKS, HEADS = 192, 6, 3


class ImageTokens(nn.Module):
    """Images to one token a patch, ``[B, Z, 192]``."""

    def __init__(self, channels: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.patches = nn.Conv2d(channels, WIDTH, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.patches(x)
        return tokens.flatten(2).mT

    def pieces(self, x: Tensor) -> Tensor:
        """What each token is made of ``[B, Z, channels · patch²]``."""
        return F.unfold(AsImage()(x), self.patch, stride=self.patch).mT


def vit_tiny(input_shape: Sequence[int], classes: int, patch: int = 4, dropout: float = 0.0) -> Network:
    """Images cut into squares of ``patch`` × ``patch``."""
    channels, height, width = image_shape("vit-tiny", input_shape, least=patch)
    adapter = nn.Sequential(
        *(AsImage(), ImageTokens(channels, patch)), Positions((height // patch) * (width // patch), WIDTH)
    )
    depths = [dropout * i / (BLOCKS - 1) for i in range(BLOCKS)]
    mixes = [Attention(WIDTH, HEADS, WIDTH // HEADS) for _ in range(BLOCKS)]
    blocks = [Block(mix, WIDTH, 2 * WIDTH, nn.GELU(), dropout, d) for mix, d in zip(mixes, depths, strict=True)]
    encoder = nn.Sequential(*blocks, nn.LayerNorm(WIDTH, eps=1e-6), MeanOverTokens())
    return Network(encoder, nn.Linear(WIDTH, classes), WIDTH, adapter)
