"""A wav that was written into a pipe: its head cannot know how much sound would come.

Such a head says 0 bytes, or the most that fit (ffmpeg: 0xFFFFFFFF), of the whole and of the sound.
The sound is then what there is up to the end of the file, as ffmpeg reads it.
"""

from __future__ import annotations

import io
import os
import struct
from typing import BinaryIO

_MOST = 0xFFFFFFFF
_FEW = 1 << 16  # bytes in which a head has ended


def with_length(handle: BinaryIO) -> BinaryIO:
    """The file, under a head that says how much there is if its own does not.

    >>> soundfile.SoundFile(with_length(open("piped.wav", "rb"))).frames
    """
    end = handle.seek(0, os.SEEK_END)
    handle.seek(0)
    head = bytearray(handle.read(min(end, _FEW)))
    handle.seek(0)
    data = _data_in(head)
    if data is None:
        return handle
    whole, size = (struct.unpack_from("<I", head, at)[0] for at in (4, data - 4))
    there = end - data
    known = 0 < size <= there or (not size and _is_chunks(head[data:], there))
    if known and whole + 8 >= data + size:
        return handle
    struct.pack_into("<I", head, data - 4, size if known else min(there, _MOST))
    struct.pack_into("<I", head, 4, min(end - 8, _MOST))
    return io.BufferedReader(_Headed(handle, bytes(head[:data]), end))


def _data_in(head: bytearray) -> int | None:
    """Where the sound begins; None: this is no wav, or none that is understood."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    at = 12
    while at + 8 <= len(head):
        name, size = struct.unpack_from("<4sI", head, at)
        at += 8
        if name == b"data":
            return at
        at += size + size % 2
    return None


def _is_chunks(rest: bytearray, length: int) -> bool:
    """Whether nothing follows but further chunks: then the sound is empty indeed."""
    at = 0
    while at + 8 <= min(length, len(rest)):
        name, size = struct.unpack_from("<4sI", rest, at)
        if not all(0x20 <= byte < 0x7F for byte in name):
            return False
        at += 8 + size + size % 2
    return at in (length, length + 1)


class _Headed(io.RawIOBase):
    """A file of which the first bytes are others."""

    def __init__(self, file: BinaryIO, head: bytes, end: int) -> None:
        self.file, self.head, self.end, self.at = file, head, end, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.end}[whence]
        return self.at

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        if self.at < len(self.head):
            found = self.head[self.at : self.at + len(into)]
        else:
            self.file.seek(self.at)
            found = self.file.read(len(into))
        into[: len(found)] = found
        self.at += len(found)
        return len(found)
