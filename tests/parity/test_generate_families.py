"""`model.generate` of checkpoints from disk: the same tokens as transformers, family by family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import allformer as af
from tests.parity import test_decoders, test_seq2seq_families, zoo
from tests.parity.combos import beam_or_greedy, sampled
from tests.parity.zoo import Case
from tests.recorded import Recorded, by_graphs

NAMES = [
    "llama grouped queries", "llama every option", "gpt2 plain", "marian plain",
    "marian starts with padding", "bart plain", "mbart plain", "t5 plain", "t5 v1.1, tied",
    "mt5 plain",
]  # fmt: skip
CASES = {**test_decoders.BY_NAME, **test_seq2seq_families.BY_NAME}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "length_penalty": 0.6, "num_return_sequences": 2},
    "everything": {
        "num_beams": 3, "early_stopping": True, "repetition_penalty": 1.3, "min_new_tokens": 3,
        "no_repeat_ngram_size": 2, "suppress_tokens": [5, 9],
    },
}  # fmt: skip


@torch.no_grad()
def talkative(case: Case) -> Any:
    """transformers' model, loud but not stuck on one word; it ends now and then."""
    theirs = zoo.fresh_oracle(case, seed=5)
    for name, p in theirs.named_parameters():
        if name.endswith("bias") and p.ndim == 1:
            p.mul_(0.2)
        if p.ndim > 1 and p.shape[0] >= 83 and "embed_positions" not in name and "wpe" not in name:
            p.mul_(0.8)  # tables of words
    theirs.generation_config.max_length = None
    theirs.generation_config.forced_eos_token_id = None
    return theirs


def prompt(case: Case, theirs: Any) -> dict[str, Tensor]:
    """Ragged: padded on the left for a decoder, on the right for an encoder."""
    side = "right" if theirs.config.is_encoder_decoder else "left"
    inputs = zoo.batch(case, theirs, side)
    keep = ("input_ids", "attention_mask")
    return {name: inputs[name][:, -24:] if side == "left" else inputs[name] for name in keep}


@pytest.mark.every(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_tokens(name, way, tmp_path):
    case = CASES[name]
    theirs = talkative(case)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs = prompt(case, theirs)
    if theirs.config.is_encoder_decoder and theirs.generation_config.decoder_start_token_id is None:
        theirs.generation_config.decoder_start_token_id = 2
        ours.provenance.generation["decoder_start_token_id"] = 2
    cached = "t5" not in name  # transformers' cache has as many layers as T5's encoder
    with zoo.unrounded(), torch.no_grad():
        wanted = theirs.generate(**inputs, max_new_tokens=14, use_cache=cached, **WAYS[way])
        got = ours.generate(**inputs, max_new_tokens=14, **WAYS[way])
        made = Recorded.made
        with by_graphs(worth=4):
            fast = ours.generate(**inputs, max_new_tokens=14, **WAYS[way])
    assert got.tolist() == wanted.tolist()
    assert fast.tolist() == wanted.tolist()
    assert Recorded.made > made
    new = wanted[:, -14:]
    assert len({tuple(row) for row in new.tolist()}) > 1, "the model says one thing to everything"


@pytest.mark.parametrize("name", NAMES)
def test_cached_is_uncached_and_a_row_alone_is_the_row_in_its_batch(name, tmp_path):
    case = CASES[name]
    theirs = talkative(case)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs = prompt(case, theirs)
    start = {"decoder_start_token_id": 2} if theirs.config.is_encoder_decoder else {}
    together = ours.generate(**inputs, max_new_tokens=10, **start)
    plain = ours.generate(**inputs, max_new_tokens=10, use_cache=False, **start)
    assert plain.tolist() == together.tolist()
    keep = inputs["attention_mask"][1].bool()
    alone = ours.generate(inputs["input_ids"][1:2, keep], max_new_tokens=10, **start)[0].tolist()
    row = together[1].tolist()
    skip = 0 if start else int((~keep).sum())
    assert row[skip : skip + len(alone)] == alone


@pytest.mark.every(3)
@pytest.mark.filterwarnings("ignore")  # both have much to say about such options
@pytest.mark.parametrize("seed", [3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_tokens_with_any_combination_of_options(name, seed, tmp_path):
    """Searched and drawn, with a mask that also hides tokens inside a row; transformers as it is.

    It is not `unrounded` here: what breaks ties (several forced ends score alike) is its fp32.
    """
    case = CASES[name]
    theirs = talkative(case)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs = prompt(case, theirs)
    inputs["attention_mask"] = inputs["attention_mask"].clone()
    inputs["attention_mask"][0, 5:8] = 0
    encoder = theirs.config.is_encoder_decoder
    for make in (beam_or_greedy, sampled):
        options = make(seed, encoder=encoder)
        if encoder:
            options["decoder_start_token_id"] = 2
        theirs_too = options | ({"use_cache": False} if "t5" in name else {})
        torch.manual_seed(seed)
        wanted = theirs.generate(**inputs, **theirs_too)
        torch.manual_seed(seed)
        assert ours.generate(**inputs, **options).tolist() == wanted.tolist()
        torch.manual_seed(seed)
        with by_graphs(worth=2):
            assert ours.generate(**inputs, **options).tolist() == wanted.tolist()
