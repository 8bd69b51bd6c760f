"""transformers' and torch's own models, and ours: no false alarm, but for torch's equal layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from allformer.auditor import audit
from allformer.checkpoint.load import load
from allformer.core.model import build
from tests.models import SPREAD

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
PAIR = {
    "vocab_size": 97, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip
HUGGING_FACE = {
    "gpt2": ("decoder", "GPT2LMHeadModel", "GPT2Config", {"vocab_size": 97, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}),  # noqa: E501
    "llama": ("decoder", "LlamaForCausalLM", "LlamaConfig", {**SMALL, "num_attention_heads": 6, "num_key_value_heads": 2}),  # noqa: E501
    "bert": ("encoder", "BertForMaskedLM", "BertConfig", SMALL),
    "roberta": ("encoder", "RobertaForMaskedLM", "RobertaConfig", SMALL),
    "albert": ("encoder", "AlbertForMaskedLM", "AlbertConfig", {**SMALL, "embedding_size": 16}),
    "t5": ("seq2seq", "T5ForConditionalGeneration", "T5Config", {"vocab_size": 97, "d_model": 48, "d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}),  # noqa: E501
    "bart": ("seq2seq", "BartForConditionalGeneration", "BartConfig", PAIR),
    "marian": ("seq2seq", "MarianMTModel", "MarianConfig", {**PAIR, "pad_token_id": 96, "eos_token_id": 0, "decoder_start_token_id": 96}),  # noqa: E501
}  # fmt: skip


def hugging_face(name):
    kind, model, config, sizes = HUGGING_FACE[name]
    return getattr(transformers, model)(getattr(transformers, config)(**sizes)), kind


@pytest.mark.every(4)
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_transformers_models_have_no_findings(name):
    model, kind = hugging_face(name)
    report = audit(model, kind)
    assert report.ok, report.text()
    assert len(report.passed) > 25


def test_profiles_are_found_from_the_evidence():
    model, kind = hugging_face("t5")
    assert any("T5" in p for p in audit(model, kind, only=["attention.scale"]).profile)
    model, kind = hugging_face("albert")
    assert any("shared layers" in p for p in audit(model, kind, only=["layers.reused"]).profile)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_stock_encoder_has_the_one_true_finding(norm_first):
    layer = nn.TransformerEncoderLayer(36, 4, 50, 0.1, batch_first=True, norm_first=norm_first)
    report = audit(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), "encoder")
    assert report.checks == {"layers.identical"}, report.text()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (lambda: nn.Transformer(36, 4, 2, 2, 50, batch_first=True), "seq2seq"),
        (lambda: nn.Transformer(36, 4, 2, 2, 50, norm_first=True), "seq2seq"),
        (lambda: nn.MultiheadAttention(36, 4), "attention"),
        (lambda: nn.MultiheadAttention(36, 4, batch_first=True), "attention"),
        (lambda: nn.TransformerEncoderLayer(36, 4, 50), "block"),
        (lambda: nn.LayerNorm(24), "norm"),
        (lambda: nn.RMSNorm(24), "norm"),
    ],
)
def test_torch_modules_have_no_findings(module, kind):
    report = audit(module(), kind)
    assert report.ok, report.text()


OURS = {"EncoderDecoder": "seq2seq", "EncoderOnly": "encoder", "DecoderOnly": "decoder"}
BY_CHOICE = {"own scale": "unscaled", "no positions": "no-positions"}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["seq2seq modern", "decoder paper", "decoder modern", "encoder paper", "two vocabularies", "layers that differ", "own scale", "no positions", "linear", "random features", "low rank"])  # fmt: skip  # noqa: E501
def test_our_models_have_no_findings(name):
    config = SPREAD[name]
    model = build(config, seed=1)
    report = audit(model, OURS[type(config).__name__], profile=BY_CHOICE.get(name))
    assert report.ok, report.text()
    if name in BY_CHOICE:  # and without the profile it is said
        assert not audit(model, OURS[type(config).__name__]).ok


def test_batch_and_heads_of_one_size():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(24, 3, 40, batch_first=True)
    assert audit(model, "block").ok


@pytest.mark.every(5)
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_our_families_have_no_findings(name, tmp_path):
    model, kind = hugging_face(name)
    model.save_pretrained(tmp_path)
    report = audit(load(tmp_path), kind)
    assert report.ok, report.text()
