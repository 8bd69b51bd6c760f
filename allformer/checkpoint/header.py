"""The safetensors format: eight bytes of length, a JSON header, then the tensors end to end.

Read and written here rather than by the `safetensors` library, which gives no offsets. We need
them to read each tensor straight into its final place (its own reading maps the file, whose pages
then count as resident a second time), and to write one tensor after another (its own writing wants
all of a file in memory at once). The bytes are the library's, tested.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from allformer.errors import CheckpointError

# In the library's own order: a file holds the last of these first, so that all stay aligned.
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
LONGEST = 100_000_000  # bytes of a header, the library's limit
LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: `offset` counts from the file's first byte."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(path: Path, file: BinaryIO) -> list[Entry]:
    """What a safetensors file holds, in the order of its bytes; nothing else is read."""
    try:
        size = os.fstat(file.fileno()).st_size
        start = file.read(64)
        length = int.from_bytes(start[:8], "little")
        file.seek(8)
        raw = b"" if length > min(size, LONGEST) else file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if start.startswith(LFS):
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the weights themselves; fetch them with "
            f"`git lfs pull`, or download the file again"
        )
    if size < 8 or length > LONGEST or (start[8:9] != b"{" and size > 8):
        raise CheckpointError(
            f"{path} is no safetensors file: it begins with {start[:16]!r}; download it again"
        )
    if 8 + length > size:
        raise _cut(path, size, f"its header alone needs {8 + length:,}")
    try:
        header = json.loads(raw, object_pairs_hook=_no_twins)
        entries = [
            _entry(name, about, 8 + length)
            for name, about in header.items()
            if name != "__metadata__"
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} has a damaged header ({str(error)[:300]}); download it again"
        ) from None
    entries.sort(key=lambda entry: (entry.offset, entry.offset + entry.bytes))
    _check_cover(path, entries, 8 + length, size)
    return entries


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twin!r} stands there twice")
    return found


def _entry(name: str, about: dict[str, Any], base: int) -> Entry:
    code, shape, (begin, end) = about["dtype"], tuple(about["shape"]), about["data_offsets"]
    if code not in DTYPES:
        raise ValueError(f"{name} has dtype {code}, known are {', '.join(DTYPES)}")
    numbers = (*shape, begin, end)
    if any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"{name} has shape {list(shape)} and offsets {[begin, end]}")
    entry = Entry(name, shape, DTYPES[code], base + begin)
    if entry.bytes != end - begin:
        raise ValueError(
            f"{name} of shape {list(shape)} in {code} needs {entry.bytes:,} bytes, "
            f"but its offsets {[begin, end]} say {end - begin:,}"
        )
    return entry


def _check_cover(path: Path, entries: list[Entry], base: int, size: int) -> None:
    """The tensors lie end to end and fill the file: no overlap, no hole, nothing cut off."""
    at = base
    for entry in entries:
        if entry.offset != at:
            fault = "overlaps the tensor before it" if entry.offset < at else "follows a hole"
            raise CheckpointError(
                f"{path} has a damaged header: {entry.name} {fault}; download it again"
            )
        at += entry.bytes
    if at > size:
        raise _cut(path, size, f"its header says {at:,}")
    if at < size:
        raise CheckpointError(
            f"{path} has {size - at:,} bytes after its last tensor; download it again"
        )


def _cut(path: Path, size: int, said: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is cut off: it has {size:,} bytes, {said}; download or copy it again"
    )


def lay_out(
    tensors: Iterable[tuple[str, tuple[int, ...], torch.dtype]], metadata: dict[str, str]
) -> tuple[bytes, list[Entry]]:
    """The head of a new file, and its entries in the order in which their bytes must follow."""
    codes = list(DTYPES)
    order = sorted(tensors, key=lambda t: (-codes.index(CODES[t[2]]), t[0]))
    header: dict[str, Any] = {"__metadata__": metadata}
    entries, at = [], 0
    for name, shape, dtype in order:
        entry = Entry(name, shape, dtype, at)
        header[name] = {
            "dtype": CODES[dtype],
            "shape": list(shape),
            "data_offsets": [at, at + entry.bytes],
        }
        entries.append(entry)
        at += entry.bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of eight
    base = 8 + len(text)
    head = len(text).to_bytes(8, "little") + text
    return head, [Entry(e.name, e.shape, e.dtype, base + e.offset) for e in entries]
