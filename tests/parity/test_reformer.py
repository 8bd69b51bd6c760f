"""Reformer against transformers: disk to disk, loud, fp64, with the same buckets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    ReformerConfig,
    ReformerForMaskedLM,
    ReformerForQuestionAnswering,
    ReformerForSequenceClassification,
    ReformerModel,
    ReformerModelWithLMHead,
)

import allformer as af
from allformer.config import LSH, Axial, DecoderOnly, EncoderOnly, Learned
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.zoo import Case

SMALL = {
    "vocab_size": 97, "hidden_size": 48, "attention_head_size": 12, "num_attention_heads": 4,
    "feed_forward_size": 70, "attn_layers": ["local", "lsh", "lsh", "local"],
    "axial_pos_shape": (8, 8), "axial_pos_embds_dim": (16, 32), "max_position_embeddings": 64,
    "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8, "hash_seed": 3, "num_hashes": 2,
    "num_buckets": 8, "pad_token_id": 0, "eos_token_id": 2, "hidden_dropout_prob": 0.0,
    "lsh_attention_probs_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def case(name: str, model: type, labels: str = "words", **changes: object) -> Case:
    return Case(name, model, lambda: ReformerConfig(**{**SMALL, **changes}), labels=labels)


CASES = [
    case("writes", ReformerModelWithLMHead, is_decoder=True),
    case(
        "writes, every option", ReformerModelWithLMHead, is_decoder=True, axial_pos_embds=False,
        attention_head_size=10, num_attention_heads=3, num_buckets=[4, 6], num_hashes=3,
        lsh_attn_chunk_length=8, local_attn_chunk_length=4, lsh_num_chunks_before=2,
        local_num_chunks_before=3, hidden_act="gelu", chunk_size_feed_forward=4,
        layer_norm_eps=1e-3, attn_layers=["lsh", "local", "lsh"],
    ),
    case(
        "bare, hashes alone", ReformerModel, "none", attn_layers=["lsh", "lsh"], num_buckets=None,
        lsh_attn_chunk_length=4, lsh_num_chunks_after=1, num_hashes=1,
    ),
    case(
        "bare, unequal chunks", ReformerModel, "none", local_attn_chunk_length=6,
        axial_pos_shape=(8, 16), max_position_embeddings=128, local_num_chunks_before=2,
    ),
    case(
        "bare, looking further back than there is", ReformerModel, "none", is_decoder=True,
        local_num_chunks_before=5, lsh_num_chunks_before=3, local_num_chunks_after=0,
    ),
    case("bare, looking back", ReformerModel, "none", is_decoder=True, num_hashes=4),
    case(
        "masked words, neighbours alone", ReformerForMaskedLM, attn_layers=["local", "local"],
        local_num_chunks_after=1, local_attn_chunk_length=16,
    ),
    case("masked words", ReformerForMaskedLM),
    case("classes", ReformerForSequenceClassification, "class", num_labels=3),
    case(
        "classes, looking back", ReformerForSequenceClassification, "class", num_labels=3,
        is_decoder=True,
    ),
    case("answers", ReformerForQuestionAnswering, "span"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("reformer"))


def check_forward(name: str, side: str, path: Path, lengths: tuple[int, ...] = (61, 48, 7)) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "LENGTHS", lengths)
        zoo.compare(case, af.load(path), theirs, zoo.batch(case, theirs, side))


@each
@pytest.mark.parametrize("side", ["none", "right"])
def test_the_same_numbers_in_rows_that_are_filled_up(case, side, written):
    check_forward(case.name, side, written[case.name])


@each
def test_the_same_numbers_with_padding_on_the_left(case, written):
    """Heads that read the first column read padding there: so nothing is filled up."""
    check_forward(case.name, "left", written[case.name], (64, 48, 7))


@each
@pytest.mark.every(2)
def test_the_same_numbers_in_short_rows(case, written):
    check_forward(case.name, "right", written[case.name], (4, 2))


@pytest.mark.parametrize("lengths", [(9,), (16, 12), (24,), (33, 20)])
def test_fewer_chunks_than_neighbours_are_looked_at_as_the_reference_does(lengths, written):
    name = "bare, looking further back than there is"
    check_forward(name, "right", written[name], lengths)


@pytest.mark.every(3)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [c.name for c in CASES if c.labels != "none"])
def test_the_same_training(name, side, written, monkeypatch):
    """transformers trains whole grids alone: as many tokens as axial positions."""
    monkeypatch.setattr(zoo, "LENGTHS", (64, 48, 7))
    case = BY_NAME[name]
    theirs = zoo.fresh_oracle(case).train()
    inputs = zoo.with_labels(case, theirs, zoo.batch(case, theirs, side))
    for name in ("start_positions", "end_positions"):
        if name in inputs:
            inputs[name] = inputs[name][:3]
    zoo.compare_training(case, af.load(written[case.name]).train(), theirs, inputs)


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


def test_without_a_seed_the_draws_are_those_of_torchs_generator(tmp_path):
    drawn = case("drawn", ReformerModel, "none", hash_seed=None, num_hashes=3)
    theirs = zoo.oracle(drawn)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    inputs = zoo.batch(drawn, theirs, "right")
    said = []
    with torch.no_grad():
        for model in (ours, theirs):
            torch.manual_seed(11)
            said.append(model(**inputs).last_hidden_state[inputs["attention_mask"].bool()])
    torch.testing.assert_close(said[0], said[1], rtol=0, atol=1e-9)


def test_buckets_are_transformers_own(written):
    theirs, ours = zoo.oracle(BY_NAME["writes"]), af.load(written["writes"])
    ids = zoo.batch(BY_NAME["writes"], theirs, "none")["input_ids"]
    with torch.no_grad():
        past = theirs(ids, use_cache=True).past_buckets_states
        cache = ours.new_cache()
        ours(input_ids=ids, cache=cache)
    wanted = past.buckets_cache[1]  # rounds are counted on in transformers, with one for padding
    rounds = torch.arange(2)[None, None, :, None] * 9
    assert torch.equal(cache[1].own.buckets, wanted - rounds)


# --- generating -----------------------------------------------------------------------------------


def written_text(model, ids, **options):
    return model.generate(ids, do_sample=False, eos_token_id=None, pad_token_id=0, **options)


@pytest.mark.every(2)
@pytest.mark.parametrize("prompt", [3, 8, 24, 29])
def test_the_same_text_without_a_cache(prompt, written):
    theirs, ours = zoo.oracle(BY_NAME["writes"]), af.load(written["writes"])
    ids = zoo.batch(BY_NAME["writes"], theirs, "none")["input_ids"][:, :prompt]
    options = {"max_new_tokens": 6, "use_cache": False}
    assert torch.equal(written_text(ours, ids, **options), written_text(theirs, ids, **options))


@pytest.mark.parametrize("prompt", [8, 24])
def test_the_same_text_with_cached_buckets(prompt, written):
    theirs, ours = zoo.oracle(BY_NAME["writes"]), af.load(written["writes"])
    ids = zoo.batch(BY_NAME["writes"], theirs, "none")["input_ids"][:1, :prompt]
    said = [written_text(model, ids, max_new_tokens=8) for model in (ours, theirs)]
    assert torch.equal(*said)


def stepwise(model, ids, prompt: int, ours: bool):
    """Logits of a row read in steps behind a prompt."""
    said = []
    cache = model.new_cache() if ours else None
    for i in range(prompt, ids.shape[1]):
        new = ids[:, :i] if i == prompt else ids[:, i - 1 : i]
        if ours:
            said.append(model(input_ids=new, cache=cache).logits[:, -1])
        else:
            out = model(new, past_buckets_states=cache, use_cache=True)
            cache = out.past_buckets_states
            said.append(out.logits[:, -1])
    return torch.stack(said, 1)


@pytest.mark.parametrize("prompt", [5, 8, 24, 40])
def test_the_same_steps_with_cached_buckets(prompt, written):
    """One row at a time: of a batch, transformers looks the states of all rows up in the first."""
    theirs, ours = zoo.oracle(BY_NAME["writes"]), af.load(written["writes"])
    ids = zoo.batch(BY_NAME["writes"], theirs, "none")["input_ids"][:1, : prompt + 14]
    with torch.no_grad():
        a, b = stepwise(ours, ids, prompt, True), stepwise(theirs, ids, prompt, False)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


# --- config.json ----------------------------------------------------------------------------------

OLD = {  # as google/reformer-crime-and-punishment has it
    "architectures": ["ReformerModelWithLMHead"], "attention_head_size": 64,
    "attention_probs_dropout_prob": 0.1, "attn_layers": ["local", "lsh"] * 3, "axial_norm_std": 1.0,
    "axial_pos_embds": True, "axial_pos_embds_dim": [64, 192], "axial_pos_shape": [512, 1024],
    "chunk_size_feed_forward": 0, "chunk_size_lm_head": 0, "eos_token_id": 2,
    "feed_forward_size": 512, "hash_seed": None, "hidden_act": "relu", "hidden_dropout_prob": 0.05,
    "hidden_size": 256, "initializer_range": 0.02, "intermediate_size": 3072, "is_decoder": True,
    "layer_norm_eps": 1e-12, "local_attention_probs_dropout_prob": 0.05,
    "local_attn_chunk_length": 64, "local_num_chunks_after": 0, "local_num_chunks_before": 1,
    "lsh_attention_probs_dropout_prob": 0.0, "lsh_attn_chunk_length": 64, "lsh_num_chunks_after": 0,
    "lsh_num_chunks_before": 1, "max_position_embeddings": 524_288, "model_type": "reformer",
    "num_attention_heads": 2, "num_buckets": [64, 128], "num_chunks_after": 0,
    "num_chunks_before": 1, "num_hashes": 1, "num_hidden_layers": 6, "output_past": True,
    "pad_token_id": 0, "sinusoidal_pos_embds": False, "vocab_size": 320,
}  # fmt: skip


def test_a_published_config_is_its_preset():
    assert read_config(OLD)[0] == af.preset("reformer-crime-and-punishment")


@pytest.mark.parametrize("name", ["reformer-enwik8", "reformer-crime-and-punishment"])
def test_presets_are_as_large_as_transformers_says(name, tmp_path):
    tree = af.preset(name)
    built = af.build(tree, device="meta")
    assert af.count(tree).parameters == sum(p.numel() for p in built.parameters())
    raw = write_config(tree)[0]
    with torch.device("meta"):
        theirs = ReformerModelWithLMHead(ReformerConfig(**raw))
    unread = theirs.lm_head.bias.numel()
    assert sum(p.numel() for p in theirs.parameters()) - unread == af.count(tree).parameters


def test_positions_say_how_far_they_reach():
    assert isinstance(read_config({**OLD, "axial_pos_embds": False})[0].writer.position, Learned)
    less = read_config({**OLD, "max_position_embeddings": 4096})[0].writer.position
    assert (less.length, less.longest) == (4096, 4096)
    assert read_config(OLD)[0].writer.position == Axial((512, 1024), (64, 192), None, "all", 0.05)


def test_the_number_of_buckets_in_one_factor_follows_transformers_rule():
    for longest, mixer in ((4096, LSH(64)), (524_288, LSH(64, one_factor=180))):
        fields = {**OLD, "num_buckets": None, "max_position_embeddings": longest}
        assert read_config(fields)[0].writer.blocks[1].attention.mixer == mixer


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"is_decoder": False}, "ReformerModelWithLMHead looks back alone; set it to True"),
        ({"architectures": ["ReformerForMaskedLM"]}, "looks at both sides; set it to False"),
        ({"attn_layers": ["local", "full"]}, "'full', which is no kind of layer"),
        ({"lsh_num_chunks_after": 1}, "LSH.after=1 looks ahead"),
        ({"axial_pos_embds_dim": [64, 64]}, "sum up to the width of the embedding, 256"),
        ({"num_buckets": [63, 2]}, "even number"),
        ({"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds=True, which is not supported"),
        ({"hash_rounds": 3}, "hash_rounds=3, which allformer does not know"),
    ],
)
def test_what_is_not_a_reformer_is_refused(fields, says):
    with pytest.raises(CheckpointError) as refused:
        read_config({**OLD, **fields})
    assert says in str(refused.value)


def test_a_bias_of_the_output_is_added_where_files_of_version_4_have_it(written, tmp_path):
    """There lm_head.bias is lm_head.decoder.bias; version 5 holds the first alone, and unread."""
    theirs = zoo.fresh_oracle(BY_NAME["writes"])
    path = zoo.rewrite(
        written["writes"],
        tmp_path / "old",
        lambda tensors: {**tensors, "lm_head.decoder.bias": tensors["lm_head.bias"].clone()},
    )
    ids = zoo.batch(BY_NAME["writes"], theirs, "none")["input_ids"]
    theirs.lm_head.decoder.bias = theirs.lm_head.bias
    ours = af.load(path)
    with torch.no_grad():
        a, b = ours(input_ids=ids).logits, theirs(ids).logits
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    af.save(ours, tmp_path / "again")
    before, after = zoo.files_of(path), zoo.files_of(tmp_path / "again")
    assert before.keys() == after.keys()
    assert all(torch.equal(x, after[name]) for name, x in before.items())


def test_stored_values_of_masks_are_overlooked(written, tmp_path):
    where = "reformer.encoder.layers.0.attention.self_attention"
    numbers = {"self_mask_value_float16": -1e3, "mask_value_float32": -1e9}
    more = {f"{where}.{name}": torch.tensor(x) for name, x in numbers.items()}
    old = zoo.rewrite(written["writes"], tmp_path / "old", lambda tensors: tensors | more)
    check_forward("writes", "right", old)


def test_a_fresh_model_is_written_for_transformers(tmp_path):
    tree = read_config(json.loads(ReformerConfig(**SMALL).to_json_string()))[0]
    assert isinstance(tree, EncoderOnly)
    tree = af.config.EncoderOnly(tree.encoder, af.config.LMHead(tied=False))
    model = af.build(tree, seed=0).double().eval()
    af.save(model, tmp_path)
    theirs = ReformerForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    ids = torch.randint(3, 97, (2, 21))
    with torch.no_grad():
        a, b = model(input_ids=ids).logits, theirs(ids).logits
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert isinstance(af.preset("reformer-enwik8"), DecoderOnly)
