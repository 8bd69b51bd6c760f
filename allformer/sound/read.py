"""`read("talk.mp3")`: sound from a file, in blocks if it is long, at the rate that is asked for.

Letters: C channels, S samples.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.errors import DataError
from allformer.sound.libraries import optional
from allformer.sound.mel import RATE
from allformer.sound.plain_wave import PlainWave
from allformer.sound.resample import make_resampler, resample
from allformer.sound.streamed import with_length

Source = str | Path | bytes  # a file, or what one holds
ENDINGS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".au", ".caf")
_BLOCK = 30.0  # seconds


@dataclass(frozen=True)
class Facts:
    """What a file's head says of it."""

    rate: int
    channels: int
    samples: int  # of each channel

    @property
    def seconds(self) -> float:
        return self.samples / self.rate


def read(
    source: Source,
    *,
    rate: int | None = RATE,
    mono: bool = True,
    start: float = 0.0,
    seconds: float | None = None,
    name: str = "the sound",
) -> Tensor:
    """S samples in −1 … 1, fp32, at `rate` (None: as the file is); C S without `mono`.

    >>> read("talk.mp3", seconds=10).shape
    torch.Size([160000])

    wav, flac, mp3, ogg and what else libsndfile reads; plain PCM wav without it too. Channels are
    averaged. `start` and `seconds` choose a part. A file that is missing, empty, damaged, cut
    short or no sound is refused by its name; `name` is what an error calls bytes.
    """
    parts = list(blocks(source, rate=rate, mono=mono, start=start, seconds=seconds, name=name))
    return torch.cat(parts, -1)


def blocks(
    source: Source,
    *,
    rate: int | None = RATE,
    mono: bool = True,
    start: float = 0.0,
    seconds: float | None = None,
    block: float = _BLOCK,
    name: str = "the sound",
) -> Iterator[Tensor]:
    """The same in pieces of about `block` seconds: no more than one is held at a time.

    >>> for piece in blocks("hours.flac"): ...
    """
    for what, value in (("start", start), ("seconds", seconds)):
        if value is not None and not math.isfinite(value):
            raise DataError(f"{what}={value} is no time; give seconds, or leave it out")
    with _opened(source, name) as (file, name):
        given = int(file.samplerate)
        left = None if seconds is None else round(seconds * given)
        at = round(start * given)
        _go_to(file, at, name)
        to = given if rate is None else rate
        resampler = make_resampler(given, to, 1 if mono else file.channels)
        at_once = max(1, round(block * given))
        found = False
        while left is None or left > 0:
            wanted = at_once if left is None else min(left, at_once)
            piece = _next(file, wanted, at / given, name)  # C S
            at, left = at + wanted, None if left is None else left - wanted
            ends = piece.shape[-1] < wanted or left == 0
            out = resampler.push(piece.mean(0, keepdim=True) if mono else piece, last=ends)
            if out.shape[-1]:
                found = True
                yield out[0] if mono else out
            if ends:
                break
    if not found:
        raise DataError(f"{name} has no sound in it{_part(start, seconds)}; give another")


def describe(source: Source, *, name: str = "the sound") -> Facts:
    """Rate, channels and samples, from the file's head.

    >>> describe("talk.wav").seconds
    7.1
    """
    with _opened(source, name) as (file, _):
        return Facts(int(file.samplerate), int(file.channels), int(file.frames))


def from_array(wave: Any, *, rate: int, to: int = RATE, mono: bool = True) -> Tensor:
    """S or C S of floats, or of 16-bit integers, at `rate` → as `read` gives it.

    >>> from_array(numpy.zeros(8000, "int16"), rate=8000).shape
    torch.Size([16000])
    """
    wave = torch.as_tensor(wave)
    if wave.ndim not in (1, 2):
        raise DataError(f"the sound is of shape {tuple(wave.shape)}; give samples, or channels × S")
    if wave.dtype is torch.int16:
        wave = wave.float() / 2**15
    elif not wave.is_floating_point():
        raise DataError(f"the sound is of {wave.dtype}; give floats in −1 … 1, or int16")
    if wave.ndim == 2 and mono:
        wave = wave.mean(0)
    return resample(_numbers(wave.float(), "the sound"), rate, to)


@contextmanager
def _opened(source: Source, name: str) -> Iterator[tuple[Any, str]]:
    """A file that answers as a `soundfile.SoundFile`, and its name."""
    if isinstance(source, str | Path):
        name = str(source)
        _check_path(Path(source))
        handle: Any = open(source, "rb")  # noqa: SIM115  closed below
    elif isinstance(source, bytes | bytearray | memoryview):
        if not len(source):
            raise DataError(f"{name} is empty; get or save it again")
        handle = io.BytesIO(source)
    else:
        raise DataError(f"{name} is a {type(source).__name__}; give a path or bytes")
    with handle:
        handle = with_length(handle)
        library = optional("soundfile")
        if library is None:
            yield PlainWave(handle, name), name
            return
        try:
            file = library.SoundFile(handle)
        except library.LibsndfileError as fault:
            raise DataError(
                f"{name} is no sound that can be read, or its beginning is damaged "
                f"({fault.error_string.strip(' .')}); give one of "
                f"{', '.join(ending[1:] for ending in ENDINGS)}, which `ffmpeg -i FILE out.wav` "
                f"makes of others"
            ) from None
        with file:
            yield file, name


def _check_path(path: Path) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise DataError(f"{path} is not there; check the path") from None
    except OSError as fault:
        raise DataError(f"{path} cannot be read: {fault.strerror}; check the file") from None
    if not path.is_file():
        raise DataError(f"{path} is no file; give sound files")
    if not size:
        raise DataError(f"{path} is empty; get or save it again")


def _go_to(file: Any, sample: int, name: str) -> None:
    if sample < 0:
        raise DataError(f"start={sample / file.samplerate} must not be before the sound; give 0")
    if sample >= file.frames > 0:
        raise DataError(f"{name} ends before {sample / file.samplerate:g} s; start earlier")
    if not sample:
        return
    try:
        file.seek(sample)
    except RuntimeError:  # GSM, and others of few bits
        raise DataError(
            f"{name} can be read from its beginning alone, for it is packed as speech of a few "
            f"bits; give start=0, or save it as plain wav"
        ) from None


def _next(file: Any, count: int, at: float, name: str) -> Tensor:
    """The next `count` samples, C S, from second `at` on: a file of GSM cannot say where it is."""
    try:
        samples = file.read(count, dtype="float32", always_2d=True)
    except RuntimeError as fault:  # soundfile.LibsndfileError is one
        raise DataError(
            f"{name} is damaged or cut short somewhere after {at:g} s "
            f"({str(fault).strip(' .')}); get or save it again"
        ) from None
    return _numbers(torch.from_numpy(samples).T, name)


def _numbers(wave: Tensor, name: str) -> Tensor:
    if not torch.isfinite(wave).all():
        raise DataError(f"{name} has samples that are no numbers; save it again")
    return wave


def _part(start: float, seconds: float | None) -> str:
    return "" if not start and seconds is None else f" in the part from {start:g} s on"
