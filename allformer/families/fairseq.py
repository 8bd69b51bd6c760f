"""What Marian, BART, mBART and LED share: fairseq's encoder-decoder. A `Style` sets them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from allformer.config import Position

LENGTH = 1024  # transformers' default
USUAL = {
    "vocab_size": 50_265, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
    "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096, "activation_function": "gelu", "max_position_embeddings": LENGTH,
    "scale_embedding": False, "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def sizes(dim: int, layers: int, heads: int, feed: int, **more: Any) -> dict[str, Any]:
    """Both sides alike, and other fields: `sizes(768, 6, 12, 3072)` are those of bart-base."""
    both = {"layers": layers, "attention_heads": heads, "ffn_dim": feed}
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in both.items()}
    return {"d_model": dim, **sides, **more}


@dataclass(frozen=True)
class Style:
    """A family's shape: `Style("Marian", "post", lambda n: Sinusoidal(length=n))`."""

    name: str
    norm_at: Literal["pre", "post"]
    position: Callable[[int], Position]  # of a length
    source_norm: bool = False
    final_norm: bool = False
    start_last: bool = False
    length: str = "max_position_embeddings"  # the field; with {side}, each side has its own
