"""Attention of one new token of each row, which is remembered on the way.

    context = one_query(qkv, state, past, keep, turn, heads, scale, ticks)

Legend: R rows, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.core.attend import attention_scores, attention_weights, mix
from allformer.core.fused.times import by_kernel
from allformer.core.fused.turns import Turns
from allformer.core.look import blind_rows, make_look


def one_query(
    fused: Tensor,
    memory: tuple[Tensor, Tensor],
    past: Tensor,
    keep: Tensor | None,
    turn: Turns | None,
    heads: int,
    scale: float,
    ticks: Tensor,
) -> Tensor:
    """The context R H·D of the projections `fused` R (H+2G)·D.

    `memory` are keys and values, R G room D: `past` tokens (a counter on the device) are there, and
    one more afterwards. `keep` R S is False where nobody stands, of all places that there can be by
    now. `ticks` are R·G zeros (int32), in which a kernel counts; they are zeros again afterwards.
    """
    keys, values = memory
    if not by_kernel(fused):
        return plain_one_query(fused, memory, past, keep, turn, heads, scale)
    from allformer.core.fused.gpu import one_query as gpu

    return gpu.one_query(fused, keys, values, past, keep, turn, heads, scale, ticks)


def plain_one_query(
    fused: Tensor,
    memory: tuple[Tensor, Tensor],
    past: Tensor,
    keep: Tensor | None,
    turn: Turns | None,
    heads: int,
    scale: float,
) -> Tensor:
    """The same by torch's operations: the formula over all the room there is."""
    keys, values = memory
    groups, size = keys.shape[1], keys.shape[3]
    parts = fused.view(len(fused), -1, size)  # R H+2G D
    q, k, v = torch.split(parts, [heads, groups, groups], dim=1)
    if turn is not None:
        q, k = turn.turned(q, past), turn.turned(k, past)
    keys.index_copy_(2, past[None], k[:, :, None])
    values.index_copy_(2, past[None], v[:, :, None])
    seen = keys.shape[2] if keep is None else keep.shape[1]
    keys, values = keys[:, :, :seen], values[:, :, :seen]
    there = torch.arange(seen, device=keys.device) <= past
    mask = (there[None] if keep is None else there & keep)[:, None, None]  # R 1 1 S
    scores = attention_scores(q[:, :, None], keys, scale=scale)
    weights = attention_weights(scores, make_look(mask, blind=blind_rows(mask)))
    return mix(weights, values).flatten(1)
