"""x Wᵀ + b in eight bits on a CPU: W is rounded once, a scale for each output; x at each call.

    times = Int8(weight, bias)                 # for many rows; Int8Few for a few
    times(x)                                   # … K → … N, in fp32
    to_int8(model.encoder)                     # its matrices, in place: a quarter of the memory

Every row of x has a scale of its own. Two products of oneDNN's that torch has: the one that
`torch.compile` uses for quantised models (unsigned by signed bytes), and a bare one of integers,
which costs less to call, and reads the bytes where they lie (`times_bytes`, which layers that are
quantised have too). Sums are exact in both.

Legend: M rows, K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
from torch import Tensor, nn

from allformer.core.linear import Fused, Linear

ZERO = 128  # what stands for 0 among unsigned bytes


def has_int8() -> bool:
    """Whether this torch has the products."""
    return bool(torch._C._has_mkldnn) and hasattr(torch.ops.onednn, "qlinear_pointwise")


@cache
def multiplies_bytes() -> bool:
    """Whether this processor's bare products of bytes are there and exact.

    Those without instructions for it add pairs in sixteen bits, which overflow at the extremes.
    """
    if not torch._C._has_mkldnn:
        return False
    a = torch.full((4, 64), -127, dtype=torch.int8)
    b = torch.full((16, 64), -128, dtype=torch.int8)
    try:
        return bool((torch._int_mm(a, b.t()) == 64 * 127 * 128).all())
    except RuntimeError:
        return False


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes −127 … 127 of each row, M K, and what they are multiples of, M 1."""
    unit = _units(x)
    return (x / unit).round_().to(torch.int8), unit


