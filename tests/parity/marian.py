"""transformers' MarianMT as an oracle for searching: one model twice, with the same weights."""

from __future__ import annotations

import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from allformer.config import LMHead
from allformer.core.attention import Attention as MultiHead
from allformer.core.model import EncoderDecoderModel
from allformer.core.position import sinusoid
from allformer.families.original import BOS, EOS, PAD, transformer
from tests.models import VOCAB, restless

DIM, HEADS, WIDTH, LAYERS = 24, 4, 40, (2, 3)


def twins(seed: int, end: float) -> tuple[EncoderDecoderModel, MarianMTModel]:
    """Ours and Marian's, restless (see there), in fp64."""
    config = transformer(
        DIM, HEADS, WIDTH, LAYERS[0], vocab=VOCAB, decoder_layers=LAYERS[1], dropout=0.0,
        layout="halves", head=LMHead(tied=True, bias=True),
    )  # fmt: skip
    ours = restless(config, seed, end)
    theirs = _marian()
    _copy(ours, theirs)
    return ours, theirs


def _marian() -> MarianMTModel:
    config = MarianConfig(
        vocab_size=VOCAB, d_model=DIM, encoder_layers=LAYERS[0], decoder_layers=LAYERS[1],
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=WIDTH,
        decoder_ffn_dim=WIDTH, activation_function="relu", scale_embedding=True, dropout=0.0,
        max_position_embeddings=64, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS,
        decoder_start_token_id=BOS, forced_eos_token_id=None,
    )  # fmt: skip
    model = MarianMTModel(config).double().eval()
    settings = model.generation_config
    settings.forced_eos_token_id = settings.bad_words_ids = settings.max_length = None
    settings.suppress_tokens = [PAD, BOS]  # ours never says these
    return model


@torch.no_grad()
def _copy(ours: EncoderDecoderModel, theirs: MarianMTModel) -> None:
    theirs.model.shared.weight.copy_(ours.encoder.source.embedding.weight)
    assert ours.head is not None
    theirs.final_logits_bias[0] = ours.head.bias
    for mine, other in ((ours.encoder, theirs.model.encoder), (ours.decoder, theirs.model.decoder)):
        # transformers computes the sinusoids in fp32 even for an fp64 model
        table = other.embed_positions.weight
        where = torch.arange(len(table))
        table.copy_(sinusoid(where, DIM, layout="halves", dtype=torch.float64))
        for layer, twin in zip(mine.layers, other.layers, strict=True):
            _copy_attention(layer.attention, twin.self_attn)
            _copy_module(layer.attention_norm, twin.self_attn_layer_norm)
            if layer.has_cross:
                _copy_attention(layer.cross, twin.encoder_attn)
                _copy_module(layer.cross_norm, twin.encoder_attn_layer_norm)
            _copy_module(layer.feed.up, twin.fc1)
            _copy_module(layer.feed.down, twin.fc2)
            _copy_module(layer.feed_norm, twin.final_layer_norm)


def _copy_attention(mine: MultiHead, other: nn.Module) -> None:
    _copy_module(mine.out, other.out_proj)
    for name in "qkv":
        fused = mine.qkv if not mine.cross else mine.query if name == "q" else mine.memory
        weight, bias = fused.part(name)
        twin = getattr(other, f"{name}_proj")
        twin.weight.copy_(weight)
        twin.bias.copy_(bias)


def _copy_module(mine: nn.Module, other: nn.Module) -> None:
    other.weight.copy_(mine.weight)
    other.bias.copy_(mine.bias)
