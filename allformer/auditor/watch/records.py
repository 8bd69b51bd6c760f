"""What is written down: of an attention, of a tensor, of a table that is added."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
    softmax_in: Tensor | None = None
    softmax_dim: int = -1
    weights: Tensor | None = None  # N T S, as the second matmul gets them
    v: Tensor | None = None  # N S D
    v_tag: Tag | None = None
    mix_op: int = -1  # the number of the matmul weights·V
    out_op: int = -1  # the first linear map after it: W_O
    out_input: Tensor | None = None

    @property
    def masked_in(self) -> Tensor:
        """The softmax's input in the shape of the scores."""
        assert self.softmax_in is not None
        return self.softmax_in.reshape(self.scores.shape)


@dataclass
class Tag:
    """What is known of a tensor."""

    data: bool = False  # depends on the input
    trained: bool = False  # depends on a parameter
    linear: int = -1  # the linear map whose output this is, moved or changed element by element
    weight: str = ""  # the parameter of that map
    part: tuple[int, int] = (0, 0)  # which of its numbers
    columns: Tensor | None = None  # for each element, the column of that output it came from
    factor: float = 1.0  # what it was multiplied by since
    learned_factor: bool = False
    learned_bias: bool = False
    scores: Site | None = None
    probs: Site | None = None
    mixed: Site | None = None
    exponential: bool = False


@dataclass
class Table:
    """Something added to the activations that does not depend on them: a table of positions."""

    op: int
    value: Tensor
    trained: bool
    out_shape: tuple[int, ...]
