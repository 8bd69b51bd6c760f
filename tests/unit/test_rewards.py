"""Rewards: functions, models and commands that judge answers, and what they refuse."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

from allformer import config
from allformer.checkpoint.run import save_run
from allformer.core.model import build
from allformer.errors import ConfigError, TrainingError
from allformer.train.policy.rewards import Answered, Rewards, anchored, read_rewards
from allformer.train.preferences.score import score_chats
from tests.chats import chat_tokenizer

ASKED = {"role": "user", "content": "A story with a dog"}
BOTH = [
    Answered("A story with a dog", "A dog barks.", [ASKED], {"words": ["dog"]}, (5, 6, 2), True),
    Answered(
        "A story with a dog", "Nobody comes.", [ASKED], {"words": ["dog", "ball"]}, (7,), False
    ),
]
FILE = """
    from dataclasses import dataclass

    @dataclass
    class Seen:
        text: str

    def used(completions, words):
        return [sum(w in text for w in each) for text, each in zip(completions, words)]

    def everything(prompts, **others):
        assert sorted(others) == ["completion_ids", "completions", "ended", "messages", "words"]
        return [float(x) for x in others["ended"]]

    def nan(completions):
        return [1.0, float("nan")]

    def few(completions):
        return [1.0]

    def text(completions):
        return "good"

    def fails(completions):
        return 1 / 0
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "judges.py"
    path.write_text(textwrap.dedent(FILE))
    return path


def judged(*given):
    rewards = Rewards(read_rewards(list(given)))
    rewards.check()
    rewards.open(torch.device("cpu"))
    return rewards, rewards(BOTH)


def test_a_function_gets_what_it_names_and_one_that_takes_the_rest_gets_all(file):
    rewards, found = judged(f"{file}:used", f"{file}:everything")
    assert found.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert rewards.names == ("used", "everything")


def test_a_file_is_run_once(tmp_path):
    """It may read a model of its own."""
    path = tmp_path / "dear.py"
    path.write_text(
        "from pathlib import Path\n"
        "told = Path(__file__).with_name('runs')\n"
        "told.write_text(told.read_text() + 'x' if told.exists() else 'x')\n"
        "def one(completions): return [1] * len(completions)\n"
        "def two(completions): return [2] * len(completions)\n"
    )
    assert judged(f"{path}:one", f"{path}:two")[1].tolist() == [[1, 2]] * 2
    assert (tmp_path / "runs").read_text() == "x"


def test_several_are_a_weighted_sum_and_no_two_have_one_name(file):
    call = f"{file}:used"
    half, less = ({"kind": "function", "call": call, "weight": w} for w in (0.5, -1))
    rewards, found = judged(call, half, {**less, "name": "less"})
    assert rewards.names == ("used", "used_2", "less")
    assert rewards.total(found).tolist() == [0.5, 0.0]


def test_a_function_of_a_module_is_imported(monkeypatch, file):
    monkeypatch.syspath_prepend(file.parent)
    assert judged("judges:used")[1].T.tolist() == [[1.0, 0.0]]
    sys.modules.pop("judges")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nan", r"gave nan for answer 1, 'Nobody comes.'; it must be a finite number"),
        ("few", r"gave 1 numbers for 2 answers; it must give one each"),
        ("text", r"gave a str; it must give a list with a number for each of the 2 answers"),
        ("fails", r"failed: ZeroDivisionError: .*; mend it, then --resume"),
    ],
)
def test_what_is_no_number_for_each_answer_is_refused(name, said, file):
    with pytest.raises(TrainingError, match=said):
        judged(f"{file}:{name}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{file}:use", r"has no function 'use'; did you mean used\? there is everything, fails"),
        ("none.py:f", r"there is no file none.py"),
        ("nosuchmodule:f", r"nosuchmodule cannot be imported"),
        ("used", r"objective.rewards\[0\]='used' is no reward; try file.py:function"),
        ("command: nosuchprogram -x", r"there is no program 'nosuchprogram'"),
        ({"kind": "model", "path": "nowhere"}, r"'nowhere': there is no such directory"),
        ({"kind": "function"}, r"objective.rewards.call='' is empty; a reward of kind function"),
        ({"kind": "oracle"}, r"objective.rewards\[0\].kind='oracle' is not a choice"),
        (3, r"objective.rewards is 3; it must be a list"),
    ],
)
def test_a_reward_that_is_not_there_is_refused_before_training(given, said, file):
    if isinstance(given, str):
        given = given.format(file=file)
    with pytest.raises(ConfigError, match=said):
        Rewards(read_rewards(given if given == 3 else [given])).check()


