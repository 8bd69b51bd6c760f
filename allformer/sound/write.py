"""`write("out.wav", wave, rate)`: sound into a file."""

from __future__ import annotations

import io
import wave as standard
from pathlib import Path

import torch
from torch import Tensor

from allformer.errors import DataError
from allformer.sound.libraries import optional

WRITTEN = (".wav", ".flac", ".ogg", ".mp3")


def write(path: str | Path, wave: Tensor, rate: int) -> None:
    """S or C S in −1 … 1 into a file of the format that its ending says; wav in 16 bits.

    >>> write("out.wav", torch.zeros(16_000), 16_000)

    What is beyond ±1 is clipped.
    """
    path = Path(path)
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


def wav_bytes(wave: Tensor, rate: int) -> bytes:
    """The bytes of a 16-bit PCM wav file, for a page's player too.

    >>> wav_bytes(torch.zeros(160), 16_000)[:4]
    b'RIFF'
    """
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


def _channels(wave: Tensor) -> Tensor:
    """C S, fp32, on the CPU, within ±1."""
    if wave.ndim not in (1, 2):
        raise DataError(f"the wave is of shape {tuple(wave.shape)}; give samples, or channels × S")
    wave = wave.detach().to("cpu", torch.float32).clamp(-1, 1)
    return wave[None] if wave.ndim == 1 else wave
