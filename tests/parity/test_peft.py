"""Adapters of PEFT's: we open what it wrote, it opens what we write, and both train alike."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import allformer as af
from allformer import tune
from tests.parity.adapters import (
    BASES,
    alike,
    base,
    files_of,
    near,
    peft_model,
    peft_opens,
    run,
    trains_alike,
)

peft = pytest.importorskip("peft")


def lora(name: str, **more: Any) -> Any:
    """LoRA on what a base has for it."""
    known = BASES[name]
    fields = {"r": 3, "lora_alpha": 7, "target_modules": list(known.lora), "task_type": known.task}
    fields["fan_in_fan_out"] = name == "gpt2"
    return peft.LoraConfig(**{**fields, **more})


def ia3(name: str) -> Any:
    """(IA)³ where PEFT has it for a family, or where LoRA is."""
    given = {
        "bert": (["key", "value", "output.dense"], ["output.dense"]),
        "gpt2": (["c_attn", "mlp.c_proj"], ["mlp.c_proj"]),
        "llama": (["k_proj", "v_proj", "down_proj"], ["down_proj"]),
        "t5": (["k", "v", "wo"], ["wo"]),
        "vit": (["k_proj", "v_proj", "mlp.fc2"], ["mlp.fc2"]),
    }
    targets, inner = given.get(name, (["q_proj", "v_proj", "fc2"], ["fc2"]))
    return peft.IA3Config(
        target_modules=targets, feedforward_modules=inner, task_type=BASES[name].task,
        fan_in_fan_out=name == "gpt2",
    )  # fmt: skip


def both_ways(name: str, config: Any, folder: Path) -> Any:
    """PEFT's file opened by us says the same; ours opened by PEFT too, and by us again."""
    theirs, inputs = peft_model(name, config), BASES[name].inputs()
    theirs.save_pretrained(folder / "theirs")
    ours = af.load(folder / "theirs", base=base(name)[1])
    alike(ours, theirs, inputs)
    assert af.save_adapter(ours, folder / "ours") == "peft"
    alike(ours, peft_opens(name, folder / "ours"), inputs)
    alike(af.load(folder / "ours"), theirs, inputs)
    return ours


@pytest.mark.every(2)
@pytest.mark.parametrize("name", BASES)
def test_lora_goes_both_ways(name: str, tmp_path: Path) -> None:
    both_ways(name, lora(name), tmp_path)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", BASES)
def test_lora_trains_alike(name: str, tmp_path: Path) -> None:
    trains_alike(name, peft_model(name, lora(name)), tmp_path)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", BASES)
def test_dora_goes_both_ways_and_trains_alike(name: str, tmp_path: Path) -> None:
    both_ways(name, lora(name, use_dora=True), tmp_path)
    trains_alike(name, peft_model(name, lora(name, use_dora=True)), tmp_path)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", BASES)
def test_ia3_goes_both_ways_and_trains_alike(name: str, tmp_path: Path) -> None:
    both_ways(name, ia3(name), tmp_path)
    trains_alike(name, peft_model(name, ia3(name)), tmp_path)


def prefix(name: str, **more: Any) -> Any:
    """Three learned keys and values."""
    return peft.PrefixTuningConfig(num_virtual_tokens=3, task_type=BASES[name].task, **more)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_prefixes_go_both_ways_and_train_alike(name: str, tmp_path: Path) -> None:
    both_ways(name, prefix(name), tmp_path)
    trains_alike(name, peft_model(name, prefix(name)), tmp_path)


def test_a_prefix_that_a_network_made_is_read(tmp_path: Path) -> None:
    both_ways("gpt2", prefix("gpt2", prefix_projection=True, encoder_hidden_size=8), tmp_path)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["bart", "t5"])
