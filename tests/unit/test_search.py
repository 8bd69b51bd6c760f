"""Search: the best of all sequences, scored as said, whatever the batch, the cache or the beams."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from allformer.config import LMHead, Tokens
from allformer.core.model import EncoderDecoderModel
from allformer.errors import ConfigError
from allformer.generate import rows, stepper
from allformer.generate.beams import search_beams
from tests.models import (
    BOS,
    EOS,
    KINDS,
    PAD,
    left_padding,
    restless,
    right_padding,
    seq2seq,
    stack,
    tokens,
)
from tests.parity.marian import twins
from tests.search import Found, search

LENGTHS = [9, 4, 7, 1, 9, 6, 8, 3]
LIMIT = 14
PENALTIES = [0.0, 0.6, 1.0, 2.0]


@cache
def model(kind: str) -> EncoderDecoderModel:
    """Models whose eight sentences have at least four different lengths."""
    if kind == "paper":
        return restless(replace(KINDS["seq2seq paper"], head=LMHead(bias=True)), seed=1, end=4.0)
    modern = replace(KINDS["seq2seq modern"], head=LMHead(tied=False, bias=True))
    return restless(modern, seed=7, end=4.0)


def sources(side: str = "right") -> tuple[Tensor, Tensor]:
    """A ragged batch, padded on one side."""
    width = max(LENGTHS)
    mask = (right_padding if side == "right" else left_padding)(LENGTHS, width)
    return (tokens(len(LENGTHS), width, seed=3) * mask).where(mask.bool(), PAD), mask


def same(a: Found, b: Found) -> None:
    assert (a.ids, a.ended) == (b.ids, b.ended)
    assert a.scores == pytest.approx(b.scores, rel=1e-9)


def log_probabilities(
    net: EncoderDecoderModel, source: Tensor, sequences: list[list[int]]
) -> list[float]:
    """log p of each sequence (ids, </s> included) for one source S, by one plain forward pass."""
    width = max(map(len, sequences))
    said = torch.tensor([s + [EOS] * (width - len(s)) for s in sequences])
    read = torch.cat([torch.full((len(said), 1), BOS), said[:, :-1]], dim=1)
    with torch.no_grad():
        logits = net(source.expand(len(said), -1), decoder_input_ids=read).logits
    each = logits.log_softmax(-1).gather(2, said[..., None]).squeeze(2)
    return [float(row[: len(s)].sum()) for row, s in zip(each, sequences, strict=True)]


def spoken(found: Found, row: int) -> list[int]:
    """What was said, with its </s> if there was one."""
    return found.ids[row] + [EOS] * found.ended[row]


def steps_of(net: EncoderDecoderModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each decoder step that follows."""
    rows: list[int] = []
    plain = EncoderDecoderModel.step

    def step(self, ids, *args, **kwargs):
        rows.append(len(ids))
        return plain(self, ids, *args, **kwargs)

    monkeypatch.setattr(stepper, "FASTER", [])  # so that the model's step is asked
    monkeypatch.setattr(EncoderDecoderModel, "step", step)
    return rows


# --- what is found -----------------------------------------------------------------------------


@cache
def every_sequence(limit: int) -> list[list[int]]:
    """All that can be said with the tokens 1, 4 and 5 and </s> in at most `limit` tokens."""
    words = (1, 4, 5)
    ended = [[*s, EOS] for n in range(limit) for s in product(words, repeat=n)]
    return ended + [list(s) for s in product(words, repeat=limit)]


def tiny(seed: int) -> tuple[EncoderDecoderModel, Tensor]:
    """A model that can say three words, and a source for it."""
    few = Tokens(6, scale=True, pad_id=PAD, bos_id=BOS, eos_id=EOS)
    config = replace(seq2seq(source=few), head=LMHead(tied=False, bias=True))
    return restless(config, seed, end=1.5), tokens(1, 5, seed, vocab=6)


@pytest.mark.every(2)
@pytest.mark.parametrize("penalty", [-1.0, *PENALTIES])
def test_enough_beams_find_the_best_of_all_sequences(penalty):
    everything = every_sequence(4)
    winners = set()
    for seed in range(8):
        net, source = tiny(seed)
        logp = log_probabilities(net, source, everything)
        score, best = max(
            (total / len(s) ** penalty, s) for total, s in zip(logp, everything, strict=True)
        )
        found = search(
            net, source, max_new_tokens=4, num_beams=len(everything), length_penalty=penalty
        )
        assert spoken(found, 0) == best
        assert found.scores[0] == pytest.approx(score, rel=1e-10)
        winners.add(tuple(best))
    assert len(winners) > 2, "the models are too much alike to tell a wrong search"
    assert any(s[-1] == EOS for s in winners)


def test_a_length_penalty_above_zero_favours_length():
    lengths = []
    for penalty in (-2.0, 0.0, 2.0):
        said = 0
        for seed in range(6):
            net, source = tiny(seed)
            found = search(net, source, max_new_tokens=4, num_beams=40, length_penalty=penalty)
            said += len(spoken(found, 0))
        lengths.append(said)
    assert lengths[0] < lengths[1] < lengths[2]


