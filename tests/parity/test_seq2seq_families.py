"""Marian, BART, mBART, T5 and mT5 against transformers: disk to disk, loud, fp64."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
    MarianConfig,
    MarianModel,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartForQuestionAnswering,
    MBartForSequenceClassification,
    MBartModel,
    MT5Config,
    MT5EncoderModel,
    MT5ForConditionalGeneration,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForQuestionAnswering,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    T5Model,
)

import allformer as af
from allformer.checkpoint.load import read_config_of
from allformer.config import LMHead
from allformer.core.position import sinusoid
from allformer.errors import CheckpointError
from allformer.families.config_json import read_config, write_config
from allformer.families.original import BOS, EOS, PAD, transformer
from tests.models import loud, right_padding
from tests.parity import zoo
from tests.parity.zoo import Case, rewrite
from tests.search import search

# Odd sizes, unequal depths, heads and widths: no two axes can be confused.
FAIRSEQ = {
    "vocab_size": 97, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 6, "encoder_ffn_dim": 50,
    "decoder_ffn_dim": 70, "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 5,
}  # fmt: skip
T5 = {
    "vocab_size": 97, "d_model": 48, "d_kv": 10, "d_ff": 70, "num_layers": 2,
    "num_decoder_layers": 3, "num_heads": 6, "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip
SINGLE, MULTI = {"num_labels": 1}, {"num_labels": 5, "problem_type": "multi_label_classification"}


def fairseq(name: str, model: type, labels: str = "words", **changes: Any) -> Case:
    config = {"B": BartConfig, "MB": MBartConfig, "Ma": MarianConfig}
    kind = next(config[start] for start in ("Ma", "MB", "B") if model.__name__.startswith(start))
    family = kind.__name__.removesuffix("Config").lower()
    fields = {**FAIRSEQ, **changes}
    return Case(f"{family} {name}", model, lambda: kind(**fields), labels=labels)


def t5(name: str, model: type, labels: str = "words", **changes: Any) -> Case:
    kind = MT5Config if model.__name__.startswith("M") else T5Config
    family = kind.__name__.removesuffix("Config").lower()
    fields = {**T5, **changes}
    return Case(f"{family} {name}", model, lambda: kind(**fields), labels=labels)


CASES = [
    fairseq("plain", MarianMTModel, scale_embedding=True, activation_function="silu"),
    fairseq("starts with padding", MarianMTModel, decoder_start_token_id=1, dropout=0.3),
    fairseq(
        "two vocabularies", MarianMTModel, share_encoder_decoder_embeddings=False,
        decoder_vocab_size=83, activation_function="relu",
    ),
    fairseq(
        "three tables", MarianMTModel, share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
    ),
    fairseq("bare", MarianModel, "none", scale_embedding=True),
    fairseq(
        "bare, two vocabularies", MarianModel, "none", share_encoder_decoder_embeddings=False,
        decoder_vocab_size=83,
    ),
    fairseq("plain", BartForConditionalGeneration),
    fairseq(
        "every option", BartForConditionalGeneration, scale_embedding=True, dropout=0.2,
        activation_function="gelu_new", attention_dropout=0.3, activation_dropout=0.4,
        encoder_layerdrop=0.1, decoder_layerdrop=0.2,
    ),
    fairseq("bare", BartModel, "none", activation_function="relu"),
    fairseq("classes", BartForSequenceClassification, "class", classifier_dropout=0.3),
    fairseq("seven classes", BartForSequenceClassification, "class", num_labels=7),
    fairseq("a number", BartForSequenceClassification, "class", **SINGLE),
    fairseq("answers", BartForQuestionAnswering, "span"),
    fairseq("plain", MBartForConditionalGeneration, scale_embedding=True),
    fairseq(
        "no first token", MBartForConditionalGeneration, decoder_start_token_id=None,
        activation_function="silu",
    ),
    fairseq("bare", MBartModel, "none"),
    fairseq("several classes at once", MBartForSequenceClassification, "class", **MULTI),
    fairseq("answers", MBartForQuestionAnswering, "span", scale_embedding=True),
    t5("plain", T5ForConditionalGeneration),
    t5(
        "v1.1, tied", T5ForConditionalGeneration, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, d_kv=8,
    ),
    t5(
        "every option", T5ForConditionalGeneration, feed_forward_proj="gated-silu",
        layer_norm_epsilon=1e-3, dropout_rate=0.3, num_decoder_layers=1,
        relative_attention_num_buckets=32, relative_attention_max_distance=50,
    ),
    t5("exact gelu", T5ForConditionalGeneration, feed_forward_proj="gelu"),
    t5("bare", T5Model, "none"),
    t5("encoder", T5EncoderModel, "none", feed_forward_proj="gated-relu"),
    t5("classes", T5ForSequenceClassification, "class", num_labels=3, classifier_dropout=0.2),
    t5("several classes at once", T5ForSequenceClassification, "class", **MULTI),
    t5("tags", T5ForTokenClassification, "token", num_labels=5, classifier_dropout=0.2),
    t5("answers", T5ForQuestionAnswering, "span"),
    t5("plain", MT5ForConditionalGeneration),
    t5("encoder", MT5EncoderModel, "none"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("seq2seq"))


def labelled(case: Case, theirs: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    out = zoo.with_labels(case, theirs, inputs)
    c = theirs.config
    if case.labels == "class" and c.num_labels == 1:
        out["labels"] = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
    elif case.labels == "class" and c.problem_type == "multi_label_classification":
        rows = torch.arange(4)[:, None] + torch.arange(c.num_labels)
        out["labels"] = (rows % 3 == 0).double()
    return out


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    zoo.compare(case, af.load(path), theirs, zoo.batch(case, theirs, side))


def check_training(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = labelled(case, theirs, zoo.batch(case, theirs, side))
    zoo.compare_training(case, af.load(path), theirs, inputs)


@pytest.mark.every(4)
@pytest.mark.parametrize("side", ["none", "right", "left"])
@each
def test_the_same_numbers(case, side, written):
    check_forward(case.name, side, written[case.name])


@pytest.mark.every(2)
@pytest.mark.parametrize("name", [c.name for c in CASES if c.labels != "none"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_same_training(name, side, written):
    check_training(name, side, written[name])


@pytest.mark.every(2)
@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["marian plain", "bart plain", "mbart plain", "t5 plain"])
def test_the_same_numbers_with_padding_in_the_target(name, side, written):
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.batch(case, theirs, "right")
    target = inputs["decoder_input_ids"]
    place, length = torch.arange(target.shape[1]), torch.tensor([53, 20, 40, 1])[:, None]
    keep = place < length if side == "right" else place >= target.shape[1] - length
    inputs["decoder_attention_mask"] = keep.long()
    mine, reference = zoo.run_both(case, af.load(written[name]), theirs, inputs)
    zoo.close(mine.logits[keep], reference.logits[keep], case, "logits")


@pytest.mark.parametrize("case", [c for c in CASES if "t5" in c.name], ids=lambda case: case.name)
def test_the_same_numbers_with_their_roundings(case, tmp_path):
    theirs = zoo.fresh_oracle(case)
    with torch.no_grad():  # T5 scales no scores but its queries: else softmax blows roundings up
        for name, parameter in theirs.named_parameters():
            parameter.mul_(theirs.config.d_kv**-0.5 if name.endswith("Attention.q.weight") else 1)
    ours = af.load(zoo.on_disk(theirs, tmp_path))
    zoo.compare_as_it_is(case, ours, theirs, zoo.batch(case, theirs, "none"))


def test_dropout_stands_where_theirs_does():
    bart = read_config(BartConfig(
        dropout=0.1, attention_dropout=0.2, activation_dropout=0.3, classifier_dropout=0.4
    ).to_dict(), architecture="BartForSequenceClassification")[0]  # fmt: skip
    for stack in (bart.encoder, bart.decoder):
        block = stack.blocks[0]
        assert (stack.dropout, stack.final_dropout, block.dropout) == (0.1, 0.0, 0.1)
        assert (block.attention.dropout, block.feed.dropout) == (0.2, 0.3)
    assert bart.decoder.blocks[0].cross.dropout == 0.2
    assert bart.head.dropout == 0.4
    t5, _ = read_config(T5Config(dropout_rate=0.2).to_dict(), architecture="T5Model")
    for stack in (t5.encoder, t5.decoder):
        block = stack.blocks[0]
        parts = (stack, block, block.attention, block.feed, block.cross or block)
        assert [part.dropout for part in parts] == [0.2] * 5
        assert stack.final_dropout == 0.2


# --- which tables are one, and what scales them ---------------------------------------------------


@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "unscaled"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_transformers_reads_each_output_of_t5_as_it_is(family, tied, scaled, tmp_path):
    fields = {**T5, "model_type": family, "feed_forward_proj": "gated-gelu"}
    config, _ = read_config(fields)
    config = replace(config, head=LMHead(tied, scale=48**-0.5 if scaled else None))
    model = loud(config, 3)
    if family == "mt5" and scaled:
        with pytest.raises(CheckpointError, match="scales its output, and MT5 never does"):
            af.save(model, tmp_path, family="mt5")
        return
    af.save(model, tmp_path, family=family)
    kind = {"t5": T5ForConditionalGeneration, "mt5": MT5ForConditionalGeneration}[family]
    theirs = kind.from_pretrained(tmp_path, dtype=torch.float64)
    assert_twins(model, theirs)
    assert (theirs.lm_head.weight is theirs.shared.weight) == tied
    again = af.load(tmp_path)
    assert again.config == model.config
    assert_twins(again, theirs)
    theirs.save_pretrained(tmp_path / "theirs")  # in transformers 5's own dialect
    assert af.load(tmp_path / "theirs").config == model.config


@pytest.mark.parametrize(
    ("family", "shared", "tied"),
    [
        ("bart", True, True), ("bart", True, False), ("bart", False, False),
        ("mbart", True, False), ("mbart", False, False),
        ("marian", True, True), ("marian", True, False), ("marian", False, True),
        ("marian", False, False),
    ],
)  # fmt: skip
def test_transformers_reads_each_set_of_tables_as_it_is(family, shared, tied, tmp_path):
    fields = {**FAIRSEQ, "model_type": family}
    config, _ = read_config(fields)
    config = replace(config, head=replace(config.head, tied=tied), shared=shared)
    model = loud(config, 3)
    model.head.offset.copy_(torch.linspace(-2, 2, 97))
    af.save(model, tmp_path)
    kind = {"bart": BartForConditionalGeneration, "mbart": MBartForConditionalGeneration}
    theirs = kind.get(family, MarianMTModel).from_pretrained(tmp_path, dtype=torch.float64)
    assert_twins(model, theirs)
    inside = theirs.model
    assert (inside.encoder.embed_tokens.weight is inside.decoder.embed_tokens.weight) == shared
    assert (theirs.lm_head.weight is inside.decoder.embed_tokens.weight) == tied
    again = af.load(tmp_path)
    assert again.config == model.config
    assert_twins(again, theirs)


def test_bart_cannot_tie_its_output_to_the_decoder_alone():
    config, _ = read_config({**FAIRSEQ, "model_type": "bart"})
    with pytest.raises(CheckpointError, match="ties its output to the decoder's table alone"):
        write_config(replace(config, shared=False), family="bart")


@pytest.mark.parametrize("model", [BartForConditionalGeneration, MarianMTModel])
def test_four_tables_of_transformers_5_are_three_that_are_used(model, tmp_path):
    case = fairseq("untied", model, tie_word_embeddings=False)
    theirs = zoo.fresh_oracle(case)
    path = zoo.on_disk(theirs, tmp_path)
    assert "model.shared.weight" in zoo.files_of(path)
    ours = af.load(path)
    assert not ours.config.shared
    assert not ours.config.head.tied
    assert ours.provenance.fates["model.shared.weight"] == "never read; written back as it is"
    assert_twins(ours, theirs)
    zoo.compare_round_trip(case, path, tmp_path / "again")


def assert_twins(ours: Any, theirs: Any) -> None:
    ids = torch.arange(3, 80).view(1, -1)[:, :60]
    inputs = {"input_ids": ids, "decoder_input_ids": ids.flip(-1)[:, :50]}
    with torch.no_grad(), zoo.unrounded():
        a, b = ours(**inputs).logits, theirs(**inputs).logits
    assert b.abs().max() > 0.5, "too quiet to tell"
    assert (a - b).abs().max() <= 1e-10 * b.abs().max()


# --- dialects and old files -----------------------------------------------------------------------

OPUS = {
    "_name_or_path": "/tmp/Helsinki-NLP/opus-mt-en-de", "activation_dropout": 0.0,
    "activation_function": "swish", "add_bias_logits": False, "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"], "attention_dropout": 0.0, "bad_words_ids": [[58100]],
    "bos_token_id": 0, "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 512,
    "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0,
    "decoder_layers": 6, "decoder_start_token_id": 58100, "decoder_vocab_size": 58101,
    "dropout": 0.1, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 0,
    "extra_pos_embeddings": 58101, "force_bos_token_to_be_generated": False,
    "forced_eos_token_id": 0, "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "init_std": 0.02,
    "is_encoder_decoder": True, "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "max_length": 512, "max_position_embeddings": 512, "model_type": "marian",
    "normalize_before": False, "normalize_embedding": False, "num_beams": 6,
    "num_hidden_layers": 6, "pad_token_id": 58100, "scale_embedding": True,
    "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
    "torch_dtype": "float16", "transformers_version": "4.22.0.dev0", "use_cache": True,
    "vocab_size": 58101,
}  # fmt: skip
OLD_BART = {
    "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False,
    "add_final_layer_norm": False, "architectures": ["BartModel"], "attention_dropout": 0.1,
    "bos_token_id": 0, "classif_dropout": 0.1, "classifier_dropout": 0.0, "d_model": 1024,
    "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0,
    "decoder_layers": 12, "decoder_start_token_id": 2, "dropout": 0.1, "early_stopping": True,
    "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "encoder_layerdrop": 0.0,
    "encoder_layers": 12, "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
    "gradient_checkpointing": False, "init_std": 0.02, "is_encoder_decoder": True,
    "max_position_embeddings": 1024, "model_type": "bart", "no_repeat_ngram_size": 3,
    "normalize_before": False, "normalize_embedding": True, "num_beams": 4,
    "num_hidden_layers": 12, "pad_token_id": 1, "scale_embedding": False,
    "static_position_embeddings": False, "extra_pos_embeddings": 2, "output_past": False,
    "task_specific_params": {"summarization": {"length_penalty": 1.0}}, "prefix": " ",
    "torch_dtype": "float32", "transformers_version": "4.7.0.dev0", "use_cache": True,
    "vocab_size": 50265,
}  # fmt: skip
CC25 = {
    "add_bias_logits": False, "add_final_layer_norm": True, "normalize_before": True,
    "normalize_embedding": True, "scale_embedding": True, "static_position_embeddings": False,
    "model_type": "mbart", "architectures": ["MBartForConditionalGeneration"],
    "vocab_size": 250_027, "task_specific_params": {"translation_en_to_ro": {}},
}  # fmt: skip
OLD_T5 = {
    "architectures": ["T5WithLMHeadModel"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
    "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06,
    "model_type": "t5", "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True,
    "pad_token_id": 0, "relative_attention_num_buckets": 32, "task_specific_params": {"x": {}},
    "vocab_size": 32128,
}  # fmt: skip
V11 = {
    **OLD_T5, "architectures": ["T5ForConditionalGeneration"], "d_ff": 1024, "num_layers": 8,
    "num_decoder_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}  # fmt: skip
SMALL_MT5 = {
    **V11, "architectures": ["MT5ForConditionalGeneration"], "model_type": "mt5",
    "vocab_size": 250_112, "tokenizer_class": "T5Tokenizer", "torch_dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "preset"),
    [
        (OPUS, "marian-base"),
        ({**OLD_BART, "architectures": ["BartForConditionalGeneration"]}, "bart-large"),
        ({**OLD_BART, **CC25, "attention_dropout": 0.0, "activation_dropout": 0.0,
          "decoder_start_token_id": None}, "mbart-large"),
        (OLD_T5, "t5-small"),
        (V11, "t5-v1.1-small"),
        ({**V11, "dense_act_fn": "gelu_new", "is_gated_act": True}, "t5-v1.1-small"),
        (SMALL_MT5, "mt5-small"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_published_configs_are_the_presets(raw, preset):
    model, origin = read_config(raw)
    assert model == af.preset(preset)
    again, _ = write_config(model, origin)
    for name in ("task_specific_params", "forced_eos_token_id", "n_positions", "num_beams"):
        assert again.get(name) == raw.get(name), "fields that change nothing stay"
    before, after = (AutoConfig.for_model(**x).to_dict() for x in (raw, again))
    act = before.pop("activation_function", None), after.pop("activation_function", None)
    assert act[0] == act[1] or act == ("swish", "silu")
    old = {"normalize_before", "normalize_embedding", "add_final_layer_norm"}
    for name in (before.keys() | after.keys()) - old - {"static_position_embeddings"}:
        assert before.get(name) == after.get(name), name


@pytest.mark.parametrize(
    ("raw", "fields", "says"),
    [
        (OLD_BART, {"normalize_before": True}, "has normalize_before=True, which is not supp"),
        (OLD_BART, {"normalize_embedding": False}, "has normalize_embedding=False"),
        (OLD_BART, {"add_final_layer_norm": True}, "has add_final_layer_norm=True"),
        (OLD_BART, {"static_position_embeddings": True}, "has static_position_embeddings=True"),
        (OLD_BART, {"do_blenderbot_90_layernorm": True}, "has do_blenderbot_90_layernorm=True"),
        (OLD_BART, {"encoder_layerdrop": "0.1"}, "has encoder_layerdrop='0.1', which must be a n"),
        (OLD_BART, {"is_encoder_decoder": False}, "has is_encoder_decoder=False"),
        (OLD_BART, {"architectures": ["BartForCausalLM"]}, "supported are BartForConditionalG"),
        (OLD_BART, {"decoder_vocab_size": 99}, "has decoder_vocab_size=99, which allformer does"),
        (OPUS, {"static_position_embeddings": False}, "has static_position_embeddings=False"),
        (OPUS, {"normalize_embedding": True}, "has normalize_embedding=True"),
        ({**OLD_BART, **CC25}, {"normalize_before": False}, "has normalize_before=False"),
        ({**OLD_BART, **CC25}, {"add_final_layer_norm": False}, "has add_final_layer_norm=False"),
        (V11, {"feed_forward_proj": "gated-xielu"}, "has feed_forward_proj='gated-xielu'"),
        (V11, {"dense_act_fn": "xielu"}, "has dense_act_fn='xielu'"),
        (V11, {"relative_attention_num_buckets": 5}, "BucketBias.buckets=5 must be even"),
        (V11, {"is_encoder_decoder": False}, "has is_encoder_decoder=False"),
        (V11, {"is_decoder": True}, "has is_decoder=True"),
        (V11, {"rope_theta": 1.0}, "has rope_theta=1.0, which allformer does not know"),
    ],
)
def test_a_field_that_would_change_the_numbers_is_refused_by_name(raw, fields, says):
    with pytest.raises(CheckpointError, match=says):
        read_config({**raw, **fields})


def test_bart_has_three_labels_where_nothing_is_said_and_two_are_written_out():
    raw = {**OLD_BART, "architectures": ["BartForSequenceClassification"]}
    model, origin = read_config(raw)
    assert model.head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    two = replace(model, head=replace(model.head, labels=("no", "yes")))
    for more in ({}, {"num_labels": 3}, {"id2label": {"0": "a", "1": "b", "2": "c"}}):
        known = replace(origin, extras={**origin.extras, **more})
        assert BartConfig(**write_config(two, known)[0]).id2label == {0: "no", 1: "yes"}


def aliased(base: str, *more: str) -> Any:
    """As `.bin` files have it: each name of the tied table."""
    names = [f"{base}encoder.embed_tokens.weight", f"{base}decoder.embed_tokens.weight", *more]

    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return tensors | {name: tensors[f"{base}shared.weight"].clone() for name in names}

    return change


@pytest.mark.parametrize(
    ("name", "base"),
    [("t5 plain", ""), ("mt5 plain", ""), ("bart plain", "model."), ("marian plain", "model.")],
)
def test_files_with_every_name_of_a_tied_table_are_tied(name, base, written, tmp_path):
    path = rewrite(written[name], tmp_path / "old", aliased(base, "lm_head.weight"))
    assert af.load(path).config == af.load(written[name]).config
    assert read_config_of(path / "config.json") == af.load(path).config, "what `info` counts"
    check_forward(name, "right", path)
    one = rewrite(
        path,
        tmp_path / "one",
        lambda t: {k: v for k, v in t.items() if k != f"{base}shared.weight"},
    )
    assert af.load(one).config == af.load(path).config
    check_forward(name, "right", one)


def test_t5_ignores_distances_across_and_refuses_another_encoder_table(written, tmp_path):
    across = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    path = rewrite(written["t5 plain"], tmp_path / "old", lambda t: t | {across: torch.ones(12, 6)})
    assert "ignored" in af.load(path).provenance.fates[across]
    check_forward("t5 plain", "none", path)
    name = "encoder.embed_tokens.weight"
    bad = rewrite(path, tmp_path / "bad", lambda t: t | {name: t["shared.weight"] + 1})
    with pytest.raises(CheckpointError, match=r"encoder\.embed_tokens\.weight differs from"):
        af.load(bad)


@pytest.mark.parametrize("flag", [True, False])
def test_transformers_4_says_with_one_flag_whether_t5_is_scaled(flag, written, tmp_path):
    old = {"scale_decoder_outputs": None, "tie_word_embeddings": flag}
    drop = lambda raw: {k: v for k, v in raw.items() if v is not None}  # noqa: E731
    path = rewrite(
        written["t5 plain"], tmp_path / "old",
        lambda t: t | {"lm_head.weight": t["shared.weight"].flip(0)}, old,
    )  # fmt: skip
    raw = drop(json.loads((path / "config.json").read_text()))
    (path / "config.json").write_text(json.dumps(raw))
    ours = af.load(path)
    assert ours.config.head == LMHead(tied=False, scale=48**-0.5 if flag else None)
    assert_twins(ours, T5ForConditionalGeneration.from_pretrained(path, dtype=torch.float64))


@pytest.mark.parametrize("flag", [None, True, False])
def test_a_null_turns_off_what_transformers_turns_off(flag, written, tmp_path):
    path = rewrite(
        written["t5 plain"], tmp_path / "null", lambda t: t, {"scale_decoder_outputs": flag}
    )
    ours = af.load(path)
    assert ours.config.head.scale == (48**-0.5 if flag else None)
    assert_twins(ours, T5ForConditionalGeneration.from_pretrained(path, dtype=torch.float64))


def test_marian_files_with_stored_sinusoids_are_read_and_wrong_ones_refused(written, tmp_path):
    name = "model.encoder.embed_positions.weight"
    right = sinusoid(torch.arange(64), 48, layout="halves", dtype=torch.float64)
    good = rewrite(written["marian plain"], tmp_path / "good", lambda t: t | {name: right.half()})
    check_forward("marian plain", "left", good)
    for i, wrong in enumerate((right.roll(1, 0), right[:60])):
        bad = rewrite(
            written["marian plain"], tmp_path / f"bad{i}", lambda t, x=wrong: t | {name: x}
        )
        with pytest.raises(CheckpointError, match=r"embed_positions\.weight is not what the conf"):
            af.load(bad)


@pytest.mark.parametrize("name", ["marian plain", "bart plain", "mbart plain"])
def test_a_file_may_lack_the_bias_of_the_logits(name, written, tmp_path):
    path = rewrite(
        written[name],
        tmp_path / "old",
        lambda t: (
            {k: v for k, v in t.items() if k != "final_logits_bias"}
            | {"model.encoder.version": torch.tensor([2.0])}
        ),
    )
    ours = af.load(path)
    assert not ours.config.head.offset
    theirs = zoo.fresh_oracle(BY_NAME[name])
    theirs.final_logits_bias.zero_()
    assert_twins(ours, theirs)
    af.save(ours, tmp_path / "again")
    assert "final_logits_bias" not in zoo.files_of(tmp_path / "again")


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("bart classes", "bart bare"), ("bart plain", "bart bare"), ("mbart answers", "mbart bare"),
        ("marian two vocabularies", "marian bare, two vocabularies"), ("t5 classes", "t5 bare"),
        ("t5 plain", "t5 bare"), ("t5 plain", "t5 encoder"), ("t5 tags", "t5 encoder"),
        ("t5 classes", "t5 encoder"),
    ],
)  # fmt: skip
def test_a_bare_model_can_be_taken_from_a_file_with_a_head(file, wanted, written):
    kind = BY_NAME[wanted].model
    case = replace(BY_NAME[file], model=kind, labels="none")
    ours = af.load(written[file], architecture=kind.__name__)
    theirs = kind.from_pretrained(written[file], dtype=torch.float64).eval()
    zoo.compare(case, ours, theirs, zoo.batch(case, theirs, "right"))


def test_an_untied_output_stays_behind_with_the_head(tmp_path, written):
    path = rewrite(
        written["t5 plain"], tmp_path / "untied",
        lambda t: t | {"lm_head.weight": t["shared.weight"].flip(0)},
    )  # fmt: skip
    model = af.load(path, architecture="T5Model")
    assert model.config.head is None
    assert "not asked for" in model.provenance.fates["lm_head.weight"]


def test_a_fresh_model_adds_nothing_to_its_logits():
    torch.use_deterministic_algorithms(True)  # fills what nobody initialises with NaN
    try:
        model = af.build(read_config({**FAIRSEQ, "model_type": "bart"})[0], seed=0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert model.head.offset.eq(0).all()
    assert all(p.isfinite().all() for p in model.parameters())


# --- our own models as Marian ---------------------------------------------------------------------


def talkative(config: Any, seed: int) -> Any:
    """Loud, with sentences that change from step to step and end (see `tests.models.restless`)."""
    model = loud(config, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.mul_(0.1)
            elif "embedding" in name:
                parameter.mul_(0.03)
            elif name.startswith("decoder") and name.endswith("out.weight"):
                parameter.mul_(0.3)
        bias = model.decoder.layers[-1].feed_norm.bias  # what every state has in common
        model.decoder.source.embedding.weight[EOS] += 0.6 * bias / bias.dot(bias)
    return model


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> tuple[Any, Any]:
    """original-tiny, its sinusoids rounded, and transformers' reading of what we wrote."""
    path, config = tmp_path_factory.mktemp("own"), af.preset("original-tiny")
    rounded = {
        side: replace(stack, position=replace(stack.position, rounded=True))
        for side, stack in config.stacks.items()
    }
    model = talkative(replace(config, **rounded), 1)
    af.save(model, path, family="marian")
    return model, MarianMTModel.from_pretrained(path, dtype=torch.float64).eval()


