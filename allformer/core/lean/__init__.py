"""Decoders on a CPU, token after token: the same numbers with fewer calls.

    if LeanDecoder.serves(model):
        lean = LeanDecoder(model)
        hidden = lean(ids, cache, memory)          # memory once; then the new tokens alone
        lean.logits(hidden[:, -1])

A step of a small model is hundreds of small operations, and what they cost is mostly the way to
them. Here a layer is a handful of products and what stands between them, from weights that were
looked up once. Rows of one source (beams, draws) ask side by side, as more queries of one row: what
they have in common is neither computed nor kept nor read twice, and where beams change places a
mask changes, not the cache.

Legend of the package: A sources, K copies (beams) of each, R = A·K rows, N new tokens, M = K·N
queries of a source, C columns of the cache, S vectors of the encoder, H heads, G key/value heads,
J = H/G, D head size.
"""

from allformer.core.lean.cache import LeanCache
from allformer.core.lean.decoder import LeanDecoder

__all__ = ["LeanCache", "LeanDecoder"]