@pytest.mark.every(3)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("kind", ["paper", "modern"])
def test_a_score_is_the_log_probability_over_the_length_to_the_penalty(kind, beams, penalty):
    ids, mask = sources()
    found = search(
        model(kind), ids, mask, max_new_tokens=LIMIT, num_beams=beams, length_penalty=penalty
    )
    for row, length in enumerate(LENGTHS):
        said = spoken(found, row)
        (logp,) = log_probabilities(model(kind), ids[row : row + 1, :length], [said])
        assert found.scores[row] == pytest.approx(logp / len(said) ** penalty, rel=1e-9)


@pytest.mark.every(3)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("kind", ["paper", "modern"])
def test_one_beam_is_greedy(kind, penalty, early, monkeypatch):
    ids, mask = sources()
    options = {"max_new_tokens": LIMIT, "length_penalty": penalty, "early_stopping": early}
    greedy = search(model(kind), ids, mask, **options)
    module = importlib.import_module("allformer.generate.generate")
    monkeypatch.setattr(module, "decode", search_beams)
    same(search(model(kind), ids, mask, **options), greedy)


@pytest.mark.parametrize("beams", [1, 3])
def test_padding_and_start_are_never_said_however_likely(beams):
    net = model.__wrapped__("modern")  # a new one: it is changed below
    ids, mask = sources()
    plain = search(net, ids, mask, max_new_tokens=LIMIT, num_beams=beams, length_penalty=0.0)
    with torch.no_grad():
        net.head.bias[[PAD, BOS]] = 50.0
    pushed = search(net, ids, mask, max_new_tokens=LIMIT, num_beams=beams, length_penalty=0.0)
    said = {token for sequence in pushed.ids for token in sequence}
    assert not said & {PAD, BOS, EOS}
    assert len(said) > 3
    # The score is what the model says: what they take from the rest is not given back.
    assert all(b < a - 10 for a, b in zip(plain.scores, pushed.scores, strict=True))


# --- batches, caches, rows that leave ----------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("kind", ["paper", "modern"])
def test_a_sentence_in_a_ragged_batch_is_what_it_is_alone(kind, beams, side):
    ids, mask = sources(side)
    batch = search(model(kind), ids, mask, max_new_tokens=LIMIT, num_beams=beams)
    assert len(set(map(len, batch.ids))) >= 4, "rows must end at different times"
    for row in range(len(ids)):
        alone = ids[row : row + 1][:, mask[row].bool()]
        single = search(model(kind), alone, max_new_tokens=LIMIT, num_beams=beams)
        same(single, Found([batch.ids[row]], [batch.scores[row]], [batch.ended[row]]))


@pytest.mark.every(5)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("beams", [1, 2, 5])
@pytest.mark.parametrize("kind", ["paper", "modern"])
def test_with_and_without_a_cache_the_same_is_said(kind, beams, side):
    ids, mask = sources(side)
    settings = {"max_new_tokens": LIMIT, "num_beams": beams, "length_penalty": 0.6}
    cached = search(model(kind), ids, mask, **settings)
    same(cached, search(model(kind), ids, mask, use_cache=False, **settings))
    assert len(set(map(len, cached.ids))) >= 3


def test_the_cache_spares_the_tokens_already_read(monkeypatch):
    net, widths = model("paper"), []
    plain = EncoderDecoderModel.step

    def step(self, ids, *args, **kwargs):
        widths.append(ids.shape[1])
        return plain(self, ids, *args, **kwargs)

    monkeypatch.setattr(stepper, "FASTER", [])  # so that the model's step is asked
    monkeypatch.setattr(EncoderDecoderModel, "step", step)
    ids, mask = sources()
    search(net, ids, mask, max_new_tokens=5, num_beams=2)
    assert widths == [1] * 5
    widths.clear()
    search(net, ids, mask, max_new_tokens=5, num_beams=2, use_cache=False)
    assert widths == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_that_are_done_run_on_until_they_are_many(beams, monkeypatch):
    net = model("modern")
    steps = steps_of(net, monkeypatch)
    ids, mask = sources()
    settings = {"max_new_tokens": LIMIT, "num_beams": beams, "early_stopping": True}
    small = search(net, ids, mask, **settings)
    assert steps.pop(0) == len(ids), "the start is read once for all beams"
    assert set(steps) == {len(ids) * beams}, "a small batch stays together"
    before = len(steps)

    steps.clear()
    monkeypatch.setattr(rows, "FEW", 2)
    same(search(net, ids, mask, **settings), small)
    assert len(steps) == before + 1
    sizes = list(dict.fromkeys(steps[1:]))
    assert steps[1:] == sorted(steps[1:], reverse=True)
    assert len(sizes) >= 3
    for more, fewer in pairwise(sizes):
        assert fewer <= (1 - rows.IDLE) * more, "not one by one"


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", ["paper", "modern"])
def test_each_row_has_its_own_limit(kind, beams):
    ids, mask = sources()
    limits = [3, 14, 5, 1, 9, 2, 14, 4]
    batch = search(model(kind), ids, mask, max_new_tokens=limits, num_beams=beams)
    for row, limit in enumerate(limits):
        one = slice(row, row + 1)
        single = search(model(kind), ids[one], mask[one], max_new_tokens=limit, num_beams=beams)
        same(single, Found(batch.ids[one], batch.scores[one], batch.ended[one]))
        assert len(spoken(batch, row)) <= limit


