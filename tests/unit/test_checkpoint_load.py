"""Weights into a model: exact, all or nothing, every key accounted for and every misfit named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import allformer
from allformer.checkpoint import chunks as chunks_module
from allformer.checkpoint import transfer
from allformer.checkpoint.files import in_memory, open_tensors
from allformer.checkpoint.stored import InFile
from allformer.checkpoint.transfer import load_weights, own_state
from allformer.core.model import AnyModel, build
from allformer.errors import CheckpointError
from allformer.families.weights import (
    Alias,
    Derived,
    Ignored,
    Interleaved,
    Op,
    Renamed,
    Reshaped,
    Same,
    Stacked,
    Transposed,
    Weight,
    save_tensor,
)
from tests.models import MODERN, SPREAD, decoder_only, loud, seq2seq

# 24 wide, 2 layers, 6 heads of 4 over 2 groups, head tied
CONFIG = decoder_only(replace(MODERN, attention=replace(MODERN.attention, head_dim=4)))
EMBEDDING = "model.embed_tokens.weight"


def llama_like(layers: int = 2) -> list[Op]:
    """Names and layouts as unlike ours as they come."""
    ops: list[Op] = [
        Same("decoder.source.embedding.weight", EMBEDDING),
        Alias("lm_head.weight", EMBEDDING),
    ]
    for i in range(layers):
        ours, theirs = f"decoder.layers.{i}", f"model.layers.{i}"
        q, k = (Interleaved(f"{theirs}.{x}_proj.weight", n) for x, n in (("q", 6), ("k", 2)))
        ops += [
            Stacked(f"{ours}.attention.qkv.weight", (q, k, f"{theirs}.v_proj.weight"), (24, 8, 8)),
            Transposed(f"{ours}.attention.out.weight", f"{theirs}.o_proj.weight"),
            Same(f"{ours}.feed.up.weight", f"{theirs}.up.weight"),
            Same(f"{ours}.feed.gate.weight", f"{theirs}.gate.weight"),
            Same(f"{ours}.feed.down.weight", f"{theirs}.down.weight"),
            Same(f"{ours}.attention_norm.weight", f"{theirs}.input_norm.weight"),
            Reshaped(f"{ours}.feed_norm.weight", f"{theirs}.post_norm.weight", (4, 6)),
        ]
    return ops


def theirs_of(model: nn.Module, ops: Sequence[Op]) -> dict[str, Tensor]:
    state = own_state(model)
    out: dict[str, Tensor] = {}
    for op in ops:
        if isinstance(op, Weight):
            out |= save_tensor(op, state[op.ours].detach().clone())
    return out


@pytest.fixture
def model() -> AnyModel:
    return loud(CONFIG).float()


def fresh() -> AnyModel:
    return build(CONFIG, device="meta")


def check_same(a: nn.Module, b: nn.Module) -> None:
    left, right = own_state(a), own_state(b)
    assert left.keys() == right.keys()
    for name, x in left.items():
        assert x.dtype == right[name].dtype
        assert torch.equal(x, right[name]), name


def refused(ops: Sequence[Op], tensors: dict[str, Tensor], *messages: str) -> str:
    """Loading fails, says all of `messages`, and leaves the model as it was."""
    empty = fresh()
    with pytest.raises(CheckpointError) as error:
        load_weights(empty, ops, in_memory(tensors, "somewhere/model.safetensors"))
    assert all(p.is_meta for p in empty.parameters())
    said = str(error.value)
    assert "somewhere/model.safetensors" in said
    for message in messages:
        assert message in said, said
    return said


# --- right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_file_in_another_layout_loads_exactly_and_keeps_its_dtype(tmp_path, model, dtype, kind):
    model, ops = model.to(dtype), llama_like()
    tensors = theirs_of(model, ops)
    if kind == "bin":
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    else:
        save_file(tensors, tmp_path / "model.safetensors")
    loaded = fresh()
    fates = load_weights(loaded, ops, open_tensors(tmp_path))
    check_same(loaded, model)
    assert fates.keys() == tensors.keys()
    assert fates["model.layers.1.k_proj.weight"] == "decoder.layers.1.attention.qkv.weight"


@pytest.mark.parametrize("name", SPREAD)
def test_any_model_comes_back_under_its_own_names_with_its_ties(tmp_path, name):
    model = loud(SPREAD[name])
    ops = [Same(n, n) for n in own_state(model)]
    save_file(theirs_of(model, ops), tmp_path / "model.safetensors")
    loaded = build(SPREAD[name], device="meta")
    load_weights(loaded, ops, open_tensors(tmp_path))
    check_same(loaded, model)
    shared = [len({id(p) for p in m.state_dict(keep_vars=True).values()}) for m in (model, loaded)]
    assert shared[0] == shared[1]
    assert all(p.requires_grad for p in loaded.parameters())


def test_parameters_tied_between_different_modules_stay_one(tmp_path):
    a, b = nn.Linear(3, 2, device="meta"), nn.Linear(3, 2, device="meta")
    b.weight = a.weight
    model = nn.Sequential(a, b)
    x = {"0.weight": torch.randn(2, 3), "0.bias": torch.randn(2), "1.bias": torch.randn(2)}
    load_weights(model, [Same(n, n) for n in x], in_memory(x, "x"))
    assert model[1].weight is model[0].weight
    assert torch.equal(model[1].weight, x["0.weight"])


def test_a_conversion_by_pieces_is_the_conversion_of_the_whole(tmp_path, model, monkeypatch):
    ops = llama_like()
    save_file(theirs_of(model, ops), tmp_path / "model.safetensors")
    monkeypatch.setattr(chunks_module, "CHUNK", 100)  # bytes: less than two rows
    loaded = fresh()
    load_weights(loaded, ops, open_tensors(tmp_path), dtype=torch.bfloat16)
    check_same(loaded, model.bfloat16())


def test_unlike_dtypes_are_kept_apart(model):
    ops = llama_like()
    tensors = theirs_of(model, ops)
    tensors[EMBEDDING] = tensors[EMBEDDING].half()
    loaded = fresh()
    load_weights(loaded, ops, in_memory(tensors, "x"))
    kinds = {name: x.dtype for name, x in own_state(loaded).items()}
    assert kinds.pop("decoder.source.embedding.weight") == torch.float16
    assert set(kinds.values()) == {torch.float32}


def test_unlike_dtypes_within_one_of_our_tensors_need_a_dtype(model):
    ops = llama_like()
    tensors = theirs_of(model, ops)
    name = "model.layers.0.k_proj.weight"
    tensors[name] = tensors[name].bfloat16()
    refused(ops, tensors, f"{name} bfloat16", "give a dtype")
    loaded = fresh()
    load_weights(loaded, ops, in_memory(tensors, "x"), dtype=torch.float32)
    k = loaded.decoder.layers[0].attention.qkv.part("k")[0]
    assert torch.equal(k, model.decoder.layers[0].attention.qkv.part("k")[0].bfloat16().float())


def test_nothing_of_the_file_is_needed_after_loading(tmp_path, model):
    ops = llama_like()
    path = tmp_path / "model.safetensors"
    save_file(theirs_of(model, ops), path)
    loaded = fresh()
    load_weights(loaded, ops, open_tensors(path))
    with open(path, "r+b") as file:  # overwritten in place, then cut off
        file.write(bytes(path.stat().st_size))
    os.truncate(path, 0)
    check_same(loaded, model)


def test_what_changes_nothing_is_read_straight_into_its_place(tmp_path, model, monkeypatch):
    ops = [Same(n, n) for n in own_state(model)]
    save_file(theirs_of(model, ops), tmp_path / "model.safetensors")
    places = []
    read = InFile.read_into

    def spy(self: InFile, out: Tensor, first: int = 0) -> None:
        places.append(out.data_ptr())
        read(self, out, first)

    monkeypatch.setattr(InFile, "read_into", spy)
    loaded = fresh()
    load_weights(loaded, ops, open_tensors(tmp_path))
    assert sorted(places) == sorted(p.data_ptr() for p in loaded.parameters())


def test_on_meta_the_keys_are_accounted_for_and_nothing_is_read(tmp_path, model, monkeypatch):
    ops = llama_like()
    save_file(theirs_of(model, ops), tmp_path / "model.safetensors")
    monkeypatch.setattr(InFile, "read_into", None)
    loaded = fresh()
    assert load_weights(loaded, ops, open_tensors(tmp_path), device="meta")
    assert all(p.is_meta for p in loaded.parameters())
    os.truncate(tmp_path / "model.safetensors", 100)
    with pytest.raises(CheckpointError):
        load_weights(loaded, ops, open_tensors(tmp_path), device="meta")


def test_buffers_are_loaded_too():
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", torch.empty(5, device="meta"))
            self.register_buffer("count", torch.empty(2, dtype=torch.int64, device="meta"))

    x = {"final_logits_bias": torch.randn(1, 5).half(), "n": torch.tensor([3, 4])}
    module = Biased()
    ops = [Reshaped("bias", "final_logits_bias", (1, 5)), Same("count", "n")]
    load_weights(module, ops, in_memory(x, "x"), dtype=torch.float64)
    assert torch.equal(module.bias, x["final_logits_bias"][0].double())
    assert torch.equal(module.count, x["n"])


def test_what_a_file_may_leave_out_is_filled_in_the_file_s_usual_dtype():
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2, device="meta")
            self.register_buffer("bias", torch.empty(5, device="meta"))

    x = {"inner.weight": torch.randn(2, 2).half(), "inner.bias": torch.randn(2).half()}
    ops = [Same(n, n) for n in x] + [Reshaped("bias", "final_logits_bias", (1, 5), missing=0.0)]
    module = Biased()
    load_weights(module, ops, in_memory(x, "x"))
    assert torch.equal(module.bias, torch.zeros(5).half())
    assert module.bias.dtype == torch.float16


def test_older_names_are_read_as_the_newer_ones(model):
    ops = llama_like()
    tensors = theirs_of(model, ops)
    old = {
        name.replace("input_norm.weight", "input_norm.gamma")[6:]: x for name, x in tensors.items()
    }
    assert not set(old) & set(tensors)
    rules = [Renamed(r"norm\.gamma$", "norm.weight"), Renamed(r"^(?!model\.)", "model.")]
    loaded = fresh()
    load_weights(loaded, [*rules, *ops], in_memory(old, "x"))
    check_same(loaded, model)
    both = {**old, "layers.0.input_norm.weight": torch.zeros(24)}
    refused([*rules, *ops], both, "an older and a newer name of model.layers.0.input_norm.weight")


# --- second names, constants, junk ---------------------------------------------------------------


def test_a_second_name_with_the_same_bytes_is_taken(model):
    ops = llama_like()
    tensors = theirs_of(model, ops)
    tensors["lm_head.weight"] = tensors[EMBEDDING].clone()
    loaded = fresh()
    fates = load_weights(loaded, ops, in_memory(tensors, "x"))
    assert fates["lm_head.weight"] == f"equal to {EMBEDDING}"
    check_same(loaded, model)


def test_a_second_name_alone_stands_for_the_first(model):
    ops = [*llama_like(), Alias("third.weight", EMBEDDING)]
    tensors = theirs_of(model, ops)
    tensors["lm_head.weight"] = tensors.pop(EMBEDDING)
    tensors["third.weight"] = tensors["lm_head.weight"].clone()
    loaded = fresh()
    load_weights(loaded, ops, in_memory(tensors, "x"))
    check_same(loaded, model)
    tensors["third.weight"][0, 0] += 1
    refused(ops, tensors, "third.weight differs from lm_head.weight")


@pytest.mark.parametrize("at", [0, -1])
def test_a_second_name_that_differs_in_one_bit_is_an_untied_checkpoint(model, at, monkeypatch):
    monkeypatch.setattr(transfer, "CHUNK", 500)  # many pieces
    ops = llama_like()
    tensors = theirs_of(model, ops)
    head = tensors[EMBEDDING].clone()
    head.view(-1)[at] = -0.0
    tensors[EMBEDDING].view(-1)[at] = 0.0  # equal as numbers, not as bytes
    tensors["lm_head.weight"] = head
    refused(
        ops, tensors, f"lm_head.weight differs from {EMBEDDING}", "untied", "tie_word_embeddings"
    )


def test_a_second_name_of_another_shape_or_dtype_is_untied(model):
    ops = llama_like()
    for other in (lambda x: x[:-1], lambda x: x.half()):
        tensors = theirs_of(model, ops)
        tensors["lm_head.weight"] = other(tensors[EMBEDDING]).contiguous()
        refused(ops, tensors, "the checkpoint is untied")


@pytest.mark.parametrize(
    ("made", "stored", "fault"),
    [
        (torch.arange(8), torch.arange(8), ""),
        (torch.arange(8), torch.arange(8) + 1, "has other values"),
        (torch.arange(8), torch.arange(9), "has shape [9], not [8]"),
        (torch.ones(4, 4).tril().bool(), torch.ones(4, 4).tril().byte(), ""),
        (torch.ones(4, 4).tril().bool(), torch.ones(4, 4).byte(), "has other values"),
        (torch.linspace(0, 1, 9).double().sin(), torch.linspace(0, 1, 9).double().sin().half(), ""),
        (torch.linspace(0, 1, 9).double().sin(), torch.linspace(0, 1, 9).sin(), ""),
        (torch.linspace(0, 1, 9), torch.linspace(0, 1, 9) + 1e-5, "differs by up to 1e-05"),
        (torch.tensor([-torch.inf, 0]), torch.tensor([-torch.inf, 0]).half(), ""),
        (torch.tensor([-torch.inf, 0]), torch.tensor([-torch.inf, torch.nan]), "differs"),
        (torch.tensor([-torch.inf, 1]), torch.tensor([-torch.inf, 2]), "differs by up to 1;"),
        (torch.tensor([-torch.inf, 1]), torch.tensor([0.0, 1]), "differs by up to inf"),
    ],
)  # fmt: skip
def test_a_stored_constant_must_be_what_the_config_makes(model, made, stored, fault):
    ops = [*llama_like(), Derived("model.constant", lambda: made)]
    tensors = theirs_of(model, ops)
    load_weights(fresh(), ops, in_memory(tensors, "x"))  # it need not be there
    tensors["model.constant"] = stored
    if fault:
        refused(ops, tensors, "model.constant is not what the config gives", fault)
    else:
        fates = load_weights(fresh(), ops, in_memory(tensors, "x"))
        assert fates["model.constant"] == "derived from the config"


def test_known_junk_is_ignored_with_its_reason_and_nothing_else(model):
    ops = [*llama_like(), Ignored(r".*\.masked_bias", "a constant of old GPT-2 files")]
    tensors = theirs_of(model, ops) | {"model.layers.0.masked_bias": torch.zeros(1)}
    fates = load_weights(fresh(), ops, in_memory(tensors, "x"))
    assert fates["model.layers.0.masked_bias"] == "ignored: a constant of old GPT-2 files"
    tensors["model.layers.0.masked_bias_too"] = torch.zeros(1)
    refused(ops, tensors, "unexpected: model.layers.0.masked_bias_too [1]")


# --- what does not fit ---------------------------------------------------------------------------


def test_all_that_does_not_fit_is_one_error(model):
    ops = llama_like()
    tensors = theirs_of(model, ops)
    del tensors["model.layers.0.q_proj.weight"], tensors["model.layers.1.up.weight"]
    tensors["other.thing"] = torch.zeros(3, 2)
    tensors["model.layers.1.down.weight"] = torch.zeros(24, 27)
    tensors["model.layers.1.v_proj.weight"] = torch.zeros(8, 24, dtype=torch.int32)
    refused(
        ops,
        tensors,
        "2 missing, 1 unexpected, 1 of another shape, 2 of another dtype",
        "missing: model.layers.0.q_proj.weight (our decoder.layers.0.attention.qkv.weight)",
        "missing: model.layers.1.up.weight (our decoder.layers.1.feed.up.weight)",
        "unexpected: other.thing [3, 2]",
        "of another shape: model.layers.1.down.weight has [24, 27], the model [24, 28]",
        "of another dtype: model.layers.1.v_proj.weight is int32, not floating point",
    )


def test_a_long_list_is_cut_with_a_count(model):
    ops = llama_like()
    tensors = theirs_of(model, ops) | {f"x{i}": torch.zeros(1) for i in range(95)}
    said = refused(ops, tensors, "95 unexpected", "… and 75 more")
    assert said.count("unexpected: x") == 20


def causes(tensors: dict[str, Tensor], ops: Sequence[Op] | None = None) -> str:
    said = refused(ops or llama_like(), tensors)
    return "\n".join(line for line in said.splitlines() if line.startswith("  likely: "))


def test_a_prefix_that_differs_is_seen(model):
    tensors = theirs_of(model, llama_like())
    assert "begin with 'module.' (DataParallel)" in causes(
        {f"module.{n}": x for n, x in tensors.items()}
    )
    assert "lack the prefix 'model.'" in causes({n[6:]: x for n, x in tensors.items()})


def test_gamma_and_beta_are_seen(model):
    tensors = theirs_of(model, llama_like())
    old = {n.replace("norm.weight", "norm.gamma"): x for n, x in tensors.items()}
    assert "gamma and beta" in causes(old)


def test_more_and_fewer_layers_are_seen(model):
    tensors = theirs_of(model, llama_like())
    more = tensors | {
        n.replace(".1.", f".{i}."): x for n, x in tensors.items() if ".1." in n for i in (2, 3)
    }
    assert "the file has more layers than the config says (layers 2, 3)" in causes(more)
    fewer = {n: x for n, x in tensors.items() if ".1." not in n}
    assert "the file has fewer layers than the config says (layers 1)" in causes(fewer)


def test_a_resized_vocabulary_is_seen(model):
    tensors = theirs_of(model, llama_like())
    tensors[EMBEDDING] = torch.zeros(40, 24)
    assert "tables of 40 rows where the config says 37" in causes(tensors)


def test_a_transposed_weight_is_seen(model):
    tensors = theirs_of(model, llama_like())
    name = "model.layers.0.up.weight"
    tensors[name] = tensors[name].T.contiguous()
    assert f"{name} is stored transposed" in causes(tensors)


def test_another_size_is_seen(model):
    tensors = theirs_of(model, llama_like())
    tensors["model.layers.0.down.weight"] = torch.zeros(24, 30)
    assert "another size of this model" in causes(tensors)


def test_a_tied_file_under_an_untied_config_is_seen(model):
    config = SPREAD["shared but untied"]
    bare = build(config, device="meta")
    names = {"head.table.weight": "lm_head.weight"}
    ops = [Same(n, names.get(n, n)) for n in own_state(bare)]
    tensors = theirs_of(loud(config), ops)
    del tensors["lm_head.weight"]
    with pytest.raises(
        CheckpointError, match=r"no lm_head.weight: .* set tie_word_embeddings to true"
    ):
        load_weights(bare, ops, in_memory(tensors, "x"))


def test_another_head_is_seen(model):
    config = SPREAD["head bias"]
    bare = build(config, device="meta")
    ops = [Same(n, n) for n in own_state(bare)]
    tensors = theirs_of(loud(config), ops)
    del tensors["head.bias"]
    with pytest.raises(CheckpointError, match="bare model without a head"):
        load_weights(bare, ops, in_memory(tensors, "x"))
    tensors["classifier.weight"] = torch.zeros(2, 24)
    with pytest.raises(CheckpointError, match="another head: the file has classifier"):
        load_weights(bare, ops, in_memory(tensors, "x"))


def test_biases_against_the_config_are_seen(model):
    tensors = theirs_of(model, llama_like())
    tensors["model.layers.0.q_proj.bias"] = torch.zeros(24)
    assert "the file has biases where the config says otherwise" in causes(tensors)


def test_quantised_files_and_adapters_are_seen(model):
    tensors = theirs_of(model, llama_like())
    name = "model.layers.0.up.weight"
    packed = tensors | {name: tensors[name].to(torch.int8), f"{name}_scale": torch.zeros(1)}
    assert "a quantised checkpoint" in causes(packed)
    assert "an adapter (LoRA)" in causes({"base_model.model.q_proj.lora_A.weight": torch.zeros(1)})


def test_a_map_that_misses_a_tensor_of_ours_is_our_own_fault(model):
    ops = llama_like()
    with pytest.raises(AssertionError, match=r"disagree about \['decoder\.layers\.1\.feed_norm"):
        load_weights(fresh(), ops[:-1], in_memory(theirs_of(model, ops), "x"))


@pytest.mark.parametrize(
    "extra", [Same("decoder.layers.1.feed_norm.weight", EMBEDDING), Alias(EMBEDDING, "x")]
)
def test_a_map_that_names_a_file_s_tensor_twice_is_our_own_fault(model, extra):
    ops = llama_like()
    if isinstance(extra, Same):
        ops.pop()
    with pytest.raises(
        AssertionError, match=r"has \['model\.embed_tokens\.weight'\] more than once"
    ):
        load_weights(fresh(), [*ops, extra], in_memory(theirs_of(model, ops), "x"))


# --- memory --------------------------------------------------------------------------------------

PEAK = """
import os, sys, torch
from allformer.checkpoint.files import open_tensors
from allformer.checkpoint.transfer import load_weights
from allformer.families.weights import Same, Stacked, Transposed
from torch import nn


