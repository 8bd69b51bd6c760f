"""Scaled dot-product attention: the only place where scores become outputs.

    Attention(Q, K, V) = softmax(Q Kᵀ · scale + mask) V,   scale = 1/√D        (paper, eq. 1)

Legend: B batch, H query heads, G key/value heads, T queries, S keys, D head size, N packed tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.layout import RaggedLook, grid_look
from allformer.core.masks import Look


def attend(
    q: Tensor, k: Tensor, v: Tensor, look: Look | RaggedLook, *, scale: float, dropout: float = 0.0
) -> Tensor:
    """Queries look at keys and take values: q B H T D, k and v B G S D → B H T D.

    Packed (with a `RaggedLook`): q N H D, k and v M G D → N H D.
    """
    if isinstance(look, RaggedLook):
        return _ragged(q, k, v, look, scale, dropout)
    if look.kernel == "eager":
        weights = attention_weights(attention_scores(q, k, scale=scale, bias=look.bias), look)
        return mix(F.dropout(weights, dropout), v)
    return _sdpa(q, k, v, look, scale, dropout)


def attention_scores(q: Tensor, k: Tensor, *, scale: float, bias: Tensor | None = None) -> Tensor:
    """Q Kᵀ · scale (+ bias): B H T D, B G S D → B H T S."""
    scores = q @ _to_heads(k, q.shape[1]).transpose(-2, -1) * scale
    return scores if bias is None else scores + bias.to(scores.dtype)


def attention_weights(scores: Tensor, look: Look) -> Tensor:
    """softmax(scores + mask): B H T S. Rows sum to 1; blind rows are all zero."""
    mask = look.full_mask(scores.shape[2], scores.shape[3], scores.device)
    if mask is None:
        return scores.softmax(dim=-1)  # softmax subtracts the row's maximum: no overflow
    sees = mask.any(dim=-1, keepdim=True)  # B 1 T 1
    # −inf on a whole row would be 0/0; such a row keeps its scores and gets weight zero instead,
    # which leaves both the output and the gradient finite.
    scores = scores.masked_fill(~mask & sees, float("-inf"))
    return scores.softmax(dim=-1).masked_fill(~sees, 0.0)


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """weights · V: B H T S, B G S D → B H T D."""
    return weights @ _to_heads(v, weights.shape[1])


def _to_heads(x: Tensor, heads: int) -> Tensor:
    """Each key/value head serves H/G query heads in a row: B G S D → B H S D."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, look: Look, scale: float, dropout: float) -> Tensor:
    mask, causal = look.mask, look.causal
    if look.merged is not None:
        mask, causal = look.merged.to(q.dtype), False
    elif mask is not None:
        mask, causal = look.full_mask(q.shape[2], k.shape[2], q.device), False
        if mask is not None and look.blind is not None:
            mask = mask | look.blind  # kernels differ on empty rows: give them one and zero it
    gqa = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=gqa
    )
    return out if look.blind is None else out.masked_fill(look.blind, 0.0)


def _ragged(
    q: Tensor, k: Tensor, v: Tensor, look: RaggedLook, scale: float, dropout: float
) -> Tensor:
    if look.kernel == "fast" and _flash_fits(q):
        return _flash_ragged(q, k, v, look, scale, dropout)
    # Elsewhere attention alone runs on the grid; it is a small part of the work.
    q, k, v = look.query.to_grid(q), look.key.to_grid(k), look.key.to_grid(v)  # B T H D
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # B H T D
    out = attend(q, k, v, look.dense or grid_look(look), scale=scale, dropout=dropout)
    return look.query.to_packed(out.transpose(1, 2))  # N H D


def _flash_fits(q: Tensor) -> bool:
    """What the ragged flash kernel takes: half precision, heads of 8n ≤ 256, an Ampere or later."""
    size, half = q.shape[-1], q.dtype in (torch.bfloat16, torch.float16)
    if not (q.is_cuda and half and size % 8 == 0 and size <= 256):
        return False
    return torch.cuda.get_device_capability(q.device) >= (8, 0)


def _flash_ragged(
    q: Tensor, k: Tensor, v: Tensor, look: RaggedLook, scale: float, dropout: float
) -> Tensor:
    # The kernel behind torch.nn.attention.varlen, called directly because that function has no
    # dropout. Grouped queries and rows without keys are handled inside.
    flash = torch.ops.aten._flash_attention_forward
    out: Tensor = flash(
        q, k, v, look.query.starts, look.key.starts, look.query.total, look.key.total,
        dropout, look.causal, False, scale=scale,
    )[0]  # fmt: skip
    return out