@pytest.mark.parametrize("beams", [1, 3])
def test_a_sentence_without_an_end_is_flagged_and_as_long_as_its_limit(beams):
    ids, mask = sources()
    net = restless(replace(KINDS["seq2seq paper"], head=LMHead(bias=True)), seed=1, end=-1e4)
    limits = [5, 2, 3, 1, 7, 4, 6, 2]
    found = search(net, ids, mask, max_new_tokens=limits, num_beams=beams)
    assert found.ended == [False] * len(ids)
    assert [len(s) for s in found.ids] == limits

    both = search(model("paper"), ids, mask, max_new_tokens=LIMIT, num_beams=beams)
    assert set(both.ended) == {True, False}
    for sequence, ended in zip(both.ids, both.ended, strict=True):
        assert len(sequence) < LIMIT if ended else len(sequence) == LIMIT


def test_early_stopping_ends_a_row_at_its_kth_finished_beam(monkeypatch):
    net = model("modern")
    rows = steps_of(net, monkeypatch)
    sooner = 0
    ids, mask = sources()
    for row in range(len(ids)):
        taken, scores = [], []
        for early in (True, False):
            rows.clear()
            one = slice(row, row + 1)
            settings = {"num_beams": 3, "length_penalty": 2.0, "early_stopping": early}
            found = search(net, ids[one], mask[one], max_new_tokens=LIMIT, **settings)
            taken.append(len(rows))
            scores.append(found.scores[0])
        assert taken[0] <= taken[1]
        assert scores[0] <= scores[1] + 1e-12  # going on can only find better ones
        sooner += taken[0] < taken[1]
    assert sooner >= 3


# --- transformers ------------------------------------------------------------------------------


@cache
def marian(seed: int, end: float):
    return twins(seed, end)


def theirs_said(sequence: Tensor) -> list[int]:
    """Without the start token and what follows </s>."""
    said = sequence[1:].tolist()
    return said[: said.index(EOS) + 1] if EOS in said else said


@pytest.mark.parametrize(("seed", "end"), [(1, 3.0), (12, 3.0), (4, 2.0)])
def test_greedy_says_what_transformers_says(seed, end):
    ours, theirs = marian(seed, end)
    ids, mask = sources()
    found = search(ours, ids, mask, max_new_tokens=16)
    want = theirs.generate(
        ids, attention_mask=mask, max_new_tokens=16, num_beams=1, do_sample=False
    )
    for row in range(len(ids)):
        assert spoken(found, row) == theirs_said(want[row])


@pytest.mark.every(5)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_beams_say_what_transformers_says_with_its_scores(beams, penalty, early):
    ids, mask = sources()
    lengths, unended = set(), 0
    for seed, end in ((1, 3.0), (12, 3.0), (4, 2.0)):
        ours, theirs = marian(seed, end)
        settings = {
            "max_new_tokens": 16,
            "num_beams": beams,
            "length_penalty": penalty,
            "early_stopping": early,
        }
        found = search(ours, ids, mask, **settings)
        want = theirs.generate(
            ids, attention_mask=mask, do_sample=False, return_dict_in_generate=True,
            output_scores=True, **settings,
        )  # fmt: skip
        for row in range(len(ids)):
            assert spoken(found, row) == theirs_said(want.sequences[row])
        # transformers sums in fp32
        assert found.scores == pytest.approx(want.sequences_scores.tolist(), rel=1e-5, abs=1e-5)
        lengths |= set(map(len, found.ids))
        unended += found.ended.count(False)
    assert len(lengths) >= 4
    assert 0 < unended < 24


# --- mistakes ----------------------------------------------------------------------------------


def test_impossible_settings_are_refused_by_name():
    ids, mask = sources()
    with pytest.raises(ConfigError, match="num_beams=0 must be a whole number of at least 1"):
        search(model("paper"), ids, mask, max_new_tokens=5, num_beams=0)
    with pytest.raises(ConfigError, match="limits has 0, which must be at least 1"):
        search(model("paper"), ids, mask, max_new_tokens=[5, 0, 5, 5, 5, 5, 5, 5])
    with pytest.raises(ConfigError, match="limits has 2 numbers for 8 rows"):
        search(model("paper"), ids, mask, max_new_tokens=[5, 5])


def test_a_model_without_start_and_end_tokens_cannot_search():
    config = replace(
        KINDS["seq2seq paper"],
        encoder=stack(source=Tokens(37)),
        decoder=replace(KINDS["seq2seq paper"].decoder, source=Tokens(37)),
    )
    net = restless(replace(config, head=LMHead(bias=True)), seed=1, end=0.0)
    with pytest.raises(ConfigError, match="needs decoder_start_token_id or bos_token_id"):
        search(net, *sources(), max_new_tokens=3)
