"""BERT, RoBERTa and ALBERT against transformers: loud, fp64, disk to disk."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)

import allformer as af
from allformer.config import EncoderOnly, Learned, LMHead, Pool
from allformer.errors import CheckpointError
from allformer.families import albert as albert_family
from allformer.families.config_json import read_config, write_config
from tests.parity import zoo
from tests.parity.zoo import Case, rewrite

SIZES = {
    "vocab_size": 83, "hidden_size": 21, "num_hidden_layers": 3, "num_attention_heads": 3,
    "intermediate_size": 34, "max_position_embeddings": 67, "type_vocab_size": 3,
}  # fmt: skip


def bert(**more):
    return functools.partial(BertConfig, **{**SIZES, **more})


def roberta(**more):
    return functools.partial(RobertaConfig, **{**SIZES, **more})


def albert(**more):
    return functools.partial(AlbertConfig, **{**SIZES, "embedding_size": 13, **more})


BARE = {"add_pooling_layer": False}
REGRESSION = {"num_labels": 1}
MEASURES = {"num_labels": 3, "problem_type": "regression"}
SEVERAL = {"num_labels": 4, "problem_type": "multi_label_classification"}
UNTIED = {"tie_word_embeddings": False}

CASES = [
    Case("Bert", BertModel, bert(), labels="none"),
    Case("Bert without pooler", BertModel, bert(), labels="none", options=BARE),
    Case("Bert, no padding id", BertModel, bert(pad_token_id=None), labels="none"),
    Case("Bert words", BertForMaskedLM, bert(hidden_act="silu", layer_norm_eps=1e-2)),
    Case("Bert words untied", BertForMaskedLM, bert(hidden_act="gelu_new", **UNTIED)),
    Case("Bert writes", BertLMHeadModel, bert(is_decoder=True)),
    Case("Bert writes untied", BertLMHeadModel, bert(is_decoder=True, hidden_act="relu", **UNTIED)),
    Case("Bert pair", BertForPreTraining, bert(pad_token_id=5), labels="pretrain"),
    Case("Bert pair untied", BertForPreTraining, bert(**UNTIED, num_labels=7), labels="pretrain"),
    Case("Bert next", BertForNextSentencePrediction, bert(), labels="class"),
    Case("Bert classes", BertForSequenceClassification,
         bert(num_labels=5, classifier_dropout=0.3), labels="class"),
    Case("Bert regression", BertForSequenceClassification, bert(**REGRESSION), labels="class"),
    Case("Bert several", BertForSequenceClassification, bert(**SEVERAL), labels="class"),
    Case("Bert tokens", BertForTokenClassification,
         bert(num_labels=6, hidden_act="relu"), labels="token"),
    Case("Bert span", BertForQuestionAnswering, bert(num_hidden_layers=1), labels="span"),
    Case("Roberta", RobertaModel, roberta(type_vocab_size=1), labels="none"),
    Case("Roberta without pooler", RobertaModel, roberta(), labels="none", options=BARE),
    Case("Roberta words", RobertaForMaskedLM, roberta(hidden_act="relu", layer_norm_eps=1e-2)),
    Case("Roberta words untied", RobertaForMaskedLM, roberta(pad_token_id=0, **UNTIED)),
    Case("Roberta classes", RobertaForSequenceClassification,
         roberta(num_labels=5, pad_token_id=4, classifier_dropout=0.0), labels="class"),
    Case("Roberta measures", RobertaForSequenceClassification, roberta(**MEASURES), labels="class"),
    Case("Roberta tokens", RobertaForTokenClassification, roberta(num_labels=6), labels="token"),
    Case("Roberta span", RobertaForQuestionAnswering, roberta(), labels="span"),
    Case("Albert", AlbertModel, albert(), labels="none"),
    Case("Albert without pooler", AlbertModel, albert(embedding_size=21), labels="none",
         options=BARE),
    Case("Albert of its own layers", AlbertModel, albert(num_hidden_groups=3), labels="none"),
    Case("Albert words", AlbertForMaskedLM,
         albert(num_hidden_layers=5, num_hidden_groups=2, hidden_act="gelu")),
    Case("Albert words untied", AlbertForMaskedLM,
         albert(num_hidden_layers=2, num_hidden_groups=2, inner_group_num=2, **UNTIED)),
    Case("Albert pair", AlbertForPreTraining, albert(inner_group_num=2), labels="pretrain"),
    Case("Albert classes", AlbertForSequenceClassification,
         albert(num_labels=5, num_hidden_layers=4, num_hidden_groups=3, inner_group_num=2,
                classifier_dropout_prob=0.2), labels="class"),
    Case("Albert several", AlbertForSequenceClassification, albert(**SEVERAL), labels="class"),
    Case("Albert tokens", AlbertForTokenClassification, albert(num_labels=6), labels="token"),
    Case("Albert span", AlbertForQuestionAnswering, albert(embedding_size=40), labels="span"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("encoders"))


def check_forward(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    with torch.no_grad():
        zoo.compare(case, af.load(path), theirs, zoo.batch(case, theirs, side))


def check_training(name: str, side: str, path: Path) -> None:
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.with_labels(case, theirs, zoo.batch(case, theirs, side))
    rows, make = len(inputs["input_ids"]), torch.Generator().manual_seed(3)
    if theirs.config.problem_type == "multi_label_classification":
        shape = (rows, theirs.config.num_labels)
        inputs["labels"] = torch.randint(0, 2, shape, generator=make).double()
    elif theirs.config.problem_type == "regression" or theirs.config.num_labels == 1:
        shape = (rows, theirs.config.num_labels)[: theirs.config.num_labels]
        inputs["labels"] = torch.randn(shape, generator=make, dtype=torch.float64)
    zoo.compare_training(case, af.load(path), theirs, inputs)


@pytest.mark.every(2)
@pytest.mark.parametrize("side", ["none", "right", "left"])
@each
def test_the_same_numbers(case, side, written):
    check_forward(case.name, side, written[case.name])


@pytest.mark.every(2)
@pytest.mark.parametrize("name", [c.name for c in CASES if c.labels != "none"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_same_training(name, side, written):
    check_training(name, side, written[name])


@each
def test_the_round_trip_changes_no_bit(case, written, tmp_path):
    zoo.compare_round_trip(case, written[case.name], tmp_path)


# --- inputs ---------------------------------------------------------------------------------------


def check_padding_by_id(path: Path) -> None:
    """RoBERTa numbers ids, not the mask: padding ids within a text, and a mask that hides words."""
    theirs = zoo.oracle(BY_NAME["Roberta"])
    inputs = zoo.batch(BY_NAME["Roberta"], theirs, "right")
    inputs["input_ids"][0, 5:9] = theirs.config.pad_token_id
    inputs["attention_mask"][1, :20] = 0
    ours, keep = af.load(path), inputs["attention_mask"].bool()
    with torch.no_grad():
        mine, reference = ours(**inputs), theirs(**inputs)
        eager = ours(**inputs, kernel="eager")
    for out in (mine, eager):
        zoo.close(out.last_hidden_state[keep], reference.last_hidden_state[keep],
                  BY_NAME["Roberta"], "states")  # fmt: skip
        zoo.close(out.pooler_output, reference.pooler_output, BY_NAME["Roberta"], "pooled")


def test_roberta_numbers_the_ids_that_are_not_padding(written):
    check_padding_by_id(written["Roberta"])


@pytest.mark.parametrize("name", ["Bert", "Roberta", "Albert"])
@pytest.mark.parametrize("side", ["none", "right"])
def test_given_positions_mean_what_they_mean_in_transformers(name, side, written):
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.batch(case, theirs, side)
    order = torch.randperm(66, generator=torch.Generator().manual_seed(4))[:61]
    inputs["position_ids"] = order.expand(inputs["input_ids"].shape)
    with torch.no_grad():
        zoo.compare(case, af.load(written[name]), theirs, inputs)


@pytest.mark.parametrize("name", ["Bert", "Roberta", "Albert"])
def test_token_types_are_the_first_where_none_are_given(name, written):
    case = BY_NAME[name]
    theirs = zoo.oracle(case)
    inputs = zoo.batch(case, theirs, "right")
    del inputs["token_type_ids"]
    with torch.no_grad():
        zoo.compare(case, af.load(written[name]), theirs, inputs)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_cache": False}], ids=str)
def test_a_bert_that_looks_back_writes_what_transformers_writes(options, written):
    theirs, ours = zoo.oracle(BY_NAME["Bert writes"]), af.load(written["Bert writes"])
    inputs = zoo.batch(BY_NAME["Bert writes"], theirs, "left")
    inputs = {name: inputs[name][:, -20:] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 12, "do_sample": False, **options}
    with torch.no_grad():
        mine, hers = ours.generate(**inputs, **options), theirs.generate(**inputs, **options)
    assert mine.tolist() == hers.tolist()
    assert len(set(mine[0, 20:].tolist())) > 2


def test_a_bert_that_writes_must_look_back():
    raw = {"model_type": "bert", "architectures": ["BertLMHeadModel"]}
    with pytest.raises(CheckpointError, match="is_decoder=None, with which a BertLMHeadModel look"):
        read_config(raw)


# --- files of older versions ----------------------------------------------------------------------


def old_bert(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As Google's BERT was published: TensorFlow's names of norms, and more heads than one."""
    out = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in tensors.items()
    }
    out["bert.embeddings.position_ids"] = torch.arange(67)[None]
    out["bert.embeddings.token_type_ids"] = torch.zeros(1, 67).long()
    out["bert.pooler.dense.weight"] = torch.ones(21, 21).double()
    out["bert.pooler.dense.bias"] = torch.zeros(21).double()
    out["cls.seq_relationship.weight"] = torch.zeros(2, 21).double()
    out["cls.seq_relationship.bias"] = torch.zeros(2).double()
    out["cls.predictions.decoder.weight"] = tensors[
        "bert.embeddings.word_embeddings.weight"
    ].clone()
    out["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    return out


def test_bert_as_it_was_published_is_read(written, tmp_path):
    path = rewrite(written["Bert words"], tmp_path / "old", old_bert)
    check_forward("Bert words", "right", path)
    fates = af.load(path).provenance.fates
    assert fates["cls.seq_relationship.bias"] == "ignored: the next-sentence head"
    assert fates["bert.pooler.dense.weight"] == "ignored: its head reads no pooler"
    assert fates["cls.predictions.decoder.bias"] == "equal to cls.predictions.bias"
    assert fates["bert.embeddings.LayerNorm.gamma"] == "encoder.source.norm.weight"


@pytest.mark.parametrize("architecture", ["BertModel", "BertForPreTraining"])
def test_another_head_can_be_taken_from_a_published_bert(architecture, written, tmp_path):
    path = rewrite(written["Bert words"], tmp_path / "old", old_bert)
    model = af.load(path, architecture=architecture)
    assert model.config.pool == Pool()
    assert model.pool.dense.weight.eq(1).all()
    theirs = {"BertModel": BertModel, "BertForPreTraining": BertForPreTraining}[architecture]
    theirs = theirs.from_pretrained(path).double().eval()
    case = BY_NAME["Bert"]
    with torch.no_grad():
        zoo.compare(case, model, theirs, zoo.batch(case, theirs, "right"))


def test_roberta_and_albert_files_of_older_versions_are_read(written, tmp_path):
    def old_roberta(tensors):
        return tensors | {
            "roberta.embeddings.position_ids": torch.arange(67)[None],
            "roberta.embeddings.token_type_ids": torch.zeros(1, 67).long(),
            "lm_head.decoder.weight": tensors["roberta.embeddings.word_embeddings.weight"].clone(),
            "lm_head.decoder.bias": tensors["lm_head.bias"].clone(),
            "roberta.pooler.dense.weight": torch.ones(21, 21).double(),
            "roberta.pooler.dense.bias": torch.ones(21).double(),
        }

    def old_albert(tensors):
        return tensors | {
            "albert.embeddings.position_ids": torch.arange(67)[None],
            "albert.embeddings.token_type_ids": torch.zeros(1, 67).long(),
            "predictions.decoder.weight": tensors["albert.embeddings.word_embeddings.weight"] + 0.0,
            "predictions.decoder.bias": tensors["predictions.bias"].clone(),
            "albert.pooler.weight": torch.ones(21, 21).double(),
            "albert.pooler.bias": torch.ones(21).double(),
            "sop_classifier.classifier.weight": torch.ones(2, 21).double(),
            "sop_classifier.classifier.bias": torch.ones(2).double(),
        }

    path = rewrite(written["Roberta words"], tmp_path / "roberta", old_roberta)
    check_forward("Roberta words", "right", path)
    path = rewrite(written["Albert words"], tmp_path / "albert", old_albert)
    check_forward("Albert words", "right", path)


HEADS = [("Bert", "cls.predictions"), ("Roberta", "lm_head"), ("Albert", "predictions")]


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_a_tied_head_with_two_biases_is_refused(family, head, written, tmp_path):
    path = rewrite(
        written[f"{family} words"],
        tmp_path / "apart",
        lambda t: t | {f"{head}.decoder.bias": t[f"{head}.bias"] + 1},
    )
    with pytest.raises(CheckpointError, match=rf"{head}\.decoder\.bias differs from {head}\.bias"):
        af.load(path)


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_an_untied_head_adds_the_decoders_bias_and_keeps_the_other(family, head, written, tmp_path):
    path = written[f"{family} words untied"]
    model, tensors = af.load(path), zoo.files_of(path)
    assert model.head.bias.equal(tensors[f"{head}.decoder.bias"])
    assert not model.head.bias.equal(tensors[f"{head}.bias"])
    assert model.provenance.aside.keys() == {f"{head}.bias"}
    assert model.provenance.fates[f"{head}.bias"] == "never read; written back as it is"
    # transformers 4 had one tensor of two names, also untied, and wrote it once
    old = rewrite(path, tmp_path / "old", lambda t: {k: v for k, v in t.items()
                                                     if k != f"{head}.decoder.bias"})  # fmt: skip
    model = af.load(old)
    assert model.head.bias.equal(tensors[f"{head}.bias"])
    af.save(model, tmp_path / "new")
    again = zoo.files_of(tmp_path / "new")
    assert again[f"{head}.decoder.bias"].equal(tensors[f"{head}.bias"])
    assert not again[f"{head}.bias"].any()


def test_the_number_of_labels_counts_where_their_names_are_others(written, tmp_path):
    two = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
    count = zoo.oracle(BY_NAME["Bert classes"]).config.num_labels
    said = {**two, "num_labels": count}
    path = rewrite(written["Bert classes"], tmp_path / "said", lambda t: t, said)
    check_forward("Bert classes", "right", path)
    names = BertForSequenceClassification.from_pretrained(path).config.id2label
    assert af.load(path).config.head.labels == tuple(names.values())
    path = rewrite(written["Bert classes"], tmp_path / "unsaid", lambda t: t, two)
    with pytest.raises(CheckpointError, match=f"head has {count} outputs where .* tells of 2"):
        af.load(path)


def test_a_file_with_other_positions_than_its_config_is_refused(written, tmp_path):
    name = "embeddings.position_ids"
    path = rewrite(
        written["Bert"], tmp_path / "odd", lambda t: t | {name: torch.ones(1, 67).long()}
    )
    with pytest.raises(CheckpointError, match=r"embeddings\.position_ids is not what the config"):
        af.load(path)


# --- config.json ----------------------------------------------------------------------------------

CHINESE = {  # bert-base-chinese, in small
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi", "gradient_checkpointing": False, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 24, "initializer_range": 0.02,
    "intermediate_size": 48, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "bert", "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0,
    "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
    "position_embedding_type": "absolute", "torch_dtype": "float32", "type_vocab_size": 2,
    "transformers_version": "4.8.2", "use_cache": True, "vocab_size": 99, "is_decoder": False,
    "task_specific_params": None, "pruned_heads": {},
}  # fmt: skip
SQUAD = {  # deepset/roberta-base-squad2, in small
    "architectures": ["RobertaForQuestionAnswering"], "model_type": "roberta", "bos_token_id": 0,
    "eos_token_id": 2, "pad_token_id": 1, "hidden_size": 24, "num_attention_heads": 4,
    "num_hidden_layers": 2, "intermediate_size": 48, "language": "english", "name": "Roberta",
    "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "type_vocab_size": 1,
    "vocab_size": 99, "gradient_checkpointing": False,
}  # fmt: skip
V2 = {  # albert-base-v2, in small
    "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
    "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 12,
    "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu_new", "hidden_dropout_prob": 0,
    "hidden_size": 24, "initializer_range": 0.02, "inner_group_num": 1, "intermediate_size": 48,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "albert",
    "net_structure_type": 0, "num_attention_heads": 4, "num_hidden_groups": 1,
    "num_hidden_layers": 2, "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2,
    "vocab_size": 99,
}  # fmt: skip


@pytest.mark.parametrize("raw", [CHINESE, SQUAD, V2], ids=lambda raw: raw["model_type"])
def test_published_configs_are_read_and_written_back_field_by_field(raw):
    model, origin = read_config(raw)
    assert isinstance(model, EncoderOnly)
    again, _ = write_config(model, origin)
    assert {name: again[name] for name in raw} == raw
    plain, _ = write_config(model)
    assert read_config(plain)[0] == model


@pytest.mark.parametrize(
    ("raw", "kind"), [(CHINESE, BertConfig), (SQUAD, RobertaConfig), (V2, AlbertConfig)]
)
def test_absent_fields_have_transformers_defaults(raw, kind):
    short = {"architectures": raw["architectures"], "model_type": raw["model_type"]}
    whole = {**kind().to_dict(), **short}
    assert read_config(short)[0] == read_config(whole)[0]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (CHINESE | {"is_decoder": True}, "has is_decoder=True, which is not supported"),
        (CHINESE | {"add_cross_attention": True}, "has add_cross_attention=True"),
        (CHINESE | {"position_embedding_type": "relative_key"}, "'relative_key'.*'absolute'"),
        (CHINESE | {"hidden_act": "gelu_10"}, "hidden_act='gelu_10', which is not known"),
        (CHINESE | {"hidden_size": 25}, "heads=4, which must divide Stack.dim=25"),
        (CHINESE | {"embedding_size": 12}, "has embedding_size=12, which allformer does not know"),
        (CHINESE | {"pruned_heads": {"0": [1]}}, "has pruned_heads="),
        (
            CHINESE | {"architectures": ["BertForRegression"]},
            "supported are BertModel, BertForMasked",
        ),
        (SQUAD | {"pad_token_id": None}, "no pad_token_id within the vocabulary"),
        (SQUAD | {"max_position_embeddings": 2}, "Learned.length=0"),
        (V2 | {"num_hidden_groups": 3}, r"num_hidden_groups=3 for num_hidden_layers=2.*1 … 2"),
        (V2 | {"embedding_size": 0}, "embedding_size=0, which must be a whole number from 1"),
    ],
)
def test_what_would_change_the_numbers_is_refused_by_name(raw, says):
    with pytest.raises(CheckpointError, match=says):
        read_config(raw)


