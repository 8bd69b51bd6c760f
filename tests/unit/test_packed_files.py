"""compressed-tensors' packed words, worked out bit by bit, and what does not fit refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.core.model import AnyModel
from allformer.core.quantise import quantise
from allformer.core.quantised import Quantised, is_quantised, pack
from allformer.errors import CheckpointError, ConfigError
from allformer.families import FAMILIES, llama
from tests.loud import make_loud

UP = "model.layers.0.mlp.up_proj"


def small() -> AnyModel:
    tree = FAMILIES["llama"].make({**llama.USUAL, **llama.sizes(32, 1, 4, 2, 44, 50, 64)})
    return make_loud(af.build(tree, seed=0)).eval()


def words_of(q: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers of a row, the first in the lowest bits, with half their range added."""
    each = 32 // bits
    rows = []
    for row in (q.long() + 2 ** (bits - 1)).tolist():
        row += [0] * (-len(row) % each)
        parts = (row[i : i + each] for i in range(0, len(row), each))
        rows.append([sum(x << (bits * i) for i, x in enumerate(part)) for part in parts])
    words = torch.tensor(rows)
    return torch.where(words < 2**31, words, words - 2**32).to(torch.int32)


def check_words(folder: Path) -> None:
    """Saved words are those of the formula, and loaded they are the numbers again; of rows that do
    not fill their last word too, and with zero points."""
    for bits, adds in ((4, False), (8, False), (4, True), (8, True)):
        model = quantise(small(), f"int{bits}", group=22)
        layer = model.decoder.layers[0].feed.down  # 44 inputs: five and a half words
        assert isinstance(layer, Quantised)
        assert layer.scale.shape[1] == 2
        if adds:
            low, high = (0, 16) if bits == 4 else (-128, 128)
            q = torch.randint(low, high, (32, 44), generator=torch.Generator().manual_seed(1))
            zero = torch.arange(64).view(32, 2) % 16
            layer.packed = pack(q, bits, signed=False)
            layer.least = -zero * layer.scale
        af.save(model, folder)
        found = load_file(folder / "model.safetensors")
        stem = "model.layers.0.mlp.down_proj"
        numbers = layer.integers().long() - (8 if adds and bits == 4 else 0)
        assert torch.equal(found[f"{stem}.weight_packed"], words_of(numbers, bits))
        assert found[f"{stem}.weight_shape"].tolist() == [32, 44]
        if adds:
            middle = zero - (8 if bits == 4 else 0)
            expected = words_of(middle.t(), bits).t()
            assert torch.equal(found[f"{stem}.weight_zero_point"], expected)
        again = af.load(folder).decoder.layers[0].feed.down
        assert torch.equal(again.packed, layer.packed)
        torch.testing.assert_close(again.dense(torch.float32), layer.dense(torch.float32))


def test_words_are_packed_as_the_formula_has_them(tmp_path):
    check_words(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("few")
    af.save(quantise(small(), "int4", group=16), path)
    return path


def changed(written: Path, to: Path, tensors: dict | None = None, **config: object) -> Path:
    """A copy with some tensors (None: without it) and some of quantization_config changed."""
    found = {**load_file(written / "model.safetensors"), **(tensors or {})}
    save_file({name: x for name, x in found.items() if x is not None}, to / "model.safetensors")
    raw = json.loads((written / "config.json").read_text())
    raw["quantization_config"] |= config
    (to / "config.json").write_text(json.dumps(raw))
    return to


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({f"{UP}.weight_shape": None}, "no weight_shape of two sizes"),
        ({f"{UP}.weight_shape": torch.tensor([44, 30])}, "is no matrix of 32 inputs"),
        ({f"{UP}.weight_packed": torch.zeros(44, 3, dtype=torch.int32)}, "no matrix of 44 × 32"),
        ({f"{UP}.weight_scale": None}, "has no weight_scale"),
        ({f"{UP}.weight_scale": torch.ones(44, 5)}, "which is no matrix of 32 inputs"),
        ({f"{UP}.weight_scale": torch.ones(44, 0)}, "which is no matrix of 32 inputs"),
        ({f"{UP}.weight_scale": torch.ones(40, 2)}, "weight_scale has"),
        ({f"{UP}.weight_zero_point": torch.zeros(3, 9, dtype=torch.int32)}, "that fit it"),
        ({f"{UP}.weight_g_idx": torch.zeros(32, dtype=torch.int32)}, "groups go by activation"),
        (
            {"model.layers.0.self_attn.k_proj.weight_packed": None,
             "model.layers.0.self_attn.k_proj.weight": torch.ones(16, 32)},
            "q_proj packed and model.layers.0.self_attn.k_proj not",
        ),
        (
            {"model.embed_tokens.weight": None,
             "model.embed_tokens.weight_packed": torch.zeros(50, 4, dtype=torch.int32),
             "model.embed_tokens.weight_shape": torch.tensor([50, 32])},
            "embeddings and heads are read wide only",
        ),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(written, tmp_path, tensors, said):
    with pytest.raises(CheckpointError, match=said):
        af.load(changed(written, tmp_path, tensors))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "gptq"}, "quant_method='gptq'"),
        ({"format": "int-quantized", "config_groups": {"a": {"weights": {"type": "int"}}}},
         "format int-quantized"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme=.* weights alone are read"),
        ({"config_groups": ["x"]}, "which cannot be read"),
    ],
)  # fmt: skip
def test_another_way_of_quantising_is_refused_by_name(written, tmp_path, config, said):
    with pytest.raises(CheckpointError, match=said):
        af.load(changed(written, tmp_path, **config))


def test_a_bare_model_is_taken_out_of_one_with_a_head(written):
    bare, whole = af.load(written, architecture="LlamaModel"), af.load(written)
    ids = torch.arange(12).view(1, 12)
    with torch.no_grad():
        expected = whole(input_ids=ids).last_hidden_state
        torch.testing.assert_close(bare(input_ids=ids).last_hidden_state, expected)


def test_meta_accounts_for_every_key(written):
    model = af.load(written, device="meta")
    assert is_quantised(model)
    assert all(x.is_meta for x in model.state_dict().values())
    told = model.provenance.fates[f"{UP}.weight_packed"]
    assert told == "decoder.layers.0.feed.up.packed"


def test_convert_certifies_what_it_rounded_and_widens_it_again(written, tmp_path):
    af.save(small(), tmp_path / "wide")
    made = convert(tmp_path / "wide", tmp_path / "few", quantise="int4", group=16)
    assert made["sound"]
    assert made["quantised"] == {"kind": "int4", "group": 16, "calibrated_by_tokens": 0}
    assert made["weights"]["identical"]
    assert made["parameters"] == sum(p.numel() for p in small().parameters())
    again = convert(tmp_path / "few", tmp_path / "again", quantise="none")
    assert again["sound"]
    assert not is_quantised(af.load(tmp_path / "again"))
    with pytest.raises(ConfigError, match="belong to quantise="):
        convert(tmp_path / "wide", tmp_path / "x", group=16)
    with pytest.raises(ConfigError, match="quantised already"):
        convert(tmp_path / "few", tmp_path / "x", quantise="int8")
    with pytest.raises(ConfigError, match="makes a quantised model plain"):
        convert(tmp_path / "wide", tmp_path / "x", quantise="none")
