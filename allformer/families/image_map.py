"""The names of the tensors in files of ViT, DeiT and DINOv2, but for their layers'.

transformers 5 calls them otherwise in memory (`layers.0.attention.q_proj`); what it reads and
writes has the names of old.
"""

from __future__ import annotations

import re

from allformer.config import EncoderOnly, LearnedPlane, Patches, PixelHead
from allformer.families import layer_map
from allformer.families.heads import head_weights
from allformer.families.weights import Ignored, Op, Reshaped, Same

# What their files call the tokens beside the patches.
TOKENS = {
    "cls": "cls_token",
    "distilled": "distillation_token",
    "registers": "register_tokens",
    "mask": "mask_token",
}

# What transformers 5 calls modules of layers in memory; DINOv2's keep their place and their MLP.
ATTENTION = (
    (r"attention\.attention\.query\b", "attention.q_proj"),
    (r"attention\.attention\.key\b", "attention.k_proj"),
    (r"attention\.attention\.value\b", "attention.v_proj"),
    (r"attention\.output\.dense\b", "attention.o_proj"),
)
IN_MEMORY = (
    *ATTENTION,
    (r"\bencoder\.layer\.", "layers."),
    (r"\bintermediate\.dense\b", "mlp.fc1"),
    (r"\boutput\.dense\b", "mlp.fc2"),
)


def weights(model: EncoderOnly, base: str, mask: tuple[int, ...] = (1, 1)) -> list[Op]:
    """All but the layers; `base` is the body's name within a model with a head, `mask` how the
    vector of hidden patches is shaped before its width."""
    ops = _embeddings(model, f"{base}embeddings", mask)
    ops += layer_map.dense("encoder.final_norm", f"{base}layernorm")
    if model.pool is not None and model.pool.dense:
        ops += layer_map.dense("pool.dense", f"{base}pooler.dense")
    else:  # files that were made from a bigger model have one nevertheless
        ops.append(Ignored(re.escape(base) + r"pooler\..*", "its head reads no pooler"))
    if isinstance(model.head, PixelHead):
        shape = (model.head.outputs(model.encoder), model.encoder.dim, 1, 1)
        return [
            *ops,
            Reshaped("head.out.weight", "decoder.0.weight", shape),
            Same("head.out.bias", "decoder.0.bias"),
        ]
    return ops + head_weights(model.head, "")


def _embeddings(model: EncoderOnly, where: str, mask: tuple[int, ...]) -> list[Op]:
    """Patches, the tokens beside them, and positions."""
    stack, ours = model.encoder, "encoder.source"
    source, position, dim = stack.source, stack.position, stack.dim
    assert isinstance(source, Patches)
    assert isinstance(position, LearnedPlane)
    rows, kernel = position.trained, (dim, source.channels, source.patch, source.patch)
    project = f"{where}.patch_embeddings.projection"
    ops: list[Op] = [
        Reshaped(f"{ours}.project.weight", f"{project}.weight", kernel),
        Same(f"{ours}.project.bias", f"{project}.bias"),
        Reshaped(f"{ours}.position.weight", f"{where}.position_embeddings", (1, rows, dim)),
    ]
    for name, theirs in TOKENS.items():
        if count := int(getattr(source, name)):
            shape = (*mask, dim) if name == "mask" else (1, count, dim)
            ops.append(Reshaped(f"{ours}.{name}", f"{where}.{theirs}", shape))
    if not source.mask:
        ops.append(Ignored(re.escape(where) + r"\.mask_token", "nothing is hidden from its head"))
    return ops
