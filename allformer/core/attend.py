"""Scaled dot-product attention as the formula stands.

    Attention(Q, K, V) = softmax(Q Kᵀ · scale + mask) V,   scale = 1/√D        (paper, eq. 1)

Kernels (`core/kernels/`) compute the same faster; this form yields the scores and the weights.

Legend: B batch, H query heads, G key/value heads, T queries, S keys, D head size.
"""

from __future__ import annotations

from torch import Tensor

from allformer.core.look import Look, blind_rows


def attention_scores(q: Tensor, k: Tensor, *, scale: float, bias: Tensor | None = None) -> Tensor:
    """Q Kᵀ · scale (+ bias): B H T D, B G S D → B H T S."""
    scores = q @ to_heads(k, q.shape[1]).transpose(-2, -1) * scale
    return scores if bias is None else scores + bias.to(scores.dtype)


def attention_weights(scores: Tensor, look: Look) -> Tensor:
    """softmax(scores + mask): B H T S. Rows sum to 1; blind rows are all zero."""
    mask = look.full_mask(scores.shape[2], scores.shape[3], scores.device)
    if mask is None:
        return scores.softmax(dim=-1)  # softmax subtracts the row's maximum: no overflow
    blind = blind_rows(mask)  # B 1 T 1
    # −inf on a whole row would be 0/0; such a row keeps its scores and gets weight zero instead,
    # which leaves both the output and the gradient finite.
    scores = scores.masked_fill(~mask & ~blind, float("-inf"))
    return scores.softmax(dim=-1).masked_fill(blind, 0.0)


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """weights · V: B H T S, B G S D → B H T D."""
    return weights @ to_heads(v, weights.shape[1])


def to_heads(x: Tensor, heads: int) -> Tensor:
    """Each key/value head serves H/G query heads in a row: B G S D → B H S D."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
