"""`allformer tune`: the recipe that it makes, what it refuses, and that runs answer their verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from allformer.cli.main import app
from allformer.errors import ConfigError, DataError
from allformer.train.loop import open_objective, train
from allformer.train.metrics import read_metrics
from allformer.train.objectives import OBJECTIVES
from allformer.train.recipe import make_recipe, read_recipe
from allformer.train.tune_recipe import rate_of, tasks, tune_recipe
from allformer.train.tune_tasks import RATES, TASKS
from allformer.tune import METHODS

WORDS = ["red", "green", "blue", "white", "black"]
CHATS = [
    {"instruction": f"{i}: after {WORDS[i % 5]}?", "output": f"{WORDS[(i + 1) % 5]}."}
    for i in range(40)
]
PAIRS = [
    {"prompt": chat["instruction"], "chosen": chat["output"], "rejected": "no."} for chat in CHATS
]
VERDICTS = [
    {"prompt": chat["instruction"], "completion": chat["output"], "label": i % 2 == 0}
    for i, chat in enumerate(CHATS)
]
TEXTS = [f"{chat['instruction']} {chat['output']}" for chat in CHATS]
SIZES = {"dim": 16, "heads": 2, "feed": 32, "layers": 1, "dropout": 0.0}
QUICK = ["--set", "train.epochs=1", "--set", "train.batch_tokens=512", "--set", "data.hold_out=5",
         "--set", "log.tensorboard=false", "--device", "cpu"]  # fmt: skip


def base(tmp_path_factory, objective: str, corpus, **more) -> Path:
    run = tmp_path_factory.mktemp(objective) / "base"
    recipe = {
        "objective": objective, "model": SIZES, "data": {"max_length": 128},
        "tokenizer": {"kind": "byte-bpe", "vocab": 300},
        "train": {"steps": 2, "batch_tokens": 512, "average": 1}, **more,
    }  # fmt: skip
    train(make_recipe(recipe), run, device="cpu", corpus=corpus)
    return run


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> Path:
    return base(tmp_path_factory, "causal-lm", TEXTS)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return base(tmp_path_factory, "masked-lm", TEXTS)


def write(path: Path, records) -> Path:
    path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return path


def call(*arguments, status=0):
    result = CliRunner().invoke(app, [str(x) for x in arguments])
    if status == 0:
        assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_an_instruction_run_chats_and_its_adapter_merges(decoder, tmp_path):
    data = write(tmp_path / "chats.jsonl", CHATS)
    run = tmp_path / "run"
    call("tune", decoder, "--data", data, "--task", "sft", "--rank", 4, "--targets", "q,v",
         "--out", run, *QUICK)  # fmt: skip
    recipe = read_recipe(run / "recipe.yaml")
    (lora,) = recipe.tune.methods
    assert (lora.rank, lora.alpha, lora.targets) == (4, 8.0, ("q", "v"))
    assert (run / "adapter_config.json").is_file()
    scores = json.loads(call("evaluate", run, "--json").stdout.splitlines()[-1])
    assert scores["nll"] == pytest.approx(read_metrics(run)[-1]["validation_nll"], rel=1e-5)
    answer = call("generate", run, "0: after red?", "--chat", "--max-new-tokens", 3, "--json")
    said = json.loads(answer.stdout.splitlines()[-1])["text"]
    call("convert", run, tmp_path / "merged", "--merge", "--family", "allformer")
    same = call("generate", tmp_path / "merged", "0: after red?", "--chat", "--max-new-tokens", 3,
                "--json")  # fmt: skip
    assert json.loads(same.stdout.splitlines()[-1])["text"] == said


@pytest.mark.every(3)
@pytest.mark.parametrize("method", sorted(set(METHODS) - {"full"}))
def test_every_method_is_trained_and_opened(method, encoder, tmp_path):
    rows = [{"text": t, "label": "even" if i % 2 else "odd"} for i, t in enumerate(TEXTS)]
    run = tmp_path / "run"
    call("tune", encoder, "--data", write(tmp_path / "a.jsonl", rows), "--task", "classify",
         "--method", method, "--out", run, *QUICK)  # fmt: skip
    told = call("classify", run, TEXTS[0], "--json").stdout
    assert json.loads(told.splitlines()[-1])["labels"][0]["label"] in ("even", "odd")
    assert not (run / "model.safetensors").exists()


@pytest.mark.every(3)
@pytest.mark.parametrize(("task", "records"), [("dpo", PAIRS), ("reward", PAIRS),
                                               ("kto", VERDICTS)])  # fmt: skip
def test_preferences_are_learnt_beside_frozen_weights(task, records, decoder, tmp_path):
    run = tmp_path / "run"
    call("tune", decoder, "--data", write(tmp_path / "a.jsonl", records), "--task", task,
         "--out", run, *QUICK)  # fmt: skip
    assert (run / "adapter_model.safetensors").is_file()


TAGGED = [{"tokens": text.split(), "tags": ["O", "B-X", "O", "O"]} for text in TEXTS]
ASKED = [
    {"question": "after?", "context": text, "answers": {"text": ["after"], "answer_start":
     [text.index("after")]}} for text in TEXTS
]  # fmt: skip
ALIKE = [{"text_a": chat["instruction"], "text_b": chat["output"]} for chat in CHATS]
BOTH = [{"source": chat["instruction"], "target": chat["output"]} for chat in CHATS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "records", "verb"),
    [("tag", TAGGED, ["tag"]), ("embed", ALIKE, ["embed"]),
     ("answer", ASKED, ["answer", "--question", "after?", "--passage"]),
     ("translate", BOTH, ["translate"]), ("summarise", BOTH, ["summarise"])],
)  # fmt: skip
def test_a_run_answers_to_the_verb_of_its_task(task, records, verb, encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp(task)
    data = write(folder / "a.jsonl", records)
    model = encoder
    if task in ("translate", "summarise"):
        more = {"data": {"path": str(data), "columns": {"source": "source", "target": "target"}}}
        model = base(tmp_path_factory, "seq2seq", None, **more)
    call("tune", model, "--data", data, "--task", task, "--out", folder / "run", *QUICK)
    call(verb[0], folder / "run", *verb[1:], TEXTS[0])


def test_a_plan_and_a_batch_are_shown_without_training(decoder, tmp_path):
    data = write(tmp_path / "chats.jsonl", CHATS)
    asked = ("tune", decoder, "--data", data, "--task", "sft", "--json", *QUICK)
    plan = json.loads(call(*asked, "--dry-run").stdout.splitlines()[-1])
    assert plan["trained"] < plan["parameters"] / 2
    assert plan["memory"]["gradients"] == 4 * plan["trained"]
    rows = [json.loads(line) for line in call(*asked, "--show-batch").stdout.splitlines()]
    assert all(any(row["learnt"]) and not all(row["learnt"]) for row in rows)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--targets", "qq"], r"targets='qq' is no linear layer of this model"),
        (["--method", "lorra"], r"method='lorra' is not known; did you mean lora\?"),
        (["--method", "bitfit", "--rank", "3"], r"tune\.rank belongs to lora"),
        (["--task", "sentiment"], r"--task sentiment: there is no such; .*try sft, classify"),
        (["--column", "lab=3"], r"--column lab=3: of --task classify there is text, text_pair"),
        (["--column", "label"], r"--column label is not OURS=THEIRS"),
        (["--set", "train.best=null"], r"train\.patience=4 needs a figure"),
    ],
)
def test_what_cannot_be_is_refused_before_the_data_is_read(more, said, encoder, tmp_path):
    result = call("tune", encoder, "--data", tmp_path / "none.csv", "--task", "classify",
                  *more, status=1)  # fmt: skip
    assert result.exception is not None
    with pytest.raises(type(result.exception), match=said):
        raise result.exception


def test_a_label_that_the_head_does_not_know_is_named_before_training(encoder, tmp_path):
    rows = [{"text": text, "label": WORDS[i % 2]} for i, text in enumerate(TEXTS)]
    run = tmp_path / "run"
    call("tune", encoder, "--data", write(tmp_path / "a.jsonl", rows), "--task", "classify",
         "--method", "full", "--out", run, *QUICK)  # fmt: skip
    rows[7]["label"] = "blue"
    result = call("tune", run, "--data", write(tmp_path / "b.jsonl", rows), "--task", "classify",
                  "--out", tmp_path / "again", *QUICK, status=1)  # fmt: skip
    assert "label 'blue' is not known; there is green, red" in str(result.exception)
    assert "--new-head" in str(result.exception)
    assert not (tmp_path / "again" / "checkpoints").exists()


def test_conversations_longer_than_the_model_are_counted_and_if_all_are_refused(decoder, tmp_path):
    long = [{"instruction": f"{i} red" * 100, "output": "blue."} for i in range(20)]
    result = call("tune", decoder, "--data", write(tmp_path / "a.jsonl", long), "--task", "sft",
                  "--out", tmp_path / "run", *QUICK, status=1)  # fmt: skip
    assert "nothing is left of the training data" in str(result.exception)
    assert "longer than data.max_length=128" in str(result.exception)


def test_records_of_no_known_shape_are_told_with_their_file(decoder, tmp_path):
    data = write(tmp_path / "odd.jsonl", [{"a": 1, "b": "x"}] * 20)
    with pytest.raises(DataError, match=r"odd\.jsonl, its first record: no conversation in a rec"):
        open_objective(tune_recipe(str(decoder), str(data), task="sft"))
    write(data, [{"source": "a", "b": "x"}] * 20)
    with pytest.raises(DataError, match=r"^.*odd\.jsonl, line 1: no column 'target'.*--column OUR"):
        open_objective(tune_recipe("m", str(data), task="translate"), check=False)


def test_an_adapter_is_no_ground_for_another_run(decoder, tmp_path):
    data = write(tmp_path / "chats.jsonl", CHATS)
    asked = ("--data", data, "--task", "sft", *QUICK)
    call("tune", decoder, "--out", tmp_path / "one", *asked)
    result = call("tune", tmp_path / "one", "--out", tmp_path / "two", *asked, status=1)
    assert "is an adapter beside another model's weights" in str(result.exception)
    assert "--merge" in str(result.exception)


def test_every_task_has_an_objective_and_makes_a_recipe(decoder):
    assert {task.objective for task in TASKS.values()} <= set(OBJECTIVES)
    for name, task in tasks().items():
        recipe = tune_recipe(str(decoder), "data.tsv", task=name)
        assert recipe.objective == task.objective
        assert recipe.optim.rate == pytest.approx(rate_of(task, "lora"))
        assert recipe.train.best == task.best
        assert getattr(recipe.data, "max_length", None) == task.length
    assert set(METHODS) <= set(RATES)


def test_columns_and_languages_reach_the_data():
    recipe = tune_recipe("m", "a.jsonl", task="summarise", columns={"source": "article"})
    assert recipe.data.columns == {"source": "article", "target": "target"}
    assert recipe.data.truncate
    recipe = tune_recipe("m", "a.tsv", task="translate", source="en", target="zh")
    assert (recipe.data.source, recipe.data.target, recipe.data.columns) == ("en", "zh", {})
    recipe = tune_recipe("m", "a.tsv", task="classify", columns={"text": "0", "label": "1"})
    assert (recipe.data.text, recipe.data.label) == (0, 1)
    with pytest.raises(ConfigError, match="there is no such"):
        tune_recipe("m", "a.tsv", task="paint")


def test_a_target_is_refused_before_the_data_is_opened(encoder):
    recipe = tune_recipe(str(encoder), "none.csv", task="classify", settings={"targets": ["x"]})
    with pytest.raises(ConfigError, match="targets='x' is no linear layer"):
        open_objective(recipe)