def digits(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x M K as unit · (a + b / 254), a and b of eight bits: a, b, and the unit, M 1."""
    unit = _units(x)
    many = x / unit
    first = many.round()
    second = many.sub_(first).mul_(254).round_()
    return first.to(torch.int8), second.to(torch.int8), unit


def evened(weight: Tensor) -> tuple[Tensor, Tensor]:
    """W N K with columns that stand out taken back, and what x … K is to be multiplied by, so that
    x Wᵀ stays what it is.

    A row has one scale for all its bytes: a column that is large in every row, as vocabularies have
    them, leaves the others a few levels. Where its largest number is more than twice the usual one,
    half of the excess (in powers) goes over to x.
    """
    most = weight.abs().amax(0)
    excess = (most / (2 * most.median()).clamp_min(1e-30)).clamp_min_(1).sqrt_()
    return weight / excess, excess


def _units(x: Tensor) -> Tensor:
    return x.abs().amax(1, keepdim=True).clamp_min_(1e-30).mul_(1 / 127)


def times_bytes(x: Tensor, q: Tensor, scale: Tensor, fine: bool = False) -> Tensor:
    """x M K by q N K int8, each of its rows times scale N → M N in fp32.

    `fine`: x in two digits of eight bits, so that it keeps sixteen: 1.5e-5 of a row's largest value
    is lost, where one digit loses 4e-3.
    """
    if not fine:
        seen, unit = rounded_rows(x)
        return (torch._int_mm(seen, q.t()) * scale).mul_(unit)
    a, b, unit = digits(x)
    if len(x) == 1:  # one row has a faster product of its own
        coarse, less = torch._int_mm(a, q.t()), torch._int_mm(b, q.t())
    else:
        coarse, less = torch._int_mm(torch.cat((a, b)), q.t()).chunk(2)
    return torch.add(coarse.float(), less, alpha=1 / 254).mul_(scale).mul_(unit)


class Int8Few:
    """`Int8Few(weight, bias)(x)`: weight N K, bias N; for a few rows, `fine` in two digits."""

    def __init__(self, weight: Tensor, bias: Tensor | None, fine: bool = False) -> None:
        self.fine = fine
        self.weight, scale = rounded_rows(weight.detach().float())
        self.scale = scale[:, 0]
        self.bias = None if bias is None else bias.detach().float()

    def __call__(self, x: Tensor) -> Tensor:
        y = times_bytes(x.reshape(-1, x.shape[-1]), self.weight, self.scale, self.fine)
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], -1)


class Rounds(Protocol):
    """A compiled form of what stands around a product of many rows."""

    def round(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x M K in bytes 1 … 255 around 128, and what they are multiples of, M."""

    def scale(self, y: Tensor, scale: Tensor, bias: Tensor | None, add: Tensor | None) -> Tensor:
        """y M N, each row times its scale, with bias N and `add` M N; where it lies."""


class Int8:
    """`Int8(weight, bias)(x)`: weight N K, bias N; for many rows, or a wide N."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rounds: Rounds | None = None) -> None:
        rounded, scale = rounded_rows(weight.detach().float())
        self._take(rounded, scale[:, 0], None if bias is None else bias.detach().float(), rounds)

    @classmethod
    def of(
        cls, rounded: Tensor, scale: Tensor, bias: Tensor | None, rounds: Rounds | None = None
    ) -> Int8:
        """Of a weight that is rounded already: bytes N K, scale N."""
        made = cls.__new__(cls)
        made._take(rounded, scale, bias, rounds)
        return made

    def _take(
        self, rounded: Tensor, scale: Tensor, bias: Tensor | None, rounds: Rounds | None
    ) -> None:
        self.scale, self.rounds = scale, rounds  # N
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.zero = torch.zeros(len(rounded), dtype=torch.int)
        self.bias = bias
        self.outputs = len(rounded)

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x Wᵀ + b, and `add` … N, if there is one."""
        flat = x.reshape(-1, x.shape[-1])
        if self.rounds is not None and flat.dtype == torch.float32:
            more = None if add is None else add.contiguous()
            seen, unit = self.rounds.round(flat)
            y = self.rounds.scale(self._times(seen), unit, self.bias, more)
            return y.view(*x.shape[:-1], self.outputs)
        top = torch.maximum(flat.amax(1, keepdim=True), -flat.amin(1, keepdim=True))
        top.clamp_min_(1e-12)
        # 1 … 255 around 128; a half is added, since what lies behind the point is cut off.
        y = self._times(flat.mul(127 / top).add_(ZERO + 0.5).to(torch.uint8))
        top *= 1 / 127
        y = y.mul_(top) if self.bias is None else torch.addcmul(self.bias, y, top, out=y)
        y = y.view(*x.shape[:-1], self.outputs)
        return y if add is None else y.add_(add)

    def _times(self, seen: Tensor) -> Tensor:
        """Bytes M K by the weights; what the rows of `seen` are multiples of is not in it."""
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            seen, 1.0, ZERO, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32,
            "none", [], "",
        )  # fmt: skip
        return y


class Int8Linear(nn.Module):
    """A `Linear` (or the named parts of a `Fused`) in eight bits; it cannot be trained."""

    def __init__(self, linear: Linear, rounds: Rounds | None = None) -> None:
        super().__init__()
        self.parts = linear.parts if isinstance(linear, Fused) else {}
        self.times = Int8(linear.weight, linear.addend(linear.weight.dtype), rounds)

    def forward(self, x: Tensor) -> Tensor:
        return self.times(x).to(x.dtype)

    def cut(self, y: Tensor) -> tuple[Tensor, ...]:
        """What `forward` gave, cut into the parts in order."""
        return torch.split(y, list(self.parts.values()), dim=-1)


def to_int8(module: nn.Module, find: Callable[[Tensor], Rounds | None] = lambda _: None) -> None:
    """Every linear layer inside, in place, but those that have a delta: they stay as they are.

    `find(weight)` gives the compiled form of what stands around a product (`lean.few_for`).
    """
    for name, child in module.named_children():
        if isinstance(child, Linear):
            if child.delta is None:
                setattr(module, name, Int8Linear(child, find(child.weight)))
        else:
            to_int8(child, find)
