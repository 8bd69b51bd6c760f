"""The names of the tensors in files of Marian, BART, mBART and LED."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from allformer.config import EncoderDecoder, LMHead, Sinusoidal, Stack
from allformer.families import layer_map
from allformer.families.fairseq import LENGTH
from allformer.families.heads import head_weights
from allformer.families.weights import (
    Alias,
    Derived,
    Ignored,
    Op,
    Reshaped,
    Same,
    Unused,
    WeightMap,
)


def weights(
    model: EncoderDecoder,
    architecture: str,
    body: str = "model.",
    encoder: layer_map.Names | None = None,
) -> WeightMap:
    """The map of a file; `body` is the bare model's name within one with a head, `encoder` what the
    encoder's layers are called where that is not what the decoder's are."""
    bare = model.head is None
    base = "" if bare else body
    ops = _tables(model, base)
    for side, stack in model.stacks.items():
        name = f"{base}{side}.embed_positions.weight"
        if isinstance(stack.position, Sinusoidal):
            # transformers writes them with the bare model alone
            make = partial(sinusoids, stack.position, stack.dim)
            shape = (stack.position.length or LENGTH, stack.dim)
            ops.append(Derived(name, make, write=bare, shape=shape))
        elif stack.position is not None:
            ops.append(Same(f"{side}.source.position.weight", name))
        names = LAYER if encoder is None or side == "decoder" else encoder
        ops += _stack(stack, side, f"{base}{side}", names)
    ops.append(Ignored(r"(model\.)?(encoder|decoder)\.version", "fairseq's, of old files"))
    table = layer_map.TABLES[0 if model.shared else 2]
    return ops + head_weights(model.head, f"{base}{table}", "classification_head")


def _tables(model: EncoderDecoder, base: str) -> list[Op]:
    shared, encoder, decoder = (base + name for name in layer_map.TABLES[:3])
    ops: list[Op]
    if model.shared:
        ops = [Same("encoder.source.embedding.weight", shared)]
        ops += [Alias(encoder, shared), Alias(decoder, shared)]
    else:
        ops = [
            Same("encoder.source.embedding.weight", encoder),
            Same("decoder.source.embedding.weight", decoder),
        ]
        # transformers 5 holds this one too where `tie_word_embeddings` is false
        ops.append(Unused(shared, encoder, apart=True, kept=True))
    if isinstance(model.head, LMHead) and model.head.offset:
        shape = (1, model.decoder.source.vocab)
        ops.append(Reshaped("head.offset", "final_logits_bias", shape))
    return ops


LAYER: layer_map.Names = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "cross.query": "encoder_attn.q_proj",
    "cross.memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
    "feed.up": "fc1",
    "feed.down": "fc2",
    "feed_norm": "final_layer_norm",
}


def _stack(stack: Stack, ours: str, theirs: str, names: layer_map.Names) -> list[Op]:
    ops = layer_map.layers(stack, ours, f"{theirs}.layers", names)
    if stack.source_norm is not None:
        ops += layer_map.dense(f"{ours}.source.norm", f"{theirs}.layernorm_embedding")
    if stack.final_norm is not None:
        ops += layer_map.dense(f"{ours}.final_norm", f"{theirs}.layer_norm")
    return ops


def sinusoids(position: Sinusoidal, dim: int) -> Tensor:
    """The table as transformers makes it: in fp64 with NumPy, then fp32, bit for bit."""
    divisors = np.array([position.base ** (2 * i / dim) for i in range(dim // 2)])
    angles = np.arange(position.length or LENGTH)[:, None] / divisors
    return torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)).float()
