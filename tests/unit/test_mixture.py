"""Mixtures: declared proportions, small sets repeated evenly, (seed, epoch) decides."""

from collections import Counter

import numpy as np
import pytest

from allformer.data.mixture import Mixture, shares
from allformer.data.table import Table
from allformer.errors import DataError


def table(first: int, count: int) -> Table:
    rows = [[first + i] * (i % 3) for i in range(count)]
    values = range(first, first + count)
    return Table.from_columns(
        {"ids": rows, "label": list(values), "text": [f"é{value}" for value in values]}
    )


TABLES = [table(0, 1000), table(10_000, 30)]


def test_proportions_hold_to_a_row_and_small_sets_repeat_evenly():
    mixed = Mixture(TABLES, weights=[3, 1], total=400).epoch(seed=0, epoch=0)
    labels = mixed["label"]
    assert len(mixed) == 400
    assert (labels < 10_000).sum() == 300
    assert len(set(labels[labels < 10_000].tolist())) == 300  # of 1,000: none twice
    times = Counter(labels[labels >= 10_000].tolist())
    assert set(times.values()) == {3, 4}  # 100 of 30
    assert (labels[:100] < 10_000).sum() in range(60, 90)  # and well mixed


def test_over_epochs_a_set_is_used_up_before_a_row_of_it_returns():
    mixture = Mixture(TABLES, weights=[1, 1], total=500)
    seen = np.concatenate([mixture.epoch(seed=2, epoch=epoch)["label"] for epoch in range(4)])
    large = seen[seen < 10_000].tolist()
    assert sorted(large) == list(range(1000))  # four times 250
    assert set(Counter(seen[seen >= 10_000].tolist()).values()) == {33, 34}


def test_seed_and_epoch_alone_decide():
    def labels(seed: int, epoch: int) -> list[int]:
        return Mixture(TABLES, [1, 2], total=50).epoch(seed=seed, epoch=epoch)["label"].tolist()

    assert labels(0, 3) == labels(0, 3)
    assert labels(0, 3) != labels(0, 4)
    assert labels(0, 3) != labels(1, 3)


def test_rows_are_those_of_the_tables_and_a_batch_is_a_table():
    mixed = Mixture(TABLES).epoch(seed=0, epoch=0)
    assert len(mixed) == 1030  # by size: an ordinary epoch over both
    assert sorted(mixed["label"].tolist()) == [*range(1000), *range(10_000, 10_030)]
    index = [7, 0, 512, 7]
    batch = mixed.take(index)
    assert isinstance(batch, Table)
    for i, j in enumerate(index):
        label = int(mixed["label"][j])
        assert batch["label"][i] == label
        assert batch["text"][i] == mixed["text"][j] == f"é{label}"
        assert (
            batch["ids"][i].tolist() == mixed["ids"][j].tolist() == [label] * (label % 10_000 % 3)
        )
    assert batch["ids"].lengths.tolist() == mixed["ids"].lengths[index].tolist()


def test_temperature_makes_parts_alike():
    assert shares([900, 100]).tolist() == pytest.approx([0.9, 0.1])
    assert shares([900, 100], temperature=2).tolist() == pytest.approx([0.75, 0.25])
    assert shares([900, 100], [1, 1]).tolist() == [0.5, 0.5]
    assert shares([900, 100], temperature=1e9).tolist() == pytest.approx([0.5, 0.5])


def test_mixtures_that_cannot_be_are_refused():
    other = Table.from_columns({"ids": [[1]]})
    for call, words in (
        (lambda: Mixture(TABLES, [1]), "must be 2 numbers"),
        (lambda: Mixture(TABLES, [1, 0]), "leave out a set of weight 0"),
        (lambda: Mixture(TABLES, [1, float("nan")]), "must be positive"),
        (lambda: Mixture(TABLES, temperature=0), "temperature=0"),
        (lambda: Mixture([]), "none may be empty"),
        (lambda: Mixture([TABLES[0], other]), "have the same columns"),
    ):
        with pytest.raises(DataError, match=words):
            call()
