"""The tensors of a pickled module, and nothing else of it: no code of the file is run.

    tensors = read_module(Path("encoder.pkl"))      # {"blocks.input.w": …}

`torch.save(module)` writes a pickle that asks for classes by name and calls them. Here every name
but those of tensors stands for an inert object: it takes whatever it is given, and does nothing.
Both of torch's layouts are read, the zip (since version 1.6) and the one long pickle before it.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from allformer.errors import CheckpointError

_MAGIC = 0x1950A86A20F9469CFC6C  # torch's, of the layout before the zip
_DEEP = 100  # modules inside each other
_STORAGES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}  # fmt: skip
Storage = tuple[torch.dtype, Any]  # and its key in the file


class Inert:
    """Stands for any class and any function of the file."""

    state: Mapping[str, Any] = MappingProxyType({})  # pickle may make one without __init__

    def __init__(self, *args: Any, **more: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass


class _Lazy:
    """A tensor whose numbers are not read yet: where they lie, and how."""

    def __init__(self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> None:
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride


def _parameter(data: Any, *rest: Any) -> Any:
    return data


class _Unpickler(pickle.Unpickler):
    """Knows tensors and storages; every other name is inert."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Lazy
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        return Inert

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) >= 3 and pid[0] == "storage":
            if not isinstance(pid[1], torch.dtype):
                raise pickle.UnpicklingError("a storage of a kind that is not known")
            return (pid[1], pid[2])
        # A module of the old layout comes with its source text: ("module", class, file, text).
        return pid[1] if isinstance(pid, tuple) and len(pid) > 1 else Inert


def read_module(path: Path) -> dict[str, Tensor]:
    """Parameters and buffers by their names: `read_module(Path("decoder.pkl"))`."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"PK"
            file.seek(0)
            return _read_zip(path) if zipped else _read_old(file)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{path} is no module that torch.save wrote, or it is damaged ({said}); download it "
            f"again, or give its state_dict as safetensors"
        ) from None


def _read_zip(path: Path) -> dict[str, Tensor]:
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        main = next((name for name in names if name.endswith("/data.pkl")), None)
        if main is None:
            raise pickle.UnpicklingError("it has no data.pkl")
        root = main.removesuffix("data.pkl")
        if root + "constants.pkl" in names:
            raise CheckpointError(
                f"{path} is TorchScript, which is code; give torch.save's file, or a state_dict"
            )
        order = archive.read(root + "byteorder") if root + "byteorder" in names else b"little"
        if order != sys.byteorder.encode():
            raise pickle.UnpicklingError("its bytes are in another order than this machine's")
        found = _Unpickler(io.BytesIO(archive.read(main))).load()
        return _tensors(found, lambda key: archive.read(f"{root}data/{key}"))


def _read_old(file: BinaryIO) -> dict[str, Tensor]:
    """Four pickles (a magic number, a version, the machine's sizes, the object), the keys of the
    storages, then each storage: how many numbers, and these."""
    magic, _, machine = (_Unpickler(file).load() for _ in range(3))
    if magic != _MAGIC:
        raise pickle.UnpicklingError("it does not begin as torch's files do")
    if not machine.get("little_endian", True) or sys.byteorder != "little":
        raise pickle.UnpicklingError("its bytes are in another order than this machine's")
    found = _Unpickler(file).load()
    keys = _Unpickler(file).load()
    sizes = {str(lazy.storage[1]): lazy.storage[0].itemsize for _, lazy in _walk(found)}
    stored: dict[str, bytes] = {}
    for key in keys:
        if str(key) not in sizes:
            raise pickle.UnpicklingError(f"nothing says what storage {key!r} holds")
        (count,) = struct.unpack("<q", file.read(8))
        stored[str(key)] = file.read(count * sizes[str(key)])
    return _tensors(found, lambda key: stored[str(key)])


def _tensors(found: Any, read: Callable[[Any], bytes]) -> dict[str, Tensor]:
    kept: dict[Any, Tensor] = {}
    out: dict[str, Tensor] = {}
    for name, lazy in _walk(found):
        dtype, key = lazy.storage
        if key not in kept:
            kept[key] = torch.frombuffer(bytearray(read(key)), dtype=dtype)
        whole = kept[key]
        # as_strided looks at no memory beyond the storage: torch refuses it.
        out[name] = whole.as_strided(lazy.size, lazy.stride, lazy.offset).clone()
    if not out:
        raise pickle.UnpicklingError("there is no tensor in it")
    return out


def _walk(found: Any, prefix: str = "", depth: int = 0) -> list[tuple[str, _Lazy]]:
    """A module's tensors, or those of a dict of them, with their dotted names."""
    if depth > _DEEP:
        raise pickle.UnpicklingError("modules nested without end")
    if isinstance(found, _Lazy):
        return [(prefix, found)]
    if isinstance(found, Inert):
        parts = [found.state.get(kind) for kind in ("_parameters", "_buffers", "_modules")]
    else:
        parts = [found]
    out: list[tuple[str, _Lazy]] = []
    for part in parts:
        for name, inner in part.items() if isinstance(part, dict) else ():
            out += _walk(inner, f"{prefix}.{name}" if prefix else str(name), depth + 1)
    return out