def test_a_changed_model_is_written_as_it_is_now():
    model, origin = read_config({**CHINESE, "architectures": ["BertForSequenceClassification"],
                                 "id2label": {"0": "no", "1": "yes"}, "num_labels": 2})  # fmt: skip
    assert model.head.labels == ("no", "yes")
    changed = replace(model, head=replace(model.head, labels=("a", "b", "c"), dropout=0.5))
    raw, _ = write_config(changed, origin)
    assert raw["id2label"] == {"0": "a", "1": "b", "2": "c"}
    assert raw["classifier_dropout"] == 0.5
    assert "num_labels" not in raw
    assert raw["pooler_type"] == "first_token_transform"


def test_a_next_sentence_model_stays_one(written, tmp_path):
    model = af.load(written["Bert next"])
    assert model.provenance.architecture == "BertForNextSentencePrediction"
    af.save(model, tmp_path)
    assert "cls.seq_relationship.weight" in zoo.files_of(tmp_path)
    assert BertForNextSentencePrediction.from_pretrained(tmp_path).config.architectures == [
        "BertForNextSentencePrediction"
    ]


# --- ALBERT's groups ------------------------------------------------------------------------------


def test_albert_deals_its_layers_out_to_groups():
    assert albert_family.share(12, 1, 1) == (0,) * 12
    assert albert_family.share(5, 2, 1) == (0, 0, 0, 1, 1)
    assert albert_family.share(2, 2, 2) == (2, 0, 3, 1)


