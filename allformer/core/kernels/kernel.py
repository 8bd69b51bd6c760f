"""What a kernel is asked, and what it is given."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from allformer.core.layout import Packed
from allformer.core.look import Look
from allformer.core.places import Places


class Case(NamedTuple):
    """The work, as far as the choice depends on it. `asked` is the caller's word: fast or eager;
    `full`: every key of the row (and not after the query, if causal) is looked at, without bias."""

    asked: str
    device: torch.device
    dtype: torch.dtype
    size: int  # of a head
    packed: bool = False
    full: bool = True
    length: int = 0  # tokens of a usual row, where rows lie end to end; 0: they do not
    grouped: bool = False  # several query heads share a key head
    window: int = 0  # places from the first to the last that a query may look at; 0: all, or what
    # stands where is not known
    dilation: int = 1  # of those, every so-manieth is looked at
    width: int = 0  # places in a row, or all that lie end to end
    row: int = 0  # places in a row of the grid
    past: bool = False  # keys of earlier steps come before the new ones
    biased: bool = False  # something is added to the scores
    drops: bool = False  # weights are dropped out


class Rows(NamedTuple):
    """Where rows that lie end to end begin, R+1 int32; no row of keys is longer than `width`.

    `key` is None where the keys are the queries'.
    """

    query: Tensor
    key: Tensor | None
    width: int


class Band(NamedTuple):
    """For the keys near a query: how many before and after it, every `dilation`-th; `keep` (R S) is
    False where no key stands; `bias` (1 H 1 W) is added to the scores, from the left to the right;
    `rows` (N) numbers packed rows that stay end to end.
    """

    left: int
    right: int
    dilation: int = 1
    keep: Tensor | None = None
    bias: Tensor | None = None
    rows: Tensor | None = None


class Plan(NamedTuple):
    """How the layers of a stack attend; made once for all of them.

    Packed rows (`query`, `key`) go as they are into a kernel that takes them (`look` is None), or
    are laid on grids for attention alone: it is a small part of the work.
    """

    kernel: Kernel
    look: Look | None = None
    places: Places | None = None
    query: Packed | None = None
    key: Packed | None = None
    causal: bool = False  # of ragged rows
    rows: Rows | None = None  # for a kernel that takes the projections whole
    length: int = 0
    blocks: Any = None  # Flex's: a `BlockMask`
    band: Band | None = None
    ahead: tuple[Tensor, Tensor] | None = None  # of one layer: learned keys and values, (B or 1)
    # G P D, that stand before all others


class Kernel(Protocol):
    """One way to compute attention."""

    ragged: bool  # takes packed rows as they are
    whole: bool  # takes the projections as they are, before they are cut into q, k and v

    def fits(self, case: Case) -> bool: ...

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        """q B H T D, k and v B G S D → B H T D; ragged: q N H D, k and v M G D → N H D."""
