"""Weights out of a model: the library's own bytes, transformers' names, and never half a save."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from allformer.checkpoint import chunks as chunks_module
from allformer.checkpoint import shards
from allformer.checkpoint.files import open_tensors
from allformer.checkpoint.transfer import load_weights, own_state, save_weights
from allformer.core.model import AnyModel, build
from allformer.errors import CheckpointError
from allformer.families.weights import Derived, Ignored, Renamed, Same
from tests.models import SPREAD, loud
from tests.unit.test_checkpoint_load import CONFIG, llama_like, theirs_of


@pytest.fixture
def model() -> AnyModel:
    return loud(CONFIG).float()


def read_all(path: Path) -> dict[str, Tensor]:
    return {k: x for file in sorted(path.glob("*.safetensors")) for k, x in load_file(file).items()}


def check_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, x in a.items():
        assert x.dtype == b[name].dtype
        assert torch.equal(x, b[name]), name


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


# --- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_file_goes_through_the_model_and_comes_out_the_same_bytes(tmp_path, model, dtype):
    ops = llama_like()
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    save_file(theirs_of(model.to(dtype), ops), source / "model.safetensors", {"format": "pt"})
    loaded = build(CONFIG, device="meta")
    load_weights(loaded, ops, open_tensors(source))
    assert save_weights(loaded, ops, target) == [target / "model.safetensors"]
    assert (target / "model.safetensors").read_bytes() == (
        source / "model.safetensors"
    ).read_bytes()


def test_the_bytes_are_those_of_the_safetensors_library_for_every_dtype(tmp_path):
    codes = [shards.CODES[dtype] for dtype in shards.CODES]
    bag = {
        f"{'zyx'[i % 3]}.{code}": torch.randint(0, 2, (3, 3)).to(dtype)
        for i, (dtype, code) in enumerate(shards.CODES.items())
    } | {"größe": torch.ones(()), "leer": torch.zeros(0, 2), "odd": torch.tensor([True] * 5)}
    assert len(codes) > 12
    save_file(bag, tmp_path / "theirs", {"format": "pt"})
    out = [shards.Outgoing(n, x, tuple(x.shape), x.dtype) for n, x in bag.items()]
    shards.write_file(tmp_path / "ours", out)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("name", SPREAD)
def test_shards_come_back_as_the_model_they_were(tmp_path, name):
    model = loud(SPREAD[name])
    ops = [Same(n, n) for n in own_state(model)]
    paths = save_weights(model, ops, tmp_path, max_shard_bytes=20_000)
    assert len(paths) > 2
    loaded = build(SPREAD[name], device="meta")
    load_weights(loaded, ops, open_tensors(tmp_path))
    check_equal(own_state(loaded), own_state(model))


def test_shards_and_index_are_named_as_transformers_names_them(tmp_path, model):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(
        vocab_size=37, hidden_size=24, intermediate_size=28, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    theirs = LlamaForCausalLM(small)
    theirs.save_pretrained(tmp_path / "a", max_shard_size=9_000)
    state = {n: x for n, x in theirs.state_dict().items() if n != "lm_head.weight"}
    holder = Holder(state)
    ops = [Same(n.replace(".", "_"), n) for n in state]
    save_weights(holder, ops, tmp_path / "b", max_shard_bytes=9_000)
    mine = [n for n in names(tmp_path / "a") if n not in ("config.json", "generation_config.json")]
    assert names(tmp_path / "b") == mine
    index = "model.safetensors.index.json"
    assert (tmp_path / "b" / index).read_text() == (tmp_path / "a" / index).read_text()
    for name in mine:
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()


class Holder(nn.Module):
    """A module with these parameters and no more."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        for name, x in state.items():
            setattr(self, name.replace(".", "_"), nn.Parameter(x.clone()))


