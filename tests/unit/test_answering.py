"""Extractive answers: windows, places, the loss of transformers, the figures of SQuAD."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

import allformer as af
from allformer import tasks
from allformer.checkpoint.convert import convert
from allformer.errors import ConfigError, DataError
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import train_tokenizer
from allformer.train.batch import Frame
from allformer.train.loop import train
from allformer.train.objectives import find_objective
from allformer.train.predictions import Predictions
from allformer.train.recipe import make_recipe
from tests.supervised import gradients, mean_loss, on_checkpoint, tiny
from tests.tiny import LINES, checkpoint  # noqa: F401

hf = pytest.importorskip("transformers")
NAMES, PLACES = ("Anna Bell", "Carl", "Dora"), ("Rome", "New York", "Paris")


def answered(question, context, text, start=None):
    texts = [] if text is None else [text]
    starts = [] if text is None else [context.index(text) if start is None else start]
    answers = {"text": texts, "answer_start": starts}
    return {"question": question, "context": context, "answers": answers}


def questions(count, seed=0, lacking=0.0):
    draw, found = random.Random(seed), []
    for i in range(count):
        who, where = draw.choice(NAMES), draw.choice(PLACES)
        rest = draw.choices(["then", "so", "and"], k=draw.randint(0, 4))
        context = " ".join([*rest, who, draw.choice(["went to", "likes"]), where, "."])
        question, text = (("who", who), ("where", where))[i % 2]
        if draw.random() < lacking:
            question, text = "why", None
        found.append(answered(question, context, text))
    return found


TOY = (questions(200), questions(40, seed=1))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "run"
    recipe = tiny("answering", train={"best": "em", "steps": 200, "batch_tokens": 512})
    return path, train(recipe, path, device="cpu", corpus=TOY)


def test_a_separable_set_is_learnt(run):
    last = run[1].rows[-1]
    assert last["validation_em"] >= 0.95
    assert last["validation_f1"] >= last["validation_em"]


def test_the_run_answers(run):
    passage = "then Anna Bell went to New York ."
    found = tasks.answer(run[0], ["who", "where"], passage)
    assert [one.text for one in found] == ["Anna Bell", "New York"]


def test_the_report_shows_questions_with_their_answers(run):
    found = Predictions.load(run[0])
    assert len(found.rows) == 40
    assert sum(row.right for row in found.rows) / 40 == run[1].rows[-1]["validation_em"]
    assert found.figures["em"] == run[1].rows[-1]["validation_em"]
    assert sum(n for n, _, _ in found.calibration) == 40


def test_a_question_may_have_no_answer(tmp_path):
    toy = (questions(200, lacking=0.4), questions(40, 1, lacking=0.4))
    recipe = tiny("answering", train={"steps": 200, "batch_tokens": 512})
    result = train(recipe, tmp_path / "run", device="cpu", corpus=toy)
    assert result.rows[-1]["validation_em"] >= 0.9
    found = tasks.answer(tmp_path / "run", "why", toy[1][0]["context"], no_answer=True)
    assert found.text == ""


# --- places and windows ---------------------------------------------------------------------------


def made(path, records, name="answering", **data):
    return on_checkpoint(name, path, (records, records), data=data)


def test_places_are_those_of_transformers_examples(checkpoint):  # noqa: F811
    """Windows and places by the code of its question-answering example, on its own tokeniser."""
    path = checkpoint("bert-qa")
    passage = " ".join(LINES[:4])
    records = [
        answered("who wrote?", passage, "Goethe"),
        answered("where?", passage, "Berlin, and her"),
        answered("who?", passage, "Two women"),
        answered("who?", passage, None),
    ]
    objective, _ = made(path, records, max_length=40, stride=8)
    table = objective.examples(0)
    theirs = hf.AutoTokenizer.from_pretrained(path)(
        [r["question"] for r in records], [r["context"] for r in records], max_length=40,
        truncation="only_second", stride=8, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    assert [table["ids"][i].tolist() for i in range(len(table))] == theirs["input_ids"]
    for row, owner in enumerate(theirs["overflow_to_sample_mapping"]):
        answers = records[owner]["answers"]
        wanted = (0, 0)
        if answers["text"]:
            start = answers["answer_start"][0]
            end = start + len(answers["text"][0])
            offsets, kinds = theirs["offset_mapping"][row], theirs.sequence_ids(row)
            inside = [i for i, kind in enumerate(kinds) if kind == 1]
            if offsets[inside[0]][0] <= start and offsets[inside[-1]][1] >= end:
                i, j = inside[0], inside[-1]
                while i < len(offsets) and offsets[i][0] <= start:
                    i += 1
                while offsets[j][1] >= end:
                    j -= 1
                wanted = (i - 1, j + 1)
        assert (table["start"][row], table["end"][row]) == wanted
    assert table["first"].sum() == 4
    assert (table["start"] > 0).sum() >= 3


def test_the_answer_of_perfect_scores_is_the_text_itself(checkpoint):  # noqa: F811
    passage = " ".join(LINES[:4])
    texts = ["Goethe", "Angela Merkel", "Two women are playing chess", "Siemens"]
    records = [answered("who?", passage, text) for text in texts]
    objective, model = made(checkpoint("bert-qa"), records, max_length=40, stride=8)

    def scores(model, texts, dtype=None):
        batch = next(b for _, b in objective.batches(model, objective.validation))
        width = batch.texts.layout.total
        return tuple(
            torch.nn.functional.one_hot(place, width).double() * 40
            for place in (batch.start, batch.end)
        )

    objective.scores = scores
    found = objective._found(model, objective.validation, 10**6, None)
    assert [one.given for one in found] == texts
    assert objective.metrics(model, objective.validation, batch_tokens=10**6) == {"em": 1, "f1": 1}


def test_chinese_answers_are_compared_by_characters(checkpoint):  # noqa: F811
    records = [answered("谁？", "你好，世界！", "世界")]
    objective, model = made(checkpoint("bert-qa"), records)
    place, width = objective.validation["start"][0], int(objective.validation["ids"].lengths[0])
    only_first = torch.eye(width)[None, place].double() * 40
    objective.scores = lambda model, texts, dtype=None: (only_first, only_first)
    (found,) = objective._found(model, objective.validation, 4096, None)
    assert (found.given, found.exact) == ("世", 0)
    assert found.f1 == pytest.approx(2 / 3)


# --- the loss is transformers' --------------------------------------------------------------------


def test_the_loss_is_that_of_each_window_without_padding(checkpoint):  # noqa: F811
    """transformers scores the padding of a batch too; ours is what it gives for each row alone."""
    path = checkpoint("bert-qa")
    texts = [
        ("who wrote?", LINES[2], "Goethe"),
        ("where?", LINES[1], "Berlin"),
        ("a?", LINES[3], None),
    ]
    records = [answered(*each) for each in texts]
    objective, model = made(path, records)
    index = np.array([1, 2, 0])
    ours = mean_loss(objective, model, index)
    tokenizer, table = load_tokenizer(path), objective.examples(0)
    theirs = hf.AutoModelForQuestionAnswering.from_pretrained(path, dtype=torch.float64)
    alone, same = [], []
    for i in index:
        batch = tokenizer([records[i]["question"]], [records[i]["context"]])
        places = {
            "start_positions": torch.tensor([table["start"][i]]),
            "end_positions": torch.tensor([table["end"][i]]),
        }
        alone.append(theirs(**batch, **places).loss.item())
        same.append(model(**batch, **places).loss)
    assert ours.item() == pytest.approx(np.mean(alone), abs=1e-10)
    mean = torch.stack(same).mean()
    assert ours.item() == pytest.approx(mean.item(), abs=1e-12)
    filled = mean_loss(objective, model, index, Frame(200, 5, 48))
    first, other, its = (gradients(model, loss) for loss in (ours, filled, mean))
    assert filled.item() == pytest.approx(ours.item(), abs=1e-12)
    assert all(torch.allclose(first[n], other[n], atol=1e-12) for n in first)
    assert all(torch.allclose(first[n], its[n], atol=1e-11) for n in first)


def test_transformers_opens_what_is_trained_on_its_body(checkpoint, tmp_path):  # noqa: F811
    path = checkpoint("bert-mlm")
    recipe = make_recipe(
        {
            "objective": "answering",
            "model": {"checkpoint": str(path)},
            "train": {"steps": 1, "batch_tokens": 512, "average": 1},
            "optim": {"rate": 1e-30, "weight_decay": 0.0},
        }
    )
    train(recipe, tmp_path / "run", device="cpu", corpus=TOY)
    before, after = af.load(path).state_dict(), af.load(tmp_path / "run").state_dict()
    assert all(torch.equal(before[key], x) for key, x in after.items() if key[:4] == "enco")
    assert convert(tmp_path / "run", tmp_path / "out", family="bert")["sound"]
    assert hf.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out")


# --- data -----------------------------------------------------------------------------------------


def test_squads_file_is_read(tmp_path):
    record = TOY[0][0]
    (text,), (start,) = record["answers"].values()
    answers = [{"text": text, "answer_start": start}]
    asked = {"id": "1", "question": record["question"], "answers": answers}
    data = {"data": [{"paragraphs": [{"context": record["context"], "qas": [asked]}]}]}
    path = tmp_path / "train.json"
    path.write_text(json.dumps(data))
    given = {"path": str(path), "validation": str(path)}
    objective = find_objective("answering")(tiny("answering", data=given))
    objective.open()
    lines = []
    tokenizer = objective.tokenizer(train_tokenizer(objective.texts(), vocab=60))
    objective.encode(tokenizer, lines.append)
    assert lines[0].startswith("training: 1 questions in 1 windows of at most 256 tokens")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"text": ["Rome"], "answer_start": [1]}, "the answer 'Rome' does not stand at"),
        ("Rome", "answers is 'Rome'; it must be text and answer_start"),
        ([{"text": "Rome"}], "'Rome' does not stand at answer_start=None"),
    ],
)
def test_an_answer_that_is_not_in_its_passage_is_refused(answers, said, tmp_path):
    good = answered("where", "Anna likes Rome", "Rome")
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, [good, {**good, "answers": answers}])))
    given = {"path": str(path), "validation": str(path)}
    objective = find_objective("answering")(tiny("answering", data=given))
    objective.open()
    tokenizer = objective.tokenizer(train_tokenizer(objective.texts(), vocab=60))
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2: .*{said}"):
        objective.encode(tokenizer, print)


def test_a_tokeniser_without_a_first_token_is_refused(checkpoint, tmp_path):  # noqa: F811
    recipe = make_recipe(
        {
            "objective": "answering",
            "model": {"checkpoint": str(checkpoint("gpt2-"))},
            "train": {"steps": 1, "batch_tokens": 512, "average": 1},
        }
    )
    with pytest.raises(ConfigError, match="puts no cls token there"):
        train(recipe, tmp_path / "run", device="cpu", corpus=TOY)
