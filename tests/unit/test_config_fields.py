"""Every field of a config.json has a type, whether it is used or not, and a wrong one is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
import transformers as hf

from allformer.errors import CheckpointError
from allformer.families import FAMILIES
from allformer.families.config_json import read_config, write_config
from allformer.families.kinds import INERT, MOST_LAYERS, OBJECT, TEXT, WORDS
from tests.parity.make_transfo_xl import FILE


class OldConfig:
    """What transformers 4.35.2, the last to know this family, writes."""

    def to_dict(self) -> dict[str, Any]:
        return json.loads(FILE.read_text())["post"]["config"]  # type: ignore[no-any-return]


CONFIGS = {
    "bert": hf.BertConfig, "roberta": hf.RobertaConfig, "albert": hf.AlbertConfig,
    "gpt2": hf.GPT2Config, "llama": hf.LlamaConfig, "mistral": hf.MistralConfig,
    "marian": hf.MarianConfig, "bart": hf.BartConfig, "mbart": hf.MBartConfig, "t5": hf.T5Config,
    "mt5": hf.MT5Config, "big_bird": hf.BigBirdConfig, "longformer": hf.LongformerConfig,
    "led": hf.LEDConfig, "transfo-xl": OldConfig, "reformer": hf.ReformerConfig,
    "bigbird_pegasus": hf.BigBirdPegasusConfig, "vit": hf.ViTConfig, "clip": hf.CLIPConfig,
    "clip_text_model": hf.CLIPTextConfig, "clip_vision_model": hf.CLIPVisionConfig,
    "deit": hf.DeiTConfig, "dinov2": hf.Dinov2Config,
    "dinov2_with_registers": hf.Dinov2WithRegistersConfig,
    "siglip": hf.SiglipConfig, "siglip_text_model": hf.SiglipTextConfig,
    "siglip_vision_model": hf.SiglipVisionConfig,
    "imagegpt": hf.ImageGPTConfig,
    "yolos": hf.YolosConfig,
    "detr": lambda: hf.DetrConfig(
        use_timm_backbone=False, backbone_config=hf.ResNetConfig(out_features=["stage4"])
    ),
    "eomt": hf.EomtConfig,
    "whisper": hf.WhisperConfig,
    "encodec": hf.EncodecConfig,
    "mimi": hf.MimiConfig,
}  # fmt: skip


def said(family: str) -> dict[str, Any]:
    """All that transformers writes of a model, defaults included."""
    return {
        **CONFIGS[family]().to_dict(),
        "model_type": family,
        "torch_dtype": "float32",
        "num_labels": None,
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_writes_is_read(family):
    assert read_config(said(family))[1].family == family


# As published: SmolLM2, models tuned with unsloth, the first LLaMAs, distilbart, sentence encoders.
ELSEWHERE = {
    "llama": {
        "is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 2,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "unsloth_fixed": True,
        "unsloth_version": "2024.9", "max_sequence_length": 2048, "neftune_noise_alpha": 5,
        "_attn_implementation": "sdpa",
    },
    "bart": {
        "replacing_rate": 0, "student_encoder_layers": None, "student_decoder_layers": [0, 6],
        "save_step": 58, "max_new_tokens": 60,
    },
    "bert": {
        "sentence_transformers": {"version": "3.0"}, "model_name": "x", "mask_token_id": 103,
        "adapters": {"adapters": {}, "config_map": {}}, "model_max_length": 512,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", ELSEWHERE)
def test_what_other_programs_write_changes_nothing_and_is_kept(family):
    raw = {**said(family), **ELSEWHERE[family]}
    tree, known = read_config(raw)
    assert tree == read_config(said(family))[0]
    assert ELSEWHERE[family].items() <= write_config(tree, known)[0].items()
    with pytest.raises(CheckpointError, match="rope_interleaved=True"):
        read_config({**raw, "rope_interleaved": True})


@pytest.mark.parametrize("family", FAMILIES)
def test_an_object_where_none_belongs_is_refused_in_every_field(family):
    objects = {name for name, kind in INERT.items() if kind is OBJECT} | {"rope_parameters"}
    for name in said(family).keys() - objects:
        with pytest.raises(CheckpointError, match=rf"config\.json has .*{name}"):
            read_config({**said(family), name: {"odd": [1]}})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_where_none_belongs_is_refused_in_every_field(family):
    texts = {name for name, kind in INERT.items() if kind in (TEXT, WORDS)}
    texts |= {"pooler_type", "summary_type", "summary_activation", "early_stopping", "init"}
    for name in said(family).keys() - texts:
        with pytest.raises(CheckpointError, match=rf"config\.json has .*{name}"):
            read_config({**said(family), name: "abc"})


@pytest.mark.parametrize(
    ("family", "field", "value", "must_be"),
    [
        ("gpt2", "scale_attn_weights", "abc", "true or false"),
        ("gpt2", "n_layer", 10**12, f"a number of layers from 1 to {MOST_LAYERS:,}"),
        ("gpt2", "n_head", 0, "a whole number from 1"),
        ("gpt2", "n_embd", True, "a whole number from 1"),
        ("gpt2", "n_embd", 48.0, "a whole number from 1"),
        ("gpt2", "summary_use_proj", 3, "true or false"),
        ("bert", "layer_norm_eps", "1e-12", "a number"),
        ("bert", "layer_norm_eps", float("nan"), "a number"),
        ("bert", "num_labels", 10**9, "a number of classes from 1 to"),
        ("bert", "pooler_fc_size", "a", "a whole number"),
        ("bert", "architectures", "BertModel", "a list of texts"),
        ("bert", "architectures", [3], "a list of texts"),
        ("bert", "problem_type", ["regression"], "a text"),
        ("bert", "model_type", ["bert"], "a text"),
        ("bert", "eos_token_id", [1, "a"], "a token's id or a list of them"),
        ("albert", "inner_group_num", 10**9, "a number of layers"),
        ("t5", "num_decoder_layers", MOST_LAYERS + 1, "a number of layers"),
        ("llama", "rope_parameters", [1], "an object"),
        ("llama", "rope_parameters", {"rope_theta": "x"}, "a number"),
        ("llama", "rope_parameters", {"rope_type": "linear", "factor": None}, "lacks 'factor'"),
        ("llama", "hidden_size", 10**300, "a whole number from 1"),
    ],
)
def test_the_error_says_field_value_and_what_it_must_be(family, field, value, must_be):
    with pytest.raises(CheckpointError) as refused:
        read_config({**said(family), field: value})
    text = str(refused.value)
    assert must_be in text
    assert field in text or "rotary" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("bert", {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}),
        ("llama", {"eos_token_id": [1, 2], "pad_token_id": -1, "attention_dropout": 0}),
        ("gpt2", {"n_inner": None, "resid_pdrop": 1e-1, "summary_activation": None}),
        ("bart", {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0, "classif_dropout": 0.0}),
        ("bert", {"finetuning_task": "sst2", "early_stopping": "never", "torch_dtype": None}),
        ("bert", {"classifier_dropout": 0.2, "hidden_dropout_prob": 0,
                  "architectures": ["BertForSequenceClassification"]}),
    ],
)  # fmt: skip
def test_the_variants_of_real_files_are_read(family, fields):
    read_config({**said(family), **fields})
