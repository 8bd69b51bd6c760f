"""The verbs, called as a user calls them: what they print, where they write, how they fail."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from allformer.cli.main import main
from tests.tiny import checkpoint  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]
TINY = [
    "--set", "train.steps=4", "--set", "train.batch_tokens=120", "--set", "train.warmup=2",
    "--set", "train.save_every=2", "--set", "train.validate_every=2", "--set", "train.average=1",
    "--set", "model.dim=16", "--set", "model.heads=2", "--set", "model.feed=32",
    "--set", "model.layers=1", "--set", "tokenizer.vocab=60", "--set", "data.hold_out=5",
]  # fmt: skip


class Called:
    """What came of a call of the console script."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def allformer(monkeypatch, capsys):
    def call(*arguments: object, stdin: bytes = b"") -> Called:
        monkeypatch.setattr(sys, "argv", ["allformer", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = 0
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return Called(status, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "pairs.tsv"
    words = ["one", "two", "three", "four", "five", "six"]
    lines = [f"{a} {b}\t{b} {a}" for a in words for b in words]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def run(allformer, corpus, tmp_path) -> Path:
    out = tmp_path / "run"
    done = allformer("train", "--data", corpus, "--out", out, "--target", "fr", *TINY)
    assert done.status == 0, done.err
    return out


def test_help_names_every_verb_and_each_verb_has_an_example(allformer):
    text = allformer("--help").out
    for verb in ("demo", "train", "translate", "evaluate", "info"):
        assert verb in text
        assert "Example" in allformer(verb, "--help").out


def test_info_prints_the_count_as_a_table_and_as_json(allformer):
    assert "63,082,496" in allformer("info", "original-base").out
    table = json.loads(allformer("info", "original-base", "--length", "64", "--json").out)
    assert table["parameters"] == 63_082_496
    assert table["length"] == 64
    shares = [split["attention"] for split in table["cost_split_by_length"].values()]
    assert shares == sorted(shares)
    assert shares[-1] > 0.9
    assert set(json.loads(allformer("info", "--json").out)) >= {"original-base", "original-big"}


def test_info_tells_the_costs_from_1k_to_1m_tokens_beside_full_attention(allformer):
    told = json.loads(allformer("info", "gpt3-small", "--json").out)
    own, full = told["costs_by_length"], told["costs_by_length_with_full_attention"]
    assert [*own] == [*full] == [str(2**power) for power in range(10, 21, 2)]
    last = own["1048576"]
    assert last["state_bytes"] < 0.51 * full["1048576"]["state_bytes"], "half of it are windows"
    assert last["activation_bytes"] == 1024 * own["1024"]["activation_bytes"]
    shown = allformer("info", "gpt3-small").out
    assert "1,048,576" in shown
    assert "long sequences" in shown
    assert "costs_by_length_with_full_attention" not in json.loads(
        allformer("info", "gpt2", "--json").out
    )


def test_info_of_an_unknown_name_says_what_there_is(allformer):
    said = allformer("info", "original-huge")
    assert said.status == 1
    assert "original-huge" in said.err
    assert "original-big" in said.err


def test_a_run_is_trained_translates_and_is_scored(allformer, run, tmp_path):
    said = allformer("translate", run, "one two", "three")
    assert said.status == 0
    assert len(said.out.split("\n")) == 3
    assert "total" in allformer("info", run).out
    scored = allformer("evaluate", run, "--split", "val", "--json", "--output", tmp_path / "out")
    scores = json.loads(scored.out)
    assert scores["sentences"] == len((tmp_path / "out").read_text().splitlines()) >= 5
    assert "tok:13a" in scores["bleu_signature"]
    assert {"chrf", "exact_match", "perplexity"} <= set(scores)
    assert "BLEU" in allformer("evaluate", run, "--split", "val").out


def test_standard_input_gives_one_line_for_each_line(allformer, run):
    said = allformer("translate", run, stdin=b"one two\n\nthree four\n")
    lines = said.out.split("\n")
    assert len(lines) == 4
    assert lines[1] == ""


def test_a_file_is_translated_line_by_line(allformer, run, tmp_path):
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\n")
    assert len(allformer("translate", run, "--file", tmp_path / "in.txt").out.splitlines()) == 3


def test_input_that_is_not_utf8_is_refused_with_its_line(allformer, run):
    said = allformer("translate", run, stdin=b"one\n\xff\xfe\n")
    assert said.status == 1
    assert "line 2" in said.err
    assert "iconv" in said.err


def test_resume_goes_on_after_the_end_with_more_steps(allformer, run):
    said = allformer("train", "--resume", run, "--set", "train.steps=6")
    assert said.status == 0, said.err
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == 6
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "nowhere", "x"], ["nowhere", "no directory"]),
        (["evaluate", "nowhere"], ["nowhere"]),
        (["train"], ["--data", "phrasebook"]),
        (["train", "nowhere.yaml"], ["nowhere.yaml"]),
        (["train", "--data", "nowhere", "--out", "x"], ["nowhere"]),
        (["train", "--set", "train.stepz=3"], ["stepz", "steps"]),
        (["train", "--resume", "run", "--dry-run"], ["--dry-run is of a run that has not begun"]),
        (["train", "--resume", "run", "--json"], ["--json is of a run", "run/recipe.yaml"]),
        (["train", "--set", "nonsense"], ["section.key=value"]),
        (["train", "--resume", "nowhere"], ["nowhere"]),
        (["train", "--resume", "x", "--out", "y"], ["leave out", "--out"]),
        (["train", "--resume", "x", "--target", "zh"], ["leave out", "--target"]),
        (["train", "--allow-changed-data"], ["--resume"]),
        (["train", "--set", "tokenizer.vocab=-1"], ["tokenizer.vocab=-1", "at least"]),
        (["train", "--set", "train.seed=-1"], ["train.seed=-1", "at least 0"]),
        (["train", "--set", "model.dim=31"], ["model.dim=31", "even"]),
        (["demo", "--set", "data.hold_out=-1"], ["data.hold_out=-1"]),
        (
            ["train", "--set", "data.corpus=phrasebook", "--target", "zh", "--device", "gpu"],
            ["'gpu'"],
        ),
    ],
)
def test_a_mistake_is_one_message_and_status_1(allformer, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = allformer(*arguments)
    assert said.status == 1
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err, said.err
    assert not list(tmp_path.iterdir()), "a refused call leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "RUN", "x", "--beams", "0"], ["--beams 0", "at least 1"]),
        (["translate", "RUN", "x", "--max-new-tokens", "0"], ["--max-new-tokens 0", "at least 1"]),
        (["translate", "RUN", "x", "--length-penalty", "nan"], ["--length-penalty nan", "finite"]),
        (["translate", "RUN", "one two " * 300], ["tokens, but", "takes 120", "--truncate"]),
        (["evaluate", "RUN", "--split", "val", "--beams", "0"], ["num_beams=0", "at least 1"]),
        (
            ["evaluate", "RUN", "--split", "val", "--length-penalty", "nan"],
            ["length_penalty=nan", "finite"],
        ),
        (["evaluate", "RUN", "--output", "RUN"], ["is a directory; give a file"]),
        (["evaluate", "RUN", "--output", "RUN/no/out"], ["there is no directory"]),
    ],
)
def test_what_a_run_cannot_do_is_one_line_and_status_1(allformer, run, arguments, words):
    said = allformer(*(argument.replace("RUN", str(run)) for argument in arguments))
    assert said.status == 1
    assert "Traceback" not in said.err
    assert len(said.err.strip().splitlines()) == 1, said.err
    for word in words:
        assert word in said.err, said.err


