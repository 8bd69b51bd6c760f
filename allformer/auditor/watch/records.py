"""What is written down: of an attention, of a tensor, of a table that is added."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

NOTHING = torch.empty(0)


@dataclass
class Site:
    """One attention: what went into its two matmuls and its softmax."""

    number: int
    where: str
    op: int  # the number of the matmul Q·Kᵀ
    q: Tensor  # N T D
    k: Tensor  # N S D
    scores: Tensor  # N T S, the bare product
    q_tag: Tag
    k_tag: Tag
    scale: float = 1.0
    learned_scale: bool = False
    learned_bias: bool = False  # a trained term is added to the scores, as in T5
    terms: int = 1  # products that are added up: 3 in DeBERTa's
    term_ops: frozenset[int] = frozenset()  # the linear maps among them: queries times a table
    softmax_in: Tensor = NOTHING  # with its mask and bias
    softmax_dim: int = -1
    weights: Tensor = NOTHING  # N T S, as the second matmul gets them
    v: Tensor = NOTHING  # N S D
    v_tag: Tag = field(default_factory=lambda: Tag())
    mix_op: int = -1  # the number of the matmul weights·V
    out_op: int = -1  # the first linear map after it: W_O
    out_input: Tensor | None = None
    beside: int = 0  # other attentions, one for each head, whose outputs are put beside its own

    @property
    def masked_in(self) -> Tensor:
        """The softmax's input in the shape of the scores."""
        return self.softmax_in.reshape(self.scores.shape)


@dataclass(frozen=True)
class Part:
    """Some numbers of a parameter: how a view of it lies in its memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    @classmethod
    def of(cls, view: Tensor) -> Part:
        """The part that a view is."""
        return cls(tuple(view.shape), tuple(view.stride()), int(view.storage_offset()))

    @property
    def end(self) -> int:
        """One past the last of its places."""
        steps = zip(self.shape, self.stride, strict=True)
        return self.start + sum((n - 1) * step for n, step in steps) + 1

    def overlaps(self, other: Part) -> bool:
        """Whether the two have a number in common."""
        if self.start >= other.end or other.start >= self.end:
            return False
        used = torch.zeros(max(self.end, other.end), dtype=torch.bool)
        used.as_strided(self.shape, self.stride, self.start).fill_(True)
        return bool(used.as_strided(other.shape, other.stride, other.start).any())


@dataclass
class Tag:
    """What is known of a tensor."""

    data: bool = False  # depends on the input
    trained: bool = False  # depends on a parameter
    linear: int = -1  # the linear map whose output this is, moved or changed element by element
    weight: str = ""  # the parameter of that map, or that this is a part of
    part: Part | None = None  # which of its numbers
    columns: Tensor | None = None  # for each element, the column of that output it came from
    factor: float = 1.0  # what it was multiplied by since
    learned_factor: bool = False
    learned_bias: bool = False
    terms: int = 1
    term_ops: frozenset[int] = frozenset()
    scores: Site | None = None
    probs: Site | None = None
    mixed: Site | None = None
    mix_op: int = -1  # the matmul weights·V that it came from
    exponential: bool = False


@dataclass
class Table:
    """Something added to the activations that does not depend on them: a table of positions."""

    op: int
    value: Tensor
    trained: bool
    out_shape: tuple[int, ...]
