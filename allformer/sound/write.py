"""`write("out.wav", wave, rate)`: sound into a file."""

from __future__ import annotations

import io
import wave as standard
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.errors import DataError
from allformer.sound.libraries import optional
from allformer.sound.mel import RATE
from allformer.sound.read import from_array

WRITTEN = (".wav", ".flac", ".ogg", ".mp3")


def write(path: str | Path, wave: Any, rate: int) -> None:
    """S or C S, floats in −1 … 1 or 16-bit integers, into a file of the format that its ending
    says; wav in 16 bits.

    >>> write("out.wav", torch.zeros(16_000), 16_000)

    What is beyond ±1 is clipped.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise DataError(f"{path} cannot be written: {path.parent} is no folder; make it first")
    if path.suffix.lower() == ".wav":
        path.write_bytes(wav_bytes(wave, rate))
        return
    library = optional("soundfile")
    if library is None:
        raise DataError(
            f"{path.name}: without soundfile only .wav is written; pip install allformer[sound]"
        )
    samples = _channels(wave).T.contiguous().numpy()  # S C
    try:
        library.write(str(path), samples, rate)
    except (library.LibsndfileError, TypeError, ValueError) as fault:
        raise DataError(
            f"{path} cannot be written ({fault}); end its name in .wav, .flac, .ogg or .mp3"
        ) from None


def wav_bytes(wave: Any, rate: int) -> bytes:
    """The bytes of a 16-bit PCM wav file, for a page's player too.

    >>> wav_bytes(torch.zeros(160), 16_000)[:4]
    b'RIFF'
    """
    if rate < 1:
        raise DataError(f"rate={rate} must be samples a second; 16000 is usual")
    samples = as_int16(_channels(wave))
    out = io.BytesIO()
    with standard.open(out, "wb") as file:
        file.setnchannels(samples.shape[0])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.T.contiguous().numpy().astype("<i2").tobytes())
    return out.getvalue()


def as_int16(wave: Tensor) -> Tensor:
    """Samples in −1 … 1 as 16-bit numbers; what is beyond is clipped.

    >>> as_int16(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0, 16384, 32767]
    """
    return (wave * 2**15).round().clamp(-(2**15), 2**15 - 1).to(torch.int16)


def check_ending(path: str | Path) -> None:
    """Refuse a name that `write` would, before there is anything to write."""
    if Path(path).suffix.lower() not in WRITTEN:
        raise DataError(f"{path} has no ending of sound; end it in {', '.join(WRITTEN)}")


def _channels(wave: Any) -> Tensor:
    """C S, fp32, on the CPU, within ±1."""
    given = from_array(torch.as_tensor(wave).detach().cpu(), rate=RATE, mono=False)
    samples: Tensor = given.clamp(-1, 1)
    return samples[None] if samples.ndim == 1 else samples