def own_batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(4, 1000, (6, 61), generator=torch.Generator().manual_seed(5))
    mask = right_padding([61, 48, 30, 12, 5, 1], 61)
    return ids.masked_fill(mask == 0, PAD), mask


def test_a_model_of_ours_is_the_same_in_transformers(own):
    ours, theirs = own
    ids, mask = own_batch()
    labels = ids.flip(-1).masked_fill(ids.flip(-1) == PAD, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    with torch.no_grad():
        a, b = ours(**inputs), theirs(**inputs)
    assert (a.logits - b.logits).abs().max() <= 1e-10 * b.logits.abs().max()
    assert abs(a.loss - b.loss) <= 1e-10 * b.loss


def said(sequence: torch.Tensor) -> list[int]:
    ids = sequence[1:].tolist()
    return ids[: ids.index(EOS)] if EOS in ids else ids


@pytest.mark.parametrize("beams", [1, 4])
def test_a_model_of_ours_translates_the_same_in_transformers(own, beams):
    ours, theirs = own
    ids, mask = own_batch()
    found = search(ours, ids, mask, max_new_tokens=20, num_beams=beams)
    want = theirs.generate(
        ids, attention_mask=mask, max_new_tokens=20, num_beams=beams, do_sample=False,
        suppress_tokens=[PAD, BOS],  # ours never says these
    )  # fmt: skip
    assert want[:, 0].tolist() == [BOS] * 6
    assert found.ids == [said(row) for row in want]
    assert len({tuple(row) for row in found.ids}) >= 5
    assert 0 < sum(found.ended) < 6


def test_what_marian_says_of_a_model_of_ours():
    model = transformer(
        32, 4, 48, 2, vocab=50, target_vocab=40, decoder_layers=3, dropout=0.3,
        attention_dropout=0.2, feed_dropout=0.1, act="gelu", layout="halves",
    )  # fmt: skip
    raw, _ = write_config(model)
    assert raw["model_type"] == "marian"
    theirs = MarianConfig(**raw)
    assert (theirs.dropout, theirs.attention_dropout, theirs.activation_dropout) == (0.3, 0.2, 0.1)
    assert (theirs.vocab_size, theirs.decoder_vocab_size) == (50, 40)
    assert not theirs.share_encoder_decoder_embeddings
    assert not theirs.tie_word_embeddings
    assert (theirs.encoder_layers, theirs.decoder_layers) == (2, 3)
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (PAD, BOS, EOS)
    assert theirs.decoder_start_token_id == BOS
    assert theirs.forced_eos_token_id is None
    assert theirs.scale_embedding


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"norm_at": "pre"}, "marian: is pre-norm, and Marian is post-norm only"),
        ({"layout": "interleaved"}, "marian: has sines and cosines in turn, and Marian all sines"),
        ({"head": LMHead(bias=True)}, "marian: has a trained bias on its output"),
        ({"head": LMHead(scale=2.0)}, r"marian: cannot say it: it would read head\.scale=None for"),
    ],
)
def test_what_marian_cannot_say_is_told(changes, says, tmp_path):
    config = transformer(16, 2, 20, 1, vocab=30, **{"layout": "halves", **changes})
    with pytest.raises(CheckpointError, match=says):
        af.save(af.build(config, seed=0), tmp_path, family="marian")


