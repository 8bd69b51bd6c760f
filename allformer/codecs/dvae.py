"""The discrete VAE of DALL-E (Ramesh et al., 2021, section 2.1 and appendix A).

Legend: B batch, C channels, H W the image, h w the grid of codes, V codes of the codebook.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.codecs.codec import CodecModel
from allformer.codecs.config import DVAE
from allformer.codecs.convolution import Convolution
from allformer.codecs.gumbel import divergence, gumbel_noise, relaxed, straight_through
from allformer.codecs.laplace import at_least, logit_laplace_nll, map_pixels, unmap_pixels
from allformer.core.registry import implements
from allformer.core.taps import tap


class Learnt(NamedTuple):
    """Of each image −log p of its pixels under relaxed codes and KL(q ‖ uniform) of its codes, both
    summed, and how much of it each code has."""

    nll: Tensor  # B
    kl: Tensor  # B
    use: Tensor  # B V: the mean of q over its places


@implements(DVAE)
class DVAEModel(CodecModel[DVAE]):
    """Scores for each code at each place; relaxed while it learns, the best one afterwards."""

    def as_input(self, pixels: Tensor) -> Tensor:
        return map_pixels(pixels)

    def logits(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """B C H W, mapped → B V h w."""
        scores: Tensor = self.encoder(x, dtype)
        return scores

    def choose(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return self.logits(x, dtype).argmax(1)

    def vectors(self, ids: Tensor) -> Tensor:
        """The decoder's first convolution of one-hot codes is a row of its matrix."""
        first = self.decoder.blocks.get_submodule("input")
        assert isinstance(first, Convolution)
        return (F.embedding(ids, first.w[:, :, 0, 0].t()) + first.b).movedim(-1, 1)

    def paint(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Behind that first convolution."""
        painted: Tensor = self.decoder.behind(x, dtype)
        return painted

    def picture(self, painted: Tensor) -> Tensor:
        """The middle of each pixel's distribution; how wide it is, nobody sees."""
        return unmap_pixels(painted.chunk(2, dim=1)[0].sigmoid())

    # --- learning ---------------------------------------------------------------------------------

    def unlikely(self, x: Tensor, painted: Tensor) -> Tensor:
        mean, log_scale = painted.chunk(2, dim=1)
        floor = self.config.floor
        log_scale = log_scale if floor is None else at_least(log_scale, floor)
        return logit_laplace_nll(x, mean, log_scale)

    def learn(
        self,
        pixels: Tensor,
        temperature: Tensor | float,
        *,
        hard: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Learnt:
        """What a step learns from: `nll, kl, use = codec.learn(pixels, 0.5)`.

        The evidence bound is nll + kl. `hard` takes the best code and the gradient of the relaxed
        ones.
        """
        x = self.as_input(self.sized(pixels))
        logits = tap(self, "logits", self.logits(x, dtype))
        codes = relaxed(logits, temperature, gumbel_noise(logits))
        painted = self.decoder(straight_through(codes) if hard else codes, dtype)
        nll = self.unlikely(x, painted).flatten(1).sum(1)
        return Learnt(nll, divergence(logits).flatten(1).sum(1), logits.softmax(1).mean((2, 3)))
