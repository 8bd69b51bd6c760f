"""The head of a GGUF file: what it says of its model, and where each tensor lies.

    header = read_gguf_header(Path("model.gguf"))
    header.metadata["general.architecture"], header.tensors["token_embd.weight"].kind

The layout is that of ggml's docs/gguf.md, versions 2 and 3: names with values, then names with
shapes, then the numbers. Forty lines read it, and a hundred thousand tokens in a fraction of a
second; the `gguf` package takes seconds for them, and believes what a damaged file says.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from allformer.errors import CheckpointError

ENDING = ".gguf"
MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_DIMS = 4
_SHARD = re.compile(r"(?P<stem>.+)-(?P<at>\d{5})-of-(?P<count>\d{5})\.gguf")
# The kinds of a value by their numbers; 8 is a text and 9 a list.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _LIST, _FLOAT = 8, 9, 6


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: `kind` is ggml's number of its type, `offset` counts from the file's
    first byte, `shape` is as torch has it."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    file: Path


@dataclass(frozen=True)
class GgufHeader:
    """What a file (or the several of one model) says."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Entry] = field(default_factory=dict)


def is_gguf(path: str | Path) -> bool:
    """Whether a path is a file of that name: `is_gguf("model.gguf")`."""
    try:
        return Path(path).suffix.lower() == ENDING and Path(path).is_file()
    except OSError:  # too long a name: no file at any rate
        return False


def find_gguf(path: str | Path) -> Path | None:
    """The file that a path is, or the only one in the directory that it is; None: there is none.

    Of a model in several files it is the first, `…-00001-of-00003.gguf`.
    """
    path = Path(path)
    if is_gguf(path):
        return path
    try:
        found = sorted(p for p in path.iterdir() if is_gguf(p)) if path.is_dir() else []
    except OSError:
        return None
    models = [p for p in found if not (m := _SHARD.fullmatch(p.name)) or int(m["at"]) == 1]
    if len(models) > 1:
        said = ", ".join(p.name for p in models[:5]) + (" …" if models[5:] else "")
        raise CheckpointError(f"{path} has several models: {said}; give the file that is meant")
    return models[0] if models else (found[0] if found else None)


def read_gguf_header(path: Path) -> GgufHeader:
    """The whole head; of a model in several files, that of the first with all their tensors.

    What was read last is remembered: a model, its config and its tokeniser are three questions.
    """
    try:
        stat = path.stat()
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read: {fault.strerror}; check the file") from None
    return _read_all(path, (stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=1)
def _read_all(path: Path, seen: tuple[int, int]) -> GgufHeader:
    first = _read(path)
    count = first.metadata.get("split.count", 1)
    if count in (0, 1):
        return first
    match = _SHARD.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{path} is one of several files of a model (split.count={count!r}), but its name does "
            f"not say so; give them their names of before, such as model-00001-of-00003.gguf"
        )
    names = [f"{match['stem']}-{i + 1:05}-of-{count:05}{ENDING}" for i in range(count)]
    lost = [name for name in names if not (path.parent / name).is_file()]
    if lost:
        raise CheckpointError(
            f"{path} is one of {count} files, of which {', '.join(lost[:5])} is missing; download "
            f"the rest"
        )
    parts = [_read(path.parent / name) for name in names]
    tensors: dict[str, Entry] = {}
    for part in parts:
        if twice := tensors.keys() & part.tensors.keys():
            raise CheckpointError(
                f"{part.path} has {min(twice)[:80]}, as another of its {count} files has: they are "
                f"of two models; download them again"
            )
        tensors |= part.tensors
    return GgufHeader(path, parts[0].metadata, tensors)


def _read(path: Path) -> GgufHeader:
    try:
        with open(path, "rb") as file:
            return _Head(path, file).read()
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read: {fault.strerror}; check the file") from None


