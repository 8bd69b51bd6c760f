"""The names of the tensors in files of T5 and mT5."""

from __future__ import annotations

from allformer.config import ClassHead, EncoderDecoder, EncoderOnly, Stack
from allformer.families import layer_map
from allformer.families.heads import head_weights
from allformer.families.weights import Alias, Ignored, Op, Same, WeightMap


def weights(model: EncoderDecoder | EncoderOnly, architecture: str) -> WeightMap:
    """The map of a file."""
    base = "transformer." if isinstance(model.head, ClassHead) else ""
    shared = f"{base}shared.weight"
    ops: list[Op] = [Same("encoder.source.embedding.weight", shared)]
    ops.append(Alias(f"{base}encoder.embed_tokens.weight", shared))
    ops += _stack(model.encoder, "encoder", f"{base}encoder")
    if isinstance(model, EncoderDecoder):
        ops.append(Alias(f"{base}decoder.embed_tokens.weight", shared))
        ops += _stack(model.decoder, "decoder", f"{base}decoder")
        across = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
        ops.append(Ignored(f"({base})?{across}", "looking across has no distances"))
    else:
        ops.append(Ignored(r"decoder\..*", "the decoder of a whole T5"))
    return ops + head_weights(model.head, shared, "classification_head")


def layer_names(gated: bool, crosses: bool) -> layer_map.Names:
    """What a layer's parts are called: looking across, if it does, is sub-layer 1."""
    here, across, last = "layer.0.SelfAttention", "layer.1.EncDecAttention", f"layer.{1 + crosses}"
    feed = f"{last}.DenseReluDense"
    up = {"feed.up": f"{feed}.wi_1", "feed.gate": f"{feed}.wi_0"}
    return {
        "attention.qkv": (f"{here}.q", f"{here}.k", f"{here}.v"),
        "attention.out": f"{here}.o",
        "attention_norm": "layer.0.layer_norm",
        "cross.query": f"{across}.q",
        "cross.memory": (f"{across}.k", f"{across}.v"),
        "cross.out": f"{across}.o",
        "cross_norm": "layer.1.layer_norm",
        **(up if gated else {"feed.up": f"{feed}.wi"}),
        "feed.down": f"{feed}.wo",
        "feed_norm": f"{last}.layer_norm",
    }


def _stack(stack: Stack, ours: str, theirs: str) -> list[Op]:
    bias, first = "layer.0.SelfAttention.relative_attention_bias.weight", stack.blocks[0]
    names = layer_names(first.feed.gated, first.cross is not None)
    return [
        Same(f"{ours}.relative.weight", f"{theirs}.block.0.{bias}"),
        *layer_map.layers(stack, ours, f"{theirs}.block", names),
        Same(f"{ours}.final_norm.weight", f"{theirs}.final_layer_norm.weight"),
    ]
