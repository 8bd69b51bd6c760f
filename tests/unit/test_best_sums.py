"""Beams of a large vocabulary go on as the log-probabilities of all words say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.core.lean.native import find_few
from allformer.generate import beams, best_sums
from allformer.generate.generate import generate
from tests.models import KINDS, loud, tokens

pytestmark = pytest.mark.skipif(find_few() is None, reason="there is no compiler here")
NONE = torch.empty(0, dtype=torch.long)


def plain(logits: Tensor, score: Tensor, count: int, never: Tensor = NONE) -> Any:
    logp = logits.log_softmax(-1).index_fill(1, never, float("-inf"))
    sums = logp.view(*score.shape, -1) + score[..., None]
    return sums.flatten(1).topk(count)


def drawn(rows: int, count: int, vocab: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(vocab)
    score = torch.rand(rows, count, generator=draw) * -9
    return 4 * torch.randn(rows * count, vocab, generator=draw), score


def check_best_sums() -> None:
    for vocab in (8192, 9001):  # whole chunks, and a rest
        logits, score = drawn(3, 4, vocab)
        logits[0, -1] = logits[5, 0] = 30.0
        logits[8:] = logits[8:].sort().values  # all that counts is in the last chunks
        never = torch.tensor([0, vocab - 1, 70])
        logits[:, never] += 20.0
        for forbidden in (NONE, never):
            wanted = plain(logits, score, 8, forbidden)
            best, where = best_sums.best_sums(logits.clone(), score, 8, forbidden)
            assert torch.equal(where, wanted.indices)
            torch.testing.assert_close(best, wanted.values, rtol=1e-6, atol=1e-5)


def test_the_best_are_those_of_all_log_probabilities() -> None:
    check_best_sums()


def test_equals_and_what_is_no_number_are_left_to_torch() -> None:
    logits, score = drawn(2, 3, 8192)
    logits = logits.round()
    same = best_sums.best_sums(logits.clone(), score.round(), 6, NONE)[1]
    assert torch.equal(same, plain(logits, score.round(), 6).indices)
    logits[4, 100] = float("nan")
    assert best_sums.best_sums(logits, score, 6, NONE)[0].isnan().any(1).tolist() == [False, True]


def check_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same texts with it and without it; who wants all scores has them."""
    tree = KINDS["seq2seq paper"]
    stacks = {
        name: replace(stack, source=replace(stack.source, vocab=8200))
        for name, stack in (("encoder", tree.encoder), ("decoder", tree.decoder))
    }
    net = loud(replace(tree, **stacks)).float()
    asked: list[int] = []

    def counting(*told: Any) -> Any:
        asked.append(1)
        return best_sums.best_sums(*told)

    monkeypatch.setattr(beams, "best_sums", counting)
    options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 3, "num_beams": 3}
    mine = generate(net, tokens(2, 5), **options)
    assert len(asked) == 5
    for more in (
        {"output_scores": True, "return_dict_in_generate": True},
        {"repetition_penalty": 1.0 + 1e-9},
    ):
        other = generate(net, tokens(2, 5), **options, **more)
        other = getattr(other, "sequences", other)
        assert torch.equal(mine, other)
    assert len(asked) == 5


def test_beams_of_a_large_vocabulary_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    check_beams(monkeypatch)
