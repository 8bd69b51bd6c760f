"""Sentence vectors by contrast: the formula, what is learnt, and the task that opens the run."""

from __future__ import annotations

import random
from itertools import product

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
from allformer.train.sections.vocabulary import Vocabulary
from tests.supervised import gradients, mean_loss, on_checkpoint, tiny
from tests.tiny import LINES, checkpoint  # noqa: F401

hf = pytest.importorskip("transformers")
TWINS = [("cat", "kitten"), ("dog", "puppy"), ("car", "auto"), ("sea", "ocean"), ("man", "guy"),
         ("cold", "chilly"), ("big", "large"), ("red", "crimson")]  # fmt: skip


def pairs(seed=0, share=1.0):
    """Two twins a text: what they mean is what the words mean, in either order."""
    draw, found = random.Random(seed), []
    for (a, b), (c, d) in product(TWINS, TWINS):
        if a != c and draw.random() < share:
            found.append({"text_a": f"the {a} {c}", "text_b": f"{d} {b}", "negative": f"{b} {a}"})
    return found


TOY = (pairs(), pairs(1, share=0.5))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "run"
    recipe = tiny("vectors", train={"best": "accuracy", "steps": 150})
    return path, train(recipe, path, device="cpu", corpus=TOY)


def test_pairs_are_brought_together(run):
    assert run[1].rows[-1]["validation_accuracy"] >= 0.95
    found = Predictions.load(run[0])
    assert sum(row.right for row in found.rows) / len(found.rows) >= 0.9


def test_the_run_embeds_as_it_was_trained(run):
    path, result = run
    texts = ["the cat dog", "puppy kitten", "ocean auto"]
    near = tasks.similarity(path, texts[0], texts[1:])
    assert near[0] > near[1]
    objective = find_objective("vectors")(tiny("vectors"))
    records = [{"text_a": text, "text_b": text} for text in texts]
    objective.open((records, records))
    objective.encode(result.run.tokenizer, lambda line: None)
    batch = objective.collate(objective.examples(0), np.arange(3))
    with torch.no_grad():
        ours = objective.vectors(result.run.model, batch.texts)[:3]
    assert torch.allclose(ours, tasks.embed(path, texts, normalise=True), atol=1e-6)


def test_scored_pairs_are_ranked(tmp_path, run):
    scored = []
    for one in TOY[1][:20]:
        scored.append({"text_a": one["text_a"], "text_b": one["text_b"], "score": 5})
        scored.append({"text_a": one["text_a"], "text_b": "red sea", "score": "0.5"})
    recipe = tiny("vectors", train={"best": "spearman", "steps": 150}, data={"score": "score"})
    result = train(recipe, tmp_path / "run", device="cpu", corpus=(TOY[0], scored))
    assert result.rows[-1]["validation_spearman"] > 0.8
    found = Predictions.load(tmp_path / "run")
    assert found.rows[0].wanted == "5"
    assert found.rows[0].right is None


# --- the formula ----------------------------------------------------------------------------------


def by_formula(model, tokenizer, records, scale, negatives):
    """−log softmax of s·cos over all seconds (and negatives), one text at a time."""

    def vector(text):
        return model.states(input_ids=torch.tensor([tokenizer.encode(text)]))["encoder"][0].mean(0)

    firsts = [vector(one["text_a"]) for one in records]
    others = [vector(one["text_b"]) for one in records]
    others += [vector(one["negative"]) for one in records] if negatives else []
    total = 0
    for i, a in enumerate(firsts):
        scores = [scale * (a @ b) / (a.norm() * b.norm()) for b in others]
        total = total + torch.stack(scores).logsumexp(0) - scores[i]
    return total / len(records)


@pytest.mark.parametrize("negatives", [False, True], ids=["pairs", "triples"])
def test_loss_and_gradient_are_the_formula(negatives, checkpoint):  # noqa: F811
    path = checkpoint("bert-bare")
    records = [
        {"text_a": LINES[i], "text_b": LINES[i + 1], "negative": LINES[5 - i]} for i in range(4)
    ]
    objective, model = on_checkpoint(
        "vectors", path, (records, records), objective={"is": "vectors", "scale": 7.0},
        data={"negative": "negative" if negatives else None},
    )  # fmt: skip
    index = np.array([3, 0, 2])
    ours = mean_loss(objective, model, index)
    tokenizer = load_tokenizer(path)
    wanted = by_formula(model, tokenizer, [records[i] for i in index], 7.0, negatives)
    assert ours.item() == pytest.approx(wanted.item(), abs=1e-12)
    filled = mean_loss(objective, model, index, Frame(400, 6, objective.longest))
    assert filled.item() == pytest.approx(ours.item(), abs=1e-12)
    mine, its, other = (gradients(model, loss) for loss in (ours, wanted, filled))
    assert all(torch.allclose(mine[n], its[n], atol=1e-10) for n in mine)
    assert all(torch.allclose(mine[n], other[n], atol=1e-12) for n in mine)


