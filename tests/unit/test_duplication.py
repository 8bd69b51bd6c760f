"""Duplicated sequences: what is drawn, what is said, and that a model learns to look back."""

from __future__ import annotations

import numpy as np
import pytest

from allformer.data.duplicates import duplicates
from allformer.errors import ConfigError
from allformer.train.loop import train
from allformer.train.objectives.duplication import Duplication
from allformer.train.recipe import make_recipe
from allformer.train.tokenizing import make_tokenizer


def recipe(data=None, **settings):
    return make_recipe(
        {
            "objective": "duplication",
            "data": {"symbols": 9, "length": 7, "rows": 70, "held_out": 20, **(data or {})},
            "model": {"dim": 32, "heads": 2, "feed": 32, "layers": 1, "dropout": 0.0},
            "optim": {"rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 10},
            "train": {"steps": 150, "batch_tokens": 512, "save_every": 150, "validate_every": 150,
                      "average": 1, **settings},
            "log": {"every": 50, "tensorboard": False},
        }
    )  # fmt: skip


def opened(asked) -> Duplication:
    objective = Duplication(asked)
    objective.open()
    objective.encode(make_tokenizer(objective, lambda line: None), lambda line: None)
    return objective


def test_a_row_is_0_w_0_w_and_a_seed_says_all():
    rows = duplicates(50, length=6, symbols=4, seed=1)
    assert rows.shape == (50, 14)
    assert (rows[:, :7] == rows[:, 7:]).all()
    assert (rows[:, 0] == 0).all()
    assert set(rows[:, 1:7].ravel()) == {1, 2, 3, 4}
    assert (rows == duplicates(50, length=6, symbols=4, seed=1)).all()
    assert (rows != duplicates(50, length=6, symbols=4, seed=2)).any()


def test_only_the_second_w_is_said():
    objective = opened(recipe())
    batch = objective.collate(objective.validation, np.arange(3))
    ids, labels = batch.ids.numpy(), batch.labels.numpy()
    assert ids.shape == labels.shape == (3, 16)
    assert (labels[:, :8] == -100).all()
    assert (labels[:, -1] == -100).all()
    assert (labels[:, 8:-1] == ids[:, 1:8]).all()  # what the first half has
    assert batch.tokens == 3 * 7 == (labels != -100).sum()


def test_epochs_differ_and_have_batches_of_one_size():
    objective = opened(recipe())
    first, same, second = (objective.examples(epoch) for epoch in (0, 0, 1))
    assert len(first) == 64  # of 70: two batches of 32
    assert (first == same).all()
    assert (first != second).any()
    seen = {row.tobytes() for row in (*first, *second)}
    assert not seen & {row.tobytes() for row in objective.validation}


def test_a_row_that_no_batch_holds_and_another_tokeniser_are_refused():
    with pytest.raises(ConfigError, match=r"train.batch_tokens=8 is less than a row, which has 16"):
        opened(recipe(batch_tokens=8)).longest  # noqa: B018
    objective, fewer = Duplication(recipe({"symbols": 12})), Duplication(recipe({"symbols": 3}))
    with pytest.raises(ConfigError, match="draws its own data"):
        objective.open(["a"])
    with pytest.raises(ConfigError, match="13 tokens, of which 5 differ, of the numbers 0 … 12"):
        objective.encode(make_tokenizer(fewer, lambda line: None), lambda line: None)


def test_one_layer_learns_it(tmp_path):
    rows = train(recipe(), tmp_path / "run", device="cpu").rows
    assert rows[-1]["validation_accuracy"] > 0.99