def test_prefixes_behind_an_encoder_go_both_ways(name: str, tmp_path: Path) -> None:
    both_ways(name, prefix(name), tmp_path)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_prompts_go_both_ways_and_train_alike(name: str, tmp_path: Path) -> None:
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type=BASES[name].task)
    both_ways(name, config, tmp_path)
    trains_alike(name, peft_model(name, config), tmp_path)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_prompts_before_an_encoder_go_both_ways(name: str, tmp_path: Path) -> None:
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type=BASES[name].task)
    both_ways(name, config, tmp_path)


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "rank-stabilised": ("llama", {"use_rslora": True}),
    "patterns": ("llama", {
        "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 5},
        "alpha_pattern": {r".*\.0\.self_attn.k_proj": 11, "gate_proj": 1.5},
        "use_rslora": True,
    }),
    "a regular expression": ("bert", {"target_modules": r".*layer\.1\..*\.(query|dense)"}),
    "some layers": ("t5", {"layers_to_transform": [1]}),
    "one layer of a body": ("gpt2", {"target_modules": ["c_fc"], "layers_to_transform": 0}),
    "every linear layer": ("bert", {"target_modules": "all-linear"}),
    "biases of what is changed": ("gpt2", {"bias": "lora_only"}),
    "every bias": ("bart", {"bias": "all"}),
    "modules whole": ("bart", {
        "modules_to_save": ["decoder.layernorm_embedding", "encoder.layers.1.fc1"],
    }),
    "tables whole": ("gpt2", {"modules_to_save": ["wpe", "ln_f"]}),
    "biases of one part": ("bert", {"target_modules": ["query"], "bias": "lora_only"}),
    "one part whole": ("llama", {
        "target_modules": ["up_proj"], "modules_to_save": ["1.self_attn.q_proj"],
    }),
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_lora_go_both_ways(case: str, tmp_path: Path) -> None:
    name, more = OPTIONS[case]
    both_ways(name, lora(name, **more), tmp_path)
    if "one part" not in case:  # we train the other parts of a fused product with it
        trains_alike(name, peft_model(name, lora(name, **more)), tmp_path)


# --- what we have trained ---------------------------------------------------------------------


def loud(model: Any, method: Any, seed: int = 7) -> Any:
    """The model with a loud adapter of ours."""
    tune.apply(model, method, seed=0)
    make = torch.Generator().manual_seed(seed)
    for tensor in tune.adapter_state(model).values():
        tensor += 0.3 * torch.randn(tensor.shape, generator=make, dtype=tensor.dtype)
    return model


OURS: dict[str, tuple[str, Any]] = {
    "parts of what transformers fuses": (
        "gpt2", tune.Lora(targets=("q", "v", "up"), rank=2, ranks={"v": 3}, alphas={"v": 5.0}),
    ),
    "DoRA on one part of it": ("gpt2", tune.Lora(targets=("k",), dora=True, stabilised=True)),
    "all of what we fuse": ("bert", tune.Lora(targets=("qkv", "out"), rank=2, dora=True)),
    "(IA)³ on parts": ("gpt2", tune.Ia3()),
    "(IA)³ on what we fuse": ("bart", tune.Ia3(targets=("attention.qkv", "cross.v"), layers=(1,))),
    "some layers": ("t5", tune.Lora(targets=("v",), layers=(1,), alpha=3.0)),
    "a head whole": ("vit", tune.Lora(targets=("q",))),
    "no head": ("bert", tune.Lora(targets=("q",), whole=())),
    "biases too": ("bert", (tune.Lora(targets=("q", "down")), tune.BitFit())),
    "the tied table": ("gpt2", tune.Lora(targets=("up",), whole=("decoder.source.embedding",))),
}  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("case", OURS)
def test_peft_opens_what_we_have_tuned(case: str, tmp_path: Path) -> None:
    name, method = OURS[case]
    ours, inputs = loud(af.load(base(name)[1]), method), BASES[name].inputs()
    assert af.save_adapter(ours, tmp_path / "out", layout="peft") == "peft"
    alike(ours, peft_opens(name, tmp_path / "out"), inputs)
    alike(ours, af.load(tmp_path / "out"), inputs)


def test_peft_finds_the_base_by_itself(tmp_path: Path) -> None:
    ours, inputs = loud(af.load(base("gpt2")[1]), tune.Lora(targets=("c_attn",))), BASES["gpt2"]
    af.save_adapter(ours, tmp_path)
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path)
    alike(ours, theirs.double(), inputs.inputs())


def test_older_names_of_modules_are_read(tmp_path: Path) -> None:
    """transformers 4 called ViT's q_proj attention.attention.query, in memory too."""
    from safetensors.torch import save_file

    theirs = peft_model("vit", lora("vit", target_modules=["q_proj", "fc2", "o_proj"]))
    theirs.save_pretrained(tmp_path)
    older = {
        key.replace(".layers.", ".encoder.layer.")
        .replace("attention.q_proj", "attention.attention.query")
        .replace("attention.o_proj", "attention.output.dense")
        .replace("mlp.fc2", "output.dense"): tensor
        for key, tensor in files_of(tmp_path).items()
    }
    assert len(older.keys() & files_of(tmp_path).keys()) == 0
    save_file(older, tmp_path / "adapter_model.safetensors")
    alike(af.load(tmp_path, base=base("vit")[1]), theirs, BASES["vit"].inputs())


