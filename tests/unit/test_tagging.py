"""Tagging: learnt at first pieces, scored as transformers and seqeval do."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch

import allformer as af
from allformer import tasks
from allformer.checkpoint.convert import convert
from allformer.core.loss import IGNORE
from allformer.errors import DataError
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import train_tokenizer
from allformer.train.batch import Frame
from allformer.train.loop import train
from allformer.train.objectives import find_objective
from allformer.train.predictions import Predictions
from allformer.train.recipe import make_recipe
from allformer.train.supervised.encode_words import first_pieces
from tests.supervised import gradients, mean_loss, on_checkpoint, tiny
from tests.tiny import LINES, checkpoint  # noqa: F401

hf = pytest.importorskip("transformers")
NAMES, PLACES = ("Anna Bell", "Carl", "Dora"), ("Rome", "New York", "Paris")


def sentences(count, seed=0):
    draw, found = random.Random(seed), []
    for _ in range(count):
        words, tags = [], []
        for kind, choices in (("PER", NAMES), ("", ["went to", "likes"]), ("LOC", PLACES)):
            for i, word in enumerate(draw.choice(choices).split()):
                words.append(word)
                tags.append(f"{'BI'[i > 0]}-{kind}" if kind else "O")
        found.append({"tokens": [*words, "."], "tags": [*tags, "O"]})
    return found


TOY = (sentences(150), sentences(40, seed=1))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("tags") / "run"
    recipe = tiny("tagging", train={"best": "f1", "steps": 80})
    return path, train(recipe, path, device="cpu", corpus=TOY)


def test_a_separable_set_is_learnt(run):
    last = run[1].rows[-1]
    assert last["validation_f1"] == last["validation_recall"] == last["validation_accuracy"] == 1


def test_the_run_tags_texts(run):
    found = tasks.tag(run[0], "Anna Bell went to New York .")
    assert [(one.label, one.text) for one in found] == [("PER", "Anna Bell"), ("LOC", "New York")]


def test_the_report_shows_entities_and_the_confusion_of_tags(run):
    found = Predictions.load(run[0])
    assert found.labels == ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
    words = sum(len(one["tags"]) for one in TOY[1])
    assert sum(map(sum, found.confusion)) == words
    assert sum(found.confusion[i][i] for i in range(5)) == words
    assert re.fullmatch(r"PER: [A-Z].*; LOC: [A-Z].*", found.rows[0].wanted)
    assert all(row.right for row in found.rows)


# --- words and pieces -----------------------------------------------------------------------------


def test_the_first_piece_of_each_word_is_found_by_its_characters():
    words = ["An", "oxcart", "."]
    plain = [(0, 0), (0, 2), (3, 5), (5, 9), (10, 11), (0, 0)]
    assert first_pieces(words, " ", plain) == {0: 1, 1: 2, 2: 4}
    with_space = [(0, 2), (2, 5), (5, 9), (9, 11)]  # tokens that hold the space before them
    assert first_pieces(words, " ", with_space) == {0: 0, 1: 1, 2: 3}
    assert first_pieces(words, " ", plain[:3]) == {0: 1, 1: 2}  # cut
    assert first_pieces(["北", "京", "好"], "", [(0, 2), (2, 3)]) == {0: 0, 2: 1}


@pytest.mark.parametrize("name", ["bert-ner", "roberta-ner"])
def test_labels_are_where_transformers_puts_them(name, checkpoint):  # noqa: F811
    """The convention of its examples: the first piece of a word, −100 elsewhere."""
    path = checkpoint(name)
    records = [{"tokens": line.split(), "tags": ["O"] * len(line.split())} for line in LINES[:4]]
    objective, _ = on_checkpoint("tagging", path, (records, records))
    tokenizer = hf.AutoTokenizer.from_pretrained(path, add_prefix_space=True)
    for i, record in enumerate(records):
        row = objective.examples(0)["labels"][i]
        ids = objective.examples(0)["ids"][i]
        theirs = tokenizer(record["tokens"], is_split_into_words=True)
        words = theirs.word_ids()
        first = [w is not None and w != (words[j - 1] if j else None) for j, w in enumerate(words)]
        if name == "bert-ner":
            assert ids.tolist() == theirs["input_ids"]
            assert [label != IGNORE for label in row] == first
        assert (row != IGNORE).sum() == sum(first) == len(record["tokens"])


# --- the loss is transformers' --------------------------------------------------------------------


def tagged(labels):
    draw = random.Random(0)
    lines = [line.split() for line in LINES[:4]]
    return [{"tokens": words, "tags": draw.choices(labels, k=len(words))} for words in lines]


@pytest.mark.parametrize("name", ["bert-ner", "roberta-ner"])
def test_the_loss_is_that_of_the_model_and_of_transformers(name, checkpoint):  # noqa: F811
    path = checkpoint(name)
    records = tagged(af.load(path).config.head.labels)
    objective, model = on_checkpoint("tagging", path, (records, records))
    index = np.array([2, 0, 3])
    ours = mean_loss(objective, model, index)
    tokenizer = load_tokenizer(path)
    batch = tokenizer([" ".join(records[i]["tokens"]) for i in index], padding_side="right")
    labels = torch.full(batch["input_ids"].shape, IGNORE)
    for row, i in enumerate(index):
        found = torch.from_numpy(objective.examples(0)["labels"][i].astype(np.int64))
        labels[row, : len(found)] = found
    same = model(**batch, labels=labels).loss
    kind = hf.AutoModelForTokenClassification
    theirs = kind.from_pretrained(path, dtype=torch.float64)(**batch, labels=labels).loss
    assert ours.item() == pytest.approx(same.item(), abs=1e-12)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-10)
    filled = mean_loss(objective, model, index, Frame(200, 5, objective.longest))
    one, other = gradients(model, ours), gradients(model, filled)
    assert ours.item() == pytest.approx(filled.item(), abs=1e-12)
    assert all(torch.allclose(one[n], other[n], atol=1e-12) for n in one)


@pytest.mark.parametrize("name", ["bert-mlm", "roberta-mlm"])
def test_a_fresh_head_keeps_the_body_and_transformers_opens_it(
    name, checkpoint, tmp_path  # noqa: F811
):  # fmt: skip
    path = checkpoint(name)
    recipe = make_recipe(
        {
            "objective": "tagging",
            "model": {"checkpoint": str(path), "head": {"kind": "tags"}},
            "train": {"steps": 1, "batch_tokens": 256, "average": 1},
            "optim": {"rate": 1e-30, "weight_decay": 0.0},
        }
    )
    train(recipe, tmp_path / "run", device="cpu", corpus=TOY)
    before, after = af.load(path).state_dict(), af.load(tmp_path / "run").state_dict()
    assert all(torch.equal(before[key], x) for key, x in after.items() if key[:4] == "enco")
    assert not any(key.startswith("pool.") for key in after)
    assert convert(tmp_path / "run", tmp_path / "out", family=name.partition("-")[0])["sound"]
    theirs = hf.AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    assert theirs.config.id2label[0] == "B-LOC"


# --- data and figures -----------------------------------------------------------------------------


def read(path, validation=None, **data):
    given = {"path": str(path), "validation": str(validation or path), **data}
    made = find_objective("tagging")(tiny("tagging", data=given))
    made.open()
    lines = []
    made.encode(made.tokenizer(train_tokenizer(made.texts(), vocab=80)), lines.append)
    return made, lines


def write(path, *blocks):
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


def test_conll_is_read_and_words_that_are_cut_off_count_as_missed(tmp_path):
    long = "\n".join(["word\tO"] * 20 + ["Rome\tB-LOC"])
    path = write(tmp_path / "a.conll", "Al\tB-PER\nis\tO", long)
    made, lines = read(path, max_length=12)
    assert made.labels == ("B-LOC", "B-PER", "O")
    assert lines[0].startswith("training: 2 sentences, 23 words; 1 cut to 12 tokens")
    assert re.search(r"\d+ words cut off$", lines[0])

    class Perfect:
        """Says of every piece what it should."""

        class head:
            class config:
                labels = made.labels

        training, device = False, "cpu"

        def eval(self): ...
        def train(self, was): ...

    def scores(model, texts, dtype=None):
        batch = next(b for i, b in made.batches(model, made.validation) if len(b.texts.ids))
        return torch.nn.functional.one_hot(batch.labels.clamp_min(0), 3).double() * 50

    made.scores = scores
    found = made.metrics(Perfect(), made.validation)
    assert found["precision"] == 1
    assert found["recall"] == 0.5
    assert found["f1"] == pytest.approx(2 / 3)


def test_tags_without_entities_have_the_f1_of_classes(tmp_path):
    words = [{"tokens": ["a", "dog"], "tags": ["DET", "NOUN"]}] * 20
    result = train(
        tiny("tagging", train={"steps": 5}), tmp_path / "run", device="cpu", corpus=(words, words)
    )
    assert "validation_precision" not in result.rows[-1]
    assert result.rows[-1]["validation_f1"] <= 1
    assert Predictions.load(tmp_path / "run").rows[0].wanted == "DET NOUN"


@pytest.mark.parametrize(
    ("text", "other", "said"),
    [
        ("Anna\tB-PER\nsleeps", None, r"a\.conll, line 2: 1 column"),
        ("Anna\tB-PER\nsleeps\tO", "Anna\tB-ORG", r"v\.conll, line 1: label 'B-ORG' is not known"),
        ("Anna\tO\nsleeps\tO", None, r"a\.conll has one label alone \(O\)"),
    ],
)
def test_what_is_wrong_with_the_data_is_said(text, other, said, tmp_path):
    path = write(tmp_path / "a.conll", text)
    validation = path if other is None else write(tmp_path / "v.conll", other)
    with pytest.raises(DataError, match=said):
        read(path, validation)


def test_words_and_tags_must_be_as_many(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"tokens": ["a", "b"], "tags": ["O", "B-X"]}\n{"tokens": ["a"], "tags": []}\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: there are 1 words and 0 tags"):
        read(path)
