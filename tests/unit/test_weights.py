"""Weights on disk: what is saved comes back, and a file that does not fit is named, key by key."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import allformer as af
from allformer.checkpoint.run import load_run, save_run
from allformer.checkpoint.weights import (
    load_weights,
    put_weights,
    read_tensors,
    save_weights,
)
from allformer.config import Tokens
from allformer.core.model import build
from allformer.errors import CheckpointError
from allformer.text.tokenizer import Tokenizer, train_tokenizer
from tests.models import BOS, EOS, KINDS, PAD, SPREAD, decoder_only, loud, seq2seq, tokens

NORM = "decoder.layers.0.feed_norm.weight"
TABLE = "encoder.source.embedding.weight"


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def header(path: Path) -> dict:
    """What a safetensors file says it holds."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    found = json.loads(raw[8 : 8 + length])
    found.pop("__metadata__", None)
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The weights of a loud model in fp32."""
    path = tmp_path / "model.safetensors"
    save_weights(loud(seq2seq()).float(), path)
    return path


# --- weights -----------------------------------------------------------------------------------


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPREAD)
def test_what_is_saved_comes_back(name, dtype, tmp_path):
    path = tmp_path / "model.safetensors"
    model, other = loud(SPREAD[name], seed=1).to(dtype), loud(SPREAD[name], seed=2).to(dtype)
    save_weights(model, path)
    load_weights(other, path)
    want, got = weights(model), weights(other)
    assert want.keys() == got.keys()
    assert all(got[key].equal(want[key]) and got[key].dtype == dtype for key in want)


def test_a_loaded_model_still_shares_its_table(saved):
    model = build(seq2seq(), seed=0)
    load_weights(model, saved)
    assert model.encoder.source.embedding.weight is model.decoder.source.embedding.weight
    assert model.head.table.weight is model.encoder.source.embedding.weight
    want = loud(seq2seq()).float()
    ids = tokens(2, 7)
    assert model.eval()(ids, decoder_input_ids=ids).logits.equal(
        want(ids, decoder_input_ids=ids).logits
    )


def test_a_shared_table_is_on_disk_once(saved):
    model = loud(seq2seq())
    found = header(saved)
    assert [key for key in found if "embedding" in key or "head" in key] == [TABLE]
    assert found.keys() == weights(model).keys()
    numbers = sum(p.numel() for p in model.parameters())
    assert saved.stat().st_size < 4 * numbers + 20_000


def test_a_file_appears_whole_or_not_at_all(saved, monkeypatch):
    before = saved.read_bytes()

    def half(path, tensors):
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("allformer.checkpoint.weights.write_file", half)
    with pytest.raises(OSError, match="disk full"):
        save_weights(loud(seq2seq(), seed=5), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_has_the_mode_that_the_user_asks_for(tmp_path, umask):
    before = os.umask(umask)
    try:
        save_weights(loud(seq2seq()), tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_nothing_is_left_beside_the_file(saved):
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_missing_unexpected_and_misshapen_keys_are_named(saved):
    model, kept = build(seq2seq(), seed=0), weights(build(seq2seq(), seed=0))
    tensors = read_tensors(saved)
    del tensors[NORM]
    tensors["decoder.layers.9.extra"] = torch.zeros(2)
    tensors[TABLE] = torch.zeros(5, 24)
    with pytest.raises(CheckpointError) as refused:
        put_weights(model, tensors, "here.safetensors")
    said = str(refused.value)
    assert said.startswith("here.safetensors does not fit the model: 1 missing, 1 unexpected, 1 of")
    assert f"missing: {NORM} (our {NORM})" in said
    assert "unexpected: decoder.layers.9.extra [2]" in said
    assert f"of another shape: {TABLE} has [5, 24], the model [37, 24]" in said
    assert "likely: " in said
    assert all(x.equal(kept[name]) for name, x in weights(model).items()), "all or nothing"


@pytest.mark.parametrize("problem", ["missing", "unexpected", "shape"])
def test_each_problem_alone_is_enough_to_refuse(problem, saved):
    tensors = read_tensors(saved)
    if problem == "missing":
        del tensors[NORM]
    elif problem == "unexpected":
        tensors["more"] = torch.zeros(2)
    else:
        tensors[NORM] = torch.zeros(1)  # would broadcast
    counted = "of another shape" if problem == "shape" else problem
    with pytest.raises(CheckpointError, match=rf"does not fit the model: 1 {counted}; it has \d+"):
        put_weights(loud(seq2seq()), tensors, "here.safetensors")


def test_a_long_list_of_keys_is_cut_short(saved):
    with pytest.raises(CheckpointError) as refused:
        load_weights(loud(decoder_only()), saved)
    assert str(saved) in str(refused.value)
    assert "… and" in str(refused.value)
    assert len(str(refused.value)) < 3000


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_a_damaged_file_is_named_with_the_way_out(saved, keep):
    raw = saved.read_bytes()
    saved.write_bytes(raw[:keep])
    with pytest.raises(CheckpointError, match=r"(damaged|cut off|no safet).*again") as refused:
        load_weights(loud(seq2seq()), saved)
    assert str(saved) in str(refused.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.safetensors is not there; give"):
        load_weights(loud(seq2seq()), tmp_path / "gone.safetensors")


# --- run directories ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a dog runs", "ein Hund rennt"], "char", vocab=60)


@pytest.fixture
def run(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    pieces = Tokens(tokenizer.vocab_size, scale=True, pad_id=PAD, bos_id=BOS, eos_id=EOS)
    save_run(tmp_path / "run", loud(seq2seq(source=pieces)).float(), tokenizer)
    return tmp_path / "run"


def test_a_saved_run_comes_back_ready_to_translate(run, tokenizer):
    back = load_run(run)
    assert back.path == run
    assert back.tokenizer.encode("ein dog") == [*tokenizer.encode("ein dog"), EOS]
    assert back.model.provenance.generation["num_beams"] == 4
    assert back.model.provenance.generation["suppress_tokens"] == [PAD, BOS]
    assert not back.model.training
    want = loud(back.model.config).float()
    assert all(x.equal(weights(want)[name]) for name, x in weights(back.model).items())


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"is no run directory: it has no config\.json; give"):
        load_run(tmp_path)


def test_a_run_that_has_not_ended_is_opened_at_its_newest_checkpoint_and_says_so(run):
    for step in (5, 20, 100):
        folder = run / "checkpoints" / f"step-{step:08}"
        folder.mkdir(parents=True)
        shutil.copy(run / "model.safetensors", folder)
    want = weights(load_run(run).model)
    (run / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match="training has not ended; its newest checkpoint, step 100"):
        found = weights(load_run(run).model)
    assert all(found[name].equal(want[name]) for name in want)


def test_a_run_without_any_checkpoint_says_so(run):
    (run / "model.safetensors").unlink()
    (run / "recipe.yaml").write_text("name: x\n")
    with pytest.raises(CheckpointError, match="stopped before the first"):
        load_run(run)


def test_a_run_without_a_tokeniser_is_refused(run):
    (run / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"is no run directory: it has no tokenizer\.json"):
        load_run(run)


def test_a_run_of_another_kind_of_model_is_refused(run):
    (run / "config.json").write_text(KINDS["decoder paper"].to_json(), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_run(run)


def test_weights_of_another_config_are_refused(run):
    config = load_run(run).model.config
    fewer = replace(config, decoder=replace(config.decoder, blocks=config.decoder.blocks[:1]))
    (run / "config.json").write_text(fewer.to_json(), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"unexpected: decoder\.layers\.1\.") as refused:
        load_run(run)
    assert str(run / "model.safetensors") in str(refused.value)


@pytest.mark.parametrize("text", ["{", "[]", "", '{"encoder": 3}'])
def test_a_damaged_config_is_named(run, text):
    (run / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_run(run)


def test_stored_numbers_that_are_not_trained_are_kept_too(tmp_path):
    model, other = (loud(SPREAD["encoder narrow"], seed) for seed in (1, 2))
    model.head.offset.copy_(torch.arange(37.0))
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    assert torch.equal(other.head.offset, model.head.offset)


# --- names from before ----------------------------------------------------------------------------


def as_before(name: str) -> str:
    """What a tensor was called when a stack held what its source holds now."""
    name = re.sub(r"\.source\.(embedding|types|position|widen)\.", r".\1.", name)
    return name.replace(".source.norm.", ".source_norm.").replace(".relative.", ".bucket.")


def assert_twins(one: nn.Module, two: nn.Module) -> None:
    assert all(map(torch.equal, one.parameters(), two.parameters()))


@pytest.mark.parametrize("kind", ["encoder narrow", "seq2seq buckets", "seq2seq paper"])
def test_files_with_the_names_from_before_still_open(kind, tmp_path):
    model = loud(SPREAD[kind]).float()
    af.save(model, tmp_path, family="allformer")
    tensors = load_file(tmp_path / "model.safetensors")
    old = {as_before(name): x for name, x in tensors.items()}
    assert old.keys() != tensors.keys()
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = af.load(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True)
    )
    fresh = build(SPREAD[kind], seed=0)
    load_weights(fresh, tmp_path / "model.safetensors")  # as a run that goes on does
    assert all(
        torch.equal(a, b) for a, b in zip(fresh.parameters(), model.parameters(), strict=True)
    )
