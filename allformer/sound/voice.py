"""`voices("talk.wav")`: where somebody speaks, by energy and spectrum; nothing is downloaded.

A frame of 10 ms may be speech where the power between 0.1 and 4 kHz stands out from the noise
around it (the quiet tenth of the nearest half minute), and a run of such frames is speech where
enough of them have the peaks of a voice: their spectrum is less flat than noise.
Letters: N frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.errors import DataError
from allformer.sound.mel import HOP, RATE
from allformer.sound.read import Source, blocks
from allformer.sound.spectrogram import mel_blocks

FRAMES = RATE // HOP  # a second
_BAND = slice(2, 58)  # of 80 mel bins: about 100 to 4000 Hz
_AROUND = 30 * FRAMES  # frames whose quiet tenth is the noise
_SHORT = 2 * FRAMES  # a clip that may have no pause, and so no noise of its own to be heard
_DEEPEST = 4.0  # decades below the loud of the sound: what is quieter is nobody who speaks


class Span(NamedTuple):
    """From `start` to `end`, in seconds."""

    start: float
    end: float


@dataclass(frozen=True)
class Ear:
    """How `voices` decides; energies in decades (10 dB) above the noise, times in seconds."""

    begins: float = 1.0
    goes_on: float = 0.6
    flat: float = 0.35  # mean over power of the band: below it are the peaks of a voice
    voiced: float = 0.06  # of such frames, in a run that is speech
    gap: float = 0.3  # a pause that is shorter does not part
    margin: float = 0.2  # before and behind


def voices(
    sound: Source | Tensor, *, longest: float | None = None, ear: Ear | None = None
) -> list[Span]:
    """The spans in which somebody speaks, in order; none in silence or even noise.

    >>> voices("talk.wav")
    [Span(start=0.21, end=3.3), Span(start=4.02, end=9.87)]

    `sound` is a file, read in blocks, or a wave S at 16 kHz. With `longest` (30.0 for Whisper)
    spans that lie close are joined up to that length, and one that is longer is cut where it is
    quietest.
    """
    ear = ear or Ear()
    energy, flatness = _heard(_waves(sound))
    runs = _runs(energy, flatness, ear)
    runs = _widened(runs, ear, len(energy))
    if longest is not None:
        if longest < 1:
            raise DataError(f"longest={longest} s must be at least 1; Whisper's is 30")
        runs = _packed(runs, energy, round(longest * FRAMES))
    return [Span(first / FRAMES, last / FRAMES) for first, last in runs]


def _waves(sound: Source | Tensor) -> Iterable[Tensor]:
    if isinstance(sound, str | Path | bytes):
        return blocks(sound)
    if sound.ndim != 1:
        raise DataError(f"the wave is of shape {tuple(sound.shape)}; give one channel, S")
    step = 30 * RATE
    return (sound[at : at + step].detach().float().cpu() for at in range(0, sound.shape[0], step))


def _heard(waves: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """(N) log10 of the power in the band, smoothed, and (N) how flat the spectrum is there."""
    energy, flatness = [], []
    for power in mel_blocks(waves, 80):
        band = power[_BAND]
        energy.append(band.mean(0).log10())
        flatness.append(10 ** (band.log10().mean(0) - energy[-1]))
    whole = torch.cat(energy)[None, None, :-1]  # the last is centred where the sound ends
    smooth = F.avg_pool1d(F.pad(whole, (3, 3), mode="replicate"), 7, stride=1)[0, 0]
    return smooth, torch.cat(flatness)[:-1]


def _noise(energy: Tensor) -> Tensor:
    """(N) the quiet tenth of what is around, worked out once for each 5 s."""
    step = _AROUND // 6
    if len(energy) <= _AROUND:
        quiet = _level(energy, 0.1)
        if len(energy) < _SHORT:
            quiet = torch.minimum(quiet, energy.max() - 2.0)
        return quiet.expand(len(energy))
    levels = _level(energy.unfold(0, _AROUND, step), 0.1)
    nearest = (torch.arange(len(energy)) - _AROUND // 2 + step // 2) // step
    return levels[nearest.clamp(0, len(levels) - 1)]


def _level(energy: Tensor, share: float) -> Tensor:
    """What this share of a row is no louder than; `quantile` would refuse an audiobook."""
    return energy.kthvalue(max(1, round(share * energy.shape[-1]))).values


def _runs(energy: Tensor, flatness: Tensor, ear: Ear) -> list[tuple[int, int]]:
    """Frames first … last of speech, without margins."""
    above = energy - torch.maximum(_noise(energy), _level(energy, 0.98) - _DEEPEST - ear.goes_on)
    edges = F.pad((above > ear.goes_on).to(torch.int8), (1, 1)).diff()
    firsts, lasts = (edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist()
    runs: list[tuple[int, int]] = []
    for first, last in zip(firsts, lasts, strict=True):
        if runs and first - runs[-1][1] < ear.gap * FRAMES:
            runs[-1] = (runs[-1][0], last)
        else:
            runs.append((first, last))
    peaked = flatness < ear.flat
    return [
        (first, last)
        for first, last in runs
        if above[first:last].max() > ear.begins
        and peaked[first:last].float().mean() > ear.voiced
        and peaked[first:last].sum() >= 3
    ]


def _widened(runs: list[tuple[int, int]], ear: Ear, count: int) -> list[tuple[int, int]]:
    """With margins; what then touches is one."""
    margin = round(ear.margin * FRAMES)
    out: list[tuple[int, int]] = []
    for first, last in runs:
        first, last = max(0, first - margin), min(count, last + margin)
        if out and first <= out[-1][1]:
            first = out.pop()[0]
        out.append((first, last))
    return out


def _packed(runs: list[tuple[int, int]], energy: Tensor, most: int) -> list[tuple[int, int]]:
    """None longer than `most` frames: cut where it is quietest in the second half, then joined."""
    short: list[tuple[int, int]] = []
    for first, last in runs:
        while last - first > most:
            middle = first + most // 2
            cut = middle + int(energy[middle : first + most].argmin())
            short.append((first, cut))
            first = cut
        short.append((first, last))
    out: list[tuple[int, int]] = []
    for first, last in short:
        if out and last - out[-1][0] <= most:
            out[-1] = (out[-1][0], last)
        else:
            out.append((first, last))
    return out
