"""A memory carried from batch to batch: rows go on, documents begin anew, a resume is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import allformer as af
from allformer.checkpoint.weights import read_tensors
from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    Feed,
    LMHead,
    Stack,
    Tokens,
    XLRelative,
    to_dict,
)  # fmt: skip
from allformer.core.taps import listen
from allformer.errors import ConfigError
from allformer.train.batch import moved
from allformer.train.loop import train
from allformer.train.objectives.memory import MemoryLM
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.tokenizing import make_tokenizer
from allformer.train.validate import validate
from tests.unit.test_causal_lm import texts

LENGTH, ROWS, MEMORY = 8, 3, 6


def tree(memory: int = MEMORY, blank: bool = False, dropout: float = 0.0) -> DecoderOnly:
    block = Block(Attention(2, bias=False), Feed(24, act="relu"), norm_at="pre", dropout=dropout)
    stack = Stack(
        12, Tokens(60), None, (block,) * 2, causal=True, dropout=dropout,
        relative=XLRelative(memory=memory, blank=blank),
    )  # fmt: skip
    return DecoderOnly(stack, LMHead())


def recipe(rows: str = "stream", model: Any = None, steps: int = 8, **options: Any) -> Recipe:
    return make_recipe(
        {
            "objective": {"is": "causal-lm-memory", "rows": rows, **options},
            "data": {"max_length": LENGTH, "hold_out": 6},
            "tokenizer": {"kind": "characters", "vocab": 60},
            "model": to_dict(model or tree()),
            "optim": {"rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 2},
            "train": {
                "steps": steps, "batch_tokens": LENGTH * ROWS, "save_every": 4,
                "validate_every": 100, "average": 1,
            },
            "log": {"every": 4, "tensorboard": False},
        }
    )  # fmt: skip


def opened(asked: Recipe) -> MemoryLM:
    objective = MemoryLM(asked)
    objective.open(texts())
    objective.encode(make_tokenizer(objective, lambda line: None), lambda line: None)
    return objective


def built(objective: MemoryLM) -> Any:
    return af.build(objective.config(objective.vocabulary), seed=0).double()


def rows_of(objective: MemoryLM, examples: Any) -> list[list[list[int]]]:
    """What each row says, text by text."""
    found: list[list[list[int]]] = [[] for _ in range(ROWS)]
    for index in objective.order(examples):
        batch = objective.collate(examples, index)
        for r, row in enumerate(batch.labels.tolist()):
            said = [i for i in row if i != -100]
            if bool(batch.fresh[r]):
                found[r].append([])
            found[r][-1] += said
    return [[text for text in row if text] for row in found]


def test_each_row_of_a_stream_goes_on_where_it_ended():
    objective = opened(recipe())
    documents = objective.encoded._tables[0]["ids"]
    whole = [i for d in range(len(documents)) for i in [*documents[d].tolist(), 3]]
    begins = set()
    for epoch in range(4):
        examples = objective.examples(epoch)
        assert set(examples.lengths) == {LENGTH}
        rows = rows_of(objective, examples)
        assert [len(row) for row in rows] == [1] * ROWS  # nothing begins anew in the midst
        at = [find(whole, row[0]) for row in rows]
        assert at[1] - at[0] == at[2] - at[1] >= len(rows[0][0])
        begins.add(at[0])
    assert len(begins) > 1
    first = objective.collate(examples, objective.order(examples)[0])
    assert torch.equal(first.ids[:, 1:], first.labels[:, :-1])


def find(whole: list[int], part: list[int]) -> int:
    size = len(part)
    return next(i for i in range(len(whole)) if whole[i : i + size] == part)


def test_a_document_by_itself_begins_with_its_mark_and_an_empty_memory():
    objective = opened(recipe("documents"))
    documents = objective.encoded._tables[0]["ids"]
    examples = objective.examples(0)
    texts_said = [text for row in rows_of(objective, examples) for text in row]
    wanted = [[*documents[d].tolist(), objective.marks.end] for d in range(len(documents))]
    assert sorted(texts_said) == sorted(wanted)
    for index in objective.order(examples):
        batch = objective.collate(examples, index)
        begins = batch.fresh & batch.layout.keep[:, 0]
        assert (batch.ids[begins, 0] == objective.marks.begin).all()


def test_validation_says_every_token_but_the_first_once():
    for kind in ("stream", "documents"):
        objective = opened(recipe(kind))
        documents = objective.encoded.validation["ids"]
        total = int(documents.lengths.sum()) + len(documents)
        assert int(objective.validation.lengths.sum()) == total - (kind == "stream")


@pytest.mark.parametrize("blank", [False, True])
@pytest.mark.parametrize("kind", ["stream", "documents"])
def test_losses_are_those_of_a_model_that_is_given_its_mems(kind, blank):
    objective = opened(recipe(kind, tree(blank=blank)))
    model = built(objective).train()
    examples = objective.examples(0)
    mems: list[Any] = [None] * ROWS
    for index in objective.order(examples)[:6]:
        batch = objective.collate(examples, index)
        loss, _ = objective.loss(model, batch)
        wanted = torch.zeros((), dtype=torch.float64)
        for r in range(ROWS):
            said = int((batch.labels[r] != -100).sum())
            if not said:
                continue
            old = None if bool(batch.fresh[r]) else mems[r]
            out = model(input_ids=batch.ids[r : r + 1, :said], mems=old)
            mems[r] = out.mems
            wanted = wanted + torch.nn.functional.cross_entropy(
                out.logits[0], batch.labels[r, :said], reduction="sum"
            )
        torch.testing.assert_close(loss, wanted, rtol=1e-10, atol=1e-10)


def test_memory_carries_no_gradient_and_validation_leaves_it_alone():
    objective = opened(recipe())
    model = built(objective).train()
    examples = objective.examples(0)
    batches = [objective.collate(examples, index) for index in objective.order(examples)[:2]]
    objective.loss(model, batches[0])
    kept = {name: x.clone() for name, x in objective.state().items()}
    assert not kept["hidden"].requires_grad
    first = validate(objective, model, objective.validation)
    assert validate(objective, model, objective.validation) == first
    assert all(torch.equal(x, kept[name]) for name, x in objective.state().items())
    with listen(lambda name, x: None):
        looked, _ = objective.loss(model, batches[1])
    assert all(torch.equal(x, kept[name]) for name, x in objective.state().items())
    loss, _ = objective.loss(model, batches[1])
    assert torch.equal(loss, looked)
    loss.backward()  # the memory has moved on meanwhile
    assert not torch.equal(objective.state()["hidden"], kept["hidden"])


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    asked = recipe(model=tree(dropout=0.1))
    train(asked, tmp_path / "whole", device="cpu", corpus=texts())
    short = recipe(model=tree(dropout=0.1), steps=4)
    train(short, tmp_path / "parts", device="cpu", corpus=texts())
    train(
        None, tmp_path / "parts", device="cpu", corpus=texts(), resume=True,
        overrides=["train.steps=8"],
    )  # fmt: skip
    a, b = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    state = torch.load(tmp_path / "parts/checkpoints/step-00000008/state.pt", weights_only=True)
    assert state["objective"]["hidden"].shape == (2, ROWS, MEMORY, 12)
    assert state["objective"]["real"].all()


def test_validation_may_remember_more_than_training():
    short, long = opened(recipe()), opened(recipe(memory=40))
    model = built(short).eval()
    found = [validate(x, model, x.validation)["nll"] for x in (short, long)]
    assert found[0] != found[1]
    assert np.isfinite(found).all()


def test_a_model_without_a_memory_is_refused():
    objective = MemoryLM(recipe(model=tree(memory=0)))
    with pytest.raises(ConfigError, match=r"relative has no memory.*causal-lm"):
        objective.config(Vocabulary(60, 0, 2, 3))


def test_a_batch_moves_as_a_whole():
    objective = opened(recipe("documents"))
    examples = objective.examples(0)
    batch = moved(objective.collate(examples, objective.order(examples)[0]), "meta")
    assert batch.fresh.is_meta
    assert batch.layout.keep.is_meta
