"""Transformer-XL: old directories give the numbers of transformers 4.35.2, which are on record."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer.checkpoint.files import open_tensors
from allformer.checkpoint.stored import read_whole
from allformer.checkpoint.transfer import own_state
from allformer.core.relatives.xl import inverse_frequencies
from allformer.errors import CheckpointError
from allformer.families import FAMILIES
from allformer.families.config_json import read_config
from allformer.families.weights import Weight, save_tensor
from tests.parity.make_transfo_xl import CASES, FILE, loud, probe, segments, unpacked

WORDS = [case for case, (name, _) in CASES.items() if "LMHead" in name]


@cache
def record() -> dict[str, Any]:
    return json.loads(FILE.read_text())  # type: ignore[no-any-return]


def theirs(case: str) -> dict[str, Tensor]:
    """The tensors of the model on record, by their old names; tied ones twice."""
    found = {}
    for key, (name, shape) in record()[case]["state"].items():
        if name is None:
            found[key] = inverse_frequencies(2 * shape[0]).double()
        else:
            found[key] = torch.from_numpy(loud(name, tuple(shape)))
    return found


def directory(case: str, folder: Path) -> Path:
    """As transformers saved it then: config.json and pytorch_model.bin."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(record()[case]["config"]))
    torch.save(theirs(case), folder / "pytorch_model.bin")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("transfo-xl")
    return {case: af.load(directory(case, folder / case)) for case in CASES}


def close(mine: Tensor, wanted: Any, within: float = 1e-10) -> None:
    wanted = torch.from_numpy(wanted.copy())
    torch.testing.assert_close(mine, wanted, rtol=within, atol=within)


def read(case: str) -> list[Tensor]:
    return [torch.from_numpy(x) for x in segments(len(case))]


@pytest.mark.parametrize("kernel", ["fast", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_segments_with_memory_are_those_on_record(models: dict[str, Any], case: str, kernel: str):
    check_segments(models[case], case, kernel)


def check_loaded(case: str) -> None:
    """From the directory on."""
    with TemporaryDirectory() as folder:
        check_segments(af.load(directory(case, Path(folder))), case)


def check_segments(model: Any, case: str, kernel: str = "fast") -> None:
    """Hidden states, scores and memory of three segments."""
    mems = None
    with torch.no_grad():
        for ids, wanted in zip(read(case), record()[case]["segments"], strict=True):
            out = model(input_ids=ids, mems=mems, kernel=kernel)
            close(out.last_hidden_state, unpacked(wanted["hidden"]))
            if "scores" in wanted:
                close(out.logits, unpacked(wanted["scores"]))
            mems = out.mems
    if "mems" in record()[case]:
        close(mems, unpacked(record()[case]["mems"]))


@pytest.mark.parametrize("case", WORDS)
def test_losses_and_gradients_over_segments_are_those_on_record(
    models: dict[str, Any], case: str
) -> None:
    model, mems, total = models[case], None, torch.zeros((), dtype=torch.float64)
    model.zero_grad()
    for ids, wanted in zip(read(case), record()[case]["segments"], strict=True):
        labels = ids.clone()
        labels[1, :3] = -100
        out = model(input_ids=ids, labels=labels, mems=mems)
        close(out.loss.detach(), unpacked(wanted["loss"]))
        total, mems = total + out.loss, out.mems
        score, _ = model.vocab_head.score(
            out.last_hidden_state.flatten(0, 1), model.head.aim(labels, None).flatten(), 0.0
        )
        counted = (model.head.aim(labels, None) != -100).sum()
        close((score / counted).detach(), unpacked(wanted["loss"]))
    total.backward()
    found = gradients(model, case)
    for name, wanted in record()[case]["gradients"].items():
        mine = float((found[name] * torch.from_numpy(probe(name, tuple(found[name].shape)))).sum())
        assert mine == pytest.approx(wanted, rel=1e-9, abs=1e-10), name
    model.zero_grad()


def gradients(model: Any, case: str) -> dict[str, Tensor]:
    """Each gradient by the old name of its tensor."""
    state, found = own_state(model), {}
    for op in FAMILIES["transfo-xl"].weights(model.config, model.provenance.architecture):
        if isinstance(op, Weight):
            grad = state[op.ours].grad
            found |= save_tensor(op, torch.zeros_like(state[op.ours]) if grad is None else grad)
    return found


@pytest.mark.parametrize("case", WORDS)
def test_greedy_texts_with_memory_are_those_on_record(models: dict[str, Any], case: str) -> None:
    out = models[case].generate(
        read(case)[0], max_new_tokens=12, do_sample=False, eos_token_id=0, pad_token_id=39
    )
    assert out.tolist() == record()[case]["generated"]


def test_a_memory_longer_than_in_training_is_asked_for_at_the_call(models: dict[str, Any]) -> None:
    mems = None
    with torch.no_grad():
        for ids, wanted in zip(read("post"), record()["post"]["longer"], strict=True):
            out = models["post"](input_ids=ids, mems=mems, mem_len=15)
            close(out.logits, unpacked(wanted))
            mems = out.mems


@pytest.mark.parametrize("case", CASES)
def test_a_directory_is_written_back_tensor_for_tensor(
    models: dict[str, Any], case: str, tmp_path: Path
) -> None:
    af.save(models[case], tmp_path)
    files, wanted = open_tensors(tmp_path), theirs(case)
    first: dict[str, str] = {}
    for key, (name, _) in record()[case]["state"].items():
        first.setdefault(name or key, key)
    assert set(files) == set(first.values())  # a tied one once, under its first name
    again = af.load(tmp_path)
    for key in files:
        assert torch.equal(read_whole(files[key]), wanted[key]), key
    assert again.config == models[case].config
    old, new = record()[case]["config"], json.loads((tmp_path / "config.json").read_text())
    same = ("clamp_len", "torch_dtype")  # no clamp is −1 here
    assert {k: new[k] for k in old if k not in same} == {
        k: x for k, x in old.items() if k not in same
    }


@pytest.mark.parametrize(
    ("field", "value"), [("attn_type", 2), ("sample_softmax", 5), ("n_heads_of_another_kind", 3)]
)
def test_what_would_change_the_numbers_is_refused_by_name(field: str, value: int) -> None:
    raw = record()["post"]["config"]
    with pytest.raises(CheckpointError, match=field):
        read_config({**raw, field: value})


def test_nobody_looks_at_anything_with_same_length_and_no_memory() -> None:
    raw = record()["post"]["config"]
    with pytest.raises(CheckpointError, match="same_length"):
        read_config({**raw, "same_length": True, "mem_len": 0})
