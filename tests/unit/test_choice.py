"""Multiple choice: read, learnt and scored as transformers does."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.errors import ConfigError, DataError
from allformer.evaluate.objective import (
    checkpoint_recipe,
    evaluate_objective,
    open_any,
    told_objective,
)
from allformer.text.tokenizer import train_tokenizer
from allformer.train.loop import train
from allformer.train.objectives import find_objective
from allformer.train.predictions import Predictions
from allformer.train.recipe import make_recipe
from allformer.train.supervised.encode_choices import question_in
from tests.supervised import BAD, GOOD, REST, gradients, mean_loss, on_checkpoint, tiny
from tests.tiny import checkpoint  # noqa: F401

hf = pytest.importorskip("transformers")


def questions(count, seed=0):
    """The right choice is the one that is good."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words = draw.sample(BAD, draw.randint(2, 4))
        right = draw.randrange(len(words))
        words[right] = draw.choice(GOOD)
        choices = [f"it is {word}" for word in words]
        found.append({"question": f"the {draw.choice(REST)}", "choices": choices, "label": right})
    return found


TOY = (questions(200), questions(40, seed=1))
FEW = [
    {"question": "the capital of france", "choices": ["is paris.", "a man", "he"], "label": 0},
    {"question": "who", "choices": ["two women", "eating food in france"], "label": "B"},
    {"question": "where is the man", "choices": ["her", "and", "in", "paris !"], "label": "in"},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("choice") / "run"
    recipe = tiny("choice", train={"best": "accuracy", "steps": 80}, optim={"rate": 1e-2})
    return path, train(recipe, path, device="cpu", corpus=TOY)


def test_a_separable_set_is_learnt_and_the_run_chooses(run):
    assert run[1].rows[-1]["validation_accuracy"] == 1
    found = af.choose(run[0], "the plot", ["it is dull", "it is superb", "it is poor"])
    assert (found.label, found.score > 0.5) == ("it is superb", True)


def test_the_report_shows_questions_and_how_sure_it_is(run):
    found = Predictions.load(run[0])
    assert all(row.given == row.wanted for row in found.rows)
    assert sum(n for n, _, _ in found.calibration) == len(TOY[1])
    assert found.figures == {"accuracy": 1.0}


def test_a_run_becomes_a_bert_that_transformers_opens_and_is_scored_alike(run, tmp_path):
    convert(run[0], tmp_path / "bert", family="bert")
    kind = json.loads((tmp_path / "bert" / "config.json").read_text())["architectures"]
    assert kind == ["BertForMultipleChoice"]
    lines = "\n".join(json.dumps(one) for one in TOY[1])
    (tmp_path / "val.jsonl").write_text(lines + "\n", encoding="utf-8")
    opened = open_any(str(tmp_path / "bert"), device="cpu")
    assert told_objective(opened) == "choice"
    recipe = checkpoint_recipe(opened, "choice", str(tmp_path / "val.jsonl"))
    found = evaluate_objective(opened, recipe, data=str(tmp_path / "val.jsonl"))
    assert found["accuracy"] == 1


# --- the loss is transformers' --------------------------------------------------------------------


def theirs(kit, records):
    """transformers' mean loss over questions of unequal numbers of choices, one at a time."""
    model = getattr(hf, kit.architecture).from_pretrained(kit.directory).double().eval()
    total = torch.zeros((), dtype=torch.float64)
    for record in records:
        found = question_in(record)
        batch = kit.tokenizer(
            [found.text] * len(found.choices), found.choices, padding_side="right"
        )
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = {name: batch[name][None] for name in names if name in batch}
        total = total + model(**inputs, labels=torch.tensor([found.right])).loss
    return model, total / len(records)


@pytest.mark.parametrize("framed", [False, True])
def test_the_loss_and_its_gradients_are_those_of_transformers(framed, checkpoint):  # noqa: F811
    path = checkpoint("bert-choice")
    objective, model = on_checkpoint("choice", path, (FEW, FEW))
    index = np.array([2, 0, 1])
    frame = replace(objective.frame(), sentences=5) if framed else None
    loss = mean_loss(objective, model.eval(), index, frame)
    other, wanted = theirs(af.open_kit(path), FEW)
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-12)
    ours, theirs_ = gradients(model, loss), gradients(other, wanted)
    torch.testing.assert_close(
        ours["head.out.weight"], theirs_["classifier.weight"], rtol=1e-9, atol=1e-12
    )
    table = "encoder.source.embedding.weight"
    words = "bert.embeddings.word_embeddings.weight"
    torch.testing.assert_close(ours[table], theirs_[words], rtol=1e-9, atol=1e-12)