class _Head:
    """One file, read from its first byte on."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.left = os.fstat(file.fileno()).st_size

    def read(self) -> GgufHeader:
        """Names with values, then tensors; all lengths are checked against the file's."""
        version = self._start()
        tensors, values = self._numbers("2Q")
        metadata: dict[str, Any] = {}
        for _ in range(values):
            name = self._text("a name")
            if name in metadata:
                raise self._damaged(f"says {name[:80]} twice")
            metadata[name] = self._value(self._number("I"), name)
        entries = [self._tensor() for _ in range(tensors)]
        align = metadata.get("general.alignment", 32)
        if type(align) is not int or align < 1 or align & (align - 1) or align > 1 << 20:
            raise self._damaged(f"has general.alignment={align!r}, which must be a power of two")
        at = self.file.tell()
        base = at + -at % align
        found: dict[str, Entry] = {}
        for name, shape, kind, offset in entries:
            if name in found:
                raise self._damaged(f"has the tensor {name[:80]} twice")
            found[name] = Entry(name, shape, kind, base + offset, self.path)
        metadata["GGUF.version"] = version
        return GgufHeader(self.path, metadata, found)

    def _start(self) -> int:
        start = self._take(4, "its first bytes")
        if start != MAGIC:
            said = "is a Git LFS pointer" if start == b"vers" else "is no GGUF file"
            raise CheckpointError(f"{self.path} {said}; download it again")
        version: int = self._number("I")
        if not version & 0xFFFF:
            raise CheckpointError(
                f"{self.path} is written for machines with the other order of bytes; download "
                f"the little-endian file"
            )
        if version not in VERSIONS:
            raise CheckpointError(
                f"{self.path} is GGUF of version {version}, and known are {VERSIONS[0]} and "
                f"{VERSIONS[1]}; convert the model anew with a llama.cpp of today"
            )
        return version

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text("a tensor's name")
        count: int = self._number("I")
        if count > MOST_DIMS:
            raise self._damaged(f"has {name[:80]} with {count} dimensions")
        shape = tuple(reversed(self._numbers(f"{count}Q")))  # the fastest first, in the file
        kind, offset = self._numbers("IQ")
        if math.prod(shape) >= 1 << 62 or offset >= 1 << 62:
            raise self._damaged(f"has {name[:80]} of shape {list(shape)} at byte {offset}")
        return name, shape, kind, offset

    def _value(self, kind: int, name: str) -> Any:
        if kind == _TEXT:
            return self._text(name)
        if kind == _LIST:
            kind, count = self._numbers("IQ")
            if kind == _TEXT:
                return [self._text(name) for _ in range(self._bounded(count, 8, name))]
            code = self._code(kind, name)
            self._bounded(count, struct.calcsize(f"<{code}"), name)
            return list(self._numbers(f"{count}{code}"))
        return _meant(kind, self._number(self._code(kind, name)))

    def _code(self, kind: int, name: str) -> str:
        if kind not in _SCALARS:
            raise self._damaged(f"has {name[:80]} with a value of unknown kind {kind}")
        return _SCALARS[kind]

    def _bounded(self, count: int, size: int, name: str) -> int:
        if count * size > self.left:
            raise self._cut(name)
        return count

    def _text(self, what: str) -> str:
        length: int = self._number("Q")
        try:
            return self._take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"has a text that is not UTF-8, at {what[:80]}") from None

    def _number(self, code: str) -> Any:
        return self._numbers(code)[0]

    def _numbers(self, code: str) -> tuple[Any, ...]:
        form = "<" + code
        return struct.unpack(form, self._take(struct.calcsize(form), "its head"))

    def _take(self, size: int, what: str) -> bytes:
        if size > self.left:
            raise self._cut(what)
        self.left -= size
        return self.file.read(size)

    def _cut(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} ends in the middle of {what[:80]}: it is cut off or damaged; download it "
            f"again"
        )

    def _damaged(self, fault: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: it {fault}; download it again")


def _meant(kind: int, value: Any) -> Any:
    """1e-05 is stored in 32 bits: the shortest number that reads the same is what was meant."""
    if kind != _FLOAT or not math.isfinite(value):
        return value
    return next(x for n in range(6, 10) if _in_32_bits(x := float(f"{value:.{n}g}")) == value)


def _in_32_bits(x: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.inf
