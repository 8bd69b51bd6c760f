"""What a kernel is asked, and what it is given."""

from __future__ import annotations

from typing import NamedTuple, Protocol

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


class Kernel(Protocol):
    """One way to compute attention."""

    ragged: bool  # takes packed rows as they are

    def fits(self, case: Case) -> bool: ...

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, scale: float, dropout: float
    ) -> Tensor:
        """q B H T D, k and v B G S D → B H T D; ragged: q N H D, k and v M G D → N H D."""
