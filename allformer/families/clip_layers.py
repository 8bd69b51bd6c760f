"""What both towers of CLIP say of their layers in config.json, and call them in the files."""

from __future__ import annotations

from typing import Any

from allformer.config import Attention, Block, Feed, Norm, Stack, VectorHead, repeat
from allformer.families import activation, layer_map
from allformer.families.family import expect, fit, one
from allformer.families.fields import Fields
from allformer.families.kinds import LAYERS, NUMBER, WHOLE
from allformer.families.weights import Ignored, Op, Same, WeightMap

USUAL = {
    "num_hidden_layers": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
    "attention_dropout": 0.0, "projection_dim": 512,
}  # fmt: skip
WHY = "of the whole CLIP"  # a tensor of a file of both towers that one alone leaves out
LAYER: layer_map.Names = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": "self_attn.out_proj",
    "attention_norm": "layer_norm1",
    "feed.up": "mlp.fc1",
    "feed.down": "mlp.fc2",
    "feed_norm": "layer_norm2",
}


def read_layers(fields: Fields) -> dict[str, Any]:
    """Width and blocks: `Stack(source=…, position=…, **read_layers(fields))`."""
    fields.inert(NUMBER, "dropout")  # of old files; nothing reads it
    block = Block(
        Attention(fields.take("num_attention_heads"), dropout=fields.take("attention_dropout")),
        Feed(fields.take("intermediate_size"), fields.choice("hidden_act", activation.READ)),
        norm=read_norm(fields),
        norm_at="pre",
        dropout=0.0,
    )
    blocks = repeat(block, fields.take("num_hidden_layers", kind=LAYERS))
    return {"dim": fields.take("hidden_size"), "blocks": blocks, "dropout": 0.0}


def read_norm(fields: Fields) -> Norm:
    """The norm that all places have."""
    return Norm("layer", float(fields.take("layer_norm_eps")))


def read_width(fields: Fields, kind: str) -> int | None:
    """How wide the vector is that a tower gives; None where it gives its pooled state alone."""
    if kind == "vector":
        return int(fields.take("projection_dim"))
    fields.inert(WHOLE, "projection_dim")
    return None


def write_width(head: Any) -> dict[str, Any]:
    """The inverse of `read_width`."""
    width = fit(head, VectorHead, "gives no vector").width
    return {} if width is None else {"projection_dim": width}


def with_projection(ops: list[Op], projected: bool, own: str, others: str) -> WeightMap:
    """A tower's tensors and its matrix `own`, which a tower that gives its state leaves out; a file
    of both towers has the `others` too."""
    if projected:
        return [*ops, Same("head.out.weight", own), Ignored(others, WHY)]
    return [*ops, Ignored(f"{others}|{own}", WHY)]


def kind(model: Any) -> str:
    """state or vector: whether a matrix stands behind the pooled state."""
    head = model.head
    if not isinstance(head, VectorHead):
        return type(head).__name__
    return "state" if head.width is None else "vector"


def write_layers(stack: Stack) -> dict[str, Any]:
    """The inverse of `read_layers`."""
    block = one(stack.blocks, "shape")
    expect(block.feed.act in activation.WRITE, f"has the activation {block.feed.act}")
    return {
        "hidden_size": stack.dim,
        "num_hidden_layers": len(stack.blocks),
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.feed.width,
        "hidden_act": activation.WRITE[block.feed.act],
        "layer_norm_eps": block.norm.eps,
        "attention_dropout": block.attention.dropout,
    }
