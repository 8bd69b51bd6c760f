"""The vector-quantised VAE (van den Oord et al., 2017), with a codebook of moving averages.

Legend: B batch, C channels, H W the image, h w the grid, V codes, N = B·h·w vectors of dim d.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.codecs.codebook import Codebook
from allformer.codecs.codec import CodecModel
from allformer.codecs.config import VQVAE
from allformer.core.registry import implements
from allformer.core.taps import listening, tap


@implements(VQVAE)
class VQVAEModel(CodecModel[VQVAE]):
    """A vector for each place, and the nearest one of the codebook instead of it."""

    def __init__(self, tree: VQVAE) -> None:
        super().__init__(tree)
        self.codebook = Codebook(tree.codes, tree.dim)

    def choose(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return self.codebook.nearest(self.encoder(x, dtype).movedim(1, -1))

    def vectors(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.codebook.vectors.clone()).movedim(-1, 1)

    def paint(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        painted: Tensor = self.decoder(x, dtype)
        return painted

    def picture(self, painted: Tensor) -> Tensor:
        return painted.clamp(0, 1)

    # --- learning ---------------------------------------------------------------------------------

    def unlikely(self, x: Tensor, painted: Tensor) -> Tensor:
        """The squared error: −log p of a normal distribution, but for constants."""
        return (painted - x).square()

    def learn(
        self,
        pixels: Tensor,
        *,
        decay: float = 0.99,
        restart: float = 1.0,
        keep: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The squared error of an image's pixels, summed, and the mean squared distance of the
        encoder's numbers from their codes' (the commitment), B each.

        `error, apart = codec.learn(pixels)`. In training the codebook follows what it stands for
        (`Codebook.follow`), of the images with `keep` 1; to look at a step is not to take it.
        """
        x = self.sized(pixels)
        z = tap(self, "vectors", self.encoder(x, dtype))  # B d h w
        ids = self.codebook.nearest(z.detach().movedim(1, -1))
        near = self.vectors(ids)
        through = z + (near - z).detach()  # the code forwards, the vector's gradient backwards
        error = self.unlikely(x, self.decoder(through, dtype)).flatten(1).sum(1)
        apart = (z - near).square().flatten(1).mean(1)
        if self.training and not listening():
            rows = z.detach().movedim(1, -1).flatten(0, -2)
            each = None if keep is None else keep.repeat_interleave(ids[0].numel())
            self.codebook.follow(rows, ids.flatten(), decay, restart, each)
        return error, apart
