"""transformers' GPT-2 as an oracle for decoders: one model twice, with the same weights."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import allformer as af
from allformer.core.model import DecoderOnlyModel
from tests.loud import make_loud
from tests.models import BOS, EOS, PAD, VOCAB


def gpt2_twins(
    seed: int, vocab: int = VOCAB, length: int = 64
) -> tuple[DecoderOnlyModel, GPT2LMHeadModel]:
    """Ours and GPT-2's, loud but not stuck on one token, in fp64."""
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab, n_positions=length, n_embd=24, n_layer=3, n_head=4,
            n_inner=40, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS,
            eos_token_id=EOS, pad_token_id=PAD,
        )
    ).double().eval()  # fmt: skip
    make_loud(theirs, seed)
    with torch.no_grad():
        theirs.transformer.wte.weight.mul_(0.5)
    with TemporaryDirectory() as path:
        theirs.save_pretrained(path)
        ours = af.load(Path(path))
    assert isinstance(ours, DecoderOnlyModel)
    return ours.eval(), theirs