@pytest.mark.parametrize("beside", [False, True], ids=["by its task", "by config.json beside it"])
def test_a_head_that_the_base_has_not_comes_with_the_adapter(beside: bool, tmp_path: Path) -> None:
    theirs = peft_model("bert", lora("bert"))
    body = theirs.get_base_model().bert
    theirs.save_pretrained(tmp_path / "lora")
    if beside:
        ours = af.load(tmp_path / "lora", base=base("bert")[1])
        af.save_adapter(ours, tmp_path / "lora")
    theirs.unload().bert.save_pretrained(tmp_path / "body")
    ours = af.load(tmp_path / "lora", base=tmp_path / "body")
    assert len(ours.config.head.labels) == 3
    assert body is not None
    alike(ours, peft_opens("bert", tmp_path / "lora"), BASES["bert"].inputs())


def test_a_head_apart_from_the_table_it_is_tied_to_is_refused(tmp_path: Path) -> None:
    peft_model("gpt2", lora("gpt2", modules_to_save=["lm_head"])).save_pretrained(tmp_path)
    with pytest.raises(af.AllformerError, match=r"has lm_head.weight apart from transformer.wte"):
        af.load(tmp_path, base=base("gpt2")[1])


@pytest.mark.parametrize(("name", "module"), [("gpt2", "wte"), ("t5", "shared")])
def test_one_name_of_a_tied_table_is_refused(name: str, module: str, tmp_path: Path) -> None:
    """PEFT trains a copy of it there: under its other names the base's stays."""
    peft_model(name, lora(name, modules_to_save=[module])).save_pretrained(tmp_path)
    with pytest.raises(af.AllformerError, match=r"(wte|shared).weight apart from .*untie them"):
        af.load(tmp_path, base=base(name)[1])


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_every_bias_beside_a_head_goes_both_ways(name: str, tmp_path: Path) -> None:
    """PEFT writes the head of BERT's three times then, and ViT's bias under the changed module."""
    both_ways(name, lora(name, bias="all", target_modules="all-linear"), tmp_path)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_vocabulary_that_has_grown_comes_with_the_adapter(name: str, tmp_path: Path) -> None:
    theirs = deepcopy(base(name)[0])
    theirs.resize_token_embeddings(64)
    theirs = peft.get_peft_model(theirs, lora(name, init_lora_weights=False)).eval()
    for parameter in theirs.parameters():  # and no buffer: angles are of fp32 on both sides
        parameter.data = parameter.data.double()
    theirs.save_pretrained(tmp_path / "theirs", save_embedding_layers=True)
    ours = af.load(tmp_path / "theirs", base=base(name)[1])
    alike(ours, theirs, BASES[name].inputs())
    af.save_adapter(ours, tmp_path / "ours")
    alike(af.load(tmp_path / "ours"), theirs, BASES[name].inputs())


@pytest.mark.parametrize(
    "more",
    [
        {"lora_bias": True}, {"target_modules": ["wte"]}, {"target_modules": ["lm_head", "c_fc"]},
        {"trainable_token_indices": [3]},
    ],
    ids=str,
)  # fmt: skip
def test_what_we_cannot_say_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    peft_model("gpt2", lora("gpt2", **more)).save_pretrained(tmp_path)
    with pytest.raises(af.AllformerError, match=r"merge (it|the adapter) with PEFT"):
        af.load(tmp_path, base=base("gpt2")[1])


def test_two_adapters_of_peft_act_row_by_row(tmp_path: Path) -> None:
    inputs = {k: v for k, v in BASES["llama"].inputs().items() if k != "labels"}
    ours = af.load(base("llama")[1])
    wanted = []
    for row, name in enumerate(("first", "second")):
        theirs = peft_model("llama", lora("llama"), seed=row)
        theirs.save_pretrained(tmp_path / name)
        af.load_adapter(ours, tmp_path / name, name=name)
        wanted.append(run(theirs, inputs).logits[row])
    tune.switch(ours, ["first", "second"])
    got, mask = run(ours, inputs).logits, inputs["attention_mask"].bool()
    for row in range(2):
        near(got[row][mask[row]], wanted[row][mask[row]], f"row {row}")


def test_adapter_config_is_short_and_says_what_peft_would(tmp_path: Path) -> None:
    theirs = peft_model("bert", lora("bert"))
    theirs.save_pretrained(tmp_path / "theirs")
    af.save_adapter(af.load(tmp_path / "theirs", base=base("bert")[1]), tmp_path / "ours")
    said = [
        json.loads((tmp_path / x / "adapter_config.json").read_text()) for x in ("theirs", "ours")
    ]
    for raw in said:
        raw["target_modules"] = sorted(raw["target_modules"])
    wanted, mine = said
    wanted["modules_to_save"] = ["classifier"]  # "score" is in no BERT
    wanted["base_model_name_or_path"] = str(base("bert")[1])
    assert {k: wanted[k] for k in mine} == mine