def test_smoothing_is_shared_among_a_questions_own_choices(checkpoint):  # noqa: F811
    objective, model = on_checkpoint("choice", checkpoint("bert-choice"), (FEW, FEW))
    batch = objective.collate(objective.examples(0), np.arange(3))
    loss, nll = objective.loss(model.eval(), batch, smoothing=0.2)
    scores = objective.scores(model, batch)
    wanted = 0
    for row, there, label in zip(scores, batch.there, batch.labels, strict=True):
        soft = torch.full((int(there.sum()),), 0.2 / int(there.sum()), dtype=row.dtype)
        soft[label] += 0.8
        wanted -= (soft * row[there]).sum()
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
    assert nll < loss


# --- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "right"),
    [
        ({"choices": ["x", "y"], "label": 1}, 1),
        ({"choices": ["x", "y"], "label": "1"}, 1),
        ({"choices": ["x", "y"], "label": 1.0}, 1),
        ({"choices": ["x", "y"], "label": " b"}, 1),
        ({"choices": ["x", "y"], "label": "y"}, 1),
        ({"choices": ["3", "4"], "label": "4"}, 1),  # there is no fifth
        ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}, "label": "2"}, 1),  # ARC
    ],
)
def test_the_right_one_is_told_by_number_letter_name_or_text(record, right):
    assert question_in({"question": "q", **record}).right == right


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"choices": ["x", "y"], "label": 2}, "label is 2, which means none of the choices; of 2"),
        ({"choices": ["x", "y"], "label": True}, "label is True, which means none"),
        ({"choices": ["x", "y"], "label": "z"}, "label is 'z', which means none"),
        ({"choices": ["1", "0"], "label": "1"}, "label is '1', which means several choices"),
        ({"choices": ["x", "x"], "label": "x"}, "label is 'x', which means several"),
        ({"choices": ["x"], "label": 0}, "there are 1 choices; a question needs two"),
        ({"choices": ["x", ""], "label": 0}, r"choices\[1\] is ''; it must be a text"),
        ({"choices": "x, y", "label": 0}, "choices is 'x, y'; it must be a list"),
        ({"choices": ["x", "y"], "label": 0, "question": 5}, "question is 5; it must be a text"),
    ],
)
def test_what_cannot_be_a_question_is_refused(record, said):
    with pytest.raises(DataError, match=said):
        question_in({"question": "q", **record})


def test_choices_in_columns_of_their_own_go_on_from_a_beginning(tmp_path):
    path = tmp_path / "swag.csv"
    rows = [
        f"She opens it,She,went {i} in,ate the door,{'flew' if i % 2 else ''},0" for i in range(9)
    ]
    path.write_text("\n".join(["sent1,sent2,e0,e1,e2,label", *rows]) + "\n", encoding="utf-8")
    data = {
        "path": str(path), "question": "sent1", "beginning": "sent2", "choices": ["e0", "e1", "e2"],
        "validation": str(path),
    }  # fmt: skip
    objective = find_objective("choice")(tiny("choice", data=data))
    objective.open()
    texts = list(objective.texts())
    assert texts[:3] == ["She opens it", "She went 0 in", "She ate the door"]
    assert texts[3:7] == ["She opens it", "She went 1 in", "She ate the door", "She flew"]
    objective.encode(objective.tokenizer(train_tokenizer(texts, vocab=60)), lambda line: None)
    assert [len(sizes) for sizes in (objective.examples(0)["sizes"][i] for i in (0, 1))] == [2, 3]


def test_a_bad_record_is_told_with_its_line(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(one) for one in questions(30)]
    path.write_text("\n".join([*lines, '{"question": "q", "choices": ["x", "y"], "label": 7}']))
    recipe = tiny("choice", data={"path": str(path), "validation": str(path)})
    with pytest.raises(DataError, match=r"a\.jsonl, line 31: label is 7"):
        train(recipe, tmp_path / "run", device="cpu")


def test_a_batch_that_is_too_small_for_a_question_is_refused():
    objective = find_objective("choice")(tiny("choice", train={"batch_tokens": 16}))
    objective.open(TOY)
    tokenizer = train_tokenizer(objective.texts(), vocab=80)
    with pytest.raises(ConfigError, match=r"train\.batch_tokens=16 does not hold a question with"):
        objective.encode(objective.tokenizer(tokenizer), lambda line: None)


def test_what_has_no_pooler_is_refused():
    recipe = make_recipe(
        {"objective": "choice", "model": {"preset": "gpt2"}, "data": {"path": "a.jsonl"}}
    )
    with pytest.raises(ConfigError, match=r"head\.kind=choice reads an encoder's pooler"):
        find_objective("choice")(recipe).config(None)


def test_a_misspelt_key_of_the_data_is_refused_with_the_right_one():
    with pytest.raises(ConfigError, match=r"data\.choicse is not known; did you mean choices\?"):
        tiny("choice", data={"path": "a.csv", "choicse": ["a", "b"]})
