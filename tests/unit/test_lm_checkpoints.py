"""Language-model objectives on the checkpoints of other families: their tokens, their heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import allformer as af
from allformer.checkpoint.body import take_body
from allformer.config import LMHead
from allformer.errors import ConfigError
from allformer.text.load import load_tokenizer
from allformer.train.loop import train
from allformer.train.objectives import find_objective
from allformer.train.recipe import make_recipe
from tests.models import encoder_only
from tests.tiny import LINES, checkpoint, unigram  # noqa: F401  (a fixture)

pytest.importorskip("transformers")

TEXTS = [f"{a} {b}" for a in LINES[:4] for b in LINES[:4]]
CASES = {
    "gpt2": {"is": "causal-lm", "rows": "documents"},
    "llama": {"is": "causal-lm"},
    "bert-mlm": {"is": "masked-lm", "pair": "next-sentence"},
    "bert-pretrain": {"is": "masked-lm", "pair": "sentence-order", "whole_words": True},
    "roberta-mlm": {"is": "masked-lm", "rows": "stream"},
    "bart": {"is": "denoising"},
}


def recipe(directory, objective: dict[str, object]):
    return make_recipe(
        {
            "objective": objective,
            "model": {"checkpoint": str(directory)},
            "data": {"max_length": 32, "hold_out": 4},
            "train": {"steps": 2, "batch_tokens": 200, "average": 1},
            "log": {"tensorboard": False},
        }
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_learns_on(name, checkpoint, tmp_path):  # noqa: F811
    directory = checkpoint(name)
    result = train(recipe(directory, CASES[name]), tmp_path / "run", device="cpu", corpus=TEXTS)
    assert result.steps == 2
    before, after = af.load(directory), af.load(tmp_path / "run")
    body = [n for n in before.state_dict() if not n.startswith(("head.", "pool."))]
    assert body
    old, new = before.state_dict(), after.state_dict()
    assert any(not torch.equal(old[n], new[n]) for n in body)
    for n in body:  # two small steps from where it was, not from anew
        assert (old[n] - new[n]).abs().max() < 0.2 * old[n].abs().max() + 1e-2
    tokenizer = load_tokenizer(tmp_path / "run")
    assert tokenizer.encode(LINES[0]) == load_tokenizer(directory).encode(LINES[0])
    again = train(
        None, tmp_path / "run", device="cpu", corpus=TEXTS, resume=True,
        overrides=["train.steps=3"],
    )  # fmt: skip
    assert again.steps == 3


def test_marks_are_the_familys_own(checkpoint):  # noqa: F811
    objective = find_objective("masked-lm")(recipe(checkpoint("bert-mlm"), CASES["bert-mlm"]))
    objective.open(TEXTS)
    tokenizer = load_tokenizer(checkpoint("bert-mlm"))
    objective.encode(tokenizer, lambda line: None)
    assert objective.marks == (tokenizer.cls_id, tokenizer.sep_id)
    assert objective.masking.mask == tokenizer.mask_id
    assert objective.masking.special[[tokenizer.pad_id, tokenizer.sep_id]].all()


def test_sentinels_are_the_checkpoints_or_are_missed(checkpoint, tmp_path):  # noqa: F811
    directory = checkpoint("t5")
    objective = find_objective("span-corruption")(recipe(directory, {"is": "span-corruption"}))
    objective.open(TEXTS)
    with pytest.raises(ConfigError, match=r"the tokeniser has 0 sentinels"):
        objective.encode(load_tokenizer(directory), lambda line: None)
    unigram(tmp_path, "T5Tokenizer", ["<pad>", "</s>", "<unk>"], extra_ids=100)
    tokenizer = load_tokenizer(tmp_path)
    objective.encode(tokenizer, lambda line: None)
    assert len(objective.sentinels) == 100
    assert objective.sentinels[0] == tokenizer.token_to_id("<extra_id_0>")
    assert objective.marks == ((), (tokenizer.eos_id,))
    batch = objective.collate(objective.examples(0), np.arange(2))
    assert batch.target[:, 0].lt(0).all()  # the model's own token begins
    assert batch.labels[:, 0].eq(int(objective.sentinels[0])).all()


def test_a_table_that_the_tokens_brought_is_not_fresh_in_the_head():
    tree = encoder_only()
    bare = af.build(tree, seed=0)
    model = af.build(replace(tree, head=LMHead(tied=True, bias=True)), seed=1)
    fresh, odd = take_body(model, bare.state_dict())
    assert not odd
    assert "head.table.weight" in model.state_dict()
    assert fresh == [name for name, _ in model.named_parameters() if name.startswith("head.")]
    assert torch.equal(model.head.table.weight, bare.encoder.source.embedding.weight)
