"""What every codec can do: images to codes, codes to images.

Legend: B batch, C channels, H W the image, h w the grid of codes, V codes of the codebook.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from allformer.codecs.config import Trunk
from allformer.codecs.trunk import Decoder, Encoder
from allformer.core.provenance import Provenance
from allformer.errors import ConfigError

T = TypeVar("T", bound=Trunk)


class Judged(NamedTuple):
    """Images as codes and as images again, and how unlikely each pixel was."""

    ids: Tensor  # B h w
    images: Tensor  # B C H W, from 0 to 1
    unlikely: Tensor  # B C H W: −log p


class CodecModel(nn.Module, Generic[T]):
    """The interface: `encode`, `decode`, `grid`, `codes`; the rest is each codec's own."""

    path = ""

    def __init__(self, tree: T) -> None:
        super().__init__()
        self.config: T = tree
        self.provenance = Provenance()
        self.encoder, self.decoder = Encoder(tree), Decoder(tree)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes of an image of its size."""
        return self.config.grid

    @property
    def codes(self) -> int:
        """How many there are to choose from."""
        return self.config.codes

    # --- images and codes -------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, pixels: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """Images, B C H W from 0 to 1 (or uint8), as codes in reading order, B (h·w).

        `codec.encode(torch.rand(2, 1, 28, 28)).shape` is (2, 49). `dtype` is what is computed in.
        """
        return self.choose(self.as_input(self.checked(pixels)), dtype).flatten(1)

    @torch.no_grad()
    def decode(self, ids: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """The images of codes, B C H W from 0 to 1.

        `ids` are B (h·w), of the codec's own grid, or B h w, of any.
        """
        return self.picture(self.paint(self.vectors(self._laid(ids)), dtype))

    def choose(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The code of each place, B h w, of images that are ready for the encoder."""
        raise NotImplementedError

    def vectors(self, ids: Tensor) -> Tensor:
        """B h w → what the decoder begins with."""
        raise NotImplementedError

    def paint(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """What the decoder makes of that, B painted H W."""
        raise NotImplementedError

    def picture(self, painted: Tensor) -> Tensor:
        """An image from 0 to 1 of what the decoder says."""
        raise NotImplementedError

    def unlikely(self, x: Tensor, painted: Tensor) -> Tensor:
        """−log p of each number of images that were ready for the encoder, B C H W."""
        raise NotImplementedError

    @torch.no_grad()
    def judged(self, pixels: Tensor, dtype: torch.dtype | None = None) -> Judged:
        """What becomes of images on their way through the codes."""
        x = self.as_input(self.sized(pixels))
        ids = self.choose(x, dtype)
        painted = self.paint(self.vectors(ids), dtype)
        return Judged(ids, self.picture(painted), self.unlikely(x, painted))

    def as_input(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 1 as the encoder reads them."""
        return pixels

    # --- what is given ----------------------------------------------------------------------------

    def checked(self, pixels: Tensor) -> Tensor:
        """Pixels of the right shape and range, on the codec's device, in its dtype."""
        x = self.sized(pixels)
        if pixels.is_floating_point() and x.numel():
            low, high = (float(end) for end in x.aminmax())
            if not (low >= 0 and high <= 1):
                raise ConfigError(
                    f"pixels lie between {low:.4g} and {high:.4g}, but a codec reads 0 … 1; divide "
                    f"by 255, or give uint8, and do not normalise"
                )
        return x

    def sized(self, pixels: Tensor) -> Tensor:
        """The same without a look at the values, which would wait for the device."""
        channels, factor = self.config.channels, self.config.factor
        shape = tuple(pixels.shape)
        if pixels.ndim != 4 or shape[1] != channels or any(n % factor or not n for n in shape[2:]):
            raise ConfigError(
                f"pixels={shape} must be images × {channels} × height × width, both multiples of "
                f"{factor}; resize them, or take a codec for such images"
            )
        if not (pixels.is_floating_point() or pixels.dtype == torch.uint8):
            raise ConfigError(
                f"pixels are {str(pixels.dtype).removeprefix('torch.')}; give floats from 0 to 1, "
                f"or uint8"
            )
        x = pixels.to(self.device, next(self.parameters()).dtype)
        x = x if pixels.is_floating_point() else x / 255
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x

    def _laid(self, ids: Tensor) -> Tensor:
        rows, columns = self.grid
        if ids.ndim == 2 and ids.shape[1] == rows * columns:
            ids = ids.reshape(-1, rows, columns)
        if ids.ndim != 3 or ids.is_floating_point() or ids.dtype == torch.bool:
            kind = str(ids.dtype).removeprefix("torch.")
            raise ConfigError(
                f"ids are {tuple(ids.shape)}, {kind}; give whole numbers, images × "
                f"{rows * columns} (a grid of {rows} × {columns}) or images × rows × columns"
            )
        ids = ids.to(self.device, torch.long)
        if ids.numel():
            low, high = (int(end) for end in ids.aminmax())
            if low < 0 or high >= self.codes:
                raise ConfigError(
                    f"ids lie between {low} and {high}, but the codebook has 0 … {self.codes - 1}; "
                    f"give what this codec's encode gave"
                )
        return ids
