"""Masked language models: the paper's figures, pairs, the loss, a run that learns and resumes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import allformer as af
from allformer import tasks
from allformer.checkpoint.weights import read_tensors
from allformer.core.layout import Grid
from allformer.data.draws import Draws
from allformer.errors import ConfigError, DataError
from allformer.text.tokenizer import train_tokenizer
from allformer.train.loop import train
from allformer.train.objectives.masked_lm import MaskedBatch, MaskedLM
from allformer.train.objectives.masking import Masking, word_begins
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.tokenizing import make_tokenizer
from allformer.train.validate import validate

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


def document(i: int) -> str:
    lines = (" ".join(WORDS[(i + j + k) % 10] for k in range(4 + j % 3)) for j in range(5 + i % 4))
    return "".join(f"{line.capitalize()}. " for line in lines)


def texts(count: int = 40) -> list[str]:
    return [document(i) + str(i) for i in range(count)]


def recipe(length: int = 32, tokenizer: dict[str, object] | None = None, **more: object) -> Recipe:
    options = {k: x for k, x in more.items() if k not in ("steps", "batch_tokens")}
    steps, tokens = more.get("steps", 20), more.get("batch_tokens", 160)
    return make_recipe(
        {
            "objective": {"is": "masked-lm", **options},
            "data": {"max_length": length, "hold_out": 6},
            "tokenizer": tokenizer or {"kind": "bpe", "vocab": 120},
            "model": {"dim": 24, "heads": 2, "feed": 48, "layers": 1, "dropout": 0.0},
            "optim": {"rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 5},
            "train": {"steps": steps, "batch_tokens": tokens, "save_every": 10,
                      "validate_every": 10, "average": 1},
            "log": {"every": 5, "tensorboard": False},
        }
    )  # fmt: skip


def opened(recipe: Recipe, corpus: list[str] | None = None) -> MaskedLM:
    objective = MaskedLM(recipe)
    objective.open(texts() if corpus is None else corpus)
    objective.encode(make_tokenizer(objective, lambda line: None), lambda line: None)
    return objective


def whole(objective: MaskedLM, epoch: int = 0) -> tuple[MaskedBatch, np.ndarray]:
    """All rows of an epoch in one batch, and their ids before anything was hidden."""
    examples = objective.examples(epoch)
    index = np.arange(len(examples.rows.lengths))
    before = examples.rows.lay(index, objective.marks).ids
    return objective.collate(examples, index), before


# --- the corruption ----------------------------------------------------------------------------


def test_the_figures_are_the_papers_and_the_labels_give_the_text_back():
    objective = opened(recipe())
    hidden = kept = other = tokens = 0
    for epoch in range(60):
        batch, before = whole(objective, epoch)
        ids, places = batch.ids.numpy(), batch.places.numpy()
        back = ids.copy()
        back[places] = batch.labels.numpy()
        assert (back == before).all()
        assert (np.delete(ids, places) == np.delete(before, places)).all()
        assert not objective.masking.special[before[places]].any()
        new = ids[places]
        hidden += int((new == 4).sum())
        kept += int((new == before[places]).sum())
        other += int(((new != 4) & (new != before[places])).sum())
        tokens += int((~objective.masking.special[before]).sum())
    chosen = hidden + kept + other
    assert chosen / tokens == pytest.approx(0.15, abs=0.01)  # rounded row by row
    error = 4 * (0.8 * 0.2 / chosen) ** 0.5
    assert hidden / chosen == pytest.approx(0.8, abs=error)
    # One random word in a hundred is the word itself.
    assert other / chosen == pytest.approx(0.1, abs=error)
    assert kept / chosen == pytest.approx(0.1, abs=error)


def test_each_row_has_its_share_to_the_nearest_token():
    objective = opened(recipe())
    batch, _ = whole(objective)
    for a, b in pairwise(batch.layout.starts.tolist()):
        own = int(((batch.places >= a) & (batch.places < b)).sum())
        assert own == max(1, round(0.15 * (b - a - 2)))


def test_masks_change_with_the_epoch_not_with_the_batch_and_those_of_validation_stay():
    objective = opened(recipe())
    examples = objective.examples(3)
    one = objective.collate(examples, np.array([0, 1, 2]))
    other = objective.collate(examples, np.array([2, 5]))
    size = int(examples.rows.lengths[2])
    assert one.ids[-size:].equal(other.ids[:size])
    again = objective.collate(objective.examples(3), np.array([0, 1, 2]))
    assert one.ids.equal(again.ids)
    assert not one.ids.equal(objective.collate(objective.examples(4), np.array([0, 1, 2])).ids)
    both = [objective.collate(objective.validation, np.arange(3)) for _ in range(2)]
    assert both[0].ids.equal(both[1].ids)


def test_whole_words_are_hidden_as_a_whole():
    objective = opened(recipe(whole_words=True, tokenizer={"kind": "bpe", "vocab": 60}))
    begins = word_begins(objective.pieces)
    total = chosen = 0
    for epoch in range(20):
        batch, before = whole(objective, epoch)
        special = objective.masking.special[before]
        behind = np.roll(special, 1)  # a row may begin in the midst of a word
        word = np.cumsum(begins[before] | special | behind)  # a number for each word
        picked = np.zeros(len(before), bool)
        picked[batch.places.numpy()] = True
        for number in np.unique(word[picked]):
            assert picked[word == number].all()
        total, chosen = total + int((~special).sum()), chosen + int(picked.sum())
    assert chosen / total == pytest.approx(0.15, abs=0.02)


def test_the_beginnings_of_words_are_told_by_the_tokeniser():
    tokenizer = train_tokenizer(["hello worldly, 你好", "hello world"] * 4, "bpe", 60)
    ids = tokenizer.encode("hello worldly, 你好")
    begins = word_begins(tokenizer)[ids]
    pieces = tokenizer.tokens(ids)
    expected = [p[0] == "·" or not p[0].isascii() or not p[0].isalnum() for p in pieces]
    assert begins.tolist() == expected
    assert begins.sum() >= 4


def test_full_rows_are_a_grid_of_one_size_with_equally_many_places():
    objective = opened(recipe(rows="stream", length=16))
    examples = objective.examples(0)
    assert set(examples.rows.lengths) == {16}
    assert objective.frame() is None
    batches = [objective.collate(examples, np.arange(i, i + 10)) for i in (0, 10)]
    assert all(batch.layout == Grid(10, 16) for batch in batches)
    assert batches[0].places.shape == batches[1].places.shape
    assert (batches[0].ids[:, 0] == 2).all()
    assert (batches[0].ids[:, -1] == 3).all()


def test_a_framed_batch_has_the_same_loss():
    objective = opened(recipe(pair="next-sentence"))
    model = af.build(objective.config(objective.vocabulary), seed=0).double().eval()
    examples = objective.examples(0)
    plain = objective.collate(examples, np.arange(4))
    framed = objective.collate(examples, np.arange(4), objective.frame())
    other = objective.collate(examples, np.arange(2), objective.frame())
    assert [x.shape for x in framed[:6:2] if hasattr(x, "shape")] == [
        x.shape for x in other[:6:2] if hasattr(x, "shape")
    ]
    assert framed.counts == plain.counts
    one, two = (objective.loss(model, batch)[0] for batch in (plain, framed))
    torch.testing.assert_close(one, two, rtol=1e-12, atol=0)


# --- pairs -------------------------------------------------------------------------------------


def pairs_of(objective: MaskedLM, epoch: int) -> list[tuple[list[int], list[int], int]]:
    examples = objective.examples(epoch)
    first, second = examples.rows.first, examples.rows.second
    return [
        (first[i].tolist(), second[i].tolist(), int(examples.pairs[i]))
        for i in range(len(first.lengths))
    ]


def test_half_of_the_next_sentences_are_of_another_document():
    objective = opened(recipe(length=40, pair="next-sentence"))
    documents = objective.encoded._tables[0]["ids"]
    flat = [" ".join(map(str, documents[i])) for i in range(len(documents))]
    labels = []
    for epoch in range(8):
        for a, b, label in pairs_of(objective, epoch):
            assert 2 <= len(a) + len(b) <= 37
            if len(a) + len(b) < 37 and not label:  # nothing was cut off
                joined = " ".join(map(str, a + b))
                assert any(joined in text for text in flat)
            labels.append(label)
    share = np.mean(labels)
    # Where one sentence is left it can only be followed by another document's.
    assert 0.45 < share < 0.75
    batch = objective.collate(objective.examples(0), np.arange(3))
    for row, (a, b) in enumerate(pairwise(batch.layout.starts.tolist())):
        types = batch.types[a:b].tolist()
        first, second, label = pairs_of(objective, 0)[row]
        assert types == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert batch.pairs[row] == label


def test_half_of_the_sentences_are_out_of_order():
    objective = opened(recipe(length=40, pair="sentence-order"))
    documents = objective.encoded._tables[0]["ids"]
    flat = [" ".join(map(str, documents[i])) for i in range(len(documents))]
    labels = []
    for epoch in range(8):
        for a, b, label in pairs_of(objective, epoch):
            if len(a) + len(b) < 37:  # nothing was cut off
                joined = " ".join(map(str, b + a if label else a + b))
                assert any(joined in text for text in flat)
            labels.append(label)
    error = 4 * 0.5 / len(labels) ** 0.5
    assert np.mean(labels) == pytest.approx(0.5, abs=error)


def test_next_sentences_need_two_documents():
    objective = opened(recipe(pair="next-sentence"))
    objective.encoded._tables[0] = objective.encoded._tables[0].take([0])
    with pytest.raises(DataError, match=r"there is one alone; .* pair=sentence-order"):
        objective.examples(0)


# --- the loss ----------------------------------------------------------------------------------


def test_the_loss_is_that_of_a_plain_call_on_the_grid():
    objective = opened(recipe(pair="next-sentence"))
    model = af.build(objective.config(objective.vocabulary), seed=0).double().eval()
    batch = objective.collate(objective.examples(0), np.arange(5))
    loss, nll = objective.loss(model, batch)
    assert loss.equal(nll)
    grid = batch.layout.to_grid
    labels = torch.full_like(batch.ids, -100)
    labels[batch.places] = batch.labels
    out = model(
        input_ids=grid(batch.ids), attention_mask=batch.layout.keep,
        token_type_ids=grid(batch.types), labels=grid(labels).masked_fill(~batch.layout.keep, -100),
        next_sentence_label=batch.pairs,
    )  # fmt: skip
    mean = sum(x / n for x, n in zip(loss, batch.counts, strict=True))
    assert mean.item() == pytest.approx(out.loss.item(), rel=1e-12)
    again, measured = objective.appraise(model, batch)
    torch.testing.assert_close(again, nll, rtol=1e-12, atol=0)
    assert 0 <= measured["pair_accuracy"] <= 5


def test_the_loss_is_that_of_bert_in_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    objective = opened(recipe(pair="next-sentence"))
    config = transformers.BertConfig(
        vocab_size=objective.pieces.vocab_size, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=40, max_position_embeddings=40,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.BertForPreTraining(config).double().eval()
    theirs.save_pretrained(tmp_path)
    ours = af.load(tmp_path).double().eval()
    batch = objective.collate(objective.examples(0), np.arange(5))
    loss, _ = objective.loss(ours, batch)
    grid = batch.layout.to_grid
    labels = torch.full_like(batch.ids, -100)
    labels[batch.places] = batch.labels
    out = theirs(
        input_ids=grid(batch.ids), attention_mask=batch.layout.keep.long(),
        token_type_ids=grid(batch.types), labels=grid(labels).masked_fill(~batch.layout.keep, -100),
        next_sentence_label=batch.pairs,
    )  # fmt: skip
    mean = sum(x / n for x, n in zip(loss, batch.counts, strict=True))
    assert mean.item() == pytest.approx(out.loss.item(), rel=1e-10)


# --- runs --------------------------------------------------------------------------------------


def test_hidden_letters_are_learnt_to_their_floor(tmp_path):
    """Each line is one letter again and again: whatever is left of it says what is hidden."""
    lines = [letter * length for letter in "abcdefgh" for length in range(8, 28)]
    asked = recipe(tokenizer={"kind": "characters", "vocab": 20}, steps=60, batch_tokens=400)
    result = train(asked, tmp_path / "run", device="cpu", corpus=lines)
    found = result.rows[-1]
    assert found["validation_nll"] < 0.1
    assert found["validation_accuracy"] == 1
    best = tasks.fill(tmp_path / "run", "ccccc<mask>ccc")
    assert best[0].token == "c"
    assert best[0].text == "cccccccccc"[:9]
    shown = Predictions.load(tmp_path / "run")
    assert shown is not None
    assert "___" in shown.rows[0].input
    assert shown.rows[0].right
    assert sum(bin_[0] for bin_ in shown.calibration) >= len(shown.rows)


@pytest.mark.parametrize("options", [{}, {"pair": "sentence-order"}], ids=str)
def test_a_run_in_two_parts_equals_one_in_a_piece(options, tmp_path):
    train(recipe(**options), tmp_path / "whole", device="cpu", corpus=texts())
    train(recipe(**options, steps=10), tmp_path / "parts", device="cpu", corpus=texts())
    torch.manual_seed(99)
    train(
        None, tmp_path / "parts", device="cpu", corpus=texts(), resume=True,
        overrides=["train.steps=20"],
    )  # fmt: skip
    one, other = (read_tensors(tmp_path / n / "model.safetensors") for n in ("whole", "parts"))
    assert all(one[name].equal(other[name]) for name in one)


def test_figures_of_a_pair_are_over_pairs():
    objective = opened(recipe(pair="sentence-order"))
    model = af.build(objective.config(objective.vocabulary), seed=0).eval()
    found = validate(objective, model, objective.validation)
    assert set(found) == {"nll", "nll_words", "nll_pair", "accuracy", "pair_accuracy"}
    assert 0.4 < found["nll_pair"] < 1.1
    assert found["nll"] == pytest.approx(found["nll_words"] + found["nll_pair"])


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"objective\.random=0\.5 and objective\.masked=0\.8"):
        recipe(random=0.5)
    with pytest.raises(ConfigError, match=r"objective\.rows='stream' goes across documents"):
        recipe(rows="stream", pair="next-sentence")
    with pytest.raises(ConfigError, match=r"has no mask token"):
        Masking.of(train_tokenizer(["a b"], "bpe", 20))


def test_draws_depend_on_their_names_alone():
    draws = Draws(0, 1)
    rows, places = np.indices((50, 40)).reshape(2, -1)
    numbers = draws(rows, places)
    order = np.random.default_rng(0).permutation(len(rows))
    assert (draws(rows[order], places[order]) == numbers[order]).all()
    assert len(set(numbers)) == len(numbers)
    assert numbers.mean() == pytest.approx(0.5, abs=0.03)
    for other in (Draws(0, 2)(rows, places), draws(rows, places, 1), draws(rows + 50, places)):
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.1
