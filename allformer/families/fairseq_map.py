"""The names of the tensors in files of Marian, BART and mBART."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from allformer.config import ClassHead, EncoderDecoder, LMHead, Sinusoidal, SpanHead, Stack
from allformer.families import pieces
from allformer.families.fairseq import LENGTH
from allformer.families.weights import Alias, Derived, Ignored, Op, Reshaped, Same, WeightMap


def weights(model: EncoderDecoder, architecture: str) -> WeightMap:
    """The map of a file."""
    bare = model.head is None
    base = "" if bare else "model."
    ops = _tables(model, base)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        name = f"{base}{side}.embed_positions.weight"
        if isinstance(stack.position, Sinusoidal):
            # transformers writes them with the bare model alone
            ops.append(Derived(name, partial(sinusoids, stack.position, stack.dim), write=bare))
        elif stack.position is not None:
            ops.append(Same(f"{side}.position.weight", name))
        ops += _stack(stack, side, f"{base}{side}")
    ops.append(Ignored(r"(model\.)?(encoder|decoder)\.version", "fairseq's, of old files"))
    if isinstance(model.head, ClassHead):
        ops += pieces.dense("head.dense", "classification_head.dense")
        ops += pieces.dense("head.out", "classification_head.out_proj")
    elif isinstance(model.head, SpanHead):
        ops += pieces.dense("head.out", "qa_outputs")
    return ops


def _tables(model: EncoderDecoder, base: str) -> list[Op]:
    shared, encoder, decoder = (base + name for name in pieces.TABLES[:3])
    ops: list[Op]
    if model.shared:
        ops = [Same("encoder.embedding.weight", shared)]
        ops += [Alias(encoder, shared), Alias(decoder, shared)]
    else:
        ops = [Same("encoder.embedding.weight", encoder), Same("decoder.embedding.weight", decoder)]
        ops += [Ignored(shared.replace(".", r"\."), "encoder and decoder have their own tables")]
    head = model.head
    if isinstance(head, LMHead):
        ops.append(pieces.output(head, shared if model.shared else decoder))
        if head.offset:
            shape = (1, model.decoder.source.vocab)
            ops.append(Reshaped("head.offset", "final_logits_bias", shape))
    return ops


def _stack(stack: Stack, ours: str, theirs: str) -> list[Op]:
    ops: list[Op] = []
    if stack.source_norm is not None:
        ops += pieces.dense(f"{ours}.source_norm", f"{theirs}.layernorm_embedding")
    if stack.final_norm is not None:
        ops += pieces.dense(f"{ours}.final_norm", f"{theirs}.layer_norm")
    for i, block in enumerate(stack.blocks):
        a, b = f"{ours}.layers.{i}", f"{theirs}.layers.{i}"
        ops += pieces.attention(f"{a}.attention", f"{b}.self_attn", block.attention, stack.dim)
        ops += pieces.dense(f"{a}.attention_norm", f"{b}.self_attn_layer_norm")
        if block.cross is not None:
            there = f"{b}.encoder_attn"
            ops += pieces.attention(f"{a}.cross", there, block.cross, stack.dim, cross=True)
            ops += pieces.dense(f"{a}.cross_norm", f"{there}_layer_norm")
        ops += pieces.dense(f"{a}.feed.up", f"{b}.fc1")
        ops += pieces.dense(f"{a}.feed.down", f"{b}.fc2")
        ops += pieces.dense(f"{a}.feed_norm", f"{b}.final_layer_norm")
    return ops


def sinusoids(position: Sinusoidal, dim: int) -> Tensor:
    """The table as transformers makes it: in fp64 with NumPy, then fp32, bit for bit."""
    divisors = np.array([position.base ** (2 * i / dim) for i in range(dim // 2)])
    angles = np.arange(position.length or LENGTH)[:, None] / divisors
    return torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)).float()
