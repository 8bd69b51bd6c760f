"""A trained encoder-decoder of another library, as a config and a weight map.

Six layers and six, pre-norm, sinusoids as tensor2tensor has them, characters of Arabic to Latin;
the tensors have CTranslate2's names. See SOURCE beside the weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from allformer.checkpoint.files import open_tensors
from allformer.checkpoint.transfer import load_weights
from allformer.config import (
    Attention,
    Block,
    EncoderDecoder,
    Feed,
    LMHead,
    Norm,
    Sinusoidal,
    Stack,
    Tokens,
    config_from_json,
    repeat,
)
from allformer.core.model import build
from allformer.families.weights import Op, Same
from tests.search import search

HERE = Path(__file__).parents[3] / "shared" / "data" / "weights" / "encdec-aren-transliteration"
PAD, BOS, EOS = 0, 1, 2
# tensor2tensor spreads its 16 wavelengths over 10000^(i/15), the paper over 10000^(i/16): the same
# with another base.
POSITION = Sinusoidal(layout="halves", base=10_000 ** (16 / 15), start=1)


def stack(vocab: int, causal: bool) -> Stack:
    attention = Attention(8)
    block = Block(attention, Feed(128), cross=attention if causal else None, norm_at="pre")
    tokens = Tokens(vocab, scale=True, pad_id=PAD, bos_id=BOS, eos_id=EOS)
    return Stack(32, tokens, POSITION, repeat(block, 6), causal=causal, final_norm=Norm())


CONFIG = EncoderDecoder(
    stack(51, causal=False), stack(43, causal=True), LMHead(tied=False, bias=True), shared=False
)


def linear(ours: str, theirs: str) -> list[Op]:
    return [Same(f"{ours}.{kind}", f"{theirs}/{kind}") for kind in ("weight", "bias")]


def norm(ours: str, theirs: str) -> list[Op]:
    return [Same(f"{ours}.weight", f"{theirs}/gamma"), Same(f"{ours}.bias", f"{theirs}/beta")]


def weights() -> list[Op]:
    """CTranslate2 fuses what we fuse: q, k, v at home; k, v across."""
    ops = linear("head", "decoder/projection")
    ops[0] = Same("head.table.weight", "decoder/projection/weight")
    for side in ("encoder", "decoder"):
        ops.append(Same(f"{side}.source.embedding.weight", f"{side}/embeddings/weight"))
        ops += norm(f"{side}.final_norm", f"{side}/layer_norm")
        for i in range(6):
            ours, theirs = f"{side}.layers.{i}", f"{side}/layer_{i}"
            ops += norm(f"{ours}.attention_norm", f"{theirs}/self_attention/layer_norm")
            ops += linear(f"{ours}.attention.qkv", f"{theirs}/self_attention/linear_0")
            ops += linear(f"{ours}.attention.out", f"{theirs}/self_attention/linear_1")
            if side == "decoder":
                ops += norm(f"{ours}.cross_norm", f"{theirs}/attention/layer_norm")
                ops += linear(f"{ours}.cross.query", f"{theirs}/attention/linear_0")
                ops += linear(f"{ours}.cross.memory", f"{theirs}/attention/linear_1")
                ops += linear(f"{ours}.cross.out", f"{theirs}/attention/linear_2")
            ops += norm(f"{ours}.feed_norm", f"{theirs}/ffn/layer_norm")
            ops += linear(f"{ours}.feed.up", f"{theirs}/ffn/linear_0")
            ops += linear(f"{ours}.feed.down", f"{theirs}/ffn/linear_1")
    return ops


@pytest.fixture(scope="module")
def model():
    if not HERE.is_dir():
        pytest.skip("no encdec-aren-transliteration in shared/data/weights beside the checkout")
    model = build(config_from_json(CONFIG.to_json()), device="meta")
    fates = load_weights(model, weights(), open_tensors(HERE)).fates
    assert len(fates) == len(weights())
    return model.eval()


@pytest.fixture(scope="module")
def cases() -> list[dict]:
    if not HERE.is_dir():
        pytest.skip("no encdec-aren-transliteration in shared/data/weights beside the checkout")
    return json.loads((HERE / "reference.json").read_text(encoding="utf-8"))["cases"]


def read(model, ids: list[int]) -> str:
    names = (HERE / "target_vocabulary.txt").read_text(encoding="utf-8").split("\n")
    return "".join(names[i] for i in ids)


def test_states_of_a_trained_model_are_the_references(model, cases):
    for case in cases:
        with torch.no_grad():
            memory = model.encode(torch.tensor([case["src_ids"]]))
        assert memory[0, 0, :5].tolist() == pytest.approx(case["encoder_out_first5"], abs=2e-6)


def test_greedy_transliterations_are_the_references(model, cases):
    for case in cases:
        found = search(model, torch.tensor([case["src_ids"]]), max_new_tokens=30, length_penalty=0)
        assert found.ids == [case["torch_greedy_ids"]]
        assert read(model, found.ids[0]) == case["torch_greedy"] == case["ct2_greedy"]
        assert found.scores == pytest.approx([case["torch_greedy_logprob"]], abs=5e-6)
        assert found.scores == pytest.approx([case["ct2_greedy_logprob"]], abs=2e-4)


def test_beams_find_the_references_best(model, cases):
    for case in cases:
        found = search(
            model, torch.tensor([case["src_ids"]]), max_new_tokens=30, num_beams=4, length_penalty=0
        )
        assert read(model, found.ids[0]) == case["ct2_beam4"][0]
        assert found.scores == pytest.approx(case["ct2_beam4_logprobs"][:1], abs=2e-4)


def test_log_probabilities_of_all_four_beams_are_the_references(model, cases):
    names = (HERE / "target_vocabulary.txt").read_text(encoding="utf-8").split("\n")
    for case in cases:
        for text, wanted in zip(case["ct2_beam4"], case["ct2_beam4_logprobs"], strict=True):
            ids = torch.tensor([[*map(names.index, text), EOS]])
            with torch.no_grad():
                out = model(input_ids=torch.tensor([case["src_ids"]]), labels=ids)
            assert -out.loss.item() * ids.numel() == pytest.approx(wanted, abs=2e-4)
