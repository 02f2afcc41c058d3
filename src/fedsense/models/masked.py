"""A masked autoencoder around a transformer (He et al., CVPR 2022): it learns from recordings without labels.

Most tokens are hidden, the encoder sees the others, and a small decoder says what the hidden ones were. Adapter and
encoder are those of the network itself, under the same names, so a network to be trained with labels can begin there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedsense.errors import UserError
from fedsense.models.network import Batch, Dropout, Network, Output
from fedsense.models.transformer import Attention, Block, MeanOverTokens, Positions


class Shuffle(Dropout):
    """Of every sample, its places ``[B, Z]`` in an order of its own, from the seed of the step."""

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator(device=x.device).manual_seed(int(self.seed))
        return torch.rand(x.shape[:2], device=x.device, generator=generator).argsort(1)


class Decoder(nn.Module):
    """What was at every place ``[B, Z, values]``, from what the encoder made of the places it saw ``[B, seen, d]``."""

    def __init__(self, width: int, places: int, values: int, depth: int) -> None:
        super().__init__()
        self.hidden = Positions(1, width)  # stands where nothing was seen
        self.places = Positions(places, width)
        blocks = [Block(Attention(width, 3, width // 3), width, 2 * width, nn.SiLU(), 0.0, 0.0) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(width, eps=1e-6), nn.Linear(width, values))

    def forward(self, seen: Tensor, order: Tensor) -> Tensor:
        batch, many, width = seen.shape
        hidden = self.hidden.table.expand(batch, order.shape[1] - many, width)
        back = order.argsort(1)[..., None].expand(-1, -1, width)  # where each place is in the order
        everywhere = torch.cat([seen, hidden], 1).gather(1, back)
        values: Tensor = self.blocks(self.places(everywhere))
        return values


class MaskedAutoencoder(Network):
    """``network`` with a decoder as its head; a share ``masked`` of the tokens is hidden."""

    def __init__(self, network: Network, input_shape: Sequence[int], masked: float = 0.6, depth: int = 2) -> None:
        tokens: Any = next((m for m in network.adapter.modules() if hasattr(m, "pieces")), None)
        if tokens is None or not isinstance(list(network.encoder.children())[-1], MeanOverTokens):
            raise UserError("only a transformer can be trained by hiding tokens: hart (signals) or vit-tiny (images)")
        with torch.no_grad():
            values = tokens.pieces(torch.zeros(1, *input_shape))
        places = values.shape[1]
        self.seen = places - round(masked * places)
        if not 0 < self.seen < places:
            raise UserError(
                f"of {places} tokens a share of {masked} would leave {self.seen} to see; hide some, and leave some",
                "masked",
            )
        decoder = Decoder(network.features, places, values.shape[2], depth)
        super().__init__(network.encoder, decoder, network.features, network.adapter)
        self.shuffle = Shuffle(0.0)
        self.pieces: Callable[[Tensor], Tensor] = tokens.pieces

    def forward(self, x: Tensor) -> Output:
        """What was at each place as logits ``[B, Z, values]``, and which places were hidden as features ``[B, Z]``."""
        tokens = self.adapter(x)
        order = self.shuffle(tokens)  # what is seen keeps its order in time, which a convolution depends on
        order = torch.cat([order[:, : self.seen].sort(1).values, order[:, self.seen :]], 1)
        seen = tokens.gather(1, order[:, : self.seen, None].expand(-1, -1, tokens.shape[2]))
        for layer in list(self.encoder.children())[:-1]:  # all but the mean over tokens
            seen = layer(seen)
        hidden = (order.argsort(1) >= self.seen).to(x.dtype)
        return Output(self.head(seen, order), hidden)

    def loss(self, out: Output, batch: Batch) -> Tensor:
        """The mean squared error of what was hidden."""
        wrong = (out.logits - self.pieces(batch.x)).square().mean(2)  # [B, Z]
        hidden = out.features * batch.mask[:, None]
        return (wrong * hidden).sum() / hidden.sum()
