"""compressed-tensors' "pack-quantized" tensors, seen as the buffers of `Quantised`, and back.

A layer T of such a file has `T.weight_packed` (int32: eight numbers of four bits, or four of eight,
the first in the lowest bits, each with half its range added), `T.weight_scale` (outputs × groups),
`T.weight_shape`, and where zero is not in the middle `T.weight_zero_point` (packed in the same way,
but down the outputs). On a little-endian machine four bits lie in these words exactly as in our
bytes; eight bits differ from ours in their highest bit.

Legend: N outputs, K inputs, G groups of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.shards import Outgoing
from allformer.checkpoint.stored import TOP, InFile, InMemory, Signed, Stored, read_whole
from allformer.core.quantised import pack, unpack
from allformer.errors import CheckpointError

PACKED, SCALE, ZERO, SHAPE = "weight_packed", "weight_scale", "weight_zero_point", "weight_shape"


def unpacked_files(files: TensorFiles) -> TensorFiles:
    """The same files, with packed weights as our bytes and zero points as what is added."""
    return TensorFiles(files.where, _unpacked(files))


def _unpacked(files: TensorFiles) -> Iterator[Stored]:
    for name, stored in files.items():
        stem, _, kind = name.rpartition(".")
        if kind == PACKED:
            yield _bytes(stored, *packed_layout(files, stem))
        elif kind == ZERO:
            yield _least(files, stem)
        else:
            yield stored


def packed_layout(files: TensorFiles, stem: str) -> tuple[int, int]:
    """The inputs of a layer, and its bits."""
    packed, shape = files[f"{stem}.{PACKED}"], files.get(f"{stem}.{SHAPE}")
    if shape is None or shape.shape != (2,) or shape.dtype not in (torch.int32, torch.int64):
        raise CheckpointError(
            f"{files.where}: {stem} has no {SHAPE} of two sizes beside {PACKED}; download it again"
        )
    rows, inputs = read_whole(shape).tolist()
    for bits in (4, 8):
        words = (rows, math.ceil(inputs * bits / 32))
        if packed.shape == words and packed.dtype == torch.int32 and inputs * bits % 8 == 0:
            return inputs, bits
    raise CheckpointError(
        f"{files.where}: {stem}.{PACKED} of {list(packed.shape)} words is no matrix of {rows} × "
        f"{inputs} in four or eight bits; load the model that it was made from"
    )


def _bytes(stored: Stored, inputs: int, bits: int) -> Stored:
    """Packed words as our bytes: in place in the file, where they lie in the same order."""
    shape = (stored.shape[0], inputs * bits // 8)
    if isinstance(stored, InFile) and shape[1] == 4 * stored.shape[1]:
        seen = replace(stored, shape=shape, dtype=torch.uint8)
        return Signed(seen) if bits == 8 else seen
    data = read_whole(stored).view(torch.uint8)[:, : shape[1]]
    return InMemory(stored.name, data ^ TOP if bits == 8 else data, stored.file)


def _least(files: TensorFiles, stem: str) -> Stored:
    """w = scale · (q − zero) as scale · q + least, with our q."""
    stored, beside = files[f"{stem}.{ZERO}"], files.get(f"{stem}.{SCALE}")
    packed = f"{stem}.{PACKED}" in files and stored.dtype == torch.int32 and len(stored.shape) == 2
    if beside is None or not packed or beside.shape[1:] != stored.shape[1:]:
        raise CheckpointError(
            f"{files.where}: {stem}.{ZERO} has no {PACKED} and {SCALE} that fit it; download again"
        )
    scale, (_, bits) = read_whole(beside).float(), packed_layout(files, stem)
    words = read_whole(stored).t().contiguous()  # G N·bits/32
    unsigned = unpack(words.view(torch.uint8), bits, signed=False)[:, : len(scale)].t()
    if bits == 8:
        zero = (unsigned.contiguous().view(torch.uint8) ^ TOP).view(torch.int8).float()
    else:
        zero = unsigned.float()  # of our q, 0 … 15: both have eight added
    return InMemory(stored.name, -zero * scale, stored.file)


def packed_out(out: list[Outgoing]) -> list[Outgoing]:
    """Our buffers on their way to a file, as the file has them."""
    named = {x.name: x for x in out}
    return [_packed(x, named) for x in out]


def _packed(x: Outgoing, named: dict[str, Outgoing]) -> Outgoing:
    stem, _, kind = x.name.rpartition(".")
    if kind not in (PACKED, ZERO):
        return x
    bits = _bits(named, stem)
    if kind == ZERO:
        view = _zero(named[f"{stem}.{SCALE}"].view, x.view, bits)
        return Outgoing(x.name, view, tuple(view.shape), torch.int32)
    data = x.view.contiguous()
    words = _words(data ^ TOP if bits == 8 else data)
    return Outgoing(x.name, words, tuple(words.shape), torch.int32)


def _bits(named: dict[str, Outgoing], stem: str) -> int:
    inputs = int(named[f"{stem}.{SHAPE}"].view[1])
    return named[f"{stem}.{PACKED}"].view.shape[1] * 8 // inputs


def _zero(scale: Tensor, least: Tensor, bits: int) -> Tensor:
    """The zero points of a layer, N·bits/32 G, from what is added to its groups."""
    zero = -least.double() / scale.double()
    whole = zero.round()
    low, high = (0, 15) if bits == 4 else (-128, 127)
    if (zero - whole).abs().max() > 1e-3 or whole.min() < low or whole.max() > high:
        raise CheckpointError(
            "the groups of this model do not begin at a multiple of their scale, which others' "
            'layouts cannot say; save it with family="allformer", or widen_all it first'
        )
    columns = whole.t().to(torch.int16).contiguous()  # G N
    data = pack(F.pad(columns, (0, columns.shape[1] % 2)), bits, signed=False)
    return _words(data ^ TOP if bits == 8 else data).t().contiguous()


def _words(data: Tensor) -> Tensor:
    """Bytes as words of four, the last filled up with zeros."""
    return F.pad(data, (0, -data.shape[1] % 4)).view(torch.int32)
