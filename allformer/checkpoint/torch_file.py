"""pytorch_model.bin: what it holds, through `torch.load(weights_only=True)` and nothing else.

A .bin is a zip of raw tensors and one pickle of names and shapes. torch's restricted unpickler
reads the pickle, which cannot run code, and maps the rest; where the tensors lie in the file is
worked out from that, so that they can be read like those of a safetensors file.
"""

from __future__ import annotations

import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.header import LFS
from allformer.checkpoint.stored import InFile, InMemory, Source, Stored
from allformer.errors import CheckpointError

WAY_OUT = "save it as safetensors where you trust it (transformers' save_pretrained)"


def open_torch_file(path: Path, inside: str | None = None) -> list[Stored]:
    """Name, shape, dtype and place of each tensor of a .bin; the tensors are not read.

    `inside`: of those that the file holds under this name, beside other things.
    """
    found = read_torch_file(path)
    tensors = _plain(path, found if inside is None else found.get(inside))
    try:
        places = _places(path, tensors)
    except Exception as error:  # so can a damaged zip
        raise _damaged(path, error) from None
    if places is None:
        return [InMemory(name, tensor, path) for name, tensor in tensors.items()]
    source = Source(path)
    out: list[Stored] = []
    for name, x in tensors.items():
        if x.is_contiguous() and x.numel():
            at = places[x.untyped_storage().data_ptr()] + int(x.storage_offset()) * x.element_size()
            out.append(InFile(name, tuple(x.shape), x.dtype, source, at))
        else:
            out.append(InMemory(name, x, path))
    return out


def _damaged(path: Path, error: Exception) -> CheckpointError:
    said = (str(error) or type(error).__name__).splitlines()[0]
    return CheckpointError(f"{path} is damaged or cut off ({said}); download it again")


def read_torch_file(path: Path) -> dict[Any, Any]:
    """Whatever a file holds by name; its tensors are mapped, not read."""
    try:
        with open(path, "rb") as file:
            start = file.read(len(LFS))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if start == LFS:
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the weights themselves; fetch them with "
            f"`git lfs pull`, or download the file again"
        )
    if not start.startswith(b"PK"):
        raise CheckpointError(
            f"{path} is no zip file: either it is damaged (download it again), or torch wrote it "
            f"before version 1.6, as one long pickle; {WAY_OUT}"
        )
    _refuse_script(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is a pickle that asks for more than tensors, and could run code "
            f"({str(error).splitlines()[0]}); it is not loaded; {WAY_OUT}"
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise _damaged(path, error) from None
    return _dict(path, found)


def _dict(path: Path, found: object) -> dict[Any, Any]:
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path} holds a {type(found).__name__}, not tensors by name; save a state_dict"
        )
    return found


def _plain(path: Path, found: object) -> dict[str, Tensor]:
    """Tensors by name, and nothing else."""
    found = _dict(path, found)
    odd = [repr(n)[:80] for n, x in found.items() if not (isinstance(n, str) and _is_plain(x))]
    if odd:
        raise CheckpointError(
            f"{path} holds more than tensors by name: {', '.join(odd[:5])}"
            f"{' …' if odd[5:] else ''}; save the model's state_dict alone"
        )
    return found


def _refuse_script(path: Path) -> None:
    """TorchScript is a program with its weights (OpenAI's published CLIP)."""
    try:
        with zipfile.ZipFile(path) as archive:
            script = any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # torch says what is wrong
    if script:
        raise CheckpointError(
            f"{path} is TorchScript, which is code; it is not loaded; where you trust it, save "
            f"torch.jit.load(…).state_dict() with torch.save, and give that file"
        )


def _is_plain(x: object) -> bool:
    """A tensor that has its numbers, each at an address of its own."""
    return (
        isinstance(x, Tensor)
        and x.layout == torch.strided
        and x.device.type == "cpu"
        and not (x.is_conj() or x.is_neg() or x.is_quantized)
        and x.numel() * x.element_size() <= x.untyped_storage().nbytes()
    )


def _places(path: Path, tensors: dict[str, Tensor]) -> dict[int, int] | None:
    """Address of each storage in the map → its offset in the file; None if that cannot be told.

    Storages lie in the map as their records lie in the file: sorted, they pair up, and one
    distance, the map's first address, must come out for every pair.
    """
    parts = [x.untyped_storage() for x in tensors.values()]
    storages = {part.data_ptr(): part.nbytes() for part in parts}
    addresses = sorted(address for address, size in storages.items() if size)
    records = []
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for info in archive.infolist():
            inner = info.filename.partition("/")[2]
            if inner == "byteorder" and archive.read(info) != sys.byteorder.encode():
                return None
            if inner.startswith("data/") and info.file_size:
                file.seek(info.header_offset + 26)  # then the lengths of the name and of the extra
                lengths = file.read(4)
                skip = 30 + int.from_bytes(lengths[:2], "little")
                skip += int.from_bytes(lengths[2:], "little")
                records.append((info.header_offset + skip, info.file_size))
    records.sort()
    sizes = [storages[address] for address in addresses]
    if [size for _, size in records] != sizes:
        return None
    offsets = [offset for offset, _ in records]
    if len({a - o for a, o in zip(addresses, offsets, strict=True)}) > 1:
        return None
    return dict(zip(addresses, offsets, strict=True))
