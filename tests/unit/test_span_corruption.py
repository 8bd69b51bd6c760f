"""T5's span corruption: the paper's figures, the text back from input and target, runs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import allformer as af
from allformer import tasks
from allformer.checkpoint.weights import read_tensors
from allformer.core.layout import Grid, Packed
from allformer.data.draws import Draws
from allformer.errors import ConfigError
from allformer.train.loop import train
from allformer.train.objectives.noise_spans import Noise, noise_mask
from allformer.train.objectives.span_corruption import SpanCorruption
from allformer.train.objectives.text_to_text import PairBatch
from allformer.train.predictions import Predictions
from allformer.train.recipe import Recipe, make_recipe
from allformer.train.tokenizing import make_tokenizer


def texts(count: int = 50) -> list[str]:
    random = np.random.default_rng(0)
    return ["".join("abcdefghij "[i] for i in random.integers(11, size=20 + 3 * (n % 30)))
            for n in range(count)]  # fmt: skip


def recipe(length: int = 32, steps: int = 20, tokens: int = 160, **options: object) -> Recipe:
    return make_recipe(
        {
            "objective": {"is": "span-corruption", **options},
            "data": {"max_length": length, "hold_out": 6},
            "tokenizer": {"kind": "characters", "vocab": 160},
            "model": {"dim": 24, "heads": 2, "feed": 48, "layers": 1, "dropout": 0.0},
            "optim": {"rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 5},
            "train": {"steps": steps, "batch_tokens": tokens, "save_every": 10,
                      "validate_every": 10, "average": 1},
            "log": {"every": 5, "tensorboard": False},
        }
    )  # fmt: skip


def opened(recipe: Recipe, corpus: list[str] | None = None) -> SpanCorruption:
    objective = SpanCorruption(recipe)
    objective.open(texts() if corpus is None else corpus)
    objective.encode(make_tokenizer(objective, lambda line: None), lambda line: None)
    return objective


def rows_of(batch: PairBatch) -> list[tuple[list[int], list[int]]]:
    """The input and the labels of each row."""
    if isinstance(batch.source_layout, Grid):
        return list(zip(batch.source.tolist(), batch.labels.tolist(), strict=True))
    both = []
    for ids, layout in ((batch.source, batch.source_layout), (batch.labels, batch.target_layout)):
        both.append([ids[a:b].tolist() for a, b in pairwise(layout.starts.tolist())])
    return list(zip(*both, strict=True))


def restored(read: list[int], said: list[int], sentinels: list[int]) -> list[int]:
    """The text: each sentinel of the input is what follows it in the target."""
    assert read.pop() == said.pop() == 3
    spans: dict[int, list[int]] = {}
    for token in said:
        if token in sentinels:
            assert token not in spans
            spans[token] = []
            last = token
        else:
            spans[last].append(token)
    assert list(spans) == sentinels[: len(spans)]  # in their order
    assert all(spans.values())
    return [t for token in read for t in spans.get(token, [token])]


def test_the_papers_figures_of_lengths():
    noise = Noise()
    assert noise.fitting(512) == 568
    read, said = noise.sizes(np.array([568]))
    assert (read[0] + 1, said[0] + 1) == (512, 114)


def test_spans_are_fifteen_percent_in_spans_of_three_cut_evenly():
    lengths, index = np.full(2000, 100), np.arange(2000)
    mask = noise_mask(lengths, index, Draws(0, 0), Noise()).reshape(2000, 100)
    assert (mask.sum(1) == 15).all()
    assert not mask[:, 0].any()  # the rest comes first
    assert mask[:, -1].all()
    begins = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    assert (begins.sum(1) == 5).all()
    # 15 tokens in 5 parts, every way equally likely: a part is 1 with 4/14.
    sizes = [int(n) for row in mask for n in np.diff(np.flatnonzero(np.diff(np.pad(row, 1))))[::2]]
    assert np.mean(sizes) == 3
    assert np.mean(np.array(sizes) == 1) == pytest.approx(4 / 14, abs=0.02)
    assert max(sizes) == 11
    other = noise_mask(lengths, index, Draws(0, 1), Noise()).reshape(2000, 100)
    assert (mask != other).any(1).mean() > 0.99


@pytest.mark.parametrize("rows", ["stream", "documents"])
def test_input_and_target_give_the_text_back(rows):
    objective = opened(recipe(rows=rows))
    sentinels = objective.sentinels.tolist()
    assert len(sentinels) == 100
    for epoch in range(3):
        examples = objective.examples(epoch)
        index = np.arange(len(examples.lengths))
        batch = objective.collate(examples, index)
        before = examples.take(index)
        sizes = objective.lengths(examples)
        for i, (read, said) in enumerate(rows_of(batch)):
            assert (len(read), len(said)) == (sizes[0][i], sizes[1][i])
            assert restored(read, said, sentinels) == before[i].tolist()


def test_rows_of_a_stream_are_grids_of_one_size():
    objective = opened(recipe())
    examples = objective.examples(0)
    batch = objective.collate(examples, np.arange(objective.rows_of_batch))
    assert batch.source_layout == Grid(5, 32)
    assert batch.target_layout.rows == 5
    assert set(objective.lengths(examples)[0]) == {32}
    assert len(examples.lengths) % 5 == 0
    assert objective.frame() is None
    assert batch.target[:, 0].eq(2).all()
    assert batch.target[:, 1:].equal(batch.labels[:, :-1])
    apart = opened(recipe(rows="documents"))
    framed = apart.collate(apart.examples(0), np.arange(3), apart.frame())
    assert isinstance(framed.source_layout, Packed)
    assert len(framed.source) == len(framed.target) == 160


@pytest.mark.parametrize("rows", ["stream", "documents"])
def test_the_loss_is_that_of_a_plain_call(rows):
    objective = opened(recipe(rows=rows))
    model = af.build(objective.config(objective.vocabulary), seed=0).double().eval()
    batch = objective.collate(objective.examples(0), np.arange(4))
    loss, _ = objective.loss(model, batch)
    source, target = batch.source_layout, batch.target_layout
    labels = target.to_grid(batch.labels)
    labels = labels if target.keep is None else labels.masked_fill(~target.keep, -100)
    out = model(input_ids=source.to_grid(batch.source), attention_mask=source.keep, labels=labels)
    assert loss.item() / batch.tokens == pytest.approx(out.loss.item(), rel=1e-12)
    nll, measured = objective.appraise(model, batch)
    assert nll.item() == pytest.approx(loss.item(), rel=1e-12)
    assert 0 <= measured["accuracy"] <= batch.tokens


def test_the_loss_is_that_of_t5_in_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    objective = opened(recipe())
    config = transformers.T5Config(
        vocab_size=objective.pieces.vocab_size, d_model=24, d_kv=8, d_ff=40, num_layers=2,
        num_heads=3, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.T5ForConditionalGeneration(config).double().eval()
    theirs.save_pretrained(tmp_path)
    ours = af.load(tmp_path).double().eval()
    batch = objective.collate(objective.examples(0), np.arange(4))
    asked = make_recipe(
        {"objective": "span-corruption", "model": {"checkpoint": str(tmp_path)}, "tokenizer": {}}
    )
    begun = batch.target.clone()
    begun[:, 0] = -1  # the model's own token begins
    loss, _ = SpanCorruption(asked).loss(ours, batch._replace(target=begun))
    out = theirs(input_ids=batch.source, labels=batch.labels)
    assert loss.item() / batch.tokens == pytest.approx(out.loss.item(), rel=1e-6)


def test_what_is_hidden_is_learnt_to_its_floor(tmp_path):
    """One letter a text: what is hidden is that letter, and only its number is left to guess."""
    lines = [letter * length for letter in "abcdefgh" for length in range(10, 30)]
    asked = make_recipe(
        {
            **{k: x.plain() for k, x in vars(recipe(steps=100, rows="documents")).items()
               if k in ("model", "optim", "schedule", "tokenizer", "log")},
            "objective": {"is": "span-corruption", "rows": "documents", "mean_span": 1000},
            "data": {"max_length": 32, "hold_out": 8},
            "train": {"steps": 120, "batch_tokens": 500, "save_every": 120, "average": 1},
        }
    )  # fmt: skip
    result = train(asked, tmp_path / "run", device="cpu", corpus=lines)
    found = result.rows[-1]
    # <extra_id_0>, 2 to 4 letters, </s>: where it ends is all that is not told, ln 3 of 5 tokens.
    assert found["validation_nll"] < np.log(3) / 4 + 0.05
    assert found["validation_accuracy"] > 0.8
    shown = Predictions.load(tmp_path / "run")
    assert shown is not None
    assert shown.rows[0].wanted.startswith("<extra_id_0>")
    letter = shown.rows[0].wanted[-1]
    assert shown.rows[0].given.startswith(f"<extra_id_0>{letter}")
    said = tasks.generate(tmp_path / "run", "ccccccc<extra_id_0>")
    assert set(said) == {"c"}


@pytest.mark.parametrize("rows", ["stream", "documents"])
def test_a_run_in_two_parts_equals_one_in_a_piece(rows, tmp_path):
    train(recipe(rows=rows), tmp_path / "whole", device="cpu", corpus=texts())
    train(recipe(rows=rows, steps=10), tmp_path / "parts", device="cpu", corpus=texts())
    torch.manual_seed(99)
    train(
        None, tmp_path / "parts", device="cpu", corpus=texts(), resume=True,
        overrides=["train.steps=20"],
    )  # fmt: skip
    one, other = (read_tensors(tmp_path / n / "model.safetensors") for n in ("whole", "parts"))
    assert all(one[name].equal(other[name]) for name in one)


def test_too_few_sentinels_are_refused_with_ways_out():
    with pytest.raises(ConfigError, match=r"max_length=4000 have \d+ hidden spans, .* 100 sent"):
        opened(recipe(length=4000, tokens=4000))
