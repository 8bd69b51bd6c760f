"""BigBird against transformers: loud, fp64, disk to disk; sparse, too short to be, and causal."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    BigBirdConfig,
    BigBirdForCausalLM,
    BigBirdForMaskedLM,
    BigBirdForPreTraining,
    BigBirdForQuestionAnswering,
    BigBirdForSequenceClassification,
    BigBirdForTokenClassification,
    BigBirdModel,
)
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

import allformer as af
from allformer.config import BlockSparse, EncoderOnly, Full, LMHead, Pool, ReadingHead
from allformer.core.random_blocks import draw_blocks
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.zoo import Case, rewrite

SIZES = {
    "vocab_size": 83, "hidden_size": 21, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 34, "max_position_embeddings": 67, "type_vocab_size": 3,
    "block_size": 4, "num_random_blocks": 2, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def bird(**more):
    return functools.partial(BigBirdConfig, **{**SIZES, **more})


BARE = {"add_pooling_layer": False}
DECODER = {"is_decoder": True, "attention_type": "original_full"}
CASES = [
    Case("bird", BigBirdModel, bird(), labels="none"),
    Case("bird without pooler", BigBirdModel, bird(num_random_blocks=1), labels="none",
         options=BARE),
    Case("bird scaled", BigBirdModel,
         bird(rescale_embeddings=True, use_bias=False, block_size=5), labels="none"),
    Case("bird in full", BigBirdModel, bird(attention_type="original_full"), labels="none"),
    Case("bird words", BigBirdForMaskedLM, bird(hidden_act="silu", layer_norm_eps=1e-2)),
    Case("bird words untied", BigBirdForMaskedLM, bird(tie_word_embeddings=False, use_bias=False)),
    Case("bird pair", BigBirdForPreTraining, bird(pad_token_id=5), labels="pretrain"),
    Case("bird classes", BigBirdForSequenceClassification,
         bird(num_labels=5, hidden_act="relu", classifier_dropout=0.3), labels="class"),
    Case("bird tokens", BigBirdForTokenClassification, bird(num_labels=6), labels="token"),
    Case("bird span", BigBirdForQuestionAnswering, bird(sep_token_id=9), labels="span"),
    Case("bird causal", BigBirdForCausalLM, bird(**DECODER)),
    Case("bird causal untied", BigBirdForCausalLM, bird(**DECODER, tie_word_embeddings=False)),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("birds"))


def batch(case: Case, theirs, side: str) -> dict[str, torch.Tensor]:
    """A question in front of each text that the head for answers reads."""
    inputs = zoo.batch(case, theirs, side)
    if case.labels == "span":
        inputs["input_ids"].masked_fill_(inputs["input_ids"] == 9, 10)
        for row, end in enumerate((12, 55, 57)):  # none in the last row
            inputs["input_ids"][row, end] = 9
    return inputs


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = batch(case, theirs, side)
    with torch.no_grad():
        zoo.compare(case, af.load(path), theirs, inputs)


@pytest.mark.every(5)
@each
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_the_same_numbers(case, side, written):
    check_forward(case.name, side, written[case.name])


def check_training(name: str, side: str, path: Path) -> None:
    """In training mode: each layer's own random blocks; values and every gradient."""
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.with_labels(case, theirs, batch(case, theirs, side))
    if case.labels == "span":
        inputs["start_positions"] = torch.tensor([20, 60, 0, 99])
        inputs["end_positions"] = torch.tensor([30, 60, 0, 0])
    theirs.train()
    try:
        zoo.compare_training(case, af.load(path).train(), theirs, inputs)
    finally:
        theirs.eval()


TRAINED = [c.name for c in CASES if c.labels not in ("none", "class")]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", TRAINED)
def test_the_same_training(name, side, written):
    check_training(name, side, written[name])