def resident(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def load(folder, size, dtype=None):
    with torch.device("meta"):
        model = nn.ModuleList([nn.Linear(size, size, bias=False) for _ in range(4)])
    ops = [Same("0.weight", "a"), Stacked("1.weight", ("b", "c"), (size // 2, size // 2))]
    ops += [Transposed("2.weight", "d"), Same("3.weight", "e")]
    load_weights(model, ops, open_tensors(folder), dtype=dtype)
    return model


for kind in ("safetensors", "bin"):
    for dtype in (None, torch.float32):
        if not os.fork():  # memory as if nothing had been loaded yet
            load(f"{sys.argv[1]}/{kind}-8", 8, dtype)  # what is imported on the way
            before = resident("VmRSS")
            model = load(f"{sys.argv[1]}/{kind}-3072", 3072, dtype)
            weights = sum(p.numel() * p.element_size() for p in model.parameters())
            print(resident("VmHWM") - before, weights, flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_loading_needs_the_weights_once(tmp_path):
    for size in (8, 3072):
        x = {n: torch.ones(size, size).bfloat16() for n in "ade"}
        x |= {n: torch.ones(size // 2, size).bfloat16() for n in "bc"}
        folders = [tmp_path / f"{kind}-{size}" for kind in ("safetensors", "bin")]
        for folder in folders:
            folder.mkdir()
        save_file(x, folders[0] / "model.safetensors")
        torch.save(x, folders[1] / "pytorch_model.bin")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)],
        cwd=Path(allformer.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [weights for _, weights in found] == [4 * 3072**2 * size for size in (2, 4, 2, 4)]
    # Each reader has a buffer where something is converted; at 7B that is nothing.
    buffers = transfer.READERS * chunks_module.CHUNK
    assert all(0.9 * weights < peak < 1.1 * weights + buffers for peak, weights in found), found


# --- all or nothing ------------------------------------------------------------------------------


def test_a_file_that_breaks_half_way_leaves_the_model_alone(tmp_path, model, monkeypatch):
    ops = llama_like()
    save_file(theirs_of(model, ops), tmp_path / "model.safetensors")
    files = open_tensors(tmp_path)
    os.truncate(tmp_path / "model.safetensors", files["model.layers.1.v_proj.weight"].offset)
    bare = fresh()
    with pytest.raises(CheckpointError, match="ends in the middle of"):
        load_weights(bare, ops, files)
    assert all(p.is_meta for p in bare.parameters())
    full = loud(seq2seq())
    before = {name: x.detach().clone() for name, x in own_state(full).items()}
    with pytest.raises(CheckpointError, match="does not fit"):
        load_weights(full, [Same(n, n) for n in before], files)
    assert all(torch.equal(x, before[name]) for name, x in own_state(full).items())


def test_what_is_left_on_meta_is_our_own_fault(tmp_path: Path):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(2, device="meta"))
            self.register_buffer("hidden", torch.empty(2, device="meta"), persistent=False)

    with pytest.raises(AssertionError, match=r"still without values: .'hidden'"):
        load_weights(Odd(), [Same("weight", "w")], in_memory({"w": torch.ones(2)}, "x"))
