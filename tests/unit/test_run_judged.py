"""Who wins: answers before and after, judged by a reward, for the report of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from allformer.checkpoint.run import load_run
from allformer.errors import ConfigError
from allformer.run_judged import judge_name, judged_answers, own_rewards
from allformer.run_report import _judged, report_run
from allformer.train.loop import train
from allformer.train.recipe import make_recipe, read_recipe
from tests.unit.test_cli import ROOT

TEXTS = [f"What does a dog do? A dog barks {n} times." for n in range(30)]
CHATS = [{"instruction": f"Say {n}.", "output": f"{n} {n}"} for n in range(20)]
REWARD = """
def many(prompts, completions):
    return [float(len(text)) for text in completions]
def grew(completions, calls=[]):
    calls.append(1)
    return [float(len(calls))] * len(completions)
"""
SHORT = {"steps": 1, "batch_tokens": 256, "average": 1}


@pytest.fixture(scope="module")
def room(tmp_path_factory) -> Path:
    """A base, a run with an adapter, one of all weights, and a file of rewards."""
    path = tmp_path_factory.mktemp("judged")
    (path / "reward.py").write_text(REWARD)
    (path / "chats.jsonl").write_text("".join(json.dumps(x) + "\n" for x in CHATS))
    log = {"log": {"tensorboard": False}}
    sizes = {"dim": 16, "heads": 2, "feed": 32, "layers": 1}
    base = {"objective": "causal-lm", "model": sizes, "data": {"max_length": 96},
            "tokenizer": {"kind": "byte-bpe", "vocab": 280}, "train": SHORT, **log}  # fmt: skip
    train(make_recipe(base), path / "base", device="cpu", corpus=TEXTS)
    for method in ("lora", "full"):
        told = {"objective": "instruction", "model": {"checkpoint": str(path / "base")},
                "data": {"path": str(path / "chats.jsonl"), "hold_out": 6}, "tune": method,
                "optim": {"rate": 0.5}, "schedule": {"kind": "constant", "warmup": 0},
                "train": SHORT, **log}  # fmt: skip
        train(make_recipe(told), path / method, device="cpu")
    return path


def judged(room, name, rewards, **more):
    run = load_run(room / name)
    return judged_answers(run, read_recipe(room / name / "recipe.yaml"), rewards, **more)


@pytest.mark.parametrize("name", ["lora", "full"])
def test_both_answers_of_held_out_questions_are_judged(name, room):
    found = judged(room, name, [f"{room / 'reward.py'}:many"], answers=4)
    assert len(found.rows) == 4
    for row in found.rows:
        assert row.rewards == (float(len(row.before)), float(len(row.given)))
        assert row.input in {x["instruction"] for x in CHATS}
    assert any(row.before != row.given for row in found.rows)


def test_what_was_said_before_is_what_the_base_says(room):
    rewards = [f"{room / 'reward.py'}:many"]
    lora, full = (judged(room, name, rewards, answers=3) for name in ("lora", "full"))
    assert [row.before for row in lora.rows] == [row.before for row in full.rows]
    run = load_run(room / "lora")
    kept = {name: p.clone() for name, p in run.model.named_parameters()}
    judged_answers(run, read_recipe(room / "lora" / "recipe.yaml"), rewards, answers=1)
    assert all(torch.equal(p, kept[name]) for name, p in run.model.named_parameters())


def test_the_report_says_who_wins_and_by_whom(room):
    said = []
    result = report_run(
        room / "lora", rewards=[f"{room / 'reward.py'}:grew"], answers=2, say=said.append
    )
    assert result.scores["win_rate"] == 1.0  # the answers of after are judged later
    page = result.page.read_text(encoding="utf-8")
    assert "judged by grew" in page
    assert "2 won" in page
    assert said == ["answering 2 questions, before and after"]


def test_what_cannot_be_judged_is_refused(room):
    with pytest.raises(ConfigError, match=r"--reward judges answers.*objective=causal-lm"):
        judged(room, "base", [f"{room / 'reward.py'}:many"])
    with pytest.raises(ConfigError, match="has no function 'mny'; did you mean many"):
        judged(room, "lora", [f"{room / 'reward.py'}:mny"])
    with pytest.raises(ConfigError, match="answers=0 must be at least 1"):
        report_run(room / "lora", answers=0)


def test_a_run_that_was_tuned_for_a_reward_is_judged_by_it_if_it_is_still_there(room):
    told = {"is": "grpo", "rewards": ["gone.py:used", {"kind": "command", "run": "true"}]}
    recipe = make_recipe({"objective": told})
    assert judge_name(own_rewards(recipe)) == "used + true"
    assert own_rewards(make_recipe({"objective": "instruction"})) == ()
    assert own_rewards(None) == ()
    said: list[str] = []
    run, recipe = load_run(room / "lora"), read_recipe(room / "lora" / "recipe.yaml")
    assert _judged(run, recipe, ["gone.py:used"], False, 2, said.append) is None
    assert said[0].startswith("no win rates: ")
    assert "gone.py" in said[0]


def test_the_reward_of_stories_is_the_share_of_the_words_used():
    names: dict[str, object] = {}
    exec((ROOT / "recipes" / "story_words.py").read_text(), names)
    asked = "Write a story with the words: cat, rain, happy"
    stories = ["A cat sat in the Rain. Happy cat!", "Cats and rains.", ""]
    assert names["used"]([asked] * 3, stories) == [1.0, 0.0, 0.0]  # type: ignore[operator]
