"""What a checkpoint's files hold, by the types of its numbers: their real bytes."""

from __future__ import annotations

import math
from pathlib import Path

from allformer.checkpoint.files import KNOWN, TensorFiles, find_gguf_weights, open_tensors
from allformer.checkpoint.gguf_file import kinds_of
from allformer.checkpoint.header import CODES
from allformer.checkpoint.packed_files import PACKED, SCALE, SHAPE, ZERO, packed_layout
from allformer.checkpoint.stored import Stored

Held = dict[str, dict[str, int]]


def held_in(path: str | Path) -> Held | None:
    """Tensors, numbers and bytes of each type; None where no weights are.

    >>> held_in("few")  # of `allformer convert … few --quantise int4`
    {'BF16': {'tensors': 51, 'numbers': 9223680, 'bytes': 18447360}, 'int4': {'tensors': 42, …}}

    A matrix in few bits is one tensor of that type, and its scales are among its bytes.
    """
    path = Path(path)
    if (gguf := find_gguf_weights(path)) is not None:
        return kinds_of(gguf)
    if not any((path / name).is_file() for name in KNOWN):
        return None
    files, held = open_tensors(path), Held()
    for name, stored in files.items():
        stem, _, part = name.rpartition(".")
        packed = part in (PACKED, SCALE, SHAPE, ZERO) and f"{stem}.{PACKED}" in files
        kind, numbers = _packed(files, stem) if packed else (_code(stored), math.prod(stored.shape))
        counts = not packed or part == PACKED
        mine = held.setdefault(kind, {"tensors": 0, "numbers": 0, "bytes": 0})
        mine["tensors"] += counts
        mine["numbers"] += numbers * counts
        mine["bytes"] += math.prod(stored.shape) * stored.dtype.itemsize
    return dict(sorted(held.items()))


def _packed(files: TensorFiles, stem: str) -> tuple[str, int]:
    """`("int4", numbers)` of a layer in few bits."""
    inputs, bits = packed_layout(files, stem)
    return f"int{bits}", files[f"{stem}.{PACKED}"].shape[0] * inputs


def _code(stored: Stored) -> str:
    return CODES.get(stored.dtype, str(stored.dtype).removeprefix("torch."))
