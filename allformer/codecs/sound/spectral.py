"""A codec without convolutions: spectra, quantised, and sound that has such spectra.

    codec = fit_codec(Spectral(rate=8000), waves)    # of `audiolm.spectra`
    codes = codec.encode(wave)                       # B 1 T → B Q F
    again = codec.decode(codes)                      # B 1 F·step

Legend: B batch, T samples, F frames, W samples of a window, K bins of a spectrum, d bands.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.codecs.sound.books import Book, Books
from allformer.codecs.sound.codec import SoundCodecModel
from allformer.codecs.sound.spectral_config import Spectral
from allformer.core.registry import implements

_QUIET = 0.03  # of a spectrum: below, all is silence
_KEPT = 0.99  # of the last step's movement: fewer rounds are needed (Perraudin et al., 2013)


@implements(Spectral)
class SpectralModel(SoundCodecModel[Spectral]):
    """`mean` and `quantiser` are all that it holds."""

    def __init__(self, tree: Spectral) -> None:
        super().__init__(tree)
        self.mean = nn.Parameter(torch.empty(tree.bands), requires_grad=False)
        self.quantiser = Books(Book(tree.codes, tree.bands) for _ in range(tree.levels))

    def reset_parameters(self) -> None:
        """The codebooks start by themselves."""
        nn.init.zeros_(self.mean)

    def compressed(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The bands' loudness, B d F; always in the dtype of the sound."""
        x = F.pad(x[:, 0], (0, -x.shape[-1] % self.hop))
        loud = self._spectra(self._framed(x)).abs() @ _filters(self.config).to(x).T  # B F d
        return ((loud + _QUIET).log() - self.mean.to(x)).movedim(-1, 1)

    def choose(self, z: Tensor, books: int) -> Tensor:
        return self.quantiser.encode(z, books)

    def vectors(self, codes: Tensor) -> Tensor:
        return self.quantiser.decode(codes)

    def sounded(self, z: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Sound whose spectra are as near to those of the bands as may be, B 1 F·step."""
        loud = ((z.movedim(1, -1) + self.mean.to(z)).exp() - _QUIET).clamp(min=0)  # B F d
        back = torch.linalg.pinv(_filters(self.config).double()).to(z)
        wanted = (loud @ back.T).clamp(min=0)  # B F K
        chance = torch.Generator().manual_seed(0)  # the same codes, the same sound
        turns = torch.rand(wanted.shape[1:], generator=chance).to(z) * 2 * math.pi
        phases, before = torch.polar(torch.ones_like(turns), turns).expand(wanted.shape), None
        for _ in range(self.config.rounds):
            now = self._spectra(self._framed(self._overlapped(wanted * phases)))
            moved = now if before is None else now + _KEPT * (now - before)
            phases, before = moved / moved.abs().clamp(min=1e-9), now
        return self._overlapped(wanted * phases)[:, None]

    # --- windows ----------------------------------------------------------------------------------

    @property
    def _around(self) -> tuple[int, int]:
        """Samples of a window before its frame, and behind it."""
        more = self.config.window - self.hop
        return more // 2, more - more // 2

    def _window(self, x: Tensor) -> Tensor:
        return torch.hann_window(self.config.window, device=x.device, dtype=x.dtype)

    def _framed(self, x: Tensor) -> Tensor:
        """B T → B F W, silence around it."""
        frames: Tensor = F.pad(x, self._around).unfold(-1, self.config.window, self.hop)
        return frames * self._window(x)

    def _spectra(self, frames: Tensor) -> Tensor:
        """B F W → B F K."""
        spectra: Tensor = torch.fft.rfft(frames, 2 * (self.config.bins - 1))
        return spectra

    def _overlapped(self, spectra: Tensor) -> Tensor:
        """B F K → B T: the sound whose windows are as near to these as may be."""
        frames = torch.fft.irfft(spectra, 2 * (self.config.bins - 1))[..., : self.config.window]
        window = self._window(frames)
        count = frames.shape[1]
        whole = (count - 1) * self.hop + self.config.window
        sums = _added(frames * window, whole, self.hop)
        weight = _added(window.square().expand(1, count, -1), whole, self.hop)
        first, last = self._around
        return (sums / weight.clamp(min=1e-6))[:, first : whole - last]


def _added(frames: Tensor, whole: int, hop: int) -> Tensor:
    """B F W → B whole: windows at their places, added where they overlap."""
    columns = frames.transpose(1, 2)  # B W F
    return F.fold(columns, (1, whole), (1, columns.shape[1]), stride=(1, hop))[:, 0, 0]


def _filters(tree: Spectral) -> Tensor:
    """d K: triangles, as far from each other as the ear tells pitches apart, and none narrower than
    a bin; each adds up to 1."""
    top, narrow = tree.rate / 2, tree.rate / tree.window
    hertz = torch.linspace(0, top, tree.bins, dtype=torch.float64)
    ear = torch.linspace(0, math.log1p(top / 700), tree.bands + 2, dtype=torch.float64)
    places = 700 * ear.expm1()
    low, middle, high = places[:-2, None], places[1:-1, None], places[2:, None]
    low, high = torch.minimum(low, middle - narrow), torch.maximum(high, middle + narrow)
    up, down = (hertz - low) / (middle - low), (high - hertz) / (high - middle)
    filters = torch.minimum(up, down).clamp(min=0)
    return (filters / filters.sum(1, keepdim=True)).float()