# --- counts ---------------------------------------------------------------------------------------

COUNTS = {
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-small": 76_961_152,
    "mt5-small": 300_176_768,
    "mt5-base": 582_401_280,
    "mt5-large": 1_229_581_312,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
    "mbart-large": 610_851_840,
    "mbart-large-50": 610_879_488,
}
PRESETS = [p for p in af.presets() if p.startswith(("t5", "mt5", "bart", "mbart", "marian"))]


@pytest.mark.parametrize("name", COUNTS)
def test_presets_have_the_published_number_of_parameters(name):
    config = af.preset(name)
    assert af.count(config).parameters == COUNTS[name]
    if "bart" in name:
        assert af.count(replace(config, head=None)).parameters == COUNTS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_transformers_models_of_the_same_size(name):
    config = af.preset(name)
    raw, origin = write_config(config, family="mt5" if "mt5" in name else None)
    assert name.startswith(origin.family)
    with torch.device("meta"):
        theirs = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**raw))
    assert raw["architectures"] == [type(theirs).__name__]
    count = sum(p.numel() for p in theirs.parameters())
    if not config.head.tied:
        count += config.decoder.source.vocab * config.decoder.dim  # transformers ties a fresh one
    if origin.family == "marian":
        count -= 2 * 512 * 512  # it counts its sinusoids
    assert af.count(config).parameters == count
