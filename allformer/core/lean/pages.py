"""Tokens of rows that have nothing in common: what each looks at lies in pages.

    tokens = Tokens(slots, table, lengths, counts)      # of all rows, end to end
    look_back(tokens, own, few, q, k, v, heads)         # writes keys and values, looks at them

Every token is a row of its own here, so that products see tokens alone. A few tokens of a text are
looked up page by page, where they lie, by `few.c`; of many (a prompt), the keys are gathered once.

Legend: N tokens of all rows, P pages of a row, H heads, G key/value heads, D head size, C columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.lean.native import Few, Heads
from allformer.core.states.pages import Pages

TOGETHER = 8  # new tokens of a text from which its keys are gathered


class Tokens(NamedTuple):
    """Where the new tokens stand, and what they see: the first `lengths` places of their pages."""

    slots: Tensor  # N: where their keys and values are written
    table: Tensor  # N P
    lengths: Tensor  # N
    counts: list[int]  # of each row
    across: tuple[Tensor, Tensor] | None = None  # the same of an encoder: N P and N


def look_back(
    tokens: Tokens, own: Pages, few: Few | None, q: Tensor, k: Tensor, v: Tensor, heads: Heads
) -> Tensor:
    """Self-attention: q N H D, k and v N G D → N H·D."""
    stores = own.write(tokens.slots, k, v)
    if max(tokens.counts) < TOGETHER:
        return _each(own, few, q, stores, (tokens.table, tokens.lengths), heads)
    out, at = [], 0
    for count in tokens.counts:
        mine = slice(at, at + count)
        at += count
        table, lengths = tokens.table[mine], tokens.lengths[mine]
        if count < TOGETHER:
            out.append(_each(own, few, q[mine], stores, (table, lengths), heads))
        else:
            out.append(_together(own, q[mine], stores, table[:1], int(lengths[-1]), heads))
    return torch.cat(out)


def look_across(tokens: Tokens, own: Pages, few: Few | None, q: Tensor, heads: Heads) -> Tensor:
    """Attention at what an encoder has left in pages: q N H D → N H·D."""
    assert tokens.across is not None
    return _each(own, few, q, own.stores, tokens.across, heads)


def _each(
    own: Pages,
    few: Few | None,
    q: Tensor,
    stores: tuple[Tensor, Tensor],
    where: tuple[Tensor, Tensor],
    heads: Heads,
) -> Tensor:
    """Every query looks at pages of its own."""
    table, lengths = where
    if few is not None:
        return few.pages(q, *stores, table, lengths, own.frame.size, heads)
    keys, values = (own.gather(x, table, lengths) for x in stores)  # N G C D
    keep = torch.arange(keys.shape[2]) < lengths[:, None]
    out = F.scaled_dot_product_attention(
        q[:, :, None], keys, values, keep[:, None, None], scale=heads.scale,
        enable_gqa=heads.heads != heads.groups,
    )  # fmt: skip
    return out.flatten(1)


def _together(
    own: Pages, q: Tensor, stores: tuple[Tensor, Tensor], table: Tensor, end: int, heads: Heads
) -> Tensor:
    """Queries of one text, the last of `end` tokens."""
    size = own.frame.size
    pages = table[0, : -(-end // size)]
    # G C D
    keys, values = (x.view(-1, size, *own.shape)[pages].flatten(0, 1)[:end] for x in stores)
    new = len(q)
    mask = None if new == end else torch.ones(new, end, dtype=torch.bool).tril(end - new)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None], mask,
        is_causal=mask is None, scale=heads.scale, enable_gqa=heads.heads != heads.groups,
    )  # fmt: skip
    return out[0].transpose(0, 1).flatten(1)
