"""Adapters on disk: in PEFT's layout and in our own, merged, and refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import allformer as af
from allformer import config, tune
from allformer.checkpoint.adapter.files import open_adapter
from allformer.checkpoint.adapter.names import covered, shortest
from allformer.checkpoint.convert import convert
from allformer.cli.main import app
from allformer.errors import CheckpointError, ConfigError
from allformer.families import FAMILIES
from allformer.families.config_json import read_config
from tests.loud import make_loud
from tests.unit.test_tune import quantised

GPT2 = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 32}
IDS = torch.arange(10).view(2, 5)
BLOCK = config.Block(config.Attention(2), config.Feed(32, act="gelu"), norm_at="pre")
TOKENS = config.Tokens(50, pad_id=49)
OWN = config.Stack(24, TOKENS, config.Sinusoidal(), (BLOCK,) * 2, causal=True)  # of no family
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small loud GPT-2 on disk, in fp64."""
    path = tmp_path_factory.mktemp("base") / "gpt2"
    model = make_loud(af.build(FAMILIES["gpt2"].make(GPT2)).double(), tables=None)
    af.save(model, path)
    return path


@pytest.fixture
def lora(gpt2: Path, tmp_path: Path) -> Path:
    """A loud LoRA of it on disk."""
    af.save_adapter(tuned(gpt2, tune.Lora(rank=2, targets=("c_attn", "up"))), tmp_path / "lora")
    return tmp_path / "lora"


def tuned(base: Path, method: Any, seed: int = 0, name: str = "default") -> Any:
    """The model of a directory with a loud adapter on it."""
    model = af.load(base)
    tune.apply(model, method, name, seed=seed)
    make = torch.Generator().manual_seed(seed)
    for tensor in tune.adapter_state(model, name).values():
        tensor += 0.3 * torch.randn(tensor.shape, generator=make, dtype=tensor.dtype)
    return model