def test_an_output_that_is_a_file_is_refused_before_the_work(allformer, corpus, tmp_path):
    (tmp_path / "file").write_text("mine")
    for verb in (["train", "--data", corpus, *TINY], ["demo"]):
        said = allformer(*verb, "--out", tmp_path / "file")
        assert said.status == 1
        assert "is no directory" in said.err
        assert len(said.err.strip().splitlines()) == 1, said.err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_evaluate_of_a_checkpoint_says_in_one_line_what_to_do(allformer, checkpoint, name):  # noqa: F811
    said = allformer("evaluate", checkpoint(name))
    assert said.status == 1
    assert len(said.err) < 400, said.err
    assert {"gpt2": "give --data", "marian": "`allformer translate`"}[name] in said.err


def test_other_data_is_refused_until_it_is_allowed(allformer, corpus, run):
    more = [*TINY[:1], "train.steps=5"]
    before = corpus.read_text()
    try:
        corpus.write_text(before + "seven eight\teight seven\n")
        said = allformer("train", "--resume", run, *more)
        assert said.status == 1
        assert "--allow-changed-data" in said.err
        assert allformer("train", "--resume", run, "--allow-changed-data", *more).status == 0
    finally:
        corpus.write_text(before)


def test_a_split_that_is_not_there_is_named(allformer, run):
    said = allformer("evaluate", run, "--split", "test")
    assert said.status == 1
    assert "no test split" in said.err


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_is_complete_and_builds(recipe):
    from allformer.core.model import build
    from allformer.train.objectives import find_objective
    from allformer.train.recipe import CheckpointModel, Vocabulary, make_recipe, read_recipe

    asked = read_recipe(recipe)
    assert asked.name == recipe.stem
    if not isinstance(asked.model, CheckpointModel):
        objective = find_objective(asked.objective)(asked)
        build(objective.config(Vocabulary(asked.tokenizer.room)), device="meta")
    import yaml

    assert make_recipe(yaml.safe_load(asked.to_yaml())) == asked


def test_a_bare_test_set_is_scored_without_training_data(allformer, run, tmp_path):
    (tmp_path / "set.en").write_text("one two\nthree four\n")
    (tmp_path / "set.fr").write_text("two one\nfour three\n")
    pair = f"{tmp_path / 'set.en'},{tmp_path / 'set.fr'}"
    assert json.loads(allformer("evaluate", run, "--data", pair, "--json").out)["sentences"] == 2
    folder = tmp_path / "folder"
    folder.mkdir()
    for side in ("en", "fr"):
        (tmp_path / f"set.{side}").rename(folder / f"test.{side}")
    assert json.loads(allformer("evaluate", run, "--data", folder, "--json").out)["sentences"] == 2
    said = allformer("evaluate", run, "--data", folder, "--split", "val")
    assert said.status == 1
    assert "no val split; it has test" in said.err
