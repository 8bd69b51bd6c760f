"""Which decoders run lean: those of nothing but what is written down in this package."""

from __future__ import annotations

import torch
from torch import nn

from allformer import config
from allformer.config.head import words_of
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel

POSITIONS = (config.Learned, config.Sinusoidal, config.StoredSinusoids)
RELATIVES = (config.Rotary, config.BucketBias)
KINDS = (torch.float32, torch.float64, torch.bfloat16)


def plain_model(model: nn.Module) -> bool:
    """A plain decoder on a CPU, alone or behind an encoder, that is not in training."""
    if not isinstance(model, DecoderOnlyModel | EncoderDecoderModel):
        return False
    if model.training or model.extended:
        return False
    weights = list(model.decoder.parameters())
    there = all(w.device.type == "cpu" and type(w.data) is torch.Tensor for w in weights)
    first = weights[0].dtype
    return there and first in KINDS and plain_tree(model.config)


def plain_tree(tree: config.DecoderOnly | config.EncoderDecoder) -> bool:
    """Whether a decoder is one of the usual ones."""
    stack, head = tree.decoder, words_of(tree.head)
    source = stack.source
    tokens = type(source) is config.Tokens and not source.types and source.width is None
    position, relative = stack.position, stack.relative
    placed = position is None or (type(position) in POSITIONS and position.count != "ids")
    turned = stack.steady and (relative is None or type(relative) in RELATIVES)
    bare = stack.between is None and stack.flow is None and stack.causal
    words = head is not None and type(head) is config.LMHead and head.transform is None
    crossed = isinstance(tree, config.EncoderDecoder)
    alike = len({_shape(block) for block in stack.blocks}) == 1
    return all((tokens, placed, turned, bare, words, alike)) and all(
        _plain_block(block) and (block.cross is not None) == crossed for block in stack.blocks
    )


def _shape(block: config.Block) -> tuple[int | None, ...]:
    """How heads are cut: one bias serves all layers."""
    cross = block.cross
    across = (None, None) if cross is None else (cross.heads, cross.groups)
    return (block.attention.heads, block.attention.groups, *across)


def _plain_block(block: config.Block) -> bool:
    attentions = [x for x in (block.attention, block.cross) if x is not None]
    return block.scale is None and all(type(x.mixer) is config.Full for x in attentions)


def weights_of(model: nn.Module) -> tuple[tuple[int, int, int], ...]:
    """Which weights these are: what was made of others is stale."""
    return tuple((id(p), p.data_ptr(), _version(p)) for p in model.parameters())


def _version(weight: torch.Tensor) -> int:
    """How often it was written to, where that is counted."""
    return 0 if weight.is_inference() else weight._version
