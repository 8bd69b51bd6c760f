"""The names of the tensors in files of Reformer."""

from __future__ import annotations

from allformer.config import LSH, Axial, LMHead, Model, Stack
from allformer.families import layer_map
from allformer.families.heads import head_weights
from allformer.families.weights import Op, Reshaped, Same, Unused, WeightMap

_REST: layer_map.Names = {
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.layer_norm",
    "feed.up": "feed_forward.dense.dense",
    "feed.down": "feed_forward.output.dense",
    "feed_norm": "feed_forward.layer_norm",
}
_SELF = "attention.self_attention"
LSH_LAYER = {"attention.qkv": (f"{_SELF}.query_key", f"{_SELF}.value"), **_REST}
LOCAL_LAYER = {
    "attention.qkv": (f"{_SELF}.query", f"{_SELF}.key", f"{_SELF}.value"), **_REST
}  # fmt: skip


def weights(model: Model, architecture: str) -> WeightMap:
    """The map of a Reformer file."""
    stack = model.writer
    (ours,) = model.stacks
    base = "" if model.head is None else "reformer."
    ops: list[Op] = [
        Same(f"{ours}.source.embedding.weight", f"{base}embeddings.word_embeddings.weight"),
        *_positions(stack, f"{ours}.source.position", f"{base}embeddings.position_embeddings"),
    ]
    for i, block in enumerate(stack.blocks):
        names = LSH_LAYER if isinstance(block.attention.mixer, LSH) else LOCAL_LAYER
        here, there = f"{ours}.layers.{i}", f"{base}encoder.layers.{i}"
        ops += layer_map.layer(here, there, block, stack.dim, names)
    ops += layer_map.dense(f"{ours}.final_norm", f"{base}encoder.layer_norm")
    if isinstance(model.head, LMHead):
        return ops + _words(model.head, stack.source.vocab)
    return ops + head_weights(model.head, "")


def _positions(stack: Stack, ours: str, theirs: str) -> list[Op]:
    """Tables of axes are stored with an axis of 1 for each other one."""
    if not isinstance(stack.position, Axial):
        return [Same(f"{ours}.weight", f"{theirs}.embedding.weight")]
    ops: list[Op] = []
    for i, (count, width) in enumerate(zip(stack.position.shape, stack.position.dims, strict=True)):
        shape = [1] * len(stack.position.shape)
        shape[i] = count
        ops.append(Reshaped(f"{ours}.axis{i}", f"{theirs}.weights.{i}", (*shape, width)))
    return ops


def _words(head: LMHead, vocab: int) -> list[Op]:
    """The output has a bias in files of transformers 4, under two names; 5 holds it unread."""
    weight = "lm_head.decoder.weight"
    ops: list[Op] = [Same("head.table.weight", weight)]
    if not head.bias:
        return [*ops, Unused("lm_head.bias", weight, shape=(vocab,))]
    added = "lm_head.decoder.bias"
    return [*ops, Same("head.bias", added), Unused("lm_head.bias", added)]