def test_the_loss_of_an_order_is_the_formula(checkpoint):  # noqa: F811
    path, scores = checkpoint("bert-bare"), (2.5, 0.0, 5.0, 2.5)
    records = [
        {"text_a": LINES[i], "text_b": LINES[i + 1], "score": score}
        for i, score in enumerate(scores)
    ]
    objective, model = on_checkpoint(
        "vectors", path, (records, records), data={"score": "score"},
        objective={"is": "vectors", "loss": "order", "scale": 7.0},
    )  # fmt: skip
    tokenizer, index = load_tokenizer(path), np.array([3, 0, 2, 1])

    def cosine(one):
        sides = (torch.tensor([tokenizer.encode(one[side])]) for side in ("text_a", "text_b"))
        first, second = (model.states(input_ids=ids)["encoder"][0].mean(0) for ids in sides)
        return torch.cosine_similarity(first, second, dim=0)

    near = [cosine(one) for one in records]
    wrong = [near[i] - near[j] for i, j in product(range(4), repeat=2) if scores[i] < scores[j]]
    assert len(wrong) == 5  # the two that are as near as each other have no order
    wanted = (1 + (7.0 * torch.stack(wrong)).exp().sum()).log()
    ours = mean_loss(objective, model, index)
    filled = mean_loss(objective, model, index, Frame(400, 6, objective.longest))
    assert ours.item() == pytest.approx(wanted.item(), abs=1e-12)
    assert filled.item() == pytest.approx(wanted.item(), abs=1e-12)
    mine, its, other = (gradients(model, loss) for loss in (ours, wanted, filled))
    assert all(torch.allclose(mine[n], its[n], atol=1e-10) for n in mine)
    assert all(torch.allclose(mine[n], other[n], atol=1e-12) for n in mine)


# --- model and data -------------------------------------------------------------------------------


def test_a_body_loses_its_head_and_its_pooler_and_is_written_back(
    checkpoint, tmp_path  # noqa: F811
):  # fmt: skip
    path = checkpoint("bert-class")
    recipe = make_recipe(
        {
            "objective": "vectors",
            "model": {"checkpoint": str(path)},
            "train": {"steps": 1, "batch_tokens": 256, "average": 1},
            "optim": {"rate": 1e-30, "weight_decay": 0.0},
        }
    )
    train(recipe, tmp_path / "run", device="cpu", corpus=TOY)
    before, after = af.load(path).state_dict(), af.load(tmp_path / "run").state_dict()
    assert all(key.startswith("encoder.") for key in after)
    assert all(torch.equal(before[key], x) for key, x in after.items())
    assert convert(tmp_path / "run", tmp_path / "out", family="bert")["sound"]
    assert hf.AutoModel.from_pretrained(tmp_path / "out", add_pooling_layer=False)


def test_an_encoder_decoder_is_refused():
    recipe = tiny("vectors", model={"preset": "original-tiny"})
    with pytest.raises(ConfigError, match="needs one stack of states"):
        find_objective("vectors")(recipe).config(Vocabulary(80))


def test_scores_are_of_a_validation_file_and_are_numbers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text_a,text_b\n" + "\n".join(f"a {i},b {i}" for i in range(30)))
    objective = find_objective("vectors")(
        tiny("vectors", data={"path": str(path), "score": "score"})
    )
    with pytest.raises(ConfigError, match=r"data\.score=.* is a column of the validation file"):
        objective.open()
    other = tmp_path / "v.csv"
    other.write_text("text_a,text_b,score\na,b,3.5\na,c,near\n")
    given = {"path": str(path), "validation": str(other), "score": "score"}
    objective = find_objective("vectors")(tiny("vectors", data=given))
    objective.open()
    tokenizer = objective.tokenizer(train_tokenizer(objective.texts(), vocab=60))
    with pytest.raises(DataError, match=r"v\.csv, line 3: score is 'near'; it must be a number"):
        objective.encode(tokenizer, lambda line: None)


def test_an_order_is_learnt_from_scores_of_the_training_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("one,two,near\n" + "\n".join(f"a {i},b {i},{i / 10}" for i in range(40)))
    columns = {"text_a": "one", "text_b": "two", "score": "near"}
    asked = {"is": "vectors", "loss": "order"}
    given = {"path": str(path), "hold_out": 8, **columns}
    objective = find_objective("vectors")(tiny(asked, data=given))
    objective.open()
    objective.encode(
        objective.tokenizer(train_tokenizer(objective.texts(), vocab=60)), lambda line: None
    )
    batch = objective.collate(objective.examples(0), np.array([4, 1]))
    told = [float(x.split()[1]) / 10 for x in objective.examples(0)["text_a_text"]]
    assert batch.scores.tolist() == pytest.approx([told[4], told[1]])
    assert objective.counts(batch) == (2,)
    assert (len(objective.examples(0)), len(objective.validation)) == (32, 8)


@pytest.mark.parametrize("data", [{}, {"score": "s", "negative": "n"}], ids=["none", "negatives"])
def test_an_order_without_scores_is_refused(data):
    recipe = tiny({"is": "vectors", "loss": "order"}, data=data)
    with pytest.raises(ConfigError, match=r"objective\.loss=order learns from scored pairs"):
        find_objective("vectors")(recipe).config(Vocabulary(80))