@pytest.mark.every(3)
@pytest.mark.parametrize("layers", range(1, 14))
def test_any_number_of_groups_is_told_by_the_tree(layers):
    for groups in range(1, layers + 1):
        for inner in (1, 2, 3):
            raw = V2 | {"num_hidden_layers": layers, "num_hidden_groups": groups}
            raw |= {"inner_group_num": inner}
            model, _ = read_config(raw)
            assert len(model.encoder.blocks) == layers * inner
            assert albert_family.grouping(model.encoder) == (layers, groups, inner)
            assert {k: write_config(model)[0][k] for k in raw if "group" in k} == {
                "num_hidden_groups": groups, "inner_group_num": inner,
            }  # fmt: skip


# --- fresh models and presets ---------------------------------------------------------------------


@pytest.mark.parametrize("raw", [CHINESE, SQUAD, V2], ids=lambda raw: raw["model_type"])
def test_a_fresh_model_opens_in_transformers_and_gives_the_same_numbers(raw, tmp_path):
    bare = {"bert": "BertModel", "roberta": "RobertaModel", "albert": "AlbertModel"}
    config, _ = read_config({**raw, "architectures": [bare[raw["model_type"]]]})
    model = af.build(config, seed=0).double().eval()
    af.save(model, tmp_path)
    theirs = AutoModel.from_pretrained(tmp_path).eval()
    assert theirs.dtype == torch.float64
    ids = torch.randint(4, 99, (2, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mine, reference = model(ids), theirs(ids)
    torch.testing.assert_close(mine.pooler_output, reference.pooler_output, rtol=0, atol=1e-10)


COUNTS = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "roberta-base": 124_645_632,
    "albert-base-v2": 11_683_584,
}
ENCODERS = [name for name in af.presets() if name.split("-")[0] in ("bert", "roberta", "albert")]


@pytest.mark.parametrize("name", ENCODERS)
def test_presets_are_transformers_models_of_the_same_size(name):
    raw, _ = write_config(af.preset(name))
    config = {"bert": BertConfig, "roberta": RobertaConfig, "albert": AlbertConfig}
    with torch.device("meta"):
        theirs = AutoModel.from_config(config[raw["model_type"]](**raw))
    assert raw["architectures"] == [type(theirs).__name__]
    assert af.count(af.preset(name)).parameters == sum(p.numel() for p in theirs.parameters())


def test_presets_have_the_published_number_of_parameters():
    assert {name: af.count(af.preset(name)).parameters for name in COUNTS} == COUNTS


def test_presets_say_what_the_families_differ_in():
    roberta, albert = af.preset("roberta-base").encoder, af.preset("albert-xxlarge-v2").encoder
    assert roberta.position == Learned(512, offset=2, count="ids")
    assert roberta.source.types == 1
    assert albert.source.width == 128
    assert set(albert.share) == {0}
    assert albert.blocks[0].feed.act == "gelu_tanh"


def test_a_tree_of_none_of_them_says_why():
    model = replace(af.preset("bert-base"), head=LMHead())
    with pytest.raises(CheckpointError, match="bert: has no dense layer before the output"):
        write_config(model)
