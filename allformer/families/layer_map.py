"""Pieces of weight maps that several families share: a layer of a model is a table of names."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from allformer import config
from allformer.families.family import expect
from allformer.families.weights import Op, Same, Stacked, Transposed

# What theirs calls each part of our layer; several names where we hold several matrices as one.
Names = Mapping[str, str | tuple[str, ...]]

# The projections in each linear layer of an attention; "qkv" has all that its mixer wants.
_PROJECTIONS = {"query": ("q",), "memory": ("k", "v"), "out": ("out",)}

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
    ours: str, theirs: tuple[str, ...], sizes: tuple[int, ...], biased: tuple[bool, ...]
) -> list[Op]:
    """Projections that we hold as one matrix and they as several; `biased` says which have one."""
    parts = list(zip(theirs, sizes, strict=True))
    with_bias = [part for part, has in zip(parts, biased, strict=True) if has]
    ops: list[Op] = []
    for kind, some in (("weight", parts), ("bias", with_bias)):
        if some:
            names, rows = tuple(f"{name}.{kind}" for name, _ in some), tuple(n for _, n in some)
            ops.append(Stacked(f"{ours}.{kind}", names, rows))
    return ops


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
            ops += dense(here, there, all(_biased(slot, part)), transposed)
        else:  # what the mixer wants of them, or across k and v
            sizes, own = slot.mixer.projections(slot, dim), _names(slot, part)
            expect(len(own) == len(name), f"projects {', '.join(own)}, and its files {len(name)}")
            rows = tuple(sizes[x] for x in own)
            ops += fused(here, tuple(f"{theirs}.{x}" for x in name), rows, _biased(slot, part))
    return ops


def _biased(slot: config.Attention | config.Feed, part: str) -> tuple[bool, ...]:
    """Whether each projection of a part has a bias: `_biased(attention, "attention.qkv")`."""
    if isinstance(slot, config.Feed):
        return (slot.bias,)
    return tuple(slot.biased(name) for name in _names(slot, part))


def _names(slot: config.Attention, part: str) -> tuple[str, ...]:
    """The projections of a part: `_names(attention, "attention.qkv")`."""
    own = part.rpartition(".")[2]
    every = slot.mixer.projections(slot, slot.heads)  # of any width: their names are meant
    return tuple(every) if own == "qkv" else _PROJECTIONS[own]


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
