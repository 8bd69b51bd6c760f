"""The types of ggml: numbers in blocks, each block with its scales.

    kind = BLOCKS[12]                       # Q4_K
    kind.read(bytes).widen()                # N blocks of 144 bytes → N 256, fp32

Every type is said in one way: a group of neighbours shares a scale and a least value, and

    w = scale · code + least

with whole numbers as codes. So the codes can be kept (`core/quantised.py`) or multiplied out; the
products are those of ggml's reference, bit for bit. Layouts: ggml-common.h, ggml-quants.c.

Legend: N blocks, S numbers in a block, G groups in a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

PLAIN = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}  # numbers as they are
OTHERS = {  # known by name alone
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True)
class Groups:
    """Codes N S, and a scale and a least value for each group, N G: in fp16 where the file has them
    so, in fp32 where they are products.

    Where there is no least value the codes are signed, around 0.
    """

    codes: Tensor
    scale: Tensor
    least: Tensor | None = None

    def widen(self) -> Tensor:
        """The numbers, N S in fp32: first times, then plus, as ggml rounds."""
        blocks, size = self.codes.shape
        codes = self.codes.view(blocks, self.scale.shape[1], -1).float()
        wide = codes * self.scale.float()[:, :, None]
        if self.least is not None:
            wide += self.least.float()[:, :, None]
        return wide.view(blocks, size)


@dataclass(frozen=True)
class BlockKind:
    """A type: `size` numbers lie in `bytes` bytes, and `group` of them share a scale; `bits` are
    those that a code is kept in."""

    name: str
    size: int
    bytes: int
    group: int
    bits: int
    read: Callable[[Tensor], Groups]  # N bytes → groups


def _half(blocks: Tensor, at: int) -> Tensor:
    """The fp16 number at a byte of each block, N 1."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def _fields(data: Tensor, width: int, *shifts: int) -> Tensor:
    """N bytes → N S: each run of `width` bytes once for every shift, which moves bits down."""
    runs = data.view(len(data), -1, 1, width)
    by = torch.tensor(shifts, dtype=torch.uint8).view(1, 1, -1, 1)
    return (runs >> by).view(len(data), -1)


def _nibbles(data: Tensor, width: int) -> Tensor:
    """The low halves of `width` bytes, then their high halves."""
    return _fields(data, width, 0, 4) & 15


def _fifth_bits(data: Tensor) -> Tensor:
    """Four bytes: a bit for each of 32 numbers, in their order; where the fifth bit belongs."""
    bits = data[:, :, None] >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).view(len(data), -1) << 4


def _signed(codes: Tensor, zero: int) -> Tensor:
    return codes.view(torch.int8) - zero


def _q4_0(x: Tensor) -> Groups:
    return Groups(_signed(_nibbles(x[:, 2:].contiguous(), 16), 8), _half(x, 0))


def _q4_1(x: Tensor) -> Groups:
    return Groups(_nibbles(x[:, 4:].contiguous(), 16), _half(x, 0), _half(x, 2))


def _q5_0(x: Tensor) -> Groups:
    codes = _nibbles(x[:, 6:].contiguous(), 16) | _fifth_bits(x[:, 2:6])
    return Groups(_signed(codes, 16), _half(x, 0))


def _q5_1(x: Tensor) -> Groups:
    codes = _nibbles(x[:, 8:].contiguous(), 16) | _fifth_bits(x[:, 4:8])
    return Groups(codes, _half(x, 0), _half(x, 2))


def _q8_0(x: Tensor) -> Groups:
    return Groups(x[:, 2:].contiguous().view(torch.int8), _half(x, 0))


def _sixes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Twelve bytes: eight scales of six bits and eight least values, N 8 each.

    The first four of each lie in the low bits of four bytes, whose two high bits belong to the last
    four; their low bits are the halves of the last four bytes.
    """
    scales, leasts, both = x[:, 0:4], x[:, 4:8], x[:, 8:12]
    first = torch.cat([scales & 63, both & 15 | scales >> 6 << 4], dim=1)
    second = torch.cat([leasts & 63, both >> 4 | leasts >> 6 << 4], dim=1)
    return first.float(), second.float()


def _super(x: Tensor, codes: Tensor) -> Groups:
    """Of K types: two fp16 numbers, by which the scales and least values are multiplied."""
    scales, leasts = _sixes(x[:, 4:16])
    return Groups(codes, _half(x, 0).float() * scales, -(_half(x, 2).float() * leasts))


def _q4_k(x: Tensor) -> Groups:
    return _super(x, _nibbles(x[:, 16:].contiguous(), 32))


def _q5_k(x: Tensor) -> Groups:
    high = _fields(x[:, 16:48].contiguous(), 32, *range(8)) & 1
    return _super(x, _nibbles(x[:, 48:].contiguous(), 32) | high << 4)


def _q6_k(x: Tensor) -> Groups:
    low = _nibbles(x[:, :128].contiguous(), 64)
    high = _fields(x[:, 128:192].contiguous(), 32, 0, 2, 4, 6) & 3
    scale = _half(x, 208).float() * x[:, 192:208].contiguous().view(torch.int8)
    return Groups(_signed(low | high << 4, 32), scale)


BLOCKS = {
    2: BlockKind("Q4_0", 32, 18, 32, 4, _q4_0),
    3: BlockKind("Q4_1", 32, 20, 32, 4, _q4_1),
    6: BlockKind("Q5_0", 32, 22, 32, 8, _q5_0),
    7: BlockKind("Q5_1", 32, 24, 32, 8, _q5_1),
    8: BlockKind("Q8_0", 32, 34, 32, 8, _q8_0),
    12: BlockKind("Q4_K", 256, 144, 32, 4, _q4_k),
    13: BlockKind("Q5_K", 256, 176, 32, 8, _q5_k),
    14: BlockKind("Q6_K", 256, 210, 16, 8, _q6_k),
}
_NAMES = {0: "F32", 1: "F16", 30: "BF16"} | {n: kind.name for n, kind in BLOCKS.items()}
READ = ", ".join(_NAMES[n] for n in sorted(_NAMES))


def kind_name(kind: int) -> str:
    """What ggml calls a type: `kind_name(12)` is "Q4_K"."""
    return _NAMES.get(kind) or OTHERS.get(kind) or f"type {kind}"
