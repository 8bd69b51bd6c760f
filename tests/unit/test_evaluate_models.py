"""`allformer evaluate`: runs of any objective, plain checkpoints, on a split or on other data."""

from __future__ import annotations

import json
import math

import pytest

from allformer.cli.entry import run as command
from allformer.cli.main import app
from allformer.generate.evaluate import score_translations
from allformer.tasks.classify import classify
from allformer.tasks.pipeline import open_pipeline
from allformer.train.loop import train
from allformer.train.recipe import make_recipe
from tests.tiny import LINES, checkpoint  # noqa: F401  (a fixture)

TEXT = "the quick brown fox jumps over the lazy dog\n" * 30
LABELS = ("NO", "MAYBE", "YES")
SQUAD = json.dumps(
    {"data": [{"title": "", "paragraphs": [{"context": LINES[2], "qas": [
        {"id": "1", "question": "Who wrote Faust?",
         "answers": [{"text": "Goethe", "answer_start": 0}]}]}]}]}
)  # fmt: skip
SIZES = {
    "tokenizer": {"kind": "characters", "vocab": 80},
    "model": {"dim": 16, "heads": 2, "feed": 32, "layers": 1},
    "train": {"steps": 2, "batch_tokens": 128, "save_every": 2, "validate_every": 2, "average": 1},
    "log": {"tensorboard": False},
}


@pytest.fixture
def evaluate(capsys):
    """The command: `evaluate(path, "--split", "val")` → its figures."""

    def call(*arguments, status=0):
        capsys.readouterr()
        found = command(app, ["evaluate", *map(str, arguments), "--json", "--device", "cpu"])
        said = capsys.readouterr()
        assert found == status, said.err
        return json.loads(said.out) if not status else said.err

    return call


@pytest.fixture(scope="module")
def texts_run(tmp_path_factory):
    """A causal language model, its run and its data: a folder with three splits."""
    home = tmp_path_factory.mktemp("texts")
    (home / "data").mkdir()
    for split, text in (("train", TEXT), ("val", TEXT[:300]), ("test", TEXT[50:250])):
        (home / "data" / f"{split}.txt").write_text(text)
    data = {"path": str(home / "data"), "max_length": 16, "unit": "file"}
    recipe = make_recipe({"objective": "causal-lm", "data": data, **SIZES})
    return train(recipe, home / "run", device="cpu"), home


@pytest.fixture(scope="module")
def classes_run(tmp_path_factory):
    home = tmp_path_factory.mktemp("classes")
    rows = [f"{line[i:]}\t{LABELS[i % 3]}\n" for i in range(9) for line in LINES[:4]]
    (home / "train.tsv").write_text("text\tlabel\n" + "".join(rows))
    (home / "other.tsv").write_text("text\tlabel\n" + "".join(rows[:7]))
    recipe = make_recipe(
        {"objective": "classification", "data": {"path": str(home / "train.tsv")}, **SIZES}
    )
    return train(recipe, home / "run", device="cpu"), home


def test_a_run_is_scored_on_its_own_split_as_training_scored_it(evaluate, texts_run):
    result, home = texts_run
    found = evaluate(home / "run", "--split", "val")
    last = result.rows[-1]
    assert found["nll"] == pytest.approx(last["validation_nll"], rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(last["validation_bits_per_byte"], rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(found["nll"]))
    assert (found["objective"], found["split"]) == ("causal-lm", "val")


def test_the_test_split_of_a_folder_is_taken_where_there_is_one(evaluate, texts_run):
    _, home = texts_run
    found = evaluate(home / "run")
    assert found["split"] == "test"
    val = evaluate(home / "run", "--split", "val")
    assert found["examples"] < val["examples"]
    train = evaluate(home / "run", "--split", "train")
    assert train["examples"] > val["examples"]


def test_a_text_is_read_through_a_window_by_runs_and_plain_decoders(
    evaluate,
    texts_run,
    checkpoint,  # noqa: F811
):
    _, home = texts_run
    file = home / "data" / "test.txt"
    found = evaluate(home / "run", "--data", file, "--stride", 4)
    assert (found["length"], found["stride"]) == (16, 4)
    assert found["tokens"] == found["bytes"] == 199  # the first character is not foretold
    folder = evaluate(home / "run", "--data", home / "data", "--stride", 4)
    assert (folder["split"], folder["nll"]) == ("test", found["nll"])
    plain = evaluate(checkpoint("gpt2-"), "--data", file, "--length", 32)
    assert (plain["length"], plain["stride"], plain["bytes"]) == (32, 16, 199)


def test_texts_come_from_records_too(evaluate, tmp_path, checkpoint):  # noqa: F811
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"body": line}) + "\n" for line in LINES[:3]))
    found = evaluate(checkpoint("gpt2-"), "--data", file, "--column", "body")
    assert found["texts"] == 3
    assert "no column 'text'" in evaluate(checkpoint("gpt2-"), "--data", file, status=1)


