"""The names of the tensors in files of T5 and mT5."""

from __future__ import annotations

from allformer.config import ClassHead, EncoderDecoder, EncoderOnly, LMHead, SpanHead, Stack
from allformer.families import pieces
from allformer.families.weights import Alias, Ignored, Op, Same, WeightMap

PARTS = ("q", "k", "v", "o")


def weights(model: EncoderDecoder | EncoderOnly, architecture: str) -> WeightMap:
    """The map of a file."""
    head = model.head
    base = "transformer." if isinstance(head, ClassHead) else ""
    shared = f"{base}shared.weight"
    ops: list[Op] = [Same("encoder.embedding.weight", shared)]
    ops.append(Alias(f"{base}encoder.embed_tokens.weight", shared))
    ops += _stack(model.encoder, "encoder", f"{base}encoder")
    if isinstance(model, EncoderDecoder):
        ops.append(Alias(f"{base}decoder.embed_tokens.weight", shared))
        ops += _stack(model.decoder, "decoder", f"{base}decoder")
        across = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
        ops.append(Ignored(f"({base})?{across}", "looking across has no distances"))
    else:
        ops.append(Ignored(r"decoder\..*", "the decoder of a whole T5"))
    if isinstance(head, LMHead):
        ops.append(pieces.output(head, shared))
    elif isinstance(head, ClassHead) and head.dense is not None:
        ops += pieces.dense("head.dense", "classification_head.dense")
        ops += pieces.dense("head.out", "classification_head.out_proj")
    elif isinstance(head, ClassHead):
        ops += pieces.dense("head.out", "classifier")
    elif isinstance(head, SpanHead):
        ops += pieces.dense("head.out", "qa_outputs")
    return ops


def _stack(stack: Stack, ours: str, theirs: str) -> list[Op]:
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    ops: list[Op] = [Same(f"{ours}.bucket.weight", f"{theirs}.{bias}")]
    for i, block in enumerate(stack.blocks):
        a, b = f"{ours}.layers.{i}", f"{theirs}.block.{i}.layer"
        there = f"{b}.0.SelfAttention"
        ops += pieces.attention(f"{a}.attention", there, block.attention, stack.dim, PARTS)
        ops += pieces.norm(f"{a}.attention_norm", f"{b}.0.layer_norm", block.norm)
        if block.cross is not None:
            there = f"{b}.1.EncDecAttention"
            ops += pieces.attention(f"{a}.cross", there, block.cross, stack.dim, PARTS, cross=True)
            ops += pieces.norm(f"{a}.cross_norm", f"{b}.1.layer_norm", block.norm)
        last = f"{b}.{1 if block.cross is None else 2}"
        feed, bias_too = f"{last}.DenseReluDense", block.feed.bias
        names = {"up": "wi_1", "gate": "wi_0"} if block.feed.gated else {"up": "wi"}
        for part, name in {**names, "down": "wo"}.items():
            ops += pieces.dense(f"{a}.feed.{part}", f"{feed}.{name}", bias_too)
        ops += pieces.norm(f"{a}.feed_norm", f"{last}.layer_norm", block.norm)
    ops.append(Same(f"{ours}.final_norm.weight", f"{theirs}.final_layer_norm.weight"))
    return ops
