"""`few.c`, compiled as `core/library.py` does it, where there is a compiler.

    few = find_few()                            # None: torch's products serve
    few.fp32(x, weight, bias)                   # … K → … N
    few.int8(x, weight, scale, sums, bias)

Whatever goes wrong (no compiler, no room, an answer that is not torch's) means None.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.library import FAILURES, normal, open_library
from allformer.core.matmul import FEW

SOURCE = Path(__file__).with_name("few.c")
ROWS = FEW  # few.c takes no more
LANES = 16  # a head's size is a multiple of it
STEP = 64  # K is a multiple of it
WIDE = 64  # numbers of which the largest is found together
LARGE = 1 << 18  # weights from which it is worth asking for


class Heads(NamedTuple):
    """How an attention is cut."""

    heads: int  # H
    groups: int  # G
    size: int  # D
    scale: float


class Few:
    """The functions of a compiled `few.c`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_long
        self._fp32, self._int8 = library.few_fp32, library.few_int8
        self._fp32.argtypes, self._fp32.restype = [pointer] * 5 + [number] * 4, None
        self._int8.argtypes, self._int8.restype = [pointer] * 7 + [number] * 5, None
        self._round, self._scale = library.few_round, library.few_scale
        self._round.argtypes, self._round.restype = [pointer] * 3 + [number] * 3, None
        self._scale.argtypes, self._scale.restype = [pointer] * 4 + [number] * 3, None
        self._look, self._keep = library.few_look, library.few_keep
        self._look.argtypes = [pointer] * 5 + [number] * 9 + [ctypes.c_float, number]
        self._keep.argtypes = [pointer] * 4 + [number] * 8
        self._tops = library.few_tops
        self._tops.argtypes = [pointer] * 4 + [number] * 3
        self._pages = library.few_pages
        self._pages.argtypes = [pointer] * 6 + [number] * 7 + [ctypes.c_float, number]
        self._pages.restype = None
        self._look.restype = self._keep.restype = self._tops.restype = None

    def fp32(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None = None
    ) -> Tensor:
        """x … K of few rows, weight N K, bias N, all fp32 and in order; `add` … N is added too."""
        x = x.contiguous()
        outputs, inputs = weight.shape
        y = x.new_empty(*x.shape[:-1], outputs)
        self._fp32(
            x.data_ptr(), weight.data_ptr(), _at(bias), _at(add), y.data_ptr(),
            x.numel() // inputs, outputs, inputs, torch.get_num_threads(),
        )  # fmt: skip
        return y

    def int8(
        self,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        sums: Tensor,
        bias: Tensor | None,
        add: Tensor | None = None,
        fine: bool = False,
    ) -> Tensor:
        """The same with weights in eight bits: scale N; sums N, of a row's bytes, int32. `fine`: x
        in two digits of eight bits."""
        x = x.contiguous()
        outputs, inputs = weight.shape
        y = x.new_empty(*x.shape[:-1], outputs)
        self._int8(
            x.data_ptr(), weight.data_ptr(), scale.data_ptr(), sums.data_ptr(), _at(bias), _at(add),
            y.data_ptr(), x.numel() // inputs, outputs, inputs, fine, torch.get_num_threads(),
        )  # fmt: skip
        return y

    def round(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x R K in bytes 1 … 255 around 128, and what they are multiples of, R."""
        x = x.contiguous()
        bytes_, scale = x.new_empty(x.shape, dtype=torch.uint8), x.new_empty(len(x))
        threads = torch.get_num_threads()
        self._round(x.data_ptr(), bytes_.data_ptr(), scale.data_ptr(), *x.shape, threads)
        return bytes_, scale

    def scale(self, y: Tensor, scale: Tensor, bias: Tensor | None, add: Tensor | None) -> Tensor:
        """y R N, each row times its scale (R), with bias N and `add` R N; where it lies."""
        threads = torch.get_num_threads()
        self._scale(y.data_ptr(), scale.data_ptr(), _at(bias), _at(add), *y.shape, threads)
        return y

    def look(
        self, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, heads: Heads
    ) -> Tensor:
        """softmax(q·k) v: q A M H D, rows of which may lie apart; keys and values A G C D, perhaps
        with room behind them → A M H·D. `bias` A·G J·M C, or A·G 1 C for all queries."""
        sources, new, h, size = q.shape
        out = q.new_empty(sources, new, h * size)
        bias = None if bias is None else bias.contiguous()
        self._look(
            q.data_ptr(), keys.data_ptr(), values.data_ptr(), _at(bias), out.data_ptr(),
            sources, new, h, heads.groups, size, keys.shape[2], _step(keys) // size, _step(q),
            bias is not None and bias.shape[1] == 1, heads.scale, torch.get_num_threads(),
        )  # fmt: skip
        return out

    def pages(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        table: Tensor,
        lengths: Tensor,
        page: int,
        heads: Heads,
    ) -> Tensor:
        """The same of queries N H D, rows of which may lie apart, at the first `lengths` (N) places
        of the pages in `table` (N P) → N H·D. Keys and values are whole stores, slots G D."""
        rows, h, size = q.shape
        out = q.new_empty(rows, h * size)
        table, lengths = table.contiguous(), lengths.contiguous()
        self._pages(
            q.data_ptr(), keys.data_ptr(), values.data_ptr(), table.data_ptr(), lengths.data_ptr(),
            out.data_ptr(), rows, h, heads.groups, size, table.shape[1], page, q.stride(0),
            heads.scale, torch.get_num_threads(),
        )  # fmt: skip
        return out

    def keep(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, past: int) -> None:
        """k and v A M G D, rows of which may lie apart, into the columns from `past` on."""
        sources, new, groups, size = k.shape
        self._keep(
            k.data_ptr(), v.data_ptr(), keys.data_ptr(), values.data_ptr(), sources, new, groups,
            size, past, keys.shape[2], _step(k), _step(v),
        )  # fmt: skip

    def tops(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x R V: the largest of each `WIDE` in order, R P; of all, R 1; log Σ e^(x − that), R 1."""
        x = x.contiguous()
        rows, wide = x.shape
        tops, top, mass = (x.new_empty(rows, n) for n in (-(-wide // WIDE), 1, 1))
        self._tops(
            x.data_ptr(), tops.data_ptr(), top.data_ptr(), mass.data_ptr(), rows, wide,
            torch.get_num_threads(),
        )  # fmt: skip
        return tops, top, mass


@cache
def find_few() -> Few | None:
    """The compiled functions, or None where there is no compiler."""
    try:
        few = Few(open_library(SOURCE))
        return few if _right(few) else None
    except FAILURES:
        return None


def few_for(weight: Tensor) -> Few | None:
    """The compiled functions for a matrix, where they are worth it."""
    fits = weight.shape[1] % STEP == 0 and weight.numel() >= LARGE
    plain = weight.device.type == "cpu" and weight.is_contiguous()
    serves = fits and plain and weight.dtype in (torch.float32, torch.int8)
    return find_few() if serves else None


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def in_order(x: Tensor) -> Tensor:
    """A G C D as `Few.look` wants it: the columns of a head one behind the other."""
    return x if x.stride(3) == 1 and x.stride(2) == x.shape[3] else x.contiguous()


def _step(x: Tensor) -> int:
    """How far the parts of A M … lie apart; an axis of one says nothing of it."""
    return x.stride(0) if x.shape[1] == 1 else x.stride(1)


def _right(few: Few) -> bool:
    """Whether it gives what torch gives."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (11, STEP), generator=draw, dtype=torch.int8, device="cpu")
    bias, scale = normal(draw, 11), normal(draw, 11).sigmoid()
    wide, sums = weight.float() * scale[:, None], weight.sum(1, dtype=torch.int32)
    for rows in range(1, ROWS + 1):
        x = torch.randint(-127, 128, (rows, STEP), generator=draw, device="cpu").float()
        x[:, 0] = 127.0  # so that eight bits have it exactly
        wanted = F.linear(x, wide, bias)
        answers = few.fp32(x, wide, bias), few.int8(x, weight, scale, sums, bias)
        if not all(torch.allclose(y, wanted, rtol=1e-4, atol=1e-2) for y in answers):
            return False
        less = torch.randint(128, x.shape, generator=draw, device="cpu")  # of a byte's 254ths
        between = x - x.sign() * less / 254
        between[:, 0] = 127.0  # and two digits these
        finer = few.int8(between, weight, scale, sums, bias, fine=True)
        if not torch.allclose(finer, F.linear(between, wide, bias), rtol=1e-4, atol=1e-2):
            return False
    q, keys, values = (normal(draw, 1, 2, 2, 16) for _ in range(3))
    found = few.look(q, keys, values, None, Heads(2, 2, 16, 0.5))
    wanted = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, scale=0.5)
    if not torch.allclose(found, wanted.transpose(1, 2).flatten(2), atol=1e-4):
        return False
    stores = (normal(draw, 6, 2, 16), normal(draw, 6, 2, 16))  # three pages of two
    table, lengths = (
        torch.tensor([[2, 0], [1, 0]], device="cpu"),
        torch.tensor([3, 2], device="cpu"),
    )
    found = few.pages(q[0], *stores, table, lengths, 2, Heads(2, 2, 16, 0.5))
    for row, slots in enumerate(([4, 5, 0], [2, 3])):
        k, v = (x[slots].transpose(0, 1) for x in stores)
        wanted = F.scaled_dot_product_attention(q[0, row, :, None], k, v, scale=0.5)
        if not torch.allclose(found[row], wanted.flatten(), atol=1e-4):
            return False
    x = normal(draw, 2, 3 * WIDE)
    tops, top, mass = few.tops(x)
    alike = torch.allclose(top + mass, x.logsumexp(1, keepdim=True), atol=1e-4)
    return alike and torch.equal(tops, x.view(2, -1, WIDE).amax(2))
