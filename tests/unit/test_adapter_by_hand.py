"""PEFT's files written and read by hand: what they mean is computed here from its formulas.

V = W + s B A,  s = alpha / r or alpha / √r;  DoRA: m V / ‖V‖;  (IA)³: l ⊙ W x, or W (l ⊙ x)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import allformer as af
from allformer import tune
from allformer.errors import CheckpointError
from allformer.families import FAMILIES
from tests.loud import make_loud

WIDE = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
FIELDS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "bert": {"vocab_size": 50, "num_labels": 3, **WIDE},
    "bart": {
        "vocab_size": 50, "d_model": 24, "encoder_layers": 1, "decoder_layers": 3,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    },
    "vit": {"image_size": 8, "patch_size": 4, "num_labels": 3, **WIDE},
}  # fmt: skip
HEADS = {
    "bert": "BertForSequenceClassification",
    "bart": "BartForConditionalGeneration",
    "vit": "ViTForImageClassification",
}
BEFORE = "base_model.model."


def small(family: str) -> Any:
    """A small loud model of a family, in fp64."""
    from allformer.families.config_json import read_config

    raw = {"model_type": family, **FIELDS[family]}
    named = HEADS.get(family, next(iter(FAMILIES[family].architectures)))
    tree, _ = read_config(raw, (), architecture=named)
    return make_loud(af.build(tree).double(), tables=None).eval()


def says(model: Any) -> Tensor:
    inputs = {"input_ids": torch.arange(10).view(2, 5)}
    if "patch" in str(model.config.encoder.source if hasattr(model, "encoder") else ""):
        make = torch.Generator().manual_seed(1)
        inputs = {"pixel_values": torch.randn(2, 3, 8, 8, generator=make, dtype=torch.float64)}
    with torch.no_grad():
        logits: Tensor = model(**inputs).logits
    return logits


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def noise(*shape: int, seed: int = 0) -> Tensor:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=make, dtype=torch.float64)


@contextmanager
def on_disk(tensors: dict[str, Tensor], **fields: Any) -> Iterator[Path]:
    """An adapter's directory; fields that are left out have PEFT's defaults."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        save_file({f"{BEFORE}{key}": x for key, x in tensors.items()},
                  path / "adapter_model.safetensors")  # fmt: skip
        (path / "adapter_config.json").write_text(json.dumps(fields))
        yield path


def change(weight: Tensor, a: Tensor, b: Tensor, scale: float, m: Tensor | None = None) -> Tensor:
    """LoRA's matrix, DoRA's where there are lengths."""
    new = weight + scale * (b @ a)
    return new if m is None else new * (m / new.norm(dim=1))[:, None]


# --- read ----------------------------------------------------------------------------------------


def check_lora_read(stabilised: bool = False, dora: bool = False) -> None:
    model, wanted = small("gpt2"), small("gpt2")
    ranks_alphas = {
        ("transformer.h.0.attn.c_attn", "decoder.layers.0.attention.qkv"): (2, 5),
        ("transformer.h.0.mlp.c_proj", "decoder.layers.0.feed.down"): (3, 5),
        ("transformer.h.1.mlp.c_proj", "decoder.layers.1.feed.down"): (3, 9),
    }
    tensors: dict[str, Tensor] = {}
    for seed, ((module, path), (rank, alpha)) in enumerate(ranks_alphas.items()):
        layer = wanted.get_submodule(path)
        a, b = noise(rank, layer.in_features, seed=seed), noise(layer.out_features, rank, seed=9)
        m = 1 + noise(layer.out_features, seed=5).abs() if dora else None
        tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        if m is not None:
            tensors[f"{module}.lora_magnitude_vector"] = m
        scale = alpha / (math.sqrt(rank) if stabilised else rank)
        layer.weight.data = change(layer.weight.data, a, b, scale, m)
    fields = {"r": 2, "lora_alpha": 5, "use_rslora": stabilised, "use_dora": dora}
    patterns = {"rank_pattern": {"c_proj": 3}, "alpha_pattern": {r"1\.mlp\.c_proj": 9}}
    with on_disk(tensors, peft_type="LORA", **fields, **patterns) as path:
        af.load_adapter(model, path)
    same(says(model), says(wanted))


def check_parts_read() -> None:
    """One part of a fused product, its bias, and the head, on a model whose biases another has."""
    model, wanted = small("bert"), small("bert")
    module = "bert.encoder.layer.1.attention.self.value"
    a, b, bias = noise(8, 24), noise(24, 8, seed=1), noise(24, seed=2)
    head = {"classifier.weight": noise(3, 24, seed=3), "classifier.bias": noise(3, seed=4)}
    tune.apply(model, tune.BitFit(), "biases")
    for tensor in tune.adapter_state(model, "biases").values():
        tensor += 1.0
    layer = wanted.encoder.layers[1].attention.qkv
    layer.weight.data[48:] += b @ a  # alpha and r are 8 each, as PEFT has them
    layer.bias.data[48:] = bias
    wanted.head.out.weight.data, wanted.head.out.bias.data = head.values()
    tensors = {
        f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b,
        f"{module}.base_layer.bias": bias, **head,
    }  # fmt: skip
    with on_disk(tensors, peft_type="LORA", bias="lora_only", modules_to_save=["score"]) as path:
        af.load_adapter(model, path, name="lora")
    same(says(model), says(wanted))


