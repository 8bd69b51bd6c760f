"""A tensor that lies in a file (or in memory), not yet read."""

from __future__ import annotations

import math
import os
import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.chunks import CHUNK
from allformer.checkpoint.gguf_blocks import BlockKind, Groups
from allformer.errors import CheckpointError


def as_bytes(x: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor (numpy has no bf16, so as uint8), not copied."""
    flat: Any = x.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(flat)


TOP = 0x80  # what tells a signed byte from one with 128 added
MOST = 1 << 24  # bytes a call: some systems refuse more than 2 GiB at once


class Source:
    """An open file. It stays the same file when another takes over its name."""

    def __init__(self, path: Path) -> None:
        try:
            self.handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        self.path = path
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, os.close, self.handle)

    def read_into(self, out: Tensor, offset: int, what: str) -> None:
        """Fill a contiguous CPU tensor with the bytes at `offset`; threads may do so at once."""
        if not out.numel():
            return
        rest = as_bytes(out)
        while rest:
            try:
                count = self._read(rest[:MOST], offset)
            except OSError as error:
                raise CheckpointError(
                    f"{self.path} cannot be read at {what}: {error.strerror}; copy it again"
                ) from None
            if not count:
                raise CheckpointError(
                    f"{self.path} ends in the middle of {what}: it was cut off while open; "
                    f"download or copy it again"
                )
            offset += count
            rest = rest[count:]

    def _read(self, out: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.handle, [out], offset)
        with self._lock:  # Windows
            os.lseek(self.handle, offset, os.SEEK_SET)
            data = os.read(self.handle, len(out))
            out[: len(data)] = data
            return len(data)


@dataclass(frozen=True)
class InFile:
    """A tensor whose elements lie in order from byte `offset` of a file."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    source: Source
    offset: int

    @property
    def file(self) -> Path:
        return self.source.path

    def read_into(self, out: Tensor, first: int = 0) -> None:
        """Fill `out` (contiguous, CPU, this dtype) with the elements from `first` on."""
        self.source.read_into(out, self.offset + first * self.dtype.itemsize, self.name)

    def rows(self, first: int, count: int) -> InFile:
        """Some of its rows, as a tensor of the same name."""
        before = first * math.prod(self.shape[1:]) * self.dtype.itemsize
        return replace(self, shape=(count, *self.shape[1:]), offset=self.offset + before)


@dataclass(frozen=True)
class InMemory:
    """A tensor that is there already, under the name that a file would give it."""

    name: str
    tensor: Tensor
    file: Path
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def read_into(self, out: Tensor, first: int = 0) -> None:
        """Fill `out` with the elements from `first` on."""
        flat = self.tensor.detach().reshape(-1)
        out.view(-1).copy_(flat[first : first + out.numel()])

    def rows(self, first: int, count: int) -> InMemory:
        """Some of its rows, as a tensor of the same name."""
        return replace(self, tensor=self.tensor[first : first + count])


@dataclass(frozen=True)
class Signed:
    """Bytes with 128 added in a file, as signed ones here."""

    inner: InFile

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @property
    def file(self) -> Path:
        return self.inner.file

    @property
    def offset(self) -> int:
        return self.inner.offset

    def read_into(self, out: Tensor, first: int = 0) -> None:
        """Fill `out` with the elements from `first` on."""
        self.inner.read_into(out, first)
        out ^= TOP

    def rows(self, first: int, count: int) -> Signed:
        """Some of its rows, as a tensor of the same name."""
        return replace(self, inner=self.inner.rows(first, count))


@dataclass(frozen=True)
class InBlocks:
    """A tensor of a GGUF file whose numbers lie in blocks with scales; read, they are fp32."""

    name: str
    shape: tuple[int, ...]
    kind: BlockKind
    source: Source
    offset: int

    @property
    def file(self) -> Path:
        return self.source.path

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def read_into(self, out: Tensor, first: int = 0) -> None:
        """Fill `out` (contiguous, CPU, fp32) with whole blocks of numbers, from `first` on."""
        flat, size = out.view(-1), self.kind.size
        step = max(1, CHUNK // (4 * size))
        assert not first % size
        assert not len(flat) % size
        for at in range(0, len(flat) // size, step):
            piece = flat[at * size : (at + step) * size]
            piece.copy_(self.groups(first // size + at, len(piece) // size).widen().view(-1))

    def groups(self, first: int, count: int) -> Groups:
        """So many blocks, not multiplied out."""
        raw = torch.empty(count, self.kind.bytes, dtype=torch.uint8)
        self.source.read_into(raw, self.offset + first * self.kind.bytes, self.name)
        return self.kind.read(raw)

    def rows(self, first: int, count: int) -> InBlocks:
        """Some of its rows, as a tensor of the same name."""
        before = first * math.prod(self.shape[1:]) // self.kind.size * self.kind.bytes
        return replace(self, shape=(count, *self.shape[1:]), offset=self.offset + before)


Stored = InFile | InMemory | InBlocks | Signed


def read_whole(stored: Stored) -> Tensor:
    """The tensor itself, for small ones."""
    out = torch.empty(stored.shape, dtype=stored.dtype)
    stored.read_into(out)
    return out
