"""transformers' GPT-2 as an oracle for decoders: one model twice, with the same weights."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    Feed,
    Learned,
    Norm,
    Stack,
    Tokens,
    repeat,
)
from allformer.core.model import DecoderOnlyModel, build
from tests.models import BOS, EOS, PAD, VOCAB

DIM, HEADS, WIDTH, LAYERS, LENGTH = 24, 4, 40, 3, 64


def gpt2_config(vocab: int = VOCAB, length: int = LENGTH) -> DecoderOnly:
    """GPT-2's shape: learned positions, pre-norm, tanh-gelu, a final norm, a tied head."""
    block = Block(Attention(HEADS), Feed(WIDTH, "gelu_tanh"), norm_at="pre", dropout=0.0)
    tokens = Tokens(vocab, pad_id=PAD, bos_id=BOS, eos_id=EOS)
    return DecoderOnly(
        Stack(
            DIM, tokens, Learned(length), repeat(block, LAYERS), causal=True, final_norm=Norm(),
            dropout=0.0,
        )
    )  # fmt: skip


def gpt2_twins(
    seed: int, vocab: int = VOCAB, length: int = LENGTH
) -> tuple[DecoderOnlyModel, GPT2LMHeadModel]:
    """Ours and GPT-2's, loud but not stuck on one token, in fp64."""
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab, n_positions=length, n_embd=DIM, n_layer=LAYERS, n_head=HEADS,
            n_inner=WIDTH, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS,
            eos_token_id=EOS, pad_token_id=PAD,
        )
    ).double().eval()  # fmt: skip
    _make_lively(theirs, seed)
    ours = build(gpt2_config(vocab, length)).double().eval()
    assert isinstance(ours, DecoderOnlyModel)
    _copy(ours, theirs)
    return ours, theirs


@torch.no_grad()
def _make_lively(model: GPT2LMHeadModel, seed: int) -> None:
    """Matrices std 1.5/√fan_in, norms 1 ± 0.3, biases ± 0.3; positions that speak up."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith("bias"):
            value = 0.3 * noise
        elif parameter.ndim == 1:
            value = 1 + 0.3 * noise
        elif "wte" in name:
            value = 0.5 * noise
        elif "wpe" in name:
            value = noise
        else:  # Conv1D: in out
            value = noise * 1.5 / parameter.shape[0] ** 0.5
        parameter.copy_(value)


@torch.no_grad()
def _copy(ours: DecoderOnlyModel, theirs: GPT2LMHeadModel) -> None:
    body, decoder = theirs.transformer, ours.decoder
    decoder.source.embedding.weight.copy_(body.wte.weight)
    decoder.position.weight.copy_(body.wpe.weight)
    decoder.final_norm.load_state_dict(body.ln_f.state_dict())
    for layer, block in zip(decoder.layers, body.h, strict=True):
        # Conv1D stores its matrix as in × out; q, k, v are fused in our order.
        for mine, other in (
            (layer.attention.qkv, block.attn.c_attn),
            (layer.attention.out, block.attn.c_proj),
            (layer.feed.up, block.mlp.c_fc),
            (layer.feed.down, block.mlp.c_proj),
        ):
            mine.weight.copy_(other.weight.T)
            mine.bias.copy_(other.bias)
        layer.attention_norm.load_state_dict(block.ln_1.state_dict())
        layer.feed_norm.load_state_dict(block.ln_2.state_dict())
