"""The tensors of a GGUF file, not yet read: each checked to be of a known type and to be whole."""

from __future__ import annotations

import math
from pathlib import Path

from allformer.checkpoint.gguf_blocks import BLOCKS, PLAIN, READ, kind_name
from allformer.checkpoint.stored import InBlocks, InFile, Source, Stored
from allformer.errors import CheckpointError
from allformer.gguf_header import Entry, GgufHeader


def open_gguf(header: GgufHeader) -> list[Stored]:
    """Name, shape, type and place of each tensor: `open_gguf(read_gguf_header(path))`."""
    files = {entry.file for entry in header.tensors.values()}
    sources = {file: Source(file) for file in files}
    sizes = {file: file.stat().st_size for file in files}
    return [_open(entry, sources[entry.file], sizes) for entry in header.tensors.values()]


def bytes_of(entry: Entry) -> int:
    """The bytes that a tensor takes; an error where it is of a type that is not read."""
    count = math.prod(entry.shape)
    if entry.kind in PLAIN:
        return count * PLAIN[entry.kind].itemsize
    if entry.kind not in BLOCKS:
        raise CheckpointError(
            f"{entry.file} has {entry.name[:80]} in {kind_name(entry.kind)}, which is not read "
            f"here; take a file of the model in other types ({READ}), such as Q4_K_M or Q8_0"
        )
    kind = BLOCKS[entry.kind]
    if not entry.shape or entry.shape[-1] % kind.size:
        raise CheckpointError(
            f"{entry.file} has {entry.name[:80]} of shape {list(entry.shape)} in {kind.name}, "
            f"where rows are multiples of {kind.size}: it is damaged; download it again"
        )
    return count // kind.size * kind.bytes


def _open(entry: Entry, source: Source, sizes: dict[Path, int]) -> Stored:
    end, size = entry.offset + bytes_of(entry), sizes[entry.file]
    if end > size:
        raise CheckpointError(
            f"{entry.file} has {size:,} bytes, and {entry.name[:80]} reaches to {end:,}: it is cut "
            f"off; download it again"
        )
    if entry.kind in PLAIN:
        return InFile(entry.name, entry.shape, PLAIN[entry.kind], source, entry.offset)
    return InBlocks(entry.name, entry.shape, BLOCKS[entry.kind], source, entry.offset)
