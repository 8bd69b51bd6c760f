"""Weight files written: one, or shards and an index, named as transformers names them.

All is written under temporary names first; then the names change hands at once. A save that is
interrupted, or fails, leaves the older checkpoint whole.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from allformer.checkpoint.chunks import chunks
from allformer.checkpoint.files import INDEX, SINGLE
from allformer.checkpoint.header import CODES, lay_out
from allformer.checkpoint.stored import as_bytes
from allformer.disk import sync
from allformer.errors import CheckpointError

PART, OLD = ".part", ".old"
SHARD_NAME = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class Outgoing:
    """A tensor on its way: `view`, read in order and converted to `dtype`, is `name` of `shape`."""

    name: str
    view: Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_checkpoint(
    directory: Path,
    tensors: Sequence[Outgoing],
    max_shard_bytes: int,
    parameters: int,
    beside: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the tensors into `directory`, all or nothing, and remove older weight files.

    `beside` are the texts of small files that belong to them, such as config.json: they take their
    names in the same moment.
    """
    odd = [t.name for t in tensors if t.dtype not in CODES]
    if odd:
        raise CheckpointError(f"{odd[0]} has a dtype that safetensors does not know; give dtype=")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        shards = split(tensors, max_shard_bytes)
        files = dict(zip(file_names(len(shards)), shards, strict=True))
        written, texts = list[str](), list[str]()
        try:
            for name, shard in files.items():
                written.append(name)
                write_file(directory / (name + PART), shard)
            if len(files) > 1:
                written.append(INDEX)
                index = make_index(files, parameters)
                (directory / (INDEX + PART)).write_text(index, encoding="utf-8")
            for name, text in (beside or {}).items():
                texts.append(name)
                (directory / (name + PART)).write_text(text, encoding="utf-8")
            take_names(directory, [*written, *texts])
        finally:
            for name in [*written, *texts]:
                (directory / (name + PART)).unlink(missing_ok=True)
    except OSError as error:
        said, needed = error.strerror or error, sum(t.bytes for t in tensors)
        raise CheckpointError(
            f"{directory} cannot take the weights ({said}; they need {needed:,} bytes); "
            f"what was there before is as it was"
        ) from None
    for path in stale(directory, written):
        path.unlink()
    return [directory / name for name in written]


def split(tensors: Sequence[Outgoing], limit: int) -> list[list[Outgoing]]:
    """In order, a new shard where the next tensor would go over the limit."""
    shards: list[list[Outgoing]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.bytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.bytes
    return shards


def file_names(count: int) -> list[str]:
    """transformers' names for so many shards."""
    if count == 1:
        return [SINGLE]
    return [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


def make_index(files: dict[str, list[Outgoing]], parameters: int) -> str:
    """The text of model.safetensors.index.json."""
    weight_map = {t.name: name for name, shard in files.items() for t in shard}
    size = sum(t.bytes for shard in files.values() for t in shard)
    metadata = {"total_parameters": parameters, "total_size": size}
    index = {"metadata": metadata, "weight_map": weight_map}
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def write_file(path: Path, tensors: Sequence[Outgoing]) -> None:
    """One safetensors file, tensor by tensor, down to the disk."""
    head, entries = lay_out([(t.name, t.shape, t.dtype) for t in tensors], {"format": "pt"})
    by_name = {t.name: t for t in tensors}
    with open(path, "wb") as file:
        file.write(head)
        for entry in entries:
            tensor = by_name[entry.name]
            for _, rows in chunks(tensor.view):
                file.write(as_bytes(rows.detach().to("cpu", tensor.dtype).contiguous()))
        sync(file)


def take_names(directory: Path, names: Sequence[str]) -> None:
    """Give the written files their names; if one fails, all go back.

    One file's rename is atomic. Several are not, so the older files keep a second name until the
    last is through.
    """
    if len(names) == 1:
        os.replace(directory / (names[0] + PART), directory / names[0])
        return
    older = [name for name in names if (directory / name).exists()]
    taken: list[str] = []
    try:
        for name in older:
            keep(directory / name, directory / (name + OLD))
        for name in names:
            taken.append(name)
            os.replace(directory / (name + PART), directory / name)
    except BaseException:
        for name in older:
            if (directory / (name + OLD)).exists():
                os.replace(directory / (name + OLD), directory / name)
        for name in taken:
            if name not in older:
                (directory / name).unlink(missing_ok=True)
        raise
    finally:
        for name in older:
            (directory / (name + OLD)).unlink(missing_ok=True)


def keep(path: Path, old: Path) -> None:
    """Give a file a second name, or another one where the file system knows no links."""
    old.unlink(missing_ok=True)
    try:
        os.link(path, old)
    except OSError:
        os.replace(path, old)


def stale(directory: Path, written: Sequence[str]) -> list[Path]:
    """Weight files of an older save that the new one does not overwrite.

    The single file first: readers prefer it to an index, so that its end is the beginning of the
    new shards.
    """
    names = sorted(path.name for path in directory.iterdir())
    ours = [n for n in names if n in (SINGLE, INDEX) or SHARD_NAME.fullmatch(n)]
    left = [n for n in ours if n not in written]
    return [directory / name for name in sorted(left, key=lambda n: n != SINGLE)]
