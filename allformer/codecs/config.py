"""What a codec is made of: the sizes of its trunk, and how a code is chosen.

tree = DVAE(codes=512, image=(28, 28), channels=1, hidden=64, groups=3)
tree.grid                                   # (7, 7)

Legend: w the width of a group, k a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from allformer.config.base import Positive
from allformer.config.check import Rule, refuse
from allformer.config.codec import Codec
from allformer.config.counting import Part
from allformer.config.patches import Area

_FOURTH = Rule(lambda n: n % 4 == 0, "must be a multiple of 4", "try 64")
_TWO = Rule(lambda n: n >= 2, "must be at least 2", "try 512")
Quarters = Annotated[Positive, _FOURTH]  # a bottleneck is a quarter as wide
Many = Annotated[Positive, _TWO]


class Convolution(NamedTuple):
    """One convolution, for counting: so many of size k, at a picture of so many pixels."""

    inputs: int
    outputs: int
    kernel: int
    pixels: int

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.kernel**2 + self.outputs

    @property
    def flops(self) -> int:
        return 2 * self.inputs * self.outputs * self.kernel**2 * self.pixels


@dataclass(frozen=True)
class Trunk(Codec, slot=True):
    """The encoder and decoder of DALL-E's dVAE (Ramesh et al., 2021, appendix A.1).

    `groups` of `per_group` residual blocks each, twice as wide from one to the next, beginning with
    `hidden` channels; between them the encoder pools by 2, the decoder repeats pixels. So a code
    stands for a square of 2^(groups − 1) pixels. The decoder begins with `start` channels.
    """

    codes: Many = 8192
    image: Area = (256, 256)
    channels: Positive = 3
    hidden: Quarters = 256
    groups: Positive = 4
    per_group: Positive = 2
    start: Positive = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > 12:
            refuse(self, "groups", "must be at most 12", "each halves the image; try 3 or 4")
        if any(side % self.factor for side in self.image):
            must = f"must be multiples of {self.factor} pixels, as groups={self.groups} say"
            refuse(self, "image", must, "resize the images, or give fewer groups")

    @property
    def factor(self) -> int:
        """Pixels of a side that one code stands for."""
        return 1 << (self.groups - 1)

    @property
    def grid(self) -> tuple[int, int]:
        height, width = self.image
        return height // self.factor, width // self.factor

    @property
    def layers(self) -> int:
        """Residual blocks of the encoder, and of the decoder."""
        return self.groups * self.per_group

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each group, the encoder's first one first."""
        return tuple(self.hidden * 2**i for i in range(self.groups))

    @property
    def read(self) -> int:
        """What the encoder gives for each place."""
        raise NotImplementedError

    @property
    def said(self) -> int:
        """What the decoder takes for each place."""
        raise NotImplementedError

    @property
    def painted(self) -> int:
        """What the decoder gives for each pixel."""
        raise NotImplementedError

    def lines(self) -> Iterator[Part]:
        pixels = [self.image[0] * self.image[1] // 4**i for i in range(self.groups)]
        widths = list(zip(self.widths, pixels, strict=True))
        ends = (Convolution(self.channels, self.hidden, 7, pixels[0]),
                Convolution(self.widths[-1], self.read, 1, pixels[-1]))  # fmt: skip
        yield _line("encoder", ends, self._blocks(self.hidden, widths, (3, 3, 3, 1)))
        ends = (Convolution(self.said, self.start, 1, pixels[-1]),
                Convolution(self.hidden, self.painted, 1, pixels[0]))  # fmt: skip
        yield _line("decoder", ends, self._blocks(self.start, widths[::-1], (1, 3, 3, 3)))

    def _blocks(
        self, before: int, widths: list[tuple[int, int]], kernels: tuple[int, ...]
    ) -> Iterator[Convolution]:
        for width, pixels in widths:
            for _ in range(self.per_group):
                inner = width // 4
                if before != width:
                    yield Convolution(before, width, 1, pixels)
                sizes = zip((before, *[inner] * 3), (*[inner] * 3, width), kernels, strict=True)
                for size in sizes:
                    yield Convolution(*size, pixels)
                before = width


def _line(name: str, ends: tuple[Convolution, ...], inner: Iterator[Convolution]) -> Part:
    every = [*ends, *inner]
    text = f"{len(every)} convolutions, k²·w·w′ + w′"
    return Part(name, text, sum(one.parameters for one in every), sum(one.flops for one in every))


@dataclass(frozen=True)
class DVAE(Trunk):
    """DALL-E's discrete VAE: the encoder scores every code at every place, the decoder gives each
    pixel a logit-Laplace distribution. The sizes are those that OpenAI published.

    `floor` is the least ln b of such a distribution (None: there is none, as in the paper). Where
    images are one grey throughout, as behind Fashion-MNIST's clothes, they need one.
    """

    floor: float | None = None

    @property
    def read(self) -> int:
        return self.codes

    @property
    def said(self) -> int:
        return self.codes

    @property
    def painted(self) -> int:
        return 2 * self.channels  # where it lies, and how wide it is


@dataclass(frozen=True)
class VQVAE(Trunk):
    """The vector-quantised VAE (van den Oord et al., 2017) on the same trunk: the encoder gives a
    vector of `dim` numbers, and the nearest one in the codebook takes its place."""

    dim: Positive = 64

    @property
    def read(self) -> int:
        return self.dim

    @property
    def said(self) -> int:
        return self.dim

    @property
    def painted(self) -> int:
        return self.channels

    def lines(self) -> Iterator[Part]:
        yield from super().lines()
        vectors = self.codes * self.dim
        search = 2 * vectors * self.grid[0] * self.grid[1]
        text = f"V·d = {self.codes}·{self.dim}, their sums, V counts"
        yield Part("codebook", text, 2 * vectors + self.codes, search)
