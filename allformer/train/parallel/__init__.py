"""Training by many processes: copies, shards, parts of matrices, of rows, of layers.

    torchrun --nproc-per-node 4 -m allformer train recipe.yaml --out runs/mine

with `parallel: {shard: 2, tensor: 2}` in the recipe. One process alone needs none of this:
`Ranks()` is its form, and does nothing.
"""

from allformer.train.parallel.ranks import ALONE, Ranks

__all__ = ["ALONE", "Ranks"]
