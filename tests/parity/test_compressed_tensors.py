"""Quantised checkpoints, disk to disk with transformers and the package compressed-tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import allformer as af
from allformer.core.quantise import quantise
from allformer.core.quantised import Quantised, is_quantised
from allformer.core.quantised_cpu import plain_products
from tests.loud import make_loud

compressed = pytest.importorskip("compressed_tensors")

IDS = torch.arange(48).view(2, 24) * 7 % 90 + 5
SCHEMES = {
    "int4, groups": {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True},
    "int4, groups, zero points": {
        "num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": False,
    },
    "int8, outputs": {"num_bits": 8, "strategy": "channel", "symmetric": True},
    "int8, groups, zero points": {
        "num_bits": 8, "group_size": 16, "strategy": "group", "symmetric": False,
    },
}  # fmt: skip


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return make_loud(transformers.LlamaForCausalLM(config)).eval()


def bart() -> Any:
    config = transformers.BartConfig(
        vocab_size=96, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=64,
    )  # fmt: skip
    return make_loud(transformers.BartForConditionalGeneration(config)).eval()


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=40, max_position_embeddings=64,
    )  # fmt: skip
    return make_loud(transformers.BertForMaskedLM(config)).eval()


def write_theirs(path: Path, weights: dict[str, Any]) -> None:
    """As llm-compressor ends: scales by the range of each group, then packed and saved."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams

    model = llama()
    group = {"targets": ["Linear"], "weights": weights}
    said = {"config_groups": {"group_0": group}, "ignore": ["lm_head"], "format": "pack-quantized"}
    apply_quantization_config(model, QuantizationConfig.model_validate(said), show_progress=False)
    for layer in model.modules():
        if hasattr(layer, "quantization_scheme"):
            args = layer.quantization_scheme.weights
            w = layer.weight.data.unflatten(1, (-1, args.group_size or layer.in_features))
            scale, zero = calculate_qparams(w.amin(-1), w.amax(-1), args)
            layer.weight_scale.data = scale
            if hasattr(layer, "weight_zero_point"):
                layer.weight_zero_point.data = zero.to(layer.weight_zero_point.dtype)
    compressor = ModelCompressor.from_pretrained_model(model, quantization_format="pack-quantized")
    compressor.compress_model(model)
    model.save_pretrained(path)
    compressor.update_config(str(path))


def theirs(path: Path, kind: type, dtype: torch.dtype = torch.float32) -> Tensor:
    """transformers' logits."""
    model: Any = kind
    model = model.from_pretrained(path, dtype=dtype).eval()
    with torch.no_grad():
        out: Tensor = model(**inputs(model.config.is_encoder_decoder)).logits
    return out


def ours(model: Any) -> Tensor:
    with torch.no_grad(), plain_products():
        out: Tensor = model(
            **inputs(hasattr(model, "encoder") and hasattr(model, "decoder"))
        ).logits
    return out


def inputs(both: bool) -> dict[str, Tensor]:
    return {"input_ids": IDS, "decoder_input_ids": IDS.flip(0)} if both else {"input_ids": IDS}


def check_theirs(path: Path, weights: dict[str, Any]) -> None:
    """What others wrote has the same logits here, and stays packed."""
    write_theirs(path, weights)
    model = af.load(path)
    layer = model.get_submodule("decoder.layers.1.attention.qkv")
    assert isinstance(layer, Quantised)
    assert layer.bits == weights["num_bits"]
    assert layer.group == weights.get("group_size", 64)
    assert (layer.least is None) == weights["symmetric"]
    expected = theirs(path, transformers.LlamaForCausalLM)
    torch.testing.assert_close(ours(model), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCHEMES)
def test_what_others_quantised_gives_the_same_logits(name, tmp_path):
    check_theirs(tmp_path, SCHEMES[name])


def test_what_others_wrote_is_written_back_byte_for_byte(tmp_path):
    for name in ("int4, groups, zero points", "int8, groups, zero points"):
        source, target = tmp_path / name / "a", tmp_path / name / "b"
        write_theirs(source, SCHEMES[name])
        af.save(af.load(source), target)
        before, after = (load_file(path / "model.safetensors") for path in (source, target))
        assert before.keys() == after.keys()
        for key, x in before.items():
            assert x.dtype == after[key].dtype
            assert torch.equal(x, after[key]), key


@pytest.mark.parametrize("kind", ["int4", "int8"])
@pytest.mark.parametrize("make", [llama, bart, bert])
def test_transformers_opens_what_we_quantised(kind, make, tmp_path):
    make().save_pretrained(tmp_path / "wide")
    model = quantise(af.load(tmp_path / "wide"), kind, group=16 if kind == "int4" else None)
    af.save(model, tmp_path / "few")
    expected = theirs(tmp_path / "few", type(make()))
    torch.testing.assert_close(ours(model), expected, rtol=1e-4, atol=1e-4)
    again = af.load(tmp_path / "few")
    assert is_quantised(again)
    assert torch.equal(ours(again), ours(model))


def test_half_precision_has_the_same_matrices_on_both_sides(tmp_path):
    llama().save_pretrained(tmp_path / "wide")
    few = tmp_path / "few"
    af.save(quantise(af.load(tmp_path / "wide", dtype=torch.bfloat16), "int4"), few)
    opened = transformers.LlamaForCausalLM.from_pretrained(few, dtype=torch.bfloat16)
    with torch.no_grad():
        opened(input_ids=IDS)  # it widens its layers at the first call
    layer = af.load(few).get_submodule("decoder.layers.0.feed.up")
    assert isinstance(layer, Quantised)
    assert layer.scale.dtype == torch.bfloat16
    wide = opened.get_submodule("model.layers.0.mlp.up_proj").weight
    assert torch.equal(layer.dense(torch.bfloat16), wide)


def test_config_json_names_the_layers_by_patterns(tmp_path):
    llama().save_pretrained(tmp_path / "wide")
    af.save(quantise(af.load(tmp_path / "wide"), "int4", group=64), tmp_path / "few")
    said = json.loads((tmp_path / "few" / "config.json").read_text())["quantization_config"]
    sizes = {g["weights"]["group_size"]: g["targets"] for g in said["config_groups"].values()}
    assert sizes.keys() == {None, 32}  # 64 inputs are one group of 64; 96 make three of 32
    assert sizes[32] == [r"re:^model\.layers\.\d+\.mlp\.down_proj$"]
    assert "re:^model\\.layers\\.\\d+\\.self_attn\\.q_proj$" in sizes[None]