def says(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def change(path: Path, **fields: Any) -> None:
    """Other fields in an adapter_config.json."""
    raw = json.loads((path / CONFIG).read_text())
    (path / CONFIG).write_text(json.dumps({**raw, **fields}))


def change_tensors(path: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Other tensors in an adapter_model.safetensors."""
    tensors = load_file(path / WEIGHTS)
    edit(tensors)
    save_file(tensors, path / WEIGHTS)


# --- what is read back ---------------------------------------------------------------------------


METHODS = {
    "lora": (tune.Lora(rank=2, targets=("c_attn",)), "peft"),
    "dora": (tune.Lora(rank=2, targets=("q", "down"), dora=True, dropout=0.1), "peft"),
    "ia3": (tune.Ia3(), "peft"),
    "prefix": (tune.Prefix(3), "peft"),
    "a made prefix": (tune.Prefix(3, hidden=5), "peft"),
    "prompt": (tune.Prompt(3), "peft"),
    "bottleneck": (tune.Bottleneck(), "allformer"),
    "bitfit": (tune.BitFit(), "allformer"),
    "both": ((tune.Lora(rank=2), tune.Ia3(targets=(), inputs=("down",))), "allformer"),
}


@pytest.mark.parametrize("kind", METHODS)
def test_what_was_written_is_read_back(kind: str, gpt2: Path, tmp_path: Path) -> None:
    method, layout = METHODS[kind]
    model = tuned(gpt2, method)
    assert af.save_adapter(model, tmp_path) == layout
    again = af.load(tmp_path)
    assert not torch.allclose(says(again), says(af.load(gpt2)))
    torch.testing.assert_close(says(again), says(model), rtol=0, atol=1e-12)


def test_settings_come_back_by_our_short_names(gpt2: Path, tmp_path: Path) -> None:
    lora = tune.Lora(
        rank=2, alpha=3.0, dropout=0.1, targets=("down", "qkv"), layers=(1,), stabilised=True,
        ranks={"down": 5}, alphas={"down": 7.0}, whole=(),
    )  # fmt: skip
    af.save_adapter(tuned(gpt2, lora), tmp_path)
    (again,) = af.load(tmp_path).tuning.adapters["default"].methods
    assert sorted(again.targets) == ["down", "qkv"]
    assert {**vars(again), "targets": lora.targets} == vars(lora)


def test_a_model_of_no_family_has_its_adapters_in_our_words(tmp_path: Path) -> None:
    model = make_loud(af.build(config.DecoderOnly(OWN)))
    af.save(model, tmp_path / "base", family="allformer")
    model = tuned(tmp_path / "base", tune.Lora(targets=("q",), ranks={"layers.1.attention.q": 3}))
    assert af.save_adapter(model, tmp_path / "lora") == "allformer"
    assert torch.equal(says(af.load(tmp_path / "lora")), says(model))
    with pytest.raises(
        CheckpointError, match=r"PEFT's layout: no family of transformers can say this model; leave"
    ):
        af.save_adapter(model, tmp_path / "no", layout="peft")


def test_another_head_comes_with_an_adapter_in_our_words(tmp_path: Path) -> None:
    words = make_loud(af.build(config.DecoderOnly(OWN)))
    af.save(words, tmp_path / "base", family="allformer")
    head = config.ClassHead(("bad", "good", "so so"), at="last")
    model = af.build(config.DecoderOnly(OWN, head), seed=1)
    model.decoder.load_state_dict(words.decoder.state_dict())
    tune.apply(model.eval(), tune.Lora(targets=("q",)), seed=0)
    af.save_adapter(model, tmp_path / "lora", base=tmp_path / "base")
    again = af.load(tmp_path / "lora")
    assert again.config.head == head
    assert torch.equal(says(again), says(model))


def test_another_head_stands_on_a_base_in_our_own_layout(gpt2: Path, tmp_path: Path) -> None:
    """PEFT's words for the adapter, ours for the model: as the base was written."""
    words = af.load(gpt2)
    af.save(words, tmp_path / "base", family="allformer")
    head = config.ClassHead(("bad", "good", "so so"), at="last", bias=False)
    stack = replace(words.config.decoder, source=replace(words.config.decoder.source, pad_id=49))
    model = af.build(config.DecoderOnly(stack, head), seed=1).double().eval()
    model.decoder.load_state_dict(words.decoder.state_dict())
    tune.apply(model, tune.Lora(targets=("q",)), seed=0)
    assert af.save_adapter(model, tmp_path / "lora", base=tmp_path / "base") == "peft"
    again = af.load(tmp_path / "lora")
    assert again.config.head == head
    assert torch.equal(says(again), says(model))


def test_a_head_of_two_layers_comes_with_its_labels(tmp_path: Path) -> None:
    """As PEFT's own files have no config.json beside them, the file tells how many there are."""
    raw = {
        "model_type": "roberta", "vocab_size": 50, "num_labels": 4, "hidden_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    }  # fmt: skip
    tree, _ = read_config(raw, architecture="RobertaForSequenceClassification")
    af.save(make_loud(af.build(tree)), tmp_path / "whole")
    af.save(af.load(tmp_path / "whole", architecture="RobertaModel"), tmp_path / "body")
    model = tuned(tmp_path / "whole", tune.Lora(targets=("q",)))
    af.save_adapter(model, tmp_path / "lora", base=tmp_path / "body")
    (tmp_path / "lora" / "config.json").unlink()
    again = af.load(tmp_path / "lora")
    assert len(again.config.head.labels) == 4
    assert torch.equal(says(again), says(model))


def test_an_adapter_of_a_model_in_few_bits_is_an_adapter_as_any(gpt2: Path, lora: Path) -> None:
    model = af.load(gpt2, dtype=torch.float32)
    quantised(model)
    af.load_adapter(model, lora)
    wanted, got = says(af.load(lora)), says(model).double()
    assert (got - wanted).norm() < 0.1 * wanted.norm()
    before = load_file(lora / WEIGHTS)
    af.save_adapter(model, lora)
    for name, tensor in load_file(lora / WEIGHTS).items():
        torch.testing.assert_close(tensor.double(), before[name], rtol=1e-6, atol=1e-6)


def test_what_is_merged_is_taken_out_before_it_is_written(gpt2: Path, tmp_path: Path) -> None:
    model = tuned(gpt2, tune.Lora(rank=2, targets=("k",), dora=True))
    tune.merge(model)
    with pytest.raises(ConfigError, match="merged"):
        af.save_adapter(model, tmp_path)


def test_shapes_alone_are_loaded_on_meta(lora: Path) -> None:
    model = af.load(lora, device="meta")
    assert all(p.is_meta for p in model.parameters())


def test_one_of_several_adapters_is_written_by_name(gpt2: Path, tmp_path: Path) -> None:
    model = tuned(gpt2, tune.Lora(rank=2), name="tales")
    tune.apply(model, tune.Ia3(), "style")
    tune.switch(model, "tales", "style")
    with pytest.raises(CheckpointError, match="2 adapters act on this model; name the one"):
        af.save_adapter(model, tmp_path)
    af.save_adapter(model, tmp_path, name="tales")
    tune.switch(model, "tales")
    other = af.load(gpt2)
    af.load_adapter(other, tmp_path, name="again")
    assert tune.active(other) == ("again",)
    assert torch.equal(says(other), says(model))


def test_an_adapter_loads_beside_others_and_reads_the_base_under_them(
    gpt2: Path, tmp_path: Path
) -> None:
    """What an adapter leaves out of a tensor of ours is the base's, not that of who acts."""
    af.save_adapter(tuned(gpt2, tune.Lora(rank=2), seed=1), tmp_path)
    alone = says(af.load(tmp_path))
    model = tuned(gpt2, tune.BitFit(), name="biases")
    af.load_adapter(model, tmp_path, name="lora")
    assert torch.equal(says(model), alone)


def test_the_base_may_lie_beside_the_adapter(lora: Path, gpt2: Path) -> None:
    (lora / "below").symlink_to(gpt2)
    change(lora, base_model_name_or_path="below")
    assert says(af.load(lora)).isfinite().all()


def test_older_files_are_read_without_running_them(lora: Path) -> None:
    wanted = says(af.load(lora))
    torch.save(load_file(lora / WEIGHTS), lora / "adapter_model.bin")
    (lora / WEIGHTS).unlink()
    assert torch.equal(says(af.load(lora)), wanted)


def test_a_revision_of_the_hub_is_written_and_read_apart(gpt2: Path, tmp_path: Path) -> None:
    af.save_adapter(tuned(gpt2, tune.Ia3()), tmp_path, base="owner/name@main")
    raw = json.loads((tmp_path / CONFIG).read_text())
    assert (raw["base_model_name_or_path"], raw["revision"]) == ("owner/name", "main")
    assert open_adapter(tmp_path).base == "owner/name@main"


# --- merged --------------------------------------------------------------------------------------


def test_convert_merges_and_certifies(lora: Path, gpt2: Path, tmp_path: Path) -> None:
    (gpt2 / "merges.txt").write_text("of the base\n")
    result = CliRunner().invoke(app, ["convert", str(lora), str(tmp_path / "out"), "--merge"])
    assert result.exit_code == 0, result.output
    torch.testing.assert_close(
        says(af.load(tmp_path / "out")), says(af.load(lora)), atol=1e-10, rtol=0
    )
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert certificate["sound"] is True
    assert certificate["source"]["base"] == str(gpt2)
    assert set(certificate["source"]["files"]) == {CONFIG, WEIGHTS}
    assert (tmp_path / "out" / "merges.txt").is_file()
    (gpt2 / "merges.txt").unlink()


def test_merged_in_half_precision_is_rounded_once_more_and_told(
    gpt2: Path, lora: Path, tmp_path: Path
) -> None:
    af.save(af.load(gpt2, dtype=torch.bfloat16), tmp_path / "half")
    certificate = convert(lora, tmp_path / "out", merge=True, base=tmp_path / "half")
    row = certificate["outputs"][0]
    assert certificate["sound"]
    assert 0 < row["largest_difference"] < 0.2 * row["largest_value"]


def test_convert_tells_adapters_from_models(lora: Path, gpt2: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is an adapter.*--merge"):
        convert(lora, tmp_path / "out")
    with pytest.raises(CheckpointError, match="is no adapter"):
        convert(gpt2, tmp_path / "out", merge=True)


# --- what does not fit ---------------------------------------------------------------------------


def drop_rank(tensors: dict[str, torch.Tensor]) -> None:
    for key in tensors:
        tensors[key] = tensors[key][:1] if "lora_A" in key else tensors[key][:, :1].contiguous()


def narrow(tensors: dict[str, torch.Tensor]) -> None:
    key = next(key for key in tensors if "lora_A" in key)
    tensors[key] = tensors[key][:, :-1].contiguous()


def lose(tensors: dict[str, torch.Tensor]) -> None:
    tensors.pop(next(key for key in tensors if "lora_B" in key))


FAULTS: dict[str, tuple[Any, str]] = {
    "another kind": ({"peft_type": "LOHA"}, r"'LOHA', which is none .* LORA, IA3, PREFIX"),
    "no kind": ({"peft_type": None}, r"peft_type=None"),
    "a field": ({"use_qalora": True}, r"use_qalora=True, which is not supported"),
    "a start": ({"init_lora_weights": "pissa"}, r"'pissa', which changes the base"),
    "a type": ({"r": "eight"}, r"r='eight', which must be a whole number"),
    "a rank": (drop_rank, r"lora_A has rank 1, but adapter_config.json says 2"),
    "a shape": (narrow, r"lora_A is \(2, 23\), but this model needs \(2, 24\): .* another size"),
    "a half": (lose, r"has lora_A, not lora_A, lora_B"),
    "dora": ({"use_dora": True}, r"use_dora=True needs these"),
    "a base": ({"base_model_name_or_path": "/no/such/place"}, r"'/no/such/place', but .*base=…"),
    "no base": ({"base_model_name_or_path": None}, r"names no base_model_name_or_path.*base=…"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_in_one_sentence(fault: str, lora: Path) -> None:
    edit, told = FAULTS[fault]
    if isinstance(edit, dict):
        change(lora, **edit)
    else:
        change_tensors(lora, edit)
    with pytest.raises(CheckpointError, match=told) as error:
        af.load(lora)
    assert "\n" not in str(error.value)


def test_an_adapter_of_another_model_is_refused_and_leaves_this_one_alone(
    lora: Path, gpt2: Path
) -> None:
    fields = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    other = af.build(FAMILIES["bert"].make({**fields, "intermediate_size": 32}))
    with pytest.raises(CheckpointError, match=r"changes transformer.h.0.attn.c_attn, which is no"):
        af.load_adapter(other, lora)
    larger = af.build(FAMILIES["gpt2"].make({**GPT2, "n_embd": 32}))
    with pytest.raises(CheckpointError, match="of a model of another size"):
        af.load_adapter(larger, lora)
    assert not hasattr(larger, "tuning")


def test_an_own_adapter_of_another_model_leaves_it_alone(gpt2: Path, tmp_path: Path) -> None:
    af.save_adapter(tuned(gpt2, tune.BitFit()), tmp_path)
    larger = af.build(FAMILIES["gpt2"].make({**GPT2, "n_embd": 32}))
    with pytest.raises(CheckpointError, match="of a model of another size"):
        af.load_adapter(larger, tmp_path)
    assert not hasattr(larger, "tuning")
    change(tmp_path, methods=[{"is": "bitfit", "rank": 3}])
    with pytest.raises(CheckpointError, match="bitfit has no setting 'rank'"):
        af.load(tmp_path)


def test_what_is_no_adapter_or_lacks_its_weights_is_refused(
    lora: Path, gpt2: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="it is no adapter"):
        af.load_adapter(af.load(gpt2), gpt2)
    with pytest.raises(CheckpointError, match="is for adapters, and"):
        af.load(gpt2, base=gpt2)
    af.save_adapter(tuned(gpt2, tune.Ia3()), tmp_path / "second", base=lora)
    with pytest.raises(CheckpointError, match="is an adapter itself; merge it first"):
        af.load(tmp_path / "second")
    (lora / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=f"has {CONFIG} but no {WEIGHTS}"):
        af.load(lora)


# --- names ---------------------------------------------------------------------------------------


def test_the_shortest_names_mean_no_other_module() -> None:
    every = ["a.0.q", "a.1.q", "a.0.k", "a.1.k", "b.q"]
    assert shortest(["a.0.q", "a.1.q", "b.q"], every) == ["q"]
    assert shortest(["a.0.q", "a.1.q"], every) == ["0.q", "1.q"]
    assert shortest(["a.0.k"], every) == ["0.k"]
    assert shortest(["b.q"], every) == ["b.q"]


def test_modules_are_covered_when_nothing_of_them_is_left_out() -> None:
    every = {"head.a.weight", "head.b.weight", "head.b.bias", "norm.weight"}
    assert covered({"head.a.weight", "head.b.weight", "head.b.bias"}, every) == ["head"]
    assert covered({"head.a.weight", "head.b.bias"}, every) == ["head.a"]
