"""The weight files of a checkpoint: one file or shards and an index, safetensors, .bin or GGUF.

files = open_tensors("path/to/checkpoint")
files["model.norm.weight"].shape          # nothing is read but the headers
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from allformer.checkpoint.gguf_tensors import open_gguf
from allformer.checkpoint.header import read_header
from allformer.checkpoint.stored import InFile, InMemory, Source, Stored
from allformer.checkpoint.torch_file import open_torch_file
from allformer.errors import CheckpointError
from allformer.families.kinds import short
from allformer.gguf_header import ENDING, find_gguf, is_gguf, read_gguf_header
from allformer.json_file import read_object

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# In transformers' order: the first that is there is the checkpoint.
KNOWN = (SINGLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
LONGEST_NAME = 255  # bytes, of a file


class TensorFiles(Mapping[str, Stored]):
    """Name → a tensor not yet read; `where` names the checkpoint in errors."""

    def __init__(self, where: Path, tensors: Iterable[Stored]) -> None:
        self.where = where
        self._tensors: dict[str, Stored] = {}
        for stored in tensors:
            twin = self._tensors.setdefault(stored.name, stored)
            if twin is not stored:
                raise CheckpointError(
                    f"{where} has {stored.name} twice, in {twin.file.name} and in "
                    f"{stored.file.name}: shards of two saves are mixed; download it again into an "
                    f"empty directory"
                )

    def __getitem__(self, name: str) -> Stored:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def paths(self) -> list[Path]:
        """The files that hold the tensors, each once."""
        return list(dict.fromkeys(stored.file for stored in self._tensors.values()))


def in_memory(tensors: Mapping[str, Tensor], where: str) -> TensorFiles:
    """Tensors that are there already, as if they lay in a file called `where`."""
    path = Path(where)
    return TensorFiles(path, [InMemory(name, x, path) for name, x in tensors.items()])


def open_tensors(path: str | Path) -> TensorFiles:
    """The tensors of a checkpoint directory or of one weight file, headers checked."""
    path = Path(path)
    if path.is_file():
        return _open_index(path) if path.name.endswith(".index.json") else _open_file(path)
    if not path.is_dir():
        raise CheckpointError(f"{path} is not there; give a checkpoint directory or a weight file")
    for name in KNOWN:
        if (path / name).is_file():
            return open_tensors(path / name)
        if (path / name).is_symlink():
            raise CheckpointError(
                f"{path / name} is a link to a file that is gone (a cache that was cleaned?); "
                f"download it again"
            )
    if (newest := newest_step(path)) is not None:
        step = int(newest.parent.name.removeprefix("step-"))
        warnings.warn(
            f"{path} has no {SINGLE} yet: training has not ended; its newest checkpoint, step "
            f"{step:,}, is opened",
            stacklevel=3,
        )
        return open_tensors(newest)
    if (gguf := find_gguf(path)) is not None:
        return open_tensors(gguf)
    others = sorted(p.name for p in path.iterdir() if p.name.endswith(WEIGHTS))
    if others:
        said = ", ".join(others[:5]) + (" …" if others[5:] else "")
        raise CheckpointError(
            f"{path} has none of {', '.join(KNOWN)}, but {said}: give the file that is meant, or "
            f"download the missing index"
        )
    if (path / "recipe.yaml").is_file():
        raise CheckpointError(
            f"{path} has no {SINGLE} and no checkpoint: its training was stopped before the first; "
            f"remove it and train anew, or let it go on if it runs still"
        )
    raise CheckpointError(f"{path} holds no weights: it has none of {', '.join(KNOWN)}")


def find_gguf_weights(path: Path) -> Path | None:
    """The GGUF file that a path is or, in a directory without other weights, the only one there."""
    if path.is_dir():
        known = any((path / name).is_file() for name in KNOWN)
        return None if known or newest_step(path) else find_gguf(path)
    return path if is_gguf(path) else None


def newest_step(run: Path) -> Path | None:
    """The weights of the newest checkpoint of a run that is still being trained."""
    found = sorted((run / "checkpoints").glob(f"step-????????/{SINGLE}"))
    return found[-1] if found else None


def _open_file(path: Path) -> TensorFiles:
    return TensorFiles(path, _tensors(path))


def _tensors(path: Path) -> list[Stored]:
    if path.suffix.lower() == ENDING:
        return open_gguf(read_gguf_header(path))
    if path.suffix != ".safetensors":
        return open_torch_file(path)
    source = Source(path)
    with open(os.dup(source.handle), "rb") as file:  # the same file, whatever takes its name
        entries = read_header(path, file)
    return [InFile(e.name, e.shape, e.dtype, source, e.offset) for e in entries]


def _open_index(index: Path) -> TensorFiles:
    """The shards that an index names; index and shards must agree."""
    try:
        weight_map = read_object(index, CheckpointError)["weight_map"]
        shards = sorted(set(weight_map.values()))
        names = [Path(shard).name for shard in shards]
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{index} is no index of shards ({type(error).__name__}: {error}); download it again"
        ) from None
    for shard, name in zip(shards, names, strict=True):
        if shard != name or len(shard.encode()) > LONGEST_NAME or "\0" in shard:
            raise CheckpointError(
                f"{index} names the file {short(shard)}: a shard must lie beside its index"
            )
    lost = [shard for shard in shards if not (index.parent / shard).is_file()]
    if lost:
        raise CheckpointError(
            f"{index} names {len(lost)} of {len(shards)} shards that are not there: "
            f"{', '.join(lost[:5])}{' …' if lost[5:] else ''}; download them"
        )
    files = TensorFiles(index, [t for shard in shards for t in _tensors(index.parent / shard)])
    for name, shard in weight_map.items():
        if name not in files or files[name].file.name != shard:
            raise CheckpointError(
                f"{index} says that {name} is in {shard}, but it is not: index and shards are of "
                f"two saves; download both again"
            )
    return files
