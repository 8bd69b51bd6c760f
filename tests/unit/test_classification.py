"""Classification: learnt, scored as transformers does, told in words when the data is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import allformer as af
from allformer import tasks
from allformer.checkpoint.convert import convert
from allformer.checkpoint.weights import read_tensors
from allformer.config import ClassHead
from allformer.errors import ConfigError, DataError
from allformer.text.load import load_tokenizer
from allformer.train.batch import Frame
from allformer.train.loop import train
from allformer.train.objectives import find_objective
from allformer.train.predictions import Predictions
from allformer.train.recipe import make_recipe
from tests.supervised import gradients, mean_loss, on_checkpoint, opinions, tiny
from tests.tiny import LINES, checkpoint  # noqa: F401

hf = pytest.importorskip("transformers")
TOY = (opinions(200), opinions(60, seed=1))


# --- learnt from the start ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("classes") / "run"
    said = {"is": "classification", "labels": ["bad", "good"]}
    return path, train(tiny(said, train={"best": "accuracy"}), path, device="cpu", corpus=TOY)


def test_a_separable_set_is_learnt(run):
    _, result = run
    last = result.rows[-1]
    assert last["validation_accuracy"] == last["validation_f1"] == last["validation_matthews"] == 1
    assert last["validation_nll"] < 0.1
    assert "validation_perplexity" not in last


def test_the_run_classifies_with_its_labels(run):
    path, _ = run
    found = tasks.classify(path, ["the lovely film", "a dull plot"])
    assert [one.label for one in found] == ["good", "bad"]
    assert found[0].score > 0.9


def test_the_report_has_texts_a_confusion_table_and_how_sure_it_was(run):
    found = Predictions.load(run[0])
    assert found.labels == ("bad", "good")
    assert found.confusion == ((30, 0), (0, 30))
    assert sum(n for n, _, _ in found.calibration) == 60
    assert len(found.rows) == 50
    assert all(row.right == (row.wanted == row.given) for row in found.rows)


def test_transformers_opens_what_was_trained_from_nothing(run, tmp_path):
    path, _ = run
    assert convert(path, tmp_path, family="bert")["sound"]
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path)
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    texts = ["the lovely film", "a dull plot"]
    with torch.no_grad():
        scores = model(**tokenizer(texts, return_tensors="pt")).logits.softmax(-1)
    ours = tasks.classify(path, texts)
    assert [model.config.id2label[int(i)] for i in scores.argmax(-1)] == [x.label for x in ours]
    assert scores.amax(-1).tolist() == pytest.approx([x.score for x in ours], abs=1e-5)


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_other_shapes_learn_it_too(shape, tmp_path):
    change = {}
    for side in ("decoder", "encoder") if "-" in shape else ("decoder",):
        change |= {f"{side}.dim": 32, f"{side}.blocks.times": 1, f"{side}.blocks.feed.width": 48}
        change |= {f"{side}.blocks.attention.heads": 2, f"{side}.position.length": 40}
    if "-" in shape:
        change["decoder.blocks.cross.heads"] = 2
    name = "bart-base" if "-" in shape else "gpt2"
    recipe = tiny("classification", model={"preset": name, "change": change})
    result = train(recipe, tmp_path / "run", device="cpu", corpus=TOY)
    assert result.rows[-1]["validation_accuracy"] >= 0.95
    head = af.load(tmp_path / "run").config.head
    assert (head.at, head.labels) == ("eos" if "-" in shape else "last", ("0", "1"))
    found = tasks.classify(tmp_path / "run", ["the lovely film", "a dull plot"])
    assert [one.label for one in found] == ["1", "0"]


def test_several_labels_at_once(tmp_path):
    def named(record):
        words = record["text"].split()
        return {**record, "label": [w for w in ("film", "plot") if w in words]}

    toy = tuple([named(record) for record in part] for part in TOY)
    recipe = tiny({"is": "classification", "problem": "multi"}, train={"steps": 120})
    result = train(recipe, tmp_path / "run", device="cpu", corpus=toy)
    assert result.rows[-1]["validation_f1"] >= 0.97
    found = tasks.classify(tmp_path / "run", "the film plot", all=True)
    assert all(one.score > 0.5 for one in found)
    found = Predictions.load(tmp_path / "run")
    assert found.labels == ("film", "plot")
    assert found.rows[-1].wanted in ("", "film", "plot", "film, plot")


def test_a_number(tmp_path):
    toy = tuple([{**r, "label": f"{2.0 * r['label'] - 1}"} for r in part] for part in TOY)
    said = {"is": "classification", "problem": "regression"}
    recipe = tiny(said, train={"steps": 150}, optim={"rate": 5e-3})
    result = train(recipe, tmp_path / "run", device="cpu", corpus=toy)
    assert result.rows[-1]["validation_pearson"] > 0.9
    assert tasks.classify(tmp_path / "run", "the lovely film").score > 0.5
    assert af.load(tmp_path / "run").config.head.labels == ("value",)


def test_a_run_that_was_stopped_goes_on_bit_by_bit(tmp_path):
    more = {"schedule": {"kind": "constant"}}

    def some(steps):
        settings = {"steps": steps, "validate_every": 5, "save_every": 5}
        return tiny("classification", train=settings, **more)

    train(some(12), tmp_path / "a", device="cpu", corpus=TOY)
    train(some(7), tmp_path / "b", device="cpu", corpus=TOY)
    torch.manual_seed(7)
    go_on = {"resume": True, "overrides": ["train.steps=12"]}
    train(None, tmp_path / "b", device="cpu", corpus=TOY, **go_on)
    one, other = (read_tensors(tmp_path / n / "model.safetensors") for n in "ab")
    assert all(torch.equal(one[name], other[name]) for name in one)


# --- the loss is transformers' --------------------------------------------------------------------

CASES = {
    "bert-class": ("single", ["NO", "MAYBE", "YES"]),
    "bert-multi": ("multi", [["a", "c"], [], ["b"]]),
    "bert-regression": ("regression", [0.5, -1.25, 3.0]),
    "gpt2-class": ("single", ["NO", "YES", "NO"]),
    "bart-class": ("single", ["NO", "YES", "NO"]),
}


@pytest.mark.parametrize("pair", [False, True], ids=["text", "pair"])
@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_that_of_the_model_and_of_transformers(name, pair, checkpoint):  # noqa: F811
    problem, labels = CASES[name]
    records = [
        {"text": text, "label": label, **({"text_pair": other} if pair else {})}
        for text, other, label in zip(LINES[:3], LINES[1:4], labels, strict=True)
    ]
    path = checkpoint(name)
    objective, model = on_checkpoint(
        "classification", path, (records, records),
        data={"text_pair": "text_pair" if pair else None, "max_length": 40},
        **{"objective": {"is": "classification", "problem": problem}},
    )  # fmt: skip
    index = np.array([2, 0, 1])
    ours = mean_loss(objective, model, index)
    tokenizer = load_tokenizer(path)
    texts, others = [LINES[i] for i in index], [LINES[i + 1] for i in index] if pair else None
    batch = tokenizer(texts, others, padding_side="right", max_length=40, truncate=True)
    pad = model.config.reader.source.pad_id
    batch["input_ids"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, pad)
    known = objective.labels
    if problem == "single":
        target = torch.tensor([known.index(labels[i]) for i in index])
    elif problem == "multi":
        target = torch.tensor([[float(one in labels[i]) for one in known] for i in index]).double()
    else:
        target = torch.tensor([[labels[i]] for i in index]).double()
    same = model(**batch, labels=target).loss
    kind = hf.AutoModelForSequenceClassification
    theirs = kind.from_pretrained(path, dtype=torch.float64)(**batch, labels=target).loss
    assert ours.item() == pytest.approx(same.item(), abs=1e-12)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-10)
    mine, its = gradients(model, ours), gradients(model, model(**batch, labels=target).loss)
    assert mine.keys() == its.keys()
    assert all(torch.allclose(mine[n], its[n], atol=1e-11) for n in mine)


@pytest.mark.parametrize("name", ["bert-class", "bert-multi", "bert-regression", "bart-class"])
def test_filler_of_a_compiled_step_changes_nothing(name, checkpoint):  # noqa: F811
    problem, labels = CASES[name]
    records = [{"text": t, "label": y} for t, y in zip(LINES[:3], labels, strict=True)]
    objective, model = on_checkpoint(
        "classification", checkpoint(name), (records, records), data={"max_length": 40},
        **{"objective": {"is": "classification", "problem": problem}},
    )  # fmt: skip
    index = np.arange(3)
    plain = mean_loss(objective, model, index)
    filled = mean_loss(objective, model, index, Frame(200, 5, 40))
    one, other = gradients(model, plain), gradients(model, filled)
    assert plain.item() == pytest.approx(filled.item(), abs=1e-12)
    assert all(torch.allclose(one[n], other[n], atol=1e-12) for n in one)


def test_smoothing_is_torchs(checkpoint):  # noqa: F811
    records = [{"text": t, "label": y} for t, y in zip(LINES, ["NO", "YES"] * 3, strict=True)]
    objective, model = on_checkpoint("classification", checkpoint("bert-class"), (records, records))
    batch = objective.collate(objective.examples(0), np.arange(6))
    logits = objective.scores(model, batch.texts)
    loss, nll = objective.loss(model, batch, smoothing=0.2)
    wanted = torch.nn.functional.cross_entropy(
        logits, batch.labels, label_smoothing=0.2, reduction="sum"
    )
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-10)
    assert nll.item() != pytest.approx(loss.item())


# --- a fresh head on a trained body ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-mlm", "roberta-mlm"])
def test_a_fresh_head_keeps_the_body_and_transformers_opens_what_is_trained(
    name, checkpoint, tmp_path  # noqa: F811
):  # fmt: skip
    path = checkpoint(name)
    recipe = tiny(
        "classification",
        model={"checkpoint": str(path), "head": {"kind": "classes", "labels": ["bad", "good"]}},
        train={"steps": 2},
        optim={"rate": 1e-30, "weight_decay": 0.0},
        data={"max_length": 500},
    )
    recipe_in = make_recipe({k: v for k, v in _plain(recipe).items() if k != "tokenizer"})
    train(recipe_in, tmp_path / "run", device="cpu", corpus=TOY)
    before, after = af.load(path).state_dict(), af.load(tmp_path / "run").state_dict()
    body = [key for key in after if key.startswith("encoder.")]
    assert body
    assert all(torch.equal(before[key], after[key]) for key in body)
    head = af.load(tmp_path / "run").config.head
    assert head.labels == ("bad", "good")
    assert (head.at, head.dense) == (("pool", None) if "bert-" in name[:5] else ("first", "tanh"))
    family = name.partition("-")[0]
    sheet = convert(tmp_path / "run", tmp_path / "out", family=family)
    assert sheet["sound"]
    theirs = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert theirs.config.id2label == {0: "bad", 1: "good"}
    batch = load_tokenizer(tmp_path / "out")(["the capital of france", "a man"])
    with torch.no_grad():
        assert torch.allclose(
            theirs(**batch).logits, af.load(tmp_path / "run")(**batch).logits, atol=1e-5
        )


def _plain(recipe):
    import yaml

    return yaml.safe_load(recipe.to_yaml())


def test_a_head_of_another_meaning_is_not_taken_for_this_one(checkpoint, tmp_path):  # noqa: F811
    """Two numbers a token for answers, two classes: the tensors would fit."""
    path = checkpoint("bert-qa")
    recipe = make_recipe(
        {
            "objective": "classification",
            "model": {"checkpoint": str(path)},
            "train": {"steps": 1, "batch_tokens": 256, "average": 1},
            "optim": {"rate": 1e-30, "weight_decay": 0.0},
        }
    )
    train(recipe, tmp_path / "run", device="cpu", corpus=TOY)
    before, after = af.load(path).state_dict(), af.load(tmp_path / "run").state_dict()
    assert before["head.out.weight"].shape == after["head.out.weight"].shape
    assert not torch.equal(before["head.out.weight"], after["head.out.weight"])


def test_a_head_that_fits_stays_with_its_labels_and_weights(checkpoint, tmp_path):  # noqa: F811
    path = checkpoint("bert-class")
    names = ("NO", "YES")
    toy = tuple([{**r, "label": names[r["label"]]} for r in part] for part in TOY)
    recipe = make_recipe(
        {
            "objective": "classification",
            "model": {"checkpoint": str(path)},
            "train": {"steps": 1, "batch_tokens": 256, "average": 1},
            "optim": {"rate": 1e-30, "weight_decay": 0.0},
        }
    )
    train(recipe, tmp_path / "run", device="cpu", corpus=toy)
    before, after = af.load(path), af.load(tmp_path / "run")
    assert after.config.head.labels == before.config.head.labels == ("NO", "MAYBE", "YES")
    assert all(torch.equal(x, after.state_dict()[n]) for n, x in before.state_dict().items())


# --- data -----------------------------------------------------------------------------------------


def write_csv(path, rows, header="text,label"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def opened(path, objective="classification", **data):
    made = find_objective("classification")(
        tiny(objective, data={"path": str(path), "max_length": 12, **data})
    )
    made.open()
    return made


def encoded(made):
    from allformer.text.tokenizer import train_tokenizer

    lines = []
    made.encode(made.tokenizer(train_tokenizer(made.texts(), vocab=80)), lines.append)
    return lines


def test_labels_are_found_and_numbers_are_sorted_as_numbers(tmp_path):
    rows = [f"text {i},{label}" for i, label in enumerate([10, 2, 2, 10, 1] * 10)]
    made = opened(write_csv(tmp_path / "a.csv", rows))
    assert made.labels == ("1", "2", "10")
    rows = [f"text {i},{label}" for i, label in enumerate(["b", "c", "a"] * 10)]
    assert opened(write_csv(tmp_path / "b.csv", rows)).labels == ("a", "b", "c")


def test_records_are_held_out_and_long_texts_are_cut_aloud(tmp_path):
    rows = [f"{'word ' * (20 if i == 3 else 2)}{i},{i % 2}" for i in range(60)]
    made = opened(write_csv(tmp_path / "a.csv", rows), hold_out=5)
    lines = encoded(made)
    assert lines[0].startswith("training: 55 texts")
    assert lines[1].startswith("validation: 5 texts")
    assert sum("1 cut to 12 tokens (data.max_length=12)" in line for line in lines) == 1
    both = (made.examples(0), made.validation)
    assert max(part["ids"].lengths.max() for part in both) == 12


def test_what_is_held_out_by_itself_is_a_share_of_the_different_texts(tmp_path):
    rows = [f"text {i % 40},{i % 2}" for i in range(600)]
    made = opened(write_csv(tmp_path / "a.csv", rows))
    train, kept = ({record["text"] for record in half} for half in made.records)
    assert (len(train), len(kept)) == (38, 2)  # 5 % of 40, not of 600


def test_one_text_that_stands_beside_many_others_leaves_the_pairs_to_be_held_out(tmp_path):
    rows = [f"a claim,passage {i},{i % 2}" for i in range(40)]
    path = write_csv(tmp_path / "a.csv", rows, header="text,text_pair,label")
    train, kept = ({record["text_pair"] for record in half} for half in
                   opened(path, text_pair="text_pair").records)  # fmt: skip
    assert (len(train), len(kept)) == (38, 2)
    assert not train & kept


def test_broken_lines_are_left_out_when_asked_and_counted(tmp_path):
    rows = [f"text {i},{i % 2}" for i in range(40)]
    path = write_csv(tmp_path / "a.csv", [*rows[:7], "broken", *rows[7:]])
    with pytest.raises(DataError, match=r"^\S+a\.csv, line 9: 1 field\(s\) where 2 are needed"):
        opened(path, hold_out=5)
    with pytest.warns(UserWarning, match="1 bad records skipped; the first: .*line 9"):
        assert encoded(opened(path, hold_out=5, skip_bad=True))[0] == "training: 35 texts"


def test_of_a_pair_the_longer_is_cut(tmp_path):
    rows = [f"short {i},{'long ' * 20}{i},{i % 2}" for i in range(40)]
    path = write_csv(tmp_path / "a.csv", rows, "one,two,label")
    made = opened(path, text="one", text_pair="two")
    encoded(made)
    kinds = made.examples(0)["types"][0].tolist()
    short = len([kind for kind in kinds if not kind])
    assert len(kinds) == 12
    assert 3 <= short < 9  # <s> short </s>, whole


@pytest.mark.parametrize(
    ("rows", "data", "said"),
    [
        (["a b,0", "c d,1"] * 9, {"label": "klass"}, r"a\.csv, line 2: no column 'klass'"),
        (["a b,0", "c d"] * 9, {}, r"a\.csv, line 3: 1 field\(s\) where 2"),
        (
            ["a b,0", "c d, "] * 9,
            {},
            r"a\.csv, line 3: label is ' '; it must be",
        ),
        (["a b,0", "c d,0"] * 9, {}, r"a\.csv has one label alone \(0\)"),
        ([f"a {i},{i / 7}" for i in range(120)], {}, r"120 different labels .*regression"),
    ],
)
def test_what_is_wrong_with_the_data_is_said(rows, data, said, tmp_path):
    path = write_csv(tmp_path / "a.csv", rows)
    validation = write_csv(tmp_path / "v.csv", ["e f,0", "g h,1"])
    with pytest.raises(DataError, match=said):
        encoded(opened(path, validation=str(validation), **data))


def test_an_unknown_label_in_validation_is_named_by_file_and_line(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["a b,0", "c d,1"] * 9)
    other = write_csv(tmp_path / "v.csv", ["a b,0", "c d,7"])
    made = opened(path, validation=str(other))
    with pytest.raises(DataError, match=r"v\.csv, line 3: label '7' is not known; there is 0, 1"):
        encoded(made)
    number = {"is": "classification", "problem": "regression"}
    bad = write_csv(tmp_path / "r.csv", ["a b,0.5", "c d,high"] * 9)
    with pytest.raises(DataError, match=r"r\.csv, line 3: label is 'high'; .*number"):
        encoded(opened(bad, number, validation=str(bad)))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"train": {"z_loss": 0.1}}, "train.z_loss=0.1 is for scores over a vocabulary"),
        ({"tokenizer": {"dropout": 0.1}}, "tokenizer.dropout=0.1 cuts texts anew"),
        (
            {"model": {"preset": "bert-base", "head": {"kind": "spans"}}},
            "model.head.kind=spans is not what objective='classification' learns; .*classes",
        ),
        (
            {
                "model": {"preset": "bert-base", "head": {"labels": ["x", "y"]}},
                "objective": {"is": "classification", "labels": ["a", "b"]},
            },
            "objective.labels=.* and model.head.labels=.* differ",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_any_work(sections, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        train(tiny(**{"objective": "classification", **sections}), tmp_path / "run", corpus=TOY)
    assert not (tmp_path / "run").exists()


def test_tokens_are_kept_in_the_cache_and_labels_make_them_anew(tmp_path):
    rows = [f"text {i},{'ab'[i % 2]}" for i in range(40)]
    path = write_csv(tmp_path / "a.csv", rows)
    encoded(opened(path, cache=str(tmp_path / "cache")))
    sheet = tmp_path / "cache" / "training" / "table.json"
    first = json.loads(sheet.read_text())["key"]
    encoded(opened(path, cache=str(tmp_path / "cache")))
    assert json.loads(sheet.read_text())["key"] == first
    other = {"is": "classification", "labels": ["b", "a"]}
    encoded(opened(path, other, cache=str(tmp_path / "cache")))
    assert json.loads(sheet.read_text())["key"] != first


def test_the_head_of_a_body_of_no_family():
    tree = find_objective("classification")(
        tiny("classification", model={"preset": "original-tiny"})
    )
    from allformer.train.sections.vocabulary import Vocabulary

    head = tree.config(Vocabulary(80)).head
    assert isinstance(head, ClassHead)
    assert head.at == "eos"
