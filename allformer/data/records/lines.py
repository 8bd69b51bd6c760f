"""Lines of UTF-8 text with their numbers, packed or not; a line that is no text is an error.

A line ends at "\\n" only: see `allformer/data/parallel.py`, whose words for bad files serve here.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from allformer.data.parallel import not_utf8
from allformer.data.records.format import Reading
from allformer.errors import DataError

_MAGIC = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\x00", lzma.open), (b"BZh", bz2.open))
_BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)


@contextmanager
def opened(path: Path, reading: Reading | None = None) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it begins like gzip, xz or bzip2: its name may say less."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror}") from error
    with raw:
        if reading is not None:
            reading.position = raw.tell
        start = raw.read(6)
        raw.seek(0)
        unpack = next((opener for magic, opener in _MAGIC if start.startswith(magic)), None)
        try:
            if unpack is None:
                yield raw
            else:
                with unpack(raw) as file:
                    yield cast(BinaryIO, file)
        except _BROKEN as error:
            if unpack is None:
                raise DataError(f"{path} cannot be read: {error}") from error
            raise DataError(
                f"{path} is not a whole packed file ({error}); fetch it again"
            ) from error
        finally:
            if reading is not None:
                size = raw.tell()
                reading.position = lambda: size


def numbered_lines(path: Path, reading: Reading) -> Iterator[tuple[int, str | DataError]]:
    """Each line without its end, or what is wrong with it; numbers from 1."""
    offset = number = 0
    with opened(path, reading) as file:
        for number, line in enumerate(file, 1):
            yield number, checked(path, number, line, offset)
            offset += len(line)
    if not number:
        raise DataError(f"{path} is empty; leave it out, or write it again")


def checked(path: Path, number: int, line: bytes, offset: int = 0) -> str | DataError:
    """A line of bytes as text without its end, or the error that names the place."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return not_utf8(path, number, offset + error.start, line)
    if number == 1:
        text = text.removeprefix("\ufeff")  # the byte order mark that Windows writes
    if "\x00" in text:
        return DataError(
            f"{path}, line {number}: a NUL byte; this is no plain text, or a file that was not "
            "written to its end: write it again, or take the line out"
        )
    return text.rstrip("\r\n")


def beginning(path: Path, size: int = 1 << 16) -> str:
    """The first characters of a file, for telling formats apart."""
    with opened(path) as file:
        return file.read(size).decode("utf-8", "replace").removeprefix("\ufeff")
