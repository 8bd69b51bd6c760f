"""Sound as it comes: raw samples from a pipe, or a microphone, in pieces of 16 kHz.

    for piece in from_pipe(sys.stdin.buffer, rate=44_100, channels=2):
        stream.feed(piece)

A thread of its own takes what comes while a piece is worked on, and what has gathered is given at
once. No more than a minute waits: then a pipe has to, and a microphone loses sound, which is said.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

import torch
from torch import Tensor

from allformer.errors import ConfigError, DataError
from allformer.sound.mel import RATE
from allformer.sound.resample import make_resampler

FORMATS = {"s16": torch.int16, "f32": torch.float32}  # of the machine's byte order
_PIECE = 0.1  # seconds
_WAITING = 60.0  # seconds of sound that may wait
_AT_ONCE = 5.0  # seconds that are given at once
_HEADS = (b"RIFF", b"fLaC", b"OggS", b"ID3\x03", b"ID3\x04", b"FORM")  # that files begin with


def from_pipe(
    pipe: BinaryIO, *, rate: int = RATE, channels: int = 1, form: str = "s16"
) -> Iterator[Tensor]:
    """Pieces of raw samples, interleaved: 16-bit integers ("s16") or 32-bit floats ("f32").

    >>> for piece in from_pipe(sys.stdin.buffer): ...
    """
    if form not in FORMATS:
        raise ConfigError(f"form={form!r} is not known; give {' or '.join(FORMATS)}")
    _check(rate, channels)
    frame = FORMATS[form].itemsize * channels
    coming = _Queue(rate)

    def take() -> None:
        held, begun = b"", False
        try:
            while data := pipe.read(max(1, round(_PIECE * rate)) * frame):
                if not begun and data[:4] in _HEADS:
                    raise DataError(
                        "the pipe has a file with a head, where raw samples are wanted; give the "
                        "file's name without --stream, or take its samples out first: ffmpeg -i "
                        "FILE -f s16le -ar 16000 -ac 1 -"
                    )
                held, begun = held + data, True
                whole = len(held) - len(held) % frame
                coming.put(bytearray(held[:whole]))
                held = held[whole:]
        except Exception as fault:  # told where it is waited for
            coming.fault = fault
        coming.end()

    threading.Thread(target=take, daemon=True).start()
    yield from _resampled(coming, rate, channels, form)


def from_microphone(*, device: int | str | None = None, channels: int = 1) -> Iterator[Tensor]:
    """Pieces of what a microphone hears, until the caller stops asking.

    >>> for piece in from_microphone(): ...
    """
    try:
        import sounddevice
    except (ImportError, OSError) as fault:  # OSError: PortAudio itself is missing
        raise DataError(
            f"the microphone needs sounddevice and PortAudio ({fault}): pip install "
            f"allformer[microphone], or give sound through a pipe: arecord -f S16_LE -r 16000 -t "
            f"raw | allformer transcribe --stream -"
        ) from None
    coming = _Queue(RATE)

    def take(data: Any, frames: int, when: Any, status: Any) -> None:
        if status:
            warnings.warn(f"the microphone lost sound: {status}", stacklevel=2)
        if not coming.offer(bytearray(bytes(data))):
            warnings.warn("the model is too slow for this speech; some is lost", stacklevel=2)

    try:
        microphone = sounddevice.RawInputStream(
            RATE, round(_PIECE * RATE), device, channels, "int16", callback=take
        )
    except Exception as fault:  # sounddevice.PortAudioError, ValueError
        raise DataError(
            f"device={device} cannot be listened to: {fault}; choose one of `python -m sounddevice`"
        ) from None
    with microphone:
        yield from _resampled(coming, RATE, channels, "s16")


class _Queue:
    """Bytes that wait, at most a minute of them."""

    def __init__(self, rate: int) -> None:
        self.parts: queue.Queue[bytearray | None] = queue.Queue(round(_WAITING / _PIECE))
        self.fault: Exception | None = None

    def put(self, data: bytearray) -> None:
        """Wait for room."""
        if data:
            self.parts.put(data)

    def offer(self, data: bytearray) -> bool:
        """False: there is no room."""
        try:
            self.parts.put_nowait(data)
        except queue.Full:
            return False
        return True

    def end(self) -> None:
        """Nothing more comes."""
        self.parts.put(None)

    def take(self) -> tuple[bytearray, bool]:
        """What has gathered, at least one part; and whether that was all."""
        got = bytearray()
        for i in range(round(_AT_ONCE / _PIECE)):
            try:
                part = self.parts.get(block=i == 0)
            except queue.Empty:
                break
            if part is None:
                if isinstance(self.fault, DataError):
                    raise self.fault
                if self.fault is not None:
                    raise DataError(f"the pipe broke: {self.fault}; start again") from self.fault
                return got, True
            got += part
        return got, False


def _resampled(coming: _Queue, rate: int, channels: int, form: str) -> Iterator[Tensor]:
    resampler = make_resampler(rate, RATE, 1)
    over = False
    while not over:
        data, over = coming.take()
        flat = torch.frombuffer(data, dtype=FORMATS[form]) if data else torch.zeros(0)
        wave = flat.float() / 2**15 if form == "s16" else flat.float()
        mono = wave.reshape(-1, channels).mean(1)
        if not torch.isfinite(mono).all():
            raise DataError("the pipe has samples that are no numbers; check form and channels")
        piece = resampler.push(mono[None], last=over)[0]
        if piece.shape[0]:
            yield piece


def _check(rate: int, channels: int) -> None:
    if rate < 1000:
        raise ConfigError(f"rate={rate} must be samples per second; 16000 is usual")
    if channels < 1:
        raise ConfigError(f"channels={channels} must be at least 1")
