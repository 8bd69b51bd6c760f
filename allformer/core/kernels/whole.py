"""Attention of whole rows on a CPU, compiled (`whole.c`): every query looks at every key, or at
those up to its own place.

    if whole_serves(q, k, look, dropout):
        out = whole_rows(q, k, v, scale, look.causal)      # B H T D

torch's kernel asks MKL for each little product, which on AMD's processors is half as fast as they
are (docs/results.md, "Attention on a CPU").

Legend: B rows, H heads, G key/value heads, T queries, S keys, D head size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.library import FAILURES, normal, open_library
from allformer.core.look import Look
from allformer.core.matmul import only_result

SOURCE = Path(__file__).with_name("whole.c")
LEAST = 64  # queries and keys: for fewer, torch's kernel is no slower
_LANES = 16  # numbers of a register: D is a multiple
_PANEL, _BLOCK = 64, 24  # as in whole.c
_Whole = Callable[[Tensor, Tensor, Tensor, float, bool], Tensor]


def whole_serves(q: Tensor, k: Tensor, look: Look, dropout: float) -> bool:
    """Rows without a mask, of which only the result is wanted, where the kernel is there."""
    plain = look.merged is None and not dropout
    return (
        plain
        and only_result(q, k)  # before the sizes, which a compiled graph would be bound to
        and min(q.shape[2], k.shape[2]) >= LEAST
        and q.shape[3] % _LANES == 0
        and find_whole() is not None
    )


def whole_rows(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
    """q B H T D, k and v B G S D → B H T D, which lies as B T H D."""
    whole = find_whole()
    assert whole is not None
    return whole(q, k, v, scale, causal)


@cache
def find_whole() -> _Whole | None:
    """The compiled function, or None: no compiler, smaller registers, an answer not torch's."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    try:
        whole = _bound(open_library(SOURCE).whole_rows)
        return whole if _right(whole) else None
    except FAILURES:
        return None


def _bound(function: Any) -> _Whole:
    pointer, number = ctypes.c_void_p, ctypes.c_long
    function.argtypes = [pointer] * 9 + [number] * 7 + [ctypes.c_float, number]
    function.restype = None

    def whole(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
        q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
        (rows, heads, asked, size), (groups, seen) = q.shape, k.shape[1:3]
        end, threads = -(-seen // _PANEL) * _PANEL, torch.get_num_threads()
        out = q.new_empty(rows, asked, heads, size)
        room, scores = (
            q.new_empty(rows * groups * 2 * end * size),
            q.new_empty(threads, _BLOCK, end),
        )
        steps = [(number * 3)(*x.stride()[:3]) for x in (q, k, v)]
        places = (x.data_ptr() for x in (q, k, v, out, room, scores))
        sizes = rows, asked, seen, heads, groups, size
        function(*places, *steps, *sizes, causal, scale, threads)
        return out.transpose(1, 2)

    return whole


def _right(whole: _Whole) -> bool:
    """Whether it gives what torch gives."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (normal(draw, 1, 2, n, 80) for n in (31, 70, 70))
    for causal in (False, True):
        wanted = F.scaled_dot_product_attention(q, k, v, scale=0.2, is_causal=causal)
        if not torch.allclose(whole(q, k, v, 0.2, causal), wanted, atol=1e-4):
            return False
    return True
