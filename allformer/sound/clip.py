"""Short sounds as text, for files and pages: WAV (PCM, 16 bit) in base64.

text = clip(wave, 16_000)          # samples from −1 to 1: T, or channels × T
wave, rate = from_clip(text)       # C T, float32
"""

from __future__ import annotations

import base64
import binascii
import io
import wave as riff
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from allformer.errors import DataError

LOUDEST = 32767  # of 16 bits
SECONDS = 20.0  # at most: what is longer is cut, so that a page can be mailed
Samples = npt.NDArray[np.float32]


def clip(wave: Any, rate: int, seconds: float = SECONDS) -> str:
    """The first `seconds` of a sound.

    >>> clip(torch.zeros(8000), 8000)
    'UklGRqQ+AABXQVZF…'
    """
    return base64.b64encode(wav_bytes(_samples(wave)[:, : round(seconds * rate)], rate)).decode()


def from_clip(text: str) -> tuple[Samples, int]:
    """Samples (C T) and their rate again."""
    try:
        with riff.open(io.BytesIO(base64.b64decode(text, validate=True))) as file:
            if file.getsampwidth() != 2:
                raise DataError(f"a clip of {8 * file.getsampwidth()} bits must have 16; use clip")
            raw = np.frombuffer(file.readframes(file.getnframes()), "<i2")
            channels, rate = file.getnchannels(), file.getframerate()
    except (binascii.Error, riff.Error, EOFError) as error:
        raise DataError(f"a clip that is no WAV file in base64 ({error}); use clip") from None
    return (raw.reshape(-1, channels).T / LOUDEST).astype(np.float32), rate


def write_wav(path: str | Path, wave: Any, rate: int) -> Path:
    """`write_wav("out.wav", wave, 16_000)`: PCM of 16 bits; what is louder than 1 is cut off."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(wav_bytes(_samples(wave), rate))
    return file


def wav_bytes(samples: Samples, rate: int) -> bytes:
    """A whole file of samples C T."""
    buffer = io.BytesIO()
    with riff.open(buffer, "wb") as file:
        file.setnchannels(len(samples))
        file.setsampwidth(2)
        file.setframerate(rate)
        whole = np.rint(np.nan_to_num(samples).clip(-1, 1).T * LOUDEST)
        file.writeframes(whole.astype("<i2").tobytes())
    return buffer.getvalue()


def _samples(wave: Any) -> Samples:
    """C T."""
    if isinstance(wave, torch.Tensor):
        wave = wave.detach().float().cpu().numpy()
    samples = np.atleast_2d(np.asarray(wave, np.float32))
    if samples.ndim != 2 or not samples.shape[1] or len(samples) > 8:
        raise DataError(
            f"a sound of shape {np.shape(wave)} must be samples, or channels × samples; "
            f"give one sound with at least one sample"
        )
    return samples
