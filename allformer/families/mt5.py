"""mT5 (Xue et al., 2021): T5 v1.1 for a hundred languages.

The published files hold an output table of their own; transformers 5 would tie a fresh one.
"""

from __future__ import annotations

from allformer.families import t5
from allformer.families.t5_config import Style

USUAL = {
    **t5.USUAL, "vocab_size": 250_112, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
    "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0,
}  # fmt: skip
PRESETS = {f"mt5-{size}": raw for size, raw in t5.GATED.items()}
FAMILY = t5.family(Style("MT5", scales=False), USUAL, PRESETS)