def check_ia3_read() -> None:
    model, wanted = small("bert"), small("bert")
    module, keys, inner = "bert.encoder.layer.0", 1 + noise(24, 1), 1 + noise(1, 32)
    qkv, down = wanted.encoder.layers[0].attention.qkv, wanted.encoder.layers[0].feed.down
    qkv.weight.data[24:48] *= keys
    qkv.bias.data[24:48] *= keys[:, 0]
    down.weight.data *= inner
    tensors = {
        f"{module}.attention.self.key.ia3_l": keys, f"{module}.output.dense.ia3_l": inner,
    }  # fmt: skip
    with on_disk(tensors, peft_type="IA3", feedforward_modules=["output.dense"]) as path:
        af.load_adapter(model, path)
    same(says(model), says(wanted))


def check_older_names() -> None:
    """transformers 4 had ViT's modules under the names of its files, 5 has others."""
    wanted, a, b = small("vit"), noise(8, 24), noise(24, 8, seed=1)
    wanted.encoder.layers[0].attention.qkv.weight.data[:24] += b @ a
    for module in (
        "vit.encoder.layer.0.attention.attention.query",
        "vit.layers.0.attention.q_proj",
    ):
        model, lora = small("vit"), {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        with on_disk(lora, peft_type="LORA") as path:
            af.load_adapter(model, path)
            af.save_adapter(model, path)
            assert f"{BEFORE}vit.layers.0.attention.q_proj.lora_A.weight" in files(path)
        same(says(model), says(wanted))


def check_tied() -> None:
    """A head that is not the table it is tied to cannot be said; both are written alike."""
    model, module = small("gpt2"), "transformer.h.0.mlp.c_fc"
    lora = {f"{module}.lora_A.weight": noise(8, 24), f"{module}.lora_B.weight": noise(96, 8)}
    tables = {"transformer.wte.weight": noise(50, 24), "lm_head.weight": noise(50, 24)}
    with on_disk({**lora, **tables}, peft_type="LORA") as path:
        af.load_adapter(model, path)
        same(model.decoder.source.embedding.weight, noise(50, 24))
        af.save_adapter(model, path)
        written = files(path)
        same(written[f"{BEFORE}lm_head.weight"], written[f"{BEFORE}transformer.wte.weight"])
    tables["lm_head.weight"] = noise(50, 24, seed=1)
    with on_disk({**lora, **tables}, peft_type="LORA") as path, pytest.raises(CheckpointError):
        af.load_adapter(small("gpt2"), path)


def check_prefix_order() -> None:
    """Behind an encoder of L layers PEFT gives decoder layer i what stands in place 2 i mod L."""
    model, table = small("bart"), noise(2, 3 * 2 * 24)
    with on_disk(
        {}, peft_type="PREFIX_TUNING", num_virtual_tokens=2, task_type="SEQ_2_SEQ_LM"
    ) as path:
        save_file({"prompt_embeddings": table}, path / "adapter_model.safetensors")
        af.load_adapter(model, path)
        (mine,) = tune.adapter_state(model).values()
        same(mine, torch.cat([table.split(48, 1)[i] for i in (0, 2, 1)], 1))
        assert af.save_adapter(model, path) == "peft"
        same(files(path)["prompt_embeddings"], table)


def check_prompt_rows() -> None:
    """PEFT has as many vectors for a decoder, and never reads them."""
    model, table = small("bart"), noise(4, 24)
    with on_disk({}, peft_type="PROMPT_TUNING", num_virtual_tokens=2) as path:
        save_file({"prompt_embeddings": table}, path / "adapter_model.safetensors")
        af.load_adapter(model, path)
        (mine,) = tune.adapter_state(model).values()
        same(mine, table[:2])


# --- written -------------------------------------------------------------------------------------


def files(path: Path) -> dict[str, Tensor]:
    return load_file(path / "adapter_model.safetensors")


def loud(model: Any, method: Any) -> Any:
    tune.apply(model, method, seed=0)
    for seed, tensor in enumerate(tune.adapter_state(model).values()):
        tensor += 0.3 * noise(*tensor.shape, seed=seed)
    return model


def value_of(patterns: dict[str, Any], module: str, usual: Any) -> Any:
    found = (x for key, x in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    return next(found, usual)


def check_lora_written(family: str, lora: tune.Lora) -> None:
    """What the file means, by its own settings, is what merging gives."""
    base = small(family)
    model = loud(deepcopy(base), lora)
    with TemporaryDirectory() as folder:
        af.save_adapter(model, folder, layout="peft")
        said = json.loads((Path(folder) / "adapter_config.json").read_text())
        tensors = {k.removeprefix(BEFORE): x for k, x in files(Path(folder)).items()}
    tune.merge(model)
    modules = [key.removesuffix(".lora_A.weight") for key in tensors if "lora_A" in key]
    seen = 0
    for module in modules:
        a, b = tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]
        rank = value_of(said["rank_pattern"], module, said["r"])
        alpha = value_of(said["alpha_pattern"], module, said["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if said["use_rslora"] else rank)
        path, rows = place(family, module)
        m = tensors.get(f"{module}.lora_magnitude_vector")
        before, after = (x.get_submodule(path).weight.data[rows] for x in (base, model))
        assert a.shape[0] == rank
        same(change(before, a, b, scale, m), after)
        seen += after.numel()
    changed = [n for n, p in model.named_parameters() if not torch.equal(p, base.get_parameter(n))]
    assert sum(model.get_parameter(n).numel() for n in changed if "head" not in n) == seen


def place(family: str, module: str) -> tuple[str, slice]:
    """Where in ours a module of theirs lies, by hand."""
    number = re.search(r"\.(\d)\.", module)[1]  # type: ignore[index]
    if family == "gpt2":
        ends = {"c_attn": "attention.qkv", "c_fc": "feed.up", "c_proj": "feed.down"}
        return f"decoder.layers.{number}.{ends[module.rpartition('.')[2]]}", slice(None)
    thirds = {"query": 0, "key": 1, "value": 2}
    third = thirds[module.rpartition(".")[2]]
    return f"encoder.layers.{number}.attention.qkv", slice(24 * third, 24 * third + 24)


PARTS = tune.Lora(rank=2, targets=("q", "v", "up"), ranks={"v": 3}, alphas={"v": 5.0})
WRITTEN = {
    "parts of one": ("gpt2", PARTS),
    "lengths of a part": ("gpt2", tune.Lora(rank=2, targets=("k",), dora=True, stabilised=True)),
    "one in parts": ("bert", tune.Lora(rank=2, targets=("qkv",), dora=True, whole=())),
}


def check_ia3_written() -> None:
    base = small("bert")
    model = loud(deepcopy(base), tune.Ia3(targets=("k", "v"), inputs=("down",), whole=()))
    with TemporaryDirectory() as folder:
        af.save_adapter(model, folder, layout="peft")
        said = json.loads((Path(folder) / "adapter_config.json").read_text())
        tensors = {k.removeprefix(BEFORE): x for k, x in files(Path(folder)).items()}
    assert sorted(said["target_modules"]) == ["0.output.dense", "1.output.dense", "key", "value"]
    assert said["feedforward_modules"] == ["0.output.dense", "1.output.dense"]
    assert not any(".attention.output." in name for name in tensors)
    tune.merge(model)
    for name, factor in tensors.items():
        if "output" in name:
            path, rows = f"encoder.layers.{name.split('.')[3]}.feed.down", slice(None)
        else:
            path, rows = place("bert", name.removesuffix(".ia3_l"))
        before, after = (x.get_submodule(path).weight.data[rows] for x in (base, model))
        same(before * factor, after)


# --- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stabilised", [False, True])
@pytest.mark.parametrize("dora", [False, True])
def test_lora_is_read_as_its_formulas_say(stabilised: bool, dora: bool) -> None:
    check_lora_read(stabilised, dora)


def test_parts_biases_and_heads_are_read() -> None:
    check_parts_read()


def test_ia3_is_read_as_its_formulas_say() -> None:
    check_ia3_read()


def test_modules_are_known_by_older_names_too() -> None:
    check_older_names()


def test_a_tied_table_stays_one() -> None:
    check_tied()


def test_prefixes_and_prompts_behind_an_encoder_are_read_as_peft_deals_them() -> None:
    check_prefix_order()
    check_prompt_rows()


def test_a_prefix_that_peft_cannot_deal_out_is_written_in_our_words(tmp_path: Path) -> None:
    from dataclasses import replace

    model = small("bart")
    stack = model.config.decoder
    tree = replace(model.config, decoder=replace(stack, blocks=stack.blocks[:2]))
    model = loud(make_loud(af.build(tree).double(), tables=None), tune.Prefix(2))
    assert af.save_adapter(model, tmp_path) == "allformer"
    with pytest.raises(CheckpointError, match="the same keys for layers 0 and 1, which differ"):
        af.save_adapter(model, tmp_path, layout="peft")


@pytest.mark.parametrize("case", WRITTEN)
def test_lora_is_written_as_its_formulas_say(case: str) -> None:
    check_lora_written(*WRITTEN[case])


def test_ia3_is_written_as_its_formulas_say() -> None:
    check_ia3_written()
