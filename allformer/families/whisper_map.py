"""The names of the tensors in Whisper's files, of transformers."""

from __future__ import annotations

from typing import Any

from allformer.config import LMHead, SoundClassHead, Stack
from allformer.families import layer_map
from allformer.families.fairseq_map import LAYER
from allformer.families.weights import Alias, Op, Same, WeightMap

OUTPUT = "proj_out.weight"


def weights(model: Any, architecture: str) -> WeightMap:
    """The map of a Whisper file."""
    base = "model." if isinstance(model.head, LMHead) else ""
    ops = [
        *layer_map.dense("encoder.source.first", f"{base}encoder.conv1"),
        *layer_map.dense("encoder.source.second", f"{base}encoder.conv2"),
        *_stack(model.encoder, "encoder", base),
    ]
    if isinstance(model.head, SoundClassHead):
        return [*ops, *_classes(model.head)]
    table = f"{base}decoder.embed_tokens.weight"
    ops += [Same("decoder.source.embedding.weight", table), *_stack(model.decoder, "decoder", base)]
    if isinstance(model.head, LMHead):
        own = Same("head.table.weight", OUTPUT)
        ops.append(Alias(OUTPUT, table) if model.head.tied else own)
    return ops


def _stack(stack: Stack, side: str, base: str) -> list[Op]:
    theirs = f"{base}{side}"
    return [
        Same(f"{side}.source.position.weight", f"{theirs}.embed_positions.weight"),
        *layer_map.layers(stack, side, f"{theirs}.layers", LAYER),
        *layer_map.dense(f"{side}.final_norm", f"{theirs}.layer_norm"),
    ]


def _classes(head: SoundClassHead) -> list[Op]:
    ops = [*layer_map.dense("head.project", "projector")]
    ops += layer_map.dense("head.out", "classifier")
    return [*ops, Same("head.weights", "layer_weights")] if head.weighted else ops
