"""What a head is: it reads hidden states, gives outputs by name, and scores them.

Legend: B batch, T length, N packed tokens, dim model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from allformer import config
from allformer.core.inputs import Side
from allformer.core.layout import Grid, Layout
from allformer.core.loss import Sums

NOTHING: Mapping[str, Any] = {}


class Hidden(NamedTuple):
    """What a head reads: states in a layout and on the grid, and what was found on the way."""

    states: Tensor  # … dim, in the layout
    layout: Layout
    grid: Tensor  # B T dim, zeros at padding that was left out
    ids: Tensor | None = None  # of the text, B T
    pooled: Tensor | None = None  # B dim
    inputs: Mapping[str, Any] = NOTHING  # of the first stack, as the caller gave them
    layers: Tensor | None = None  # L B T dim: the states after each layer, the last ones' too
    entries: Tensor | None = None  # L+1 B T dim: what each layer reads, and the last states

    @property
    def keep(self) -> Tensor | None:
        """B T, False at padding; None: there is none."""
        keep, width = self.layout.keep, self.grid.shape[1]
        if keep is None:
            return None
        if isinstance(self.layout, Grid) and self.layout.room is not None:  # room behind them
            return keep.index_select(1, self.layout.columns(keep.device))
        return keep[:, -width:]


class Head(nn.Module):
    """The module for a `head` slot.

    `gives` are the names of its outputs, `targets` those of the arguments that it learns from.
    `reads_first`: it reads the first column, padding or not. `reads_padding`: with targets, or
    if it has none, it reads every column. `front`: of each row it reads so many of the first
    tokens and nothing else; None: more. `writes`: what it gives is text, so the decoder of an
    encoder-decoder reads what was written, not the input again. `chooses`: it scores texts, of
    which several belong together, and a caller may give questions × choices × tokens.
    `reads_layers`: in training it reads the states after each layer too; `reads_entries`: it always
    reads what enters each layer.
    """

    gives: tuple[str, ...] = ("logits",)
    targets: tuple[str, ...] = ("labels",)
    reads_first = False
    reads_padding = False
    front: int | None = None
    writes = False
    chooses = False
    reads_layers = False
    reads_entries = False

    def __init__(self, head: Any, stack: config.Stack, path: str, **given: Any) -> None:
        """`given` is for those who want it: `table`, the embedding of the stack below, and
        `ahead`: what is read at t is scored against the label at t + 1."""
        super().__init__()
        self.config, self.stack, self.path = head, stack, path

    def complete(self, side: Side) -> Side:
        """What the first stack reads, with what the head wants there and the caller left out."""
        return side

    def learns(self, targets: Mapping[str, Tensor], hidden: Hidden) -> bool:
        """Whether there is what it learns from: all of its targets."""
        return bool(targets) and all(name in targets for name in self.targets)

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        """The answer, by the names of `gives`."""
        raise NotImplementedError

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        """The loss of its outputs, summed, and over how many it is; all `targets` are given."""
        raise NotImplementedError

    def loss(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Tensor:
        """The mean loss; 0 where there is nothing to learn from."""
        return self.sums(outputs, targets, hidden).mean
