"""The next token of rows that have nothing in common: each by its own options.

Rows that want the likeliest token are answered together, and so are those that narrow what they
draw from in the same way; each draws with its own generator. What changes scores by what was said
runs row by row.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from allformer.generate.reply import Reply
from allformer.generate.request import Request
from allformer.generate.rows import not_numbers


class Pick(NamedTuple):
    """A row's token, or what went wrong in choosing it."""

    token: int
    error: Exception | None = None


def pick(logits: Tensor, replies: Sequence[Reply]) -> list[Pick]:
    """A token for each reply, from its row of `logits` (R V). One wait for the device."""
    groups: dict[Hashable, list[int]] = {}
    for i, reply in enumerate(replies):
        groups.setdefault(_kind(reply.request, i), []).append(i)
    found: list[Tensor] = []
    order: list[int] = []  # whose they are
    picks: dict[int, Pick] = {}
    for rows in groups.values():
        mine = logits if len(rows) == len(replies) else logits[rows]
        try:
            found.append(_take(mine, [replies[i] for i in rows]))
            order += rows
        except Exception as error:  # whatever a request's own processor may raise is its own
            picks |= dict.fromkeys(rows, Pick(-1, error))
    for i, (token, rank) in zip(order, torch.cat(found).tolist() if found else (), strict=True):
        picks[i] = Pick(int(token), not_numbers() if math.isnan(rank) else None)
    return [picks[i] for i in range(len(replies))]


def _kind(request: Request, row: int) -> Hashable:
    """What rows must have in common to be answered together; one that looks at its text has
    nothing."""
    if request.processors:
        return row
    warps = tuple(
        (warp.func, *sorted(warp.keywords.items())) if isinstance(warp, partial) else warp
        for warp in request.warps
    )
    return (*warps, request.renormalise, request.draw is None)


def _take(scores: Tensor, replies: Sequence[Reply]) -> Tensor:
    """Tokens and how they ranked, R 2 in fp64, which has every id and NaN alike."""
    request = replies[0].request  # the others' does the same
    ids = scores.new_empty(len(replies), 0, dtype=torch.long)
    if request.processors:
        ids = torch.tensor([replies[0].ids], device=scores.device)
    scores = request.process(ids, scores, torch.zeros(1, dtype=torch.long, device=scores.device))
    if request.draw is not None:
        noise = [x.request.draw.noise(scores) for x in replies if x.request.draw is not None]
        scores = scores.softmax(-1) / torch.cat(noise)
    rank, token = scores.max(-1)
    return torch.stack([token.double(), rank.double()], dim=-1)
