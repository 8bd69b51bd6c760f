"""The checks, one file for each theme. `ORDER` is the order in which they run.

Dropout comes first, since what random numbers move would look like every other bug; then the
causes (heads, softmax, norms, batch), then what follows from them.
"""

from importlib import import_module

ORDER = (
    "dropout", "heads", "softmax", "attention", "lengths", "norms", "batch", "constants", "leak",
    "masks", "relative", "inputs", "padding", "left", "cross", "source", "positions", "tables",
    "layers", "residual", "branches", "loss", "denominator", "fed", "cache", "weights", "saving",
    "packing", "search", "training", "saturation",
)  # fmt: skip

for _name in ORDER:
    import_module(f"{__name__}.{_name}")
