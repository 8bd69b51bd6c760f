"""A sound as pictures: its spectrogram as a small PNG, its waveform as an SVG.

spectrogram(wave, 8000)      # the data address of a PNG: time to the right, pitch upwards
waveform(wave)               # <svg class="waveform" …>

Legend: S samples, F frames, R rows of the picture.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from allformer.explain.heat import address

Array = npt.NDArray[np.floating]

ROWS, MOST_FRAMES = 80, 400
WINDOW = 0.025  # seconds: formants are seen, and the pulses of low voices
RANGE = 60.0  # decibels from the loudest to black
SHADES = 40  # no eye sees more, and the file is a third as long
TOP = 8000.0  # Hz: above it speech says little
# Black to yellow by way of purple: louder is lighter.
_RAMP = np.array([(12, 9, 32), (84, 20, 108), (190, 50, 92), (244, 140, 60), (254, 244, 176)])


def spectrogram(wave: Array, rate: int) -> str:
    """Of samples S, R × F pixels: decibels under the loudest place. Where the upper half is silent,
    as of a telephone's sound at a higher rate, the lower one is shown alone."""
    top = min(TOP, rate / 2)
    share = _loud(_power(wave, rate, top))
    if not share[: ROWS // 2].any() and share.any():
        share = _loud(_power(wave, rate, top / 2))
    at = np.rint(share * SHADES) / SHADES * (len(_RAMP) - 1)
    low = np.minimum(at.astype(int), len(_RAMP) - 2)
    part = (at - low)[..., None]
    colour = _RAMP[low] * (1 - part) + _RAMP[low + 1] * part
    opaque = np.full((*share.shape, 1), 255.0)
    return address(np.rint(np.concatenate([colour, opaque], -1)).astype(np.uint8))


def _loud(power: Array) -> Array:
    """0 … 1: how far a place is above what is drawn black."""
    loud = 10 * np.log10(np.maximum(power, 1e-12))
    share: Array = (1 + (loud - max(float(loud.max()), -40.0)) / RANGE).clip(0, 1)
    return share


def _power(wave: Array, rate: int, top: float) -> Array:
    """R F: mean power of the bins in each row up to `top` Hz, the highest pitch first."""
    window = min(len(wave), max(16, round(WINDOW * rate)))
    hop = max(window // 4, -(-len(wave) // MOST_FRAMES))
    padded = np.pad(wave, (window // 2, window // 2))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    # bins as fine as the rows, though the window may be short
    bins = max(window, 2 * round(ROWS * rate / 2 / top))
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(window), bins)) ** 2  # F bins
    last = round(top / rate * bins)
    edges = np.linspace(0, last, ROWS + 1).astype(int)[:-1]
    rows = np.add.reduceat(spectrum[:, :last], edges, axis=1)
    rows /= np.diff(np.append(edges, last))
    flipped: Array = rows.T[::-1]
    return flipped


def waveform(wave: Array, columns: int = 240) -> str:
    """How far it swings up and down, as one outline."""
    columns = min(columns, len(wave))
    edges = np.linspace(0, len(wave), columns + 1).astype(int)[:-1]
    high, low = np.maximum.reduceat(wave, edges), np.minimum.reduceat(wave, edges)
    scale = max(float(np.abs(wave).max()), 1e-6)
    tops = [f"{i},{-x / scale:.2f}" for i, x in enumerate(high)]
    bottoms = [f"{i},{-x / scale:.2f}" for i, x in enumerate(low)][::-1]
    return (
        f'<svg class="waveform" viewBox="0 -1.05 {max(1, columns - 1)} 2.1" '
        f'preserveAspectRatio="none" aria-hidden="true">'
        f'<polygon points="{" ".join([*tops, *bottoms])}"/></svg>'
    )