def test_a_masked_model_is_scored_line_by_line(evaluate, tmp_path, checkpoint):  # noqa: F811
    file = tmp_path / "a.txt"
    file.write_text("\n".join(LINES[:2]) + "\n\n")
    found = evaluate(checkpoint("bert-mlm"), "--data", file)
    assert found["texts"] == 2
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(found["pseudo_nll"]))


def test_a_classifiers_run_is_scored_on_its_split_and_on_a_file(evaluate, classes_run):
    result, home = classes_run
    found = evaluate(home / "run")
    assert found["accuracy"] == pytest.approx(result.rows[-1]["validation_accuracy"])
    assert "perplexity" not in found
    other = evaluate(home / "run", "--data", home / "other.tsv")
    assert (other["split"], other["examples"]) == ("all", 7)


def test_a_plain_classifier_has_the_accuracy_of_what_it_answers(
    evaluate,
    classes_run,
    checkpoint,  # noqa: F811
):
    _, home = classes_run
    path = checkpoint("bert-class")
    found = evaluate(path, "--data", home / "other.tsv")
    rows = [line.split("\t") for line in (home / "other.tsv").read_text().splitlines()[1:]]
    answers = classify(open_pipeline(path), [text for text, _ in rows])
    right = sum(a.label == label for a, (_, label) in zip(answers, rows, strict=True))
    assert found["accuracy"] == pytest.approx(right / len(rows))
    assert found["objective"] == "classification"


@pytest.mark.parametrize(("name", "more"), [("marian", []), ("t5-", ["--beams", "2"])])
def test_a_plain_translator_has_the_scores_of_what_it_writes(
    evaluate,
    tmp_path,
    checkpoint,  # noqa: F811
    name,
    more,
):
    for language in ("en", "de"):
        (tmp_path / f"set.{language}").write_text("\n".join(LINES[:3]) + "\n")
    pair = f"{tmp_path / 'set.en'},{tmp_path / 'set.de'}"
    out = tmp_path / "out.txt"
    found = evaluate(checkpoint(name), "--data", pair, "--source", "en", "--target", "de",
                     "--output", out, *more)  # fmt: skip
    wanted = score_translations(out.read_text().splitlines(), LINES[:3], "de")
    assert found["bleu"] == wanted["bleu"]
    assert found["chrf"] == wanted["chrf"] > 0
    assert "perplexity" not in found
    assert found["beams"] == 2 or not more


@pytest.mark.parametrize(("name", "prefix"), [("t5-plain", "translate: "), ("mbart-50", "")])
def test_a_tuned_translator_has_the_perplexity_of_its_training(
    evaluate,
    tmp_path,
    checkpoint,  # noqa: F811
    name,
    prefix,
):
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in LINES))
    data = {"path": str(tmp_path / "pairs.tsv"), "source": "en", "target": "de", "hold_out": 2}
    model = {"checkpoint": str(checkpoint(name))}
    data |= {"max_length": 60, "prefix": prefix}
    asked = {"data": data, "model": model, "decode": {"beams": 1}}
    asked |= {name: SIZES[name] for name in ("train", "log")}
    result = train(make_recipe(asked), tmp_path / "run", device="cpu")
    found = evaluate(tmp_path / "run", "--split", "val")
    assert found["perplexity"] == pytest.approx(result.validation_perplexity, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "file", "text", "figure"),
    [
        ("bert-ner", "a.conll", "Angela\tB-PER\nlives\tO\nin\tO\nBerlin\tB-LOC\n\n", "f1"),
        ("bert-qa", "a.json", SQUAD, "em"),
    ],
)
def test_taggers_and_finders_of_answers_are_known_by_their_heads(
    evaluate,
    tmp_path,
    checkpoint,  # noqa: F811
    name,
    file,
    text,
    figure,
):
    (tmp_path / file).write_text(text)
    found = evaluate(checkpoint(name), "--data", tmp_path / file)
    assert 0 <= found[figure] <= 100
    assert found["examples"] >= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --data"),
        (["--data", "TEXT", "--beams", "2"], "--beams belongs to translations"),
        (["--data", "TEXT", "--stride", "64"], "stride=64 must be 1 … 63"),
        (["--data", "TEXT", "--length", "65"], "more than the 64 tokens"),
        (["--data", "TEXT", "--set", "data.unit=line"], "a text needs none"),
        (["--data", "nowhere.txt"], "no such file"),
        (["--data", "TEXT", "--split", "val"], "is a file, all of it"),
        (["--data", "TEXT", "--objective", "causal"], "objective='causal' is not known"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_line(
    evaluate,
    texts_run,
    checkpoint,  # noqa: F811
    arguments,
    words,
):
    file = str(texts_run[1] / "data" / "test.txt")
    said = evaluate(checkpoint("gpt2-"), *(a.replace("TEXT", file) for a in arguments), status=1)
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_a_window_is_no_option_of_a_split_and_a_split_must_be_there(evaluate, classes_run):
    _, home = classes_run
    assert "--stride belongs to a text" in evaluate(home / "run", "--stride", 8, status=1)
    assert "no test split" in evaluate(home / "run", "--split", "test", status=1)
    assert "split='dev' is not known" in evaluate(home / "run", "--split", "dev", status=1)
