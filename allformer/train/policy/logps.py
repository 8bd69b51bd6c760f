"""How likely a model finds each token of its answers, and how sure it is there.

Legend: R rows (answers), W most tokens of one, M tokens of all, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.precision import widen
from allformer.train.preferences.said import Said, in_chunks, said_states


class Logps(NamedTuple):
    """On a grid R W; 0 behind the end of an answer."""

    logps: Tensor
    entropy: Tensor


def answer_logps(
    model: Any, said: Said, temperature: float = 1.0, dtype: torch.dtype | None = None
) -> Logps:
    """log π(token) and the entropy there, of π at this temperature: what the answers were drawn
    from. Logits are made chunk by chunk, and again in the backward pass."""
    return state_logps(model.vocab_head, said_states(model, said, dtype), said, temperature)


def state_logps(head: Any, states: Tensor, said: Said, temperature: float = 1.0) -> Logps:
    """The same from the states that the answers are said from, M dim (`said_states`)."""

    def some(states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logp = (widen(head(states)) / temperature).log_softmax(-1)  # … V
        return -F.nll_loss(logp, labels, reduction="none"), -(logp.exp() * logp).sum(-1)

    parts = in_chunks(some, states, said.labels, head.vocab)
    logps, entropy = (on_grid(said, torch.cat(part)) for part in zip(*parts, strict=True))
    return Logps(logps, entropy)


def on_grid(said: Said, tokens: Tensor) -> Tensor:
    """What each token has, M → R W; 0 elsewhere."""
    rows = len(said.counts)
    return tokens.new_zeros(rows * said.width).index_copy(0, said.cells, tokens).view(rows, -1)


def off_grid(said: Said, grid: Tensor) -> Tensor:
    """What each token has: R W → M."""
    return grid.flatten().index_select(0, said.cells)


def grid_mask(said: Said) -> Tensor:
    """Where there is a token, R W."""
    return torch.arange(said.width, device=said.counts.device) < said.counts[:, None]
