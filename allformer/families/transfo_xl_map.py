"""Where transformers' Transformer-XL files have each tensor."""

from __future__ import annotations

from functools import partial
from typing import Any

from allformer.config import AdaptiveHead, AdaptiveTokens, ClassHead, DecoderOnly, XLRelative
from allformer.core.relatives.xl import inverse_frequencies
from allformer.families import layer_map
from allformer.families.weights import Alias, Derived, Op, Same, Stacked, WeightMap

LAYER: layer_map.Names = {
    "attention.qkv": "dec_attn.qkv_net",
    "attention.out": "dec_attn.o_net",
    "attention_norm": "dec_attn.layer_norm",
    "feed.up": "pos_ff.CoreNet.0",
    "feed.down": "pos_ff.CoreNet.3",
    "feed_norm": "pos_ff.layer_norm",
}
BIASES = {"u": "r_w_bias", "v": "r_r_bias"}


def weights(model: DecoderOnly, architecture: str) -> WeightMap:
    """The map of a Transformer-XL file."""
    stack, base = model.decoder, "" if model.head is None else "transformer."
    source, relative = stack.source, stack.relative
    assert isinstance(source, AdaptiveTokens)
    assert isinstance(relative, XLRelative)
    ops: list[Op] = [
        Same(f"decoder.source.embedding.tables.{i}.weight", f"{base}word_emb.emb_layers.{i}.weight")
        for i in range(len(source.tables(stack.dim)))
    ]
    if source.projected(stack.dim):
        ours = "decoder.source.embedding.projections"
        for i in range(len(source.tables(stack.dim))):
            ops.append(Same(f"{ours}.{i}.weight", f"{base}word_emb.emb_projs.{i}"))
    make = partial(inverse_frequencies, stack.dim)
    ops.append(Derived(f"{base}pos_emb.inv_freq", make, write=True))
    ops += layer_map.layers(stack, "decoder", f"{base}layers", LAYER)
    ops += _distances(len(stack.blocks), base, relative.untie)
    return ops + _head(model.head, source, stack.dim, base)


def _distances(layers: int, base: str, untie: bool) -> list[Op]:
    """W_R, u and v of each layer, or u and v once for all."""
    ops: list[Op] = []
    if not untie:
        ops += [Same(f"decoder.relative.biases.{x}", f"{base}{name}") for x, name in BIASES.items()]
    for i in range(layers):
        ours, theirs = f"decoder.layers.{i}.attention.relative", f"{base}layers.{i}.dec_attn"
        ops.append(Same(f"{ours}.project.weight", f"{theirs}.r_net.weight"))
        for x, name in BIASES.items():
            there = f"{theirs}.{name}"
            ops.append(
                Same(f"{ours}.biases.{x}", there) if untie else Alias(there, f"{base}{name}")
            )
    return ops


def _head(head: Any, source: AdaptiveTokens, dim: int, base: str) -> list[Op]:
    if isinstance(head, ClassHead):
        return layer_map.dense("head.out", "score", head.bias)
    if not isinstance(head, AdaptiveHead):
        return []
    rows = [rows for rows, _ in source.tables(dim)]
    names = tuple(f"crit.out_layers.{i}.bias" for i in range(len(rows)))
    ops: list[Op] = [Stacked("head.bias", names, tuple(rows))]
    if len(source.clusters) > 1:
        ops += [Same("head.clusters", "crit.cluster_weight")]
        ops += [Same("head.cluster_bias", "crit.cluster_bias")]
    for i in range(len(rows)):
        there, table = f"crit.out_layers.{i}.weight", f"{base}word_emb.emb_layers.{i}.weight"
        tied = head.tied
        ops.append(Alias(there, table) if tied else Same(f"head.tables.{i}.weight", there))
    if source.projected(dim):
        shares = head.shares or (False,) * len(source.clusters)
        for i, shared in enumerate(shares):
            there = f"crit.out_projs.{i}"
            at = 0 if source.divide == 1 else i
            first = f"{base}word_emb.emb_projs.{at}"
            ours = f"head.projections.{i}.weight"
            ops.append(Alias(there, first) if shared else Same(ours, there))
    return ops
