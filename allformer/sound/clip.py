"""Short sounds as text, for files and pages: WAV (PCM, 16 bit) in base64.

text = clip(wave, 16_000)          # samples from −1 to 1: T, or channels × T
wave, rate = from_clip(text)       # C T, float32
"""

from __future__ import annotations

import base64
import binascii
import io
import wave as riff
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from allformer.errors import DataError
from allformer.sound.write import wav_bytes

LOUDEST = 2**15  # of 16 bits
SECONDS = 20.0  # at most: what is longer is cut, so that a page can be mailed
Samples = npt.NDArray[np.float32]


def clip(wave: Any, rate: int, seconds: float = SECONDS) -> str:
    """The first `seconds` of a sound.

    >>> clip(torch.zeros(8000), 8000)
    'UklGRqQ+AABXQVZF…'
    """
    samples = torch.as_tensor(wave, dtype=torch.float32)
    if samples.ndim not in (1, 2) or not samples.shape[-1]:
        raise DataError(
            f"a sound of shape {tuple(samples.shape)} must be samples, or channels × samples; "
            f"give one sound with at least one sample"
        )
    kept = samples[..., : round(seconds * rate)].nan_to_num()
    return base64.b64encode(wav_bytes(kept, rate)).decode()


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
