"""BART's denoising: the paper's figures, sentences in another order, the text as target, runs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import allformer as af
from allformer.checkpoint.weights import read_tensors
from allformer.data.draws import Draws
from allformer.data.encoded import Rows
from allformer.errors import ConfigError
from allformer.text.tokenizer import train_tokenizer
from allformer.train.encoded_texts import sentences
from allformer.train.loop import train
from allformer.train.objectives.denoising import Denoising
from allformer.train.objectives.infilling import NOISES, infilled, poisson, shuffled
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.tokenizing import make_tokenizer

MASK = 4


def texts(count: int = 40) -> list[str]:
    return [
        " ".join(f"{'abcdefgh'[(i + j) % 8] * (2 + j)}{i}." for j in range(3 + i % 4))
        for i in range(count)
    ]


def recipe(steps: int = 20, tokens: int = 160, rate: float = 1e-2, **options: object) -> Recipe:
    return make_recipe(
        {
            "objective": {"is": "denoising", **options},
            "data": {"max_length": 32, "hold_out": 6},
            "tokenizer": {"kind": "characters", "vocab": 60},
            "model": {"dim": 24, "heads": 2, "feed": 48, "layers": 1, "dropout": 0.0},
            "optim": {"rate": rate},
            "schedule": {"kind": "constant", "warmup": 5},
            "train": {"steps": steps, "batch_tokens": tokens, "save_every": 10,
                      "validate_every": 1000, "average": 1},
            "log": {"every": 5, "tensorboard": False},
        }
    )  # fmt: skip


def opened(recipe: Recipe) -> Denoising:
    objective = Denoising(recipe)
    objective.open(texts())
    objective.encode(make_tokenizer(objective, lambda line: None), lambda line: None)
    return objective


def many(rows: int = 3000, length: int = 40) -> tuple[Rows, np.ndarray]:
    return Rows.from_lists([list(range(10, 10 + length))] * rows), np.arange(rows)


def test_infilled_spans_are_poisson_and_hide_thirty_percent():
    rows, index = many()
    found = infilled(rows, index, Draws(0, 0), 0.3, 3.0, MASK)
    masks, left, spans = 0, 0, []
    for i in range(len(rows)):
        row = found[i].tolist()
        kept = [token for token in row if token != MASK]
        assert kept == sorted(kept)  # nothing else moves
        assert len(kept) == 28  # 12 of 40 are hidden, in every row
        assert len(row) <= 40
        masks, left = masks + row.count(MASK), left + len(kept)
        gaps = np.diff([9, *kept, 50]) - 1
        spans += [int(gap) for gap in gaps if gap]
    # Poisson(3) until 12 are reached: about 12 / 3 spans, the last one cut, empty ones among them.
    assert masks / len(rows) == pytest.approx(4.5, abs=0.15)
    again = infilled(rows, index, Draws(0, 0), 0.3, 3.0, MASK)
    assert (again.ids == found.ids).all()
    other = infilled(rows, index, Draws(0, 1), 0.3, 3.0, MASK)
    assert len(other.ids) != len(found.ids) or (other.ids != found.ids).any()
    some = infilled(rows.take([7, 3]), np.array([7, 3]), Draws(0, 0), 0.3, 3.0, MASK)
    assert some[0].tolist() == found[7].tolist()
    assert some[1].tolist() == found[3].tolist()


def test_lengths_are_poisson():
    numbers = np.random.default_rng(0).random(200_000)
    found = poisson(numbers, 3.0)
    assert found.mean() == pytest.approx(3, abs=0.02)
    assert found.var() == pytest.approx(3, abs=0.05)
    assert (found == 0).mean() == pytest.approx(np.exp(-3), abs=0.003)


@pytest.mark.parametrize("noise", ["mask", "delete"])
def test_tokens_are_hidden_or_left_out_one_by_one(noise):
    rows, index = many(200)
    found = NOISES[noise](rows, index, Draws(0, 0), 0.3, 3.0, MASK)
    if noise == "mask":
        assert (found.lengths == 40).all()
        assert all((found[i] == MASK).sum() == 12 for i in range(200))
        assert ((found.ids == MASK) | (found.ids == rows.ids)).all()
    else:
        assert (found.lengths == 28).all()
        assert all((np.diff(found[i]) > 0).all() for i in range(200))


def test_sentences_change_places_and_every_order_is_as_likely():
    rows = Rows.from_lists([[1, 2, 2, 3, 3, 3]] * 6000)
    cuts = Rows.from_lists([[1, 2, 3]] * 6000)
    found = shuffled(rows, cuts, np.arange(6000), Draws(0, 0))
    assert found.lengths.tolist() == rows.lengths.tolist()
    seen: dict[tuple[int, ...], int] = {}
    for i in range(6000):
        order = tuple(dict.fromkeys(found[i].tolist()))
        assert sorted(found[i].tolist()) == [1, 2, 2, 3, 3, 3]
        assert found[i].tolist() == [n for n in order for _ in range(n)]
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert max(seen.values()) / 6000 == pytest.approx(1 / 6, abs=0.02)


def test_the_target_is_the_text_and_rows_are_whole_sentences():
    objective = opened(recipe(rate=0.01))
    table = objective.encoded._tables[0]
    examples = objective.examples(0)
    batch = objective.collate(examples, np.arange(len(examples.rows)))
    said = [batch.labels[a:b].tolist() for a, b in pairwise(batch.target_layout.starts.tolist())]
    assert all(row[-1] == 3 and len(row) <= 32 for row in said)
    whole = [i for row in said for i in row[:-1]]
    assert whole == table["ids"].flat().tolist()
    decoded = [objective.pieces.decode(row) for row in said]
    assert all(text.rstrip().endswith(".") for text in decoded)
    assert "".join(sentences("A. B! C?\nD")) == "A. B! C?\nD"
    read = [batch.source[a:b].tolist() for a, b in pairwise(batch.source_layout.starts.tolist())]
    assert any(MASK in row for row in read)
    framed = objective.collate(examples, np.arange(3), objective.frame())
    assert len(framed.source) == len(framed.target) == 160


def test_the_loss_is_that_of_a_plain_call():
    objective = opened(recipe())
    model = af.build(objective.config(objective.vocabulary), seed=0).double().eval()
    batch = objective.collate(objective.examples(0), np.arange(4))
    loss, _ = objective.loss(model, batch)
    source, target = batch.source_layout, batch.target_layout
    labels = target.to_grid(batch.labels).masked_fill(~target.keep, -100)
    out = model(input_ids=source.to_grid(batch.source), attention_mask=source.keep, labels=labels)
    assert loss.item() / batch.tokens == pytest.approx(out.loss.item(), rel=1e-12)


def test_damaged_letters_are_learnt_to_their_floor(tmp_path):
    """One letter a text, between signs whose number tells it from others: what is left of it says
    what was there."""
    lines = ["." * sign + letter * 10 for letter in "abcdefgh" for sign in range(6)]
    asked = recipe(steps=60, tokens=300, noise="mask")
    result = train(asked, tmp_path / "run", device="cpu", corpus=lines)
    assert result.rows[-1]["validation_nll"] < 0.35
    assert result.rows[-1]["validation_accuracy"] > 0.8
    shown = Predictions.load(tmp_path / "run")
    assert shown is not None
    assert "<mask>" in shown.rows[0].input


def test_a_run_in_two_parts_equals_one_in_a_piece(tmp_path):
    train(recipe(), tmp_path / "whole", device="cpu", corpus=texts())
    train(recipe(steps=10), tmp_path / "parts", device="cpu", corpus=texts())
    torch.manual_seed(99)
    train(
        None, tmp_path / "parts", device="cpu", corpus=texts(), resume=True,
        overrides=["train.steps=20"],
    )  # fmt: skip
    one, other = (read_tensors(tmp_path / n / "model.safetensors") for n in ("whole", "parts"))
    assert all(one[name].equal(other[name]) for name in one)


def test_a_tokeniser_without_a_mask_is_refused():
    objective = Denoising(recipe())
    objective.open(texts())
    with pytest.raises(ConfigError, match=r"has no mask token, and objective.noise=infill"):
        objective.encode(train_tokenizer(texts(), "characters", 60), lambda line: None)
