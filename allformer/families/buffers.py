"""Constants that older versions of transformers wrote into their files, of any family.

They were buffers of its modules: numbers of positions, token types of zeros, rotary frequencies,
causal masks and what stands for minus infinity in them. It makes them anew and reads them from no
file. What a family's own map says of such a name comes first: some are held against the config.
"""

from __future__ import annotations

from allformer.families.weights import Ignored

WHY = "a constant, stored by old versions of transformers"
BUFFERS = (
    Ignored(r"(.*\.)?(position_ids|token_type_ids)", WHY),
    Ignored(r"(.*\.)?rotary_emb\.(original_)?inv_freq", WHY),
    Ignored(r".*\.(masked_bias|(self_)?mask_value_float(16|32))", WHY),
    # 1 1 T T: a learned bias of that name would be a vector.
    Ignored(r".*\.(cross)?att(n|ention)\.bias", WHY, dims=4),
)
