"""The checks, one file for each theme. `ORDER` is the order in which they run.

Dropout comes first, since what random numbers move would look like every other bug; then the
causes (heads, softmax, norms, batch), then what follows from them.
"""

from importlib import import_module

ORDER = (
    "dropout", "patches", "heads", "softmax", "attention", "norms", "batch",
    "mask_numbers", "future_leak", "nothing_shown", "mask_values", "relative_positions",
    "padding", "left_padding", "cross_attention", "source_padding", "positions",
    "position_tables", "layers", "residual", "branch_norms", "stream_norms", "loss",
    "decoder_input", "cache", "unused_weights", "saving", "packing", "greedy_search",
    "training", "saturation",
)  # fmt: skip

for _name in ORDER:
    import_module(f"{__name__}.{_name}")