# --- commands -------------------------------------------------------------------------------------


def command(tmp_path, body, **more):
    path = tmp_path / "judge.py"
    path.write_text("import json, sys, time\n" + textwrap.dedent(body))
    return {"kind": "command", "run": f"{sys.executable} {path}", **more}


def test_a_command_reads_lines_and_writes_numbers(tmp_path):
    body = """
    for line in sys.stdin:
        x = json.loads(line)
        print(len(x["answer"]) + len(x["record"]["words"]) / 10 + (0 if x["ended"] else 100))
    """
    _, found = judged(command(tmp_path, body))
    assert found.T.tolist() == [[12.1, 113.2]]


@pytest.mark.parametrize(
    ("body", "more", "said"),
    [
        ("sys.exit('no judge today')", {}, r"ended with status 1: no judge today; mend it"),
        ("time.sleep(60)", {"timeout": 0.3}, r"took longer than timeout=0.3 seconds"),
        ("print('good'); print(1)", {}, r"wrote 'good' as line 1; it must write a number"),
        ("print(1)", {}, r"gave 1 numbers for 2 answers"),
    ],
)
def test_a_command_that_fails_is_one_clear_error(body, more, said, tmp_path):
    with pytest.raises(TrainingError, match=said):
        judged(command(tmp_path, body, **more))


# --- models ---------------------------------------------------------------------------------------


def kept(path, tree):
    torch.manual_seed(0)
    model = build(tree).eval()
    save_run(path, model, chat_tokenizer())
    return model


def decoder(labels):
    block = config.Block(config.Attention(2), config.Feed(32, act="gelu"), norm_at="pre")
    source = config.Tokens(chat_tokenizer().vocab_size)
    stack = config.Stack(16, source, config.Learned(64), (block,), causal=True)
    return config.DecoderOnly(
        stack, config.ClassHead(labels, at="last") if labels else config.LMHead()
    )


def test_a_reward_model_scores_the_whole_chat(tmp_path):
    model = kept(tmp_path / "run", decoder(("reward",)))
    chats = [[ASKED, {"role": "assistant", "content": each.answer}] for each in BOTH]
    rewards, found = judged(str(tmp_path / "run"))
    assert torch.equal(found[:, 0], score_chats(model, chat_tokenizer(), chats))
    assert rewards.names == ("run",)


def test_a_classifier_says_how_sure_it_is_of_the_label(tmp_path):
    model = kept(tmp_path / "run", decoder(("bad", "good")))
    rewards, found = judged(f"{tmp_path / 'run'}:good")
    for row, each in enumerate(BOTH):
        ids = torch.tensor([chat_tokenizer()(each.answer)["input_ids"][0].tolist()])
        share = model(input_ids=ids).logits.softmax(-1)[0, 1].item()
        assert found[row, 0].item() == pytest.approx(share, abs=1e-6)
    assert rewards.names == ("good",)
    with pytest.raises(ConfigError, match=r"knows bad, good; say which is good with label"):
        judged(str(tmp_path / "run"))
    with pytest.raises(
        ConfigError, match=r"label='goood' is not one of its own; did you mean good"
    ):
        judged({"kind": "model", "path": str(tmp_path / "run"), "label": "goood"})


def test_a_model_that_judges_nothing_is_refused(tmp_path):
    kept(tmp_path / "run", decoder(()))
    with pytest.raises(ConfigError, match=r"has no head that judges texts; tune one"):
        judged(str(tmp_path / "run"))


def test_paths_hold_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert anchored("a.py:f") == f"{tmp_path / 'a.py'}:f"
    assert anchored("run") == str(tmp_path / "run")
    assert anchored("run:good") == f"{tmp_path / 'run'}:good"
    assert anchored("package.module:f") == "package.module:f"
    assert anchored("command: x y") == "command: x y"
