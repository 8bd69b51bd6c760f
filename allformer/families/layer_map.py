"""Pieces of weight maps that several families share: a layer of a model is a table of names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from allformer import config
from allformer.families.weights import Op, Same, Stacked, Transposed

# What theirs calls each part of our layer; several names where we hold several matrices as one.
Names = Mapping[str, str | tuple[str, ...]]

# The tables that are one where a model is tied, by transformers' names.
TABLES = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)


def dense(ours: str, theirs: str, bias: bool = True, transposed: bool = False) -> list[Op]:
    """A linear layer's, or a norm's, weight and bias."""
    kind = Transposed if transposed else Same
    ops: list[Op] = [kind(f"{ours}.weight", f"{theirs}.weight")]
    return [*ops, Same(f"{ours}.bias", f"{theirs}.bias")] if bias else ops


def fused(
    ours: str, theirs: tuple[str, ...], sizes: tuple[int, ...], biased: Sequence[int] = (0, 1, 2)
) -> list[Op]:
    """Projections that we hold as one matrix and they as several; `biased` have a bias."""
    ops: list[Op] = [Stacked(f"{ours}.weight", tuple(f"{t}.weight" for t in theirs), sizes)]
    if biased:
        names = tuple(f"{theirs[i]}.bias" for i in biased)
        ops.append(Stacked(f"{ours}.bias", names, tuple(sizes[i] for i in biased)))
    return ops


def head_sizes(attention: config.Attention, dim: int) -> tuple[int, int, int]:
    """Rows of q, k and v."""
    size = attention.size(dim)
    return attention.heads * size, attention.groups * size, attention.groups * size


def layer(
    ours: str, theirs: str, block: config.Block, dim: int, names: Names, transposed: bool = False
) -> list[Op]:
    """One layer by its table of `names`, which may name parts that this one has not.

    `{"attention.qkv": ("q_proj", "k_proj", "v_proj"), "attention_norm": "input_layernorm", …}`
    """
    ops: list[Op] = []
    for part, name in names.items():
        slot = getattr(block, part.partition(".")[0].removesuffix("_norm"))
        if slot is None:
            continue
        here, there = f"{ours}.{part}", f"{theirs}.{name}"
        if part.endswith("_norm"):
            ops += dense(here, there, block.norm.kind == "layer")
        elif isinstance(name, str):
            which = {"out": "out", "query": "q"}.get(part.rpartition(".")[2])
            bias = slot.bias if which is None else slot.biased(which)
            ops += dense(here, there, bias, transposed)
        else:  # q, k and v, or across the last two
            rows = head_sizes(slot, dim)[-len(name) :]
            biased = [i for i, which in enumerate("qkv"[-len(name) :]) if slot.biased(which)]
            ops += fused(here, tuple(f"{theirs}.{x}" for x in name), rows, biased)
    return ops


def layers(
    stack: config.Stack, ours: str, theirs: str, names: Names, transposed: bool = False
) -> list[Op]:
    """All layers of a stack, each with its number: `layers(stack, "decoder", "h", NAMES)`."""
    return [
        op
        for i, block in enumerate(stack.blocks)
        for op in layer(f"{ours}.layers.{i}", f"{theirs}.{i}", block, stack.dim, names, transposed)
    ]


def has(keys: Collection[str], name: str) -> bool:
    """Whether a file has a tensor of that name, with or without a prefix."""
    return any(f".{key}".endswith(f".{name}") for key in keys)