def test_the_same_training_of_the_head_for_classes(tmp_path):
    case = Case("bird classes", BigBirdForSequenceClassification,
                bird(num_labels=5, classifier_dropout=0.0), labels="class")  # fmt: skip
    theirs = zoo.fresh_oracle(case).train()
    ours = af.load(zoo.on_disk(theirs, tmp_path)).train()
    inputs = zoo.with_labels(case, theirs, batch(case, theirs, "right"))
    zoo.compare_training(case, ours, theirs, inputs)


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


# --- blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "random", "table", "length"),
    [(64, 3, 4096, 4096), (64, 3, 4096, 1024), (64, 3, 1024, 1024), (128, 1, 4096, 3072),
     (64, 3, 4096, 768), (64, 3, 4096, 2560), (16, 2, 4096, 640), (2, 1, 64, 40)],
)  # fmt: skip
def test_the_drawn_blocks_are_transformers(block, random, table, length):
    config = bird(block_size=block, num_random_blocks=random, max_position_embeddings=table)()
    theirs = BigBirdBlockSparseAttention(config, seed=7).train()
    np.random.seed(7)
    if length in (1024, 3072, 4096):
        wanted = [
            theirs._bigbird_block_rand_mask(table, table, block, block, random, last_idx=1024)
            for _ in range(3)
        ]
    else:
        plan = theirs._get_rand_attn_plan(length, block, random)
        wanted = theirs._bigbird_block_rand_mask_with_head(length, length, block, block, 3, *plan)
    mine = draw_blocks(BlockSparse(block, random, 7, table), 3, length // block)
    assert (mine == np.stack(wanted)[:, : length // block - 2]).all()


@pytest.mark.parametrize("training", [False, True], ids=["evaluated", "trained"])
def test_at_the_papers_lengths_blocks_may_count_twice_as_in_transformers(training, tmp_path):
    sizes = {"block_size": 64, "num_random_blocks": 3, "max_position_embeddings": 1024}
    case = Case("bird", BigBirdModel, bird(**sizes, num_hidden_layers=2), labels="none")
    theirs = zoo.fresh_oracle(case).train(training)
    ours = af.load(zoo.on_disk(theirs, tmp_path)).train(training)
    ids = torch.randint(1, 83, (1, 1000))
    with torch.no_grad():
        a, b = (m(input_ids=ids).last_hidden_state for m in (ours, theirs))
    assert (a - b).abs().max() < 1e-10


def check_width(width: int, path: Path) -> None:
    case = BY_NAME["bird"]
    theirs = zoo.fresh_oracle(case)  # transformers stays with full attention once it has begun
    inputs = {"input_ids": torch.randint(1, 83, (2, width))}
    with torch.no_grad():
        zoo.compare(case, af.load(path), theirs, inputs)
    assert theirs.attention_type == ("original_full" if width <= 36 else "block_sparse")


@pytest.mark.parametrize("width", [36, 37, 40, 41])
def test_short_rows_are_looked_at_in_full_where_transformers_does(width, written):
    """36 = (5 + 2·2)·4 is short still; 37 is filled up to 40."""
    check_width(width, written["bird"])


def test_padding_is_what_transformers_makes_of_it(written):
    """Padding looks at nothing there; heads that score every column see it."""
    theirs = zoo.oracle(BY_NAME["bird"])
    inputs = zoo.batch(BY_NAME["bird"], theirs, "right")
    with torch.no_grad():
        hers = theirs(**inputs).last_hidden_state
        seen = af.trace(af.load(written["bird"]), **inputs)
    assert (seen["encoder.output"] - hers).abs().max() < 1e-10


def test_the_causal_one_writes_what_transformers_writes(written):
    theirs, ours = zoo.oracle(BY_NAME["bird causal"]), af.load(written["bird causal"])
    ids = torch.randint(6, 83, (2, 7), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 15, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        mine, hers = ours.generate(ids, **options), theirs.generate(ids, **options)
    assert mine.tolist() == hers.tolist()


# --- the head for answers -------------------------------------------------------------------------


def check_question(path: Path) -> None:
    """Where no types are given they follow from the question; logits off the question agree."""
    case = BY_NAME["bird span"]
    theirs, ours = zoo.oracle(case), af.load(path)
    inputs = batch(case, theirs, "right")
    del inputs["token_type_ids"]
    with torch.no_grad():
        mine, hers = ours(**inputs), theirs(**inputs)
    keep = inputs["attention_mask"].bool()
    open_to = keep & (hers.start_logits > -1e5)
    assert open_to.sum() < keep.sum() - 40
    for name in ("start_logits", "end_logits"):
        a, b = mine[name], hers[name]
        assert (a - b)[open_to].abs().max() < 1e-10
        assert (a - b)[keep].abs().max() < 1e-8  # 1e6 below


def test_the_question_is_no_answer_and_has_the_first_type(written):
    check_question(written["bird span"])


def test_vectors_in_place_of_ids_bar_nothing(written):
    theirs, ours = zoo.oracle(BY_NAME["bird span"]), af.load(written["bird span"])
    inputs = {"inputs_embeds": torch.randn(2, 48, 21).double()}
    with torch.no_grad():
        mine, hers = ours(**inputs), theirs(**inputs)
    assert (mine.start_logits - hers.start_logits).abs().max() < 1e-10


def test_the_answering_objective_scores_as_a_call_does(written):
    """Packed, without types: the same scores, the question barred."""
    from allformer.train.objectives.answering import Answering
    from allformer.train.supervised.packed import lay_texts

    ours = af.load(written["bird span"])
    lengths = np.array([61, 50])
    ids = batch(BY_NAME["bird span"], zoo.oracle(BY_NAME["bird span"]), "none")["input_ids"][:2]
    ids[1, 14] = 9
    flat = torch.cat([ids[0], ids[1, :50]]).numpy()
    mask = (torch.arange(61) < torch.tensor([[61], [50]])).long()
    with torch.no_grad():
        first, last = Answering.scores(None, ours, lay_texts(lengths, flat))
        called = ours(input_ids=ids, attention_mask=mask)
    keep = mask.bool()
    torch.testing.assert_close(first[keep], called.start_logits[keep], rtol=0, atol=1e-9)
    torch.testing.assert_close(last[keep], called.end_logits[keep], rtol=0, atol=1e-9)


# --- config.json and files ------------------------------------------------------------------------

PUBLISHED = {  # bigbird-roberta-base, in small
    "architectures": ["BigBirdForPreTraining"], "attention_probs_dropout_prob": 0.1,
    "attention_type": "block_sparse", "block_size": 64, "bos_token_id": 1, "eos_token_id": 2,
    "gradient_checkpointing": False, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.1,
    "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 48,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 4096, "model_type": "big_bird",
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_random_blocks": 3, "pad_token_id": 0,
    "rescale_embeddings": False, "sep_token_id": 66, "type_vocab_size": 2, "use_bias": True,
    "use_cache": True, "vocab_size": 99,
}  # fmt: skip


def test_a_published_config_is_read_and_written_back_field_by_field():
    model, known = read_config(PUBLISHED)
    assert [block.attention.mixer for block in model.encoder.blocks] == [
        BlockSparse(64, 3, seed, 4096) for seed in (0, 1)
    ]
    assert model.encoder.dropout_at == "summed"
    again = write_config(model, known)[0]
    assert {name: again[name] for name in PUBLISHED} == PUBLISHED


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attention_type": "sparse"}, "attention_type='sparse', which is not known; try block_sp"),
        ({"is_decoder": True}, "is_decoder=True, which is not supported"),
        ({"architectures": ["BigBirdForCausalLM"]}, "is_decoder=None, with which .* looks ahead"),
        ({"architectures": ["BigBirdForCausalLM"], "is_decoder": True},
         "attention_type='block_sparse', with which .* looks ahead in long rows"),
        ({"add_cross_attention": True}, "add_cross_attention=True, which is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"num_random_blocks": 0}, "num_random_blocks=0, which must be"),
        ({"architectures": ["BigBirdLMHeadModel"]}, "supported are BigBirdModel"),
    ],
    ids=str,
)  # fmt: skip
def test_what_would_change_the_numbers_is_refused_by_name(change, says):
    with pytest.raises(CheckpointError, match=says):
        read_config({**PUBLISHED, **change})


def test_a_tree_that_draws_otherwise_is_no_big_bird():
    model = read_config(PUBLISHED)[0]
    first = model.encoder.blocks[0]
    for mixer in (BlockSparse(64, 3, 5), BlockSparse(64, 3, 0, always=True), Full()):
        odd = replace(first, attention=replace(first.attention, mixer=mixer))
        blocks = (odd, *model.encoder.blocks[1:])
        tree = replace(model, encoder=replace(model.encoder, blocks=blocks))
        with pytest.raises(CheckpointError, match="big_bird: "):
            write_config(tree)


def test_a_fresh_model_is_written_as_a_big_bird_and_transformers_opens_it(tmp_path):
    model = af.build(read_config({**PUBLISHED, "architectures": ["BigBirdForMaskedLM"]})[0], seed=0)
    af.save(model, tmp_path)
    theirs = BigBirdForMaskedLM.from_pretrained(tmp_path).eval()
    ids = torch.randint(1, 99, (1, 800))
    with torch.no_grad():
        a, b = model.eval()(input_ids=ids).logits, theirs(input_ids=ids).logits
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_pooler_that_nothing_reads_is_kept_and_written_back(written):
    model = af.load(written["bird words"])
    assert model.config.pool is None
    assert model.provenance.aside.keys() == {"bert.pooler.weight", "bert.pooler.bias"}
    whole = af.load(written["bird words"], architecture="BigBirdModel")
    assert whole.config.pool == Pool()
    assert whole.pool.dense.weight.equal(model.provenance.aside["bert.pooler.weight"])


def test_a_pooler_stands_in_for_no_other_tensor(written, tmp_path):
    lacking = "bert.encoder.layer.0.attention.output.dense.weight"
    path = rewrite(written["bird words"], tmp_path / "lacks",
                   lambda t: {k: v for k, v in t.items() if k != lacking})  # fmt: skip
    with pytest.raises(CheckpointError, match=r"layer\.0\.attention\.output\.dense\.weight"):
        af.load(path)


def test_the_count_is_transformers(written):
    for name, path in written.items():
        ours, theirs = af.load(path), zoo.oracle(BY_NAME[name])
        spare = sum(x.numel() for x in ours.provenance.aside.values())
        counted = af.count(ours.config).parameters
        assert counted == sum(p.numel() for p in ours.parameters())
        assert counted + spare == sum(p.numel() for p in theirs.parameters())


def test_presets_are_those_of_the_paper():
    base, large = (af.preset(f"bigbird-roberta-{size}") for size in ("base", "large"))
    assert af.count(base).parameters == 127_468_800
    assert af.count(large).parameters == 359_123_968
    assert base.encoder.blocks[11].attention.mixer == BlockSparse(64, 3, 11, 4096)


def test_a_bodys_own_head_for_answers_is_the_familys():
    from allformer.families.own_head import with_own_head

    body = read_config({**PUBLISHED, "architectures": ["BigBirdModel"]})[0]
    assert isinstance(with_own_head(body, "span").head, ReadingHead)
    assert with_own_head(body, "class", ("a", "b")).head.dense == "gelu_tanh"


def test_dropout_comes_before_the_norm_of_the_embedding():
    """Each embedded token is normed still: mean 0, variance 1."""
    tree = read_config({**PUBLISHED, "hidden_dropout_prob": 0.5})[0]
    model = af.build(EncoderOnly(tree.encoder, LMHead()), seed=0).train()
    seen = af.trace(model, input_ids=torch.randint(1, 99, (2, 9)))
    x = seen["encoder.embedded"]
    torch.testing.assert_close(x.mean(-1), torch.zeros(2, 9), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.var(-1, unbiased=False), torch.ones(2, 9), rtol=0, atol=1e-4)
    other = af.trace(model, input_ids=torch.randint(1, 99, (2, 9)))["encoder.embedded"]
    assert not torch.equal(x, other)
