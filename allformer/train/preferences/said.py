"""How likely a model finds answers: the sum over the tokens of each, log π(y | x).

Legend: N tokens of a batch, M of them to be said, R rows (an answer each), W most tokens of one,
V vocabulary, C tokens at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from allformer.core.inputs import Side
from allformer.core.layout import Packed
from allformer.core.precision import widen
from allformer.train.batch import Array, lay_rows

_NUMBERS = 1 << 26  # logits that are in memory at a time


class Said(NamedTuple):
    """Rows end to end, and what is to be said in each."""

    ids: Tensor  # N
    layout: Packed
    places: Tensor  # M: among the N states
    labels: Tensor  # M: the token that follows each
    cells: Tensor  # M: row · W + the number among its row's
    counts: Tensor  # R: tokens to be said in each
    width: int  # W


def lay_said(rows: Sequence[tuple[Array, Array]]) -> Said:
    """Rows of ids, and of each id whether it is said: `lay_said([([5, 6, 7], [0, 1, 1])])`."""
    lengths = np.array([len(ids) for ids, _ in rows], np.int64)
    laid = lay_rows(lengths - 1)
    read = np.concatenate([np.asarray(ids[:-1], np.int64) for ids, _ in rows])
    follows = np.concatenate([np.asarray(ids[1:], np.int64) for ids, _ in rows])
    said = np.concatenate([np.asarray(learnt[1:]) > 0 for _, learnt in rows])
    places = np.flatnonzero(said)
    row = laid.row[places]
    counts = np.bincount(row, minlength=len(rows))
    number = np.arange(len(places)) - (np.cumsum(counts) - counts)[row]
    width = int(counts.max())
    where, labels, cells, each = map(
        torch.from_numpy, (places, follows[places], row * width + number, counts)
    )
    return Said(torch.from_numpy(read), laid.packed(), where, labels, cells, each, width)


def said_states(model: Any, said: Said, dtype: torch.dtype | None = None) -> Tensor:
    """The states from which something is said, M dim."""
    sides = {"decoder": Side(said.layout, {"input_ids": said.ids})}
    hidden: Tensor = model.hidden(sides, dtype=dtype)["decoder"].flatten(0, -2)  # N dim
    return hidden.index_select(0, said.places)


def row_logps(model: Any, said: Said, dtype: torch.dtype | None = None) -> Tensor:
    """log π(y | x) of each row, R; summed in a fixed order, so that it is the same each time."""
    return row_sums(said, token_logps(model.vocab_head, said_states(model, said, dtype), said))


def row_sums(said: Said, tokens: Tensor) -> Tensor:
    """What the tokens of each row add up to: M → R."""
    rows = len(said.counts)
    grid = tokens.new_zeros(rows * said.width).index_copy(0, said.cells, tokens)
    return grid.view(rows, said.width).sum(1)


def token_logps(head: Any, states: Tensor, said: Said) -> Tensor:
    """log p of each token that is said, M. Logits are made chunk by chunk, and again in the
    backward pass: those of a whole batch are never all in memory."""

    def some(states: Tensor, labels: Tensor) -> Tensor:
        return -torch.nn.functional.cross_entropy(widen(head(states)), labels, reduction="none")

    return torch.cat(in_chunks(some, states, said.labels, head.vocab))


def in_chunks(
    some: Callable[[Tensor, Tensor], Any], states: Tensor, labels: Tensor, vocab: int
) -> list[Any]:
    """What `some` makes of states and labels, chunk by chunk; more than one are made again in the
    backward pass."""
    parts = []
    for at in chunks(len(states), vocab):
        one = states[at], labels[at]
        again = torch.is_grad_enabled() and len(states) > len(one[0])
        parts.append(
            checkpoint(some, *one, use_reentrant=False, preserve_rng_state=False)
            if again
            else some(*one)
        )
    return parts


def chunks(count: int, vocab: int) -> Iterator[slice]:
    """Parts whose logits fit in memory."""
    step = max(1, _NUMBERS // vocab)
    return (slice(begin, begin + step) for begin in range(0, count, step))


@contextmanager
def without_dropout(model: Any) -> Iterator[None]:
    """What is compared is what a model says when it is asked."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
