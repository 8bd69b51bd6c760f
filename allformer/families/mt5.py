"""mT5 (Xue et al., 2021): T5 v1.1 for a hundred languages.

The published files hold an output table of their own; transformers 5 would tie a fresh one.
"""

from __future__ import annotations

from functools import partial

from allformer.families.t5 import Style, family
from allformer.families.t5_sizes import t5

mt5 = partial(t5, vocab=250_112)
PRESETS = {
    "mt5-small": lambda: mt5(512, 8, 6, 1024),
    "mt5-base": lambda: mt5(768, 12, 12, 2048),
    "mt5-large": lambda: mt5(1024, 24, 16, 2816),
    "mt5-xl": lambda: mt5(2048, 24, 32, 5120),
    "mt5-xxl": lambda: mt5(4096, 24, 64, 10_240),
}
STYLE = Style("MT5", 8, 6, 1024, 250_112, "gated-gelu", start=0, scales=False)
FAMILY = family(STYLE, PRESETS)
