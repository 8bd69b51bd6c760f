"""Batches by token budget: nothing lost, nothing over the budget, the same in every process."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allformer.data.batches import token_batches
from allformer.errors import TrainingError


@settings(derandomize=True, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=60),
    budget=st.integers(20, 60),
    pool=st.integers(0, 5),
    max_rows=st.none() | st.integers(1, 5),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 9),
)
def test_every_sentence_once_and_no_batch_over_its_limits(
    lengths: list[tuple[int, int]],
    budget: int,
    pool: int,
    max_rows: int | None,
    seed: int,
    epoch: int,
) -> None:
    source, target = np.array(lengths, np.int64).reshape(-1, 2).T

    def make() -> list[np.ndarray]:
        return token_batches(
            source, target, budget, seed=seed, epoch=epoch, pool=pool, max_rows=max_rows
        )

    batches = make()
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= (max_rows or len(lengths))
        assert source[batch].sum() <= budget
        assert target[batch].sum() <= budget
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in make()]


def random_lengths(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    source = random.integers(3, 60, count)
    return source, np.maximum(1, source + random.integers(-5, 6, count))


def test_seed_and_epoch_change_the_batches() -> None:
    source, target = random_lengths(500)
    orders = [
        np.concatenate(token_batches(source, target, 300, seed=seed, epoch=epoch, pool=4)).tolist()
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_another_process_makes_the_same_batches() -> None:
    call = "token_batches(list(range(1, 40)), list(range(1, 40)), 100, seed=3, epoch=1, pool=2)"
    code = f"from allformer.data.batches import token_batches; print([b.tolist() for b in {call}])"
    here = token_batches(range(1, 40), range(1, 40), 100, seed=3, epoch=1, pool=2)
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str([batch.tolist() for batch in here])


def padded(batches: list[np.ndarray], lengths: np.ndarray) -> float:
    return float(sum(len(b) * lengths[b].max() for b in batches) / lengths.sum())


def test_a_larger_pool_pads_less_and_batches_stay_full() -> None:
    source, target = random_lengths(5000)
    made = {
        pool: token_batches(source, target, 1000, seed=0, epoch=0, pool=pool) for pool in (0, 5, 50)
    }
    waste = {pool: padded(batches, source) for pool, batches in made.items()}
    assert waste[0] > 1.5 > waste[5] > waste[50]
    assert waste[50] < 1.1
    for batches in made.values():
        assert len(batches) <= 1.1 * max(source.sum(), target.sum()) / 1000


def test_bucketed_batches_do_not_come_sorted() -> None:
    source, target = random_lengths(5000)
    batches = token_batches(source, target, 1000, seed=0, epoch=0, pool=1000)
    means = [source[batch].mean() for batch in batches]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


def test_a_sentence_over_the_budget_is_named() -> None:
    message = r"sentence 2 has 90 target tokens, more than budget=50 \(2 such.*use budget=90"
    with pytest.raises(TrainingError, match=message):
        token_batches([5, 5, 5], [60, 5, 90], 50, seed=0, epoch=0)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(TrainingError, match="two lists of one length"):
        token_batches([1, 2], [1], 10, seed=0, epoch=0)
    for wrong in ({"pool": -1}, {"max_rows": 0}):
        with pytest.raises(TrainingError, match="at least"):
            token_batches([1], [1], 10, seed=0, epoch=0, **wrong)


def test_no_sentences_make_no_batches() -> None:
    assert token_batches([], [], 10, seed=0, epoch=0) == []


def test_a_quarter_million_pairs_take_less_than_a_second() -> None:
    source, target = random_lengths(250_000)
    start = time.process_time()
    token_batches(source, target, 4096, seed=0, epoch=0, pool=20)
    assert time.process_time() - start < 1
