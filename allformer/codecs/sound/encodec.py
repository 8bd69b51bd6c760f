"""EnCodec (Défossez et al., 2022): 24 kHz whole and causal, 48 kHz in pieces of a second.

    codec = build(codec_preset("encodec-24khz"), seed=0)
    codes = codec.encode(wave, bandwidth=6.0)        # B C T → B Q F
    again = codec.decode(codes)                      # B C F·hop

    pieces = codec.pieces(stereo, bandwidth=6.0)     # where a codec has chunks or keeps loudness
    again = codec.join(pieces, length=stereo.shape[-1])

Legend: B batch, C channels, T samples, Q codebooks, F frames, d numbers a frame.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from allformer.codecs.sound.books import Book, Books
from allformer.codecs.sound.codec import SoundCodecModel
from allformer.codecs.sound.config import Encodec
from allformer.codecs.sound.overlap import faded
from allformer.codecs.sound.seanet import Half
from allformer.core.precision import cast, widen
from allformer.core.registry import implements
from allformer.core.taps import tap
from allformer.errors import ConfigError

_LITTLE = 1e-8  # silence is divided by it


class Pieces(NamedTuple):
    """Sound in pieces: of each the codes, B Q F, and how loud it was, B 1 1 (None: not kept)."""

    codes: tuple[Tensor, ...]
    loudness: tuple[Tensor, ...] | None = None


@implements(Encodec)
class EncodecModel(SoundCodecModel[Encodec]):
    """`encoder`, `quantiser` and `decoder`, each of which can be called, and learns."""

    def __init__(self, tree: Encodec) -> None:
        super().__init__(tree)
        self.encoder = Half(tree.trunk.encoder(tree.dim), tree.trunk, "encoder")
        self.quantiser = Books(Book(tree.codes, tree.dim) for _ in range(tree.books))
        self.decoder = Half(tree.trunk.decoder(tree.dim), tree.trunk, "decoder")

    @torch.no_grad()
    def encode(
        self, wave: Tensor, *, bandwidth: float | None = None, books: int | None = None,
        padding_mask: Tensor | None = None, rate: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:  # fmt: skip
        """Sound B C T, from −1 to 1, as codes B Q F; F is ⌈T / hop⌉.

        `codec.encode(torch.zeros(1, 1, 24_000), bandwidth=6.0).shape` is (1, 8, 75) at 24 kHz.
        `bandwidth` in kbit/s is one of the codec's; or `books`, so many; with neither, all. Where
        `padding_mask` (B T, or B C T) is 0, sound counts as silence. `rate`, where it is given,
        must be the codec's. `dtype` is what the convolutions compute in.
        """
        if self.config.chunks is not None or self.config.loudness:
            raise ConfigError(
                "this codec encodes in pieces with a loudness each, which codes alone do not hold; "
                "take codec.pieces(wave), and codec.join of what it gives"
            )
        x, count = self._given(wave, padding_mask, rate), self.afforded(bandwidth, books)
        return self.choose(self.compressed(x, dtype), count)

    @torch.no_grad()
    def pieces(
        self, wave: Tensor, *, bandwidth: float | None = None, books: int | None = None,
        padding_mask: Tensor | None = None, rate: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Pieces:  # fmt: skip
        """The same in pieces, as long as the codec has them, each with its loudness."""
        x, count = self._given(wave, padding_mask, rate), self.afforded(bandwidth, books)
        codes, loudness = [], []
        for piece in self._cut(x):
            if self.config.loudness:
                loud = piece.mean(1, keepdim=True).square().mean(-1, keepdim=True).sqrt() + _LITTLE
                piece = piece / loud
                loudness.append(loud)
            codes.append(self.choose(self.compressed(piece, dtype), count))
        return Pieces(tuple(codes), tuple(loudness) or None)

    @torch.no_grad()
    def join(
        self, pieces: Pieces, *, length: int | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The sound of pieces, faded into each other where they overlap: B C T."""
        self._check_pieces(pieces)
        sounds = [self.sounded(self.vectors(self.read(codes)), dtype) for codes in pieces.codes]
        if pieces.loudness is not None:
            sounds = [x * loud.to(x) for x, loud in zip(sounds, pieces.loudness, strict=True)]
        chunks = self.config.chunks
        wave = sounds[0] if chunks is None else faded(sounds, chunks.stride(self.rate))
        return wave if length is None else wave[..., :length]

    def compressed(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        z: Tensor = self.encoder(cast(x, dtype or x.dtype))
        return tap(self, "frames", widen(z))

    def choose(self, z: Tensor, books: int) -> Tensor:
        return self.quantiser.encode(z, books)

    def vectors(self, codes: Tensor) -> Tensor:
        return self.quantiser.decode(codes)

    def sounded(self, z: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        wave: Tensor = self.decoder(cast(z, dtype or self.dtype))
        return widen(wave)

    # --- what is given ----------------------------------------------------------------------------

    def afforded(self, bandwidth: float | None, books: int | None) -> int:
        """How many codebooks are asked for, by a bandwidth or by their number."""
        if bandwidth is None:
            return self.counted(books)
        if books is not None:
            raise ConfigError(f"bandwidth={bandwidth} and books={books} say the same; give one")
        known = self.config.bandwidths
        if bandwidth not in known:
            said, each = ", ".join(f"{one:g}" for one in known), self.config.each
            small = f" (a codebook alone takes {each:g})" if bandwidth < each else ""
            raise ConfigError(
                f"bandwidth={bandwidth} kbit/s is none of this codec's{small}; try {said}, or give "
                f"books=1 … {self.books}"
            )
        return self.config.books_of(bandwidth)

    def _given(self, wave: Tensor, mask: Tensor | None, rate: int | None) -> Tensor:
        x = self.checked(wave, rate)
        if mask is None:
            return x
        keep = mask[:, None] if mask.ndim == 2 else mask
        if (
            keep.ndim != 3
            or keep.shape[::2] != x.shape[::2]
            or keep.shape[1] not in (1, x.shape[1])
        ):
            raise ConfigError(
                f"padding_mask={tuple(mask.shape)} does not fit wave={tuple(x.shape)}; give sounds "
                f"× samples, 1 where there is sound"
            )
        return x * keep.to(x.device).bool()

    def _cut(self, x: Tensor) -> list[Tensor]:
        chunks = self.config.chunks
        if chunks is None:
            return [x]
        long, stride = chunks.length(self.rate), chunks.stride(self.rate)
        return [x[..., first : first + long] for first in range(0, x.shape[-1], stride)]

    def _check_pieces(self, pieces: Pieces) -> None:
        count = len(pieces.codes)
        if not count or (count > 1 and self.config.chunks is None):
            raise ConfigError(
                f"{count} pieces, but this codec has one for a whole sound; give what its pieces() "
                f"gave"
            )
        loud = pieces.loudness
        if (loud is not None) != self.config.loudness or (loud is not None and len(loud) != count):
            raise ConfigError(
                f"{count} pieces with {0 if loud is None else len(loud)} loudnesses: this codec "
                f"{'keeps one for each' if self.config.loudness else 'keeps none'}; give what its "
                f"pieces() gave"
            )
