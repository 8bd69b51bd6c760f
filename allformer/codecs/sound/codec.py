"""What every sound codec can do: a waveform to codes, codes to a waveform.

Legend: B batch, C channels, T samples, Q codebooks, F frames.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from allformer.config.sound_codec import SoundCodec
from allformer.core.provenance import Provenance
from allformer.errors import ConfigError

T = TypeVar("T", bound=SoundCodec)


class SoundCodecModel(nn.Module, Generic[T]):
    """The interface: `encode`, `decode`, `rate`, `hop`, `books`, `size`, `channels`."""

    path = ""

    def __init__(self, tree: T) -> None:
        super().__init__()
        self.config: T = tree
        self.provenance = Provenance()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.parameters()).dtype

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.config.rate

    @property
    def channels(self) -> int:
        """1 for mono, 2 for stereo."""
        return self.config.channels

    @property
    def hop(self) -> int:
        """Samples that a frame stands for."""
        return self.config.hop

    @property
    def books(self) -> int:
        """Codebooks: codes of a frame, where all are used."""
        return self.config.books

    @property
    def size(self) -> int:
        """Codes to choose from in each codebook."""
        return self.config.codes

    @torch.no_grad()
    def encode(
        self, wave: Tensor, *, books: int | None = None,
        rate: int | None = None, dtype: torch.dtype | None = None,
    ) -> Tensor:  # fmt: skip
        """Sound B C T, from −1 to 1, as codes B Q F; F is ⌈T / hop⌉.

        `codec.encode(torch.zeros(1, 1, 24_000)).shape` is (1, 32, 75) at 24 kHz. `books`: only the
        first so many. `rate`, where it is given, must be the codec's. `dtype` is what the
        convolutions compute in.
        """
        x = self.checked(wave, rate)
        return self.choose(self.compressed(x, dtype), self.counted(books))

    @torch.no_grad()
    def decode(
        self, codes: Tensor, *, length: int | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The sound of codes B Q F, of all codebooks or the first ones: B C F·hop, cut to `length`.

        `codec.decode(codec.encode(wave), length=wave.shape[-1])`.
        """
        wave = self.sounded(self.vectors(self.read(codes)), dtype)
        return wave if length is None else wave[..., :length]

    def compressed(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Sound that was checked → the numbers of its frames, B d F, before they are quantised."""
        raise NotImplementedError

    def choose(self, z: Tensor, books: int) -> Tensor:
        """The codes of frames, B d F → B Q F."""
        raise NotImplementedError

    def vectors(self, codes: Tensor) -> Tensor:
        """What codes stand for, B Q F → B d F."""
        raise NotImplementedError

    def sounded(self, z: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Frames, B d F → their sound, B C F·hop."""
        raise NotImplementedError

    # --- what is given ----------------------------------------------------------------------------

    def checked(self, wave: Tensor, rate: int | None = None) -> Tensor:
        """Sound of the right shape and rate, on the codec's device, in its dtype."""
        if rate is not None and rate != self.rate:
            raise ConfigError(
                f"rate={rate}, but this codec reads {self.rate} samples a second; resample the "
                f"sound first"
            )
        shape = tuple(wave.shape)
        if wave.ndim != 3 or shape[1] != self.channels:
            kind = "mono" if self.channels == 1 else "stereo"
            raise ConfigError(
                f"wave={shape} must be sounds × {self.channels} × samples: this codec is {kind}; "
                + ("average the channels" if self.channels == 1 else "repeat a mono sound's one")
            )
        if not shape[0] or not shape[2]:
            raise ConfigError(f"wave={shape} has no samples; give at least one")
        if not wave.is_floating_point():
            kind = str(wave.dtype).removeprefix("torch.")
            raise ConfigError(f"wave is {kind}; give floats from -1 to 1: divide int16 by 32768")
        return wave.to(self.device, self.dtype)

    def counted(self, books: int | None) -> int:
        """A number of codebooks that there are; None: all."""
        if books is None:
            return self.books
        least = self.least
        if not least <= books <= self.books:
            raise ConfigError(f"books={books} must be in {least} … {self.books}; leave it for all")
        return books

    @property
    def least(self) -> int:
        """The fewest codebooks that a frame may have."""
        return 1

    def read(self, codes: Tensor) -> Tensor:
        """Codes that this codec can have given, on its device."""
        shape, kind = tuple(codes.shape), str(codes.dtype).removeprefix("torch.")
        if codes.ndim != 3 or codes.is_floating_point() or codes.dtype == torch.bool:
            raise ConfigError(
                f"codes are {shape}, {kind}; give whole numbers, sounds × codebooks × frames"
            )
        if not self.least <= shape[1] <= self.books or not shape[2]:
            raise ConfigError(
                f"codes={shape} must be sounds × {self.least} … {self.books} codebooks × frames; "
                f"give what this codec's encode gave"
            )
        codes = codes.to(self.device, torch.long)
        low, high = (int(end) for end in codes.aminmax()) if codes.numel() else (0, 0)
        if low < 0 or high >= self.size:
            raise ConfigError(
                f"codes lie between {low} and {high}, but a codebook has 0 … {self.size - 1}; give "
                f"what this codec's encode gave"
            )
        return codes
