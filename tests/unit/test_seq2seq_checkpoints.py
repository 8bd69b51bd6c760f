"""Fine-tuning encoder-decoders of other families: special tokens, start tokens and labels are
those that transformers builds, and the loss is its loss."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

import allformer as af
from allformer.errors import ConfigError
from allformer.text.load import load_tokenizer
from allformer.train.loop import train
from allformer.train.objectives.seq2seq import Seq2Seq
from allformer.train.recipe import make_recipe
from allformer.train.sections.model import CheckpointModel
from allformer.train.weights import begin
from tests.tiny import checkpoint  # noqa: F401  (a fixture)

hf = pytest.importorskip("transformers")

PAIRS = [
    ("The capital of France is Paris.", "Paris is in France."),
    ("A man is eating food.", "Two women are playing chess outside."),
    ("Goethe wrote Faust in Weimar.", "he was born"),
    ("her sister works", "for Siemens."),
] * 3


def written(path) -> str:
    lines = (json.dumps({"article": a, "summary": b, "id": 1}) for a, b in PAIRS)
    (path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (path / "val.jsonl").write_text(
        "\n".join(json.dumps({"article": a, "summary": b}) for a, b in PAIRS[1:4]), encoding="utf-8"
    )
    return str(path)


def recipe(model, data: str, **more: object):
    languages = {"source": "en", "target": "de"}
    return make_recipe(
        {
            "objective": "seq2seq",
            "model": {"checkpoint": str(model)},
            "data": {"path": data, "columns": {"source": "article", "target": "summary"},
                     "max_length": 64, **languages, **more},
            "train": {"steps": 2, "batch_tokens": 400, "average": 1, "smoothing": 0.0},
            "log": {"tensorboard": False},
        }
    )  # fmt: skip


def opened(recipe) -> Seq2Seq:
    objective = Seq2Seq(recipe)
    objective.open()
    directory = recipe.tokenizer.checkpoint
    objective.encode(objective.tokenizer(load_tokenizer(directory)), lambda line: None)
    return objective


@pytest.mark.parametrize("name", ["t5", "bart", "marian", "mbart"])
def test_labels_and_loss_are_those_of_transformers(name, checkpoint, tmp_path):  # noqa: F811
    directory = checkpoint(name)
    prefix = "translate English to German: " if name == "t5" else ""
    objective = opened(recipe(directory, written(tmp_path), prefix=prefix))
    batch = objective.collate(objective.examples(0), np.arange(4))
    codes = {"src_lang": "en_XX", "tgt_lang": "de_DE"} if name == "mbart" else {}
    tokenizer = hf.AutoTokenizer.from_pretrained(directory, **codes)
    given = tokenizer(
        [prefix + a for a, _ in PAIRS[:4]], text_target=[b for _, b in PAIRS[:4]],
        return_tensors="pt", padding=True,
    )  # fmt: skip
    source, target = batch.source_layout, batch.target_layout
    mine = source.to_grid(batch.source)
    assert source.keep.long().equal(given.attention_mask)
    assert mine.masked_fill(~source.keep, tokenizer.pad_token_id).equal(given.input_ids)
    labels = target.to_grid(batch.labels).masked_fill(~target.keep, tokenizer.pad_token_id)
    assert labels.equal(given.labels)
    theirs = hf.AutoModelForSeq2SeqLM.from_pretrained(directory).double().eval()
    ours = af.load(directory).double().eval()
    ignored = given.labels.masked_fill(~target.keep, -100)
    out = theirs(input_ids=given.input_ids, attention_mask=given.attention_mask, labels=ignored)
    loss, _ = objective.loss(ours, batch)
    assert loss.item() / batch.tokens == pytest.approx(out.loss.item(), rel=1e-6)


def test_a_checkpoint_is_tuned_stops_goes_on_and_opens(checkpoint, tmp_path):  # noqa: F811
    data = written(tmp_path)
    asked = recipe(checkpoint("t5"), data, prefix="summarize: ")
    result = train(asked, tmp_path / "run", device="cpu")
    assert result.steps == 2
    again = train(None, tmp_path / "run", device="cpu", resume=True, overrides=["train.steps=4"])
    assert again.steps == 4
    model = af.load(tmp_path / "run")
    assert model.config.start == af.load(checkpoint("t5")).config.start
    tokenizer = load_tokenizer(tmp_path / "run")
    assert tokenizer.encode("a man") == load_tokenizer(checkpoint("t5")).encode("a man")


def test_long_sides_are_left_out_or_cut(checkpoint, tmp_path):  # noqa: F811
    data, sizes = written(tmp_path), {}
    for truncate in (False, True):
        objective = opened(recipe(checkpoint("t5"), data, max_length=7, truncate=truncate))
        lengths = objective.lengths(objective.examples(0))
        sizes[truncate] = (len(lengths[0]), int(max(side.max() for side in lengths)))
        sources, end = objective.examples(0).sources, 1
        assert all(sources[i][-1] == end for i in range(len(sources)))
    said: list[str] = []
    objective.encode(load_tokenizer(checkpoint("t5")), said.append)
    assert re.search(r"training: 12 pairs; [1-9]\d* texts cut to 7 tokens", said[0]), said
    assert sizes[True] == (12, 7)
    assert 0 < sizes[False][0] < 12
    assert sizes[False][1] <= 7


def test_both_columns_are_named_or_none(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.columns=.* must name both sides"):
        make_recipe({"data": {"path": "a", "columns": {"source": "x"}}})
    with pytest.raises(ConfigError, match=r"data\.path is empty"):
        make_recipe({"data": {"columns": {"source": "x", "target": "y"}}})


def test_a_fresh_model_with_t5s_tokeniser_begins_with_what_fills_rows(checkpoint, tmp_path):  # noqa: F811
    directory = checkpoint("t5")
    raw = recipe(directory, written(tmp_path))
    asked = make_recipe(
        {
            "model": {"dim": 16, "heads": 2, "feed": 32, "layers": 1},
            "tokenizer": {"checkpoint": str(directory)},
            "data": raw.data.plain(),
            "train": {"batch_tokens": 400},
        }
    )
    objective = opened(asked)
    from allformer.train.sections.vocabulary import Vocabulary

    vocabulary = Vocabulary.of(load_tokenizer(directory))
    assert vocabulary.bos is None
    tree = objective.config(vocabulary)
    assert tree.start == vocabulary.pad
    assert objective.generation(tree)["decoder_start_token_id"] == vocabulary.pad
    model = af.build(tree, seed=0)
    loss, _ = objective.loss(model, objective.collate(objective.examples(0), np.arange(3)))
    assert torch.isfinite(loss)


def test_training_says_that_layers_are_not_dropped_which_a_checkpoint_dropped(tmp_path):
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size"), 8)
    heads = {f"{side}_{what}": 1 for side in ("encoder", "decoder")
             for what in ("layers", "attention_heads")}  # fmt: skip
    for share, told in ((0.1, 1), (0.0, 0)):
        config = hf.BartConfig(**sizes, **heads, decoder_layerdrop=share)
        path = tmp_path / str(share)
        hf.BartForConditionalGeneration(config).save_pretrained(path)
        tree, said = af.load(path).config, []
        begin(CheckpointModel(str(path)), tree, torch.device("cpu"), said.append)
        assert sum("decoder_layerdrop=0.1: whole layers" in line for line in said) == told