def test_every_shard_keeps_to_the_limit_unless_one_tensor_is_larger(tmp_path, model):
    ops = llama_like()
    paths = save_weights(model, ops, tmp_path, max_shard_bytes=3000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {
        "total_parameters": sum(p.numel() for p in model.parameters()),
        "total_size": sum(p.numel() * 4 for p in model.parameters()),
    }
    assert set(index["weight_map"].values()) == {p.name for p in paths[:-1]}
    for path in paths[:-1]:
        sizes = [x.numel() * 4 for x in load_file(path).values()]
        assert sum(sizes) <= 3000 or len(sizes) == 1


def test_the_file_says_that_it_is_of_torch(tmp_path, model):
    save_weights(model, llama_like(), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_conversion_by_pieces_is_the_conversion_of_the_whole(tmp_path, model, monkeypatch):
    ops = llama_like()
    monkeypatch.setattr(chunks_module, "CHUNK", 100)
    save_weights(model, ops, tmp_path, dtype=torch.bfloat16)
    check_equal(read_all(tmp_path), theirs_of(model.bfloat16(), ops))


def test_only_weights_and_the_constants_that_are_asked_for_are_written(tmp_path, model):
    ops = llama_like()
    extra = [
        Derived("position_ids", lambda: torch.arange(5)),
        Derived("sines", lambda: torch.linspace(0, 1, 5).double().sin(), write=True),
        Derived("ids", lambda: torch.arange(3), write=True),
        Ignored("x.*", "junk"),
        Renamed("a", "b"),
    ]
    save_weights(model.half(), [*ops, *extra], tmp_path)
    wanted = theirs_of(model, ops)  # the alias lm_head.weight is not written
    wanted |= {"sines": torch.linspace(0, 1, 5).double().sin().half(), "ids": torch.arange(3)}
    check_equal(read_all(tmp_path), wanted)


# --- over something older ------------------------------------------------------------------------


def zeros(model: AnyModel) -> AnyModel:
    for p in model.parameters():
        p.data.zero_()
    return model


@pytest.mark.parametrize("old", [1500, 4000, 50_000])
@pytest.mark.parametrize("new", [1500, 4000, 50_000])
def test_a_new_save_leaves_nothing_of_an_older_one(tmp_path, model, old, new):
    ops = llama_like()
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_text("not ours")
    save_weights(model, ops, tmp_path, max_shard_bytes=old)
    paths = save_weights(zeros(model), ops, tmp_path, max_shard_bytes=new)
    others = ["adapter_model.safetensors", "tokenizer.json"]
    assert names(tmp_path) == sorted([*others, *(p.name for p in paths)])
    assert all(not x.any() for x in map(read_stored, open_tensors(tmp_path).values()))


def read_stored(stored) -> Tensor:
    out = torch.empty(stored.shape, dtype=stored.dtype)
    stored.read_into(out)
    return out


class Stop(BaseException):
    """As KeyboardInterrupt: no OSError, no Exception."""


@pytest.mark.parametrize("old", [1500, 4000, 50_000])
@pytest.mark.parametrize("new", [1500, 50_000])
def test_a_save_interrupted_anywhere_leaves_the_older_checkpoint_whole(
    tmp_path, model, monkeypatch, old, new
):
    """Stopped at each system call in turn, up to the one after which the new one is whole."""
    ops = llama_like()
    before = theirs_of(model, ops)
    save_weights(model, ops, tmp_path, max_shard_bytes=old)
    listed = names(tmp_path)
    zeros(model)
    real = {"fsync": lambda fd: None, "replace": os.replace, "link": os.link}
    stops = 0
    for stop in range(1000):
        calls = iter(range(1000))

        def counted(name, calls=calls, stop=stop):
            def call(*args):
                if next(calls) == stop:
                    raise Stop
                return real[name](*args)

            return call

        for name in real:
            monkeypatch.setattr(os, name, counted(name))
        try:
            save_weights(model, ops, tmp_path, max_shard_bytes=new)
            break
        except Stop:
            stops += 1
        finally:
            for name, function in real.items():
                monkeypatch.setattr(os, name, function)
        assert names(tmp_path) == listed
        found = {name: read_stored(s) for name, s in open_tensors(tmp_path).items()}
        check_equal(found, before)
    assert stops >= 2
    assert all(not read_stored(s).any() for s in open_tensors(tmp_path).values())


def test_a_full_disk_is_said_and_the_older_checkpoint_stays(tmp_path, model, monkeypatch):
    ops = llama_like()
    save_weights(model, ops, tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device; they need [\d,]+ bytes"):
        save_weights(zeros(model), ops, tmp_path)
    assert names(tmp_path) == ["model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_file_system_without_links_does_too(tmp_path, model, monkeypatch):
    ops = llama_like()
    save_weights(model, ops, tmp_path, max_shard_bytes=4000)
    before, listed = theirs_of(model, ops), names(tmp_path)

    def no_links(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    replace, calls = os.replace, iter(range(1000))

    def broken(a: Path, b: Path) -> None:
        if next(calls) == len(listed) + 1:  # the older ones are aside, one new one is in place
            raise OSError(5, "Input/output error")
        replace(a, b)

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(CheckpointError, match="Input/output error"):
        save_weights(zeros(model), ops, tmp_path, max_shard_bytes=4000)
    assert names(tmp_path) == listed
    check_equal(read_all(tmp_path), before)
    save_weights(model, ops, tmp_path, max_shard_bytes=4000)
    assert names(tmp_path) == listed
    assert all(not x.any() for x in read_all(tmp_path).values())


def test_saving_over_the_directory_that_was_loaded_from_is_safe(tmp_path, model):
    ops = llama_like()
    torch.save(theirs_of(model, ops), tmp_path / "pytorch_model.bin")
    for _ in range(2):
        loaded = build(CONFIG, device="meta")
        files = open_tensors(tmp_path)
        load_weights(loaded, ops, files)
        save_weights(loaded, ops, tmp_path)
        again = build(CONFIG, device="meta")
        load_weights(again, ops, files)  # the old files, still open
        check_equal(own_state(again), own_state(model))
    check_equal(read_all(tmp_path), theirs_of(model, ops))


def test_a_model_without_values_is_not_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"decoder\.embedding\.weight is on the meta device"):
        save_weights(build(CONFIG, device="meta"), llama_like(), tmp_path)
    assert names(tmp_path) == []


def test_parameters_that_lie_transposed_in_memory_are_written_in_order(tmp_path, model):
    ops = llama_like()
    wanted = theirs_of(model, ops)
    for p in model.parameters():
        if p.dim() == 2:
            p.data = p.data.T.contiguous().T
    assert not model.decoder.source.embedding.weight.is_contiguous()
    save_weights(model, ops, tmp_path)
    check_equal(read_all(tmp_path), wanted)


def test_a_path_that_is_a_file_is_refused(tmp_path, model):
    (tmp_path / "x").write_text("")
    with pytest.raises(CheckpointError, match="cannot take the weights"):
        save_weights(model, llama_like(), tmp_path / "x")
