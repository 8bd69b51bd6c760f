"""PPO as an objective: rollouts become experience, policy and value learn from it, runs resume."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

import allformer as af
from allformer.checkpoint.run import save_run
from allformer.checkpoint.weights import read_tensors
from allformer.config import Attention, Block, DecoderOnly, Feed, Learned, Stack, Tokens, repeat
from allformer.errors import ConfigError
from allformer.evaluate.objective import evaluate_objective, open_any, recipe_of
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import train_tokenizer
from allformer.train.loop import train
from allformer.train.objectives.ppo import Ppo
from allformer.train.policy.on_policy import PolicyBatch
from allformer.train.policy.value_head import HEAD, MODEL
from allformer.train.recipe import make_recipe
from allformer.train.tune_recipe import tune_recipe

LETTERS = "abcdefgh"
PROMPTS = [{"text": LETTERS[i % 8] + LETTERS[(3 * i) % 8]} for i in range(24)]


def vowels(completions, **more):
    """Of each answer the share of a and e, twice."""
    return [2.0 * sum(c in "ae" for c in text) / max(1, len(text)) for text in completions]


def made(path: Path) -> Path:
    """A decoder that writes letters as they come, with its tokeniser."""
    tokenizer = train_tokenizer([LETTERS] * 4, "char", 20)
    ids = tokenizer.special_ids
    tokens = Tokens(tokenizer.vocab_size, bos_id=ids.get("bos"), eos_id=ids.get("eos"))
    block = Block(Attention(2), Feed(32, act="gelu"), norm_at="pre")
    stack = Stack(16, tokens, Learned(32), repeat(block, 1), causal=True)
    save_run(path, af.build(DecoderOnly(stack), seed=0), tokenizer)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return made(tmp_path_factory.mktemp("base"))


def recipe(base: Path, options: dict | None = None, **more):
    return make_recipe(
        {
            "objective": {
                "is": "ppo", "rewards": [f"{__file__}:vowels"], "prompts": 12, "iterations": 2,
                "minibatches": 2, "sampling": {"length": 6}, **(options or {}),
            },
            "data": {"max_length": 8},
            "model": {"checkpoint": str(base)},
            "optim": {"rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 0},
            "train": {"steps": 24, "save_every": 100, "validate_every": 100, "average": 1,
                      **more.pop("train", {})},
            "log": {"every": 4, "tensorboard": False},
            **more,
        }
    )  # fmt: skip


def trained(asked, run: Path, **more):
    return train(asked, run, device="cpu", corpus=(PROMPTS[:18], PROMPTS[18:]), **more)


def test_ppo_learns_what_is_rewarded_within_a_bound(base, tmp_path):
    result = trained(recipe(base), tmp_path / "run")
    first, last = (row for row in result.rows if "validation_reward" in row)
    assert last["validation_reward"] > first["validation_reward"] + 0.4
    logged = result.rows[-2]
    assert {"reward", "kl", "kl_answer", "kl_coef", "entropy", "clipped", "explained"} <= {*logged}
    assert not (tmp_path / "run" / HEAD).exists()
    assert af.load(tmp_path / "run").config == af.load(base).config  # plain, without a value
    dear = {"kl": {"coef": 5.0}}
    near = trained(recipe(base, dear, train={"steps": 12}), tmp_path / "near").rows[-1]
    assert near["validation_kl"] < last["validation_kl"] / 2


def test_a_resumed_run_has_the_value_the_price_and_the_rollout_of_before(base, tmp_path):
    kl = {"is": "adaptive", "coef": 0.1, "target": 0.01, "horizon": 100}
    asked = {"kl": kl, "value": {"keep": True}, "no_end": 0.5, "entropy": 0.01}
    whole, half = tmp_path / "whole", tmp_path / "half"
    rows = trained(recipe(base, asked, train={"steps": 10}), whole).rows
    assert len({row["kl_coef"] for row in rows if "kl_coef" in row}) > 1
    trained(recipe(base, asked, train={"steps": 6}), half)  # in the midst of a rollout of four
    trained(None, half, resume=True, overrides=["train.steps=10"])
    for name in ("model.safetensors", HEAD):
        one, other = (read_tensors(path / name) for path in (whole, half))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name


def test_the_verb_tunes_an_adapter_beside_a_value_of_its_own(base, tmp_path):
    data, run = tmp_path / "prompts.jsonl", tmp_path / "run"
    data.write_text("\n".join(map(json.dumps, PROMPTS)) + "\n")
    asked = tune_recipe(
        str(base), str(data), task="ppo", method="lora", rewards=[f"{__file__}:vowels"],
        overrides=["objective.sampling.length=6", "objective.value.is=model", "data.hold_out=6",
                   "objective.value.keep=true", "objective.prompts=9", "log.tensorboard=false"],
    )  # fmt: skip
    assert (asked.train.best, asked.options.iterations) == ("reward", 4)
    last = train(asked, run, device="cpu").rows[-1]
    assert (run / "adapter_model.safetensors").exists()
    value = af.load(run / MODEL)
    assert value(input_ids=torch.tensor([[5, 6]])).logits.shape == (1, 1)
    assert value.head.out.weight.abs().sum() > 0
    shutil.rmtree(run / MODEL)  # to look at a run, nothing beside it is needed
    found = evaluate_objective(open_any(str(run), device="cpu"), recipe_of(run))
    assert found["reward"] == pytest.approx(last["validation_reward"], abs=1e-5)


# --- one rollout, by hand -------------------------------------------------------------------------


def met(base: Path, **options) -> tuple[Ppo, PolicyBatch]:
    """An objective that has met its model, and a whole rollout of it."""
    objective = Ppo(recipe(base, {"minibatches": 1, **options}))
    objective.open((PROMPTS[:12], PROMPTS[12:]))
    model = af.load(base)
    objective.encode(objective.tokenizer(load_tokenizer(base)), lambda line: None)
    objective.meet(model, False)
    examples = objective.examples(0)
    batch = objective.collate(examples, np.arange(12))
    return objective, objective.onto(batch, "cpu")


def check_gradient() -> None:
    """Of a fresh rollout, token by token: divergence is nothing yet, an answer earned its score,
    and the gradient is that of −Σ A log π, less openness at its price."""
    with TemporaryDirectory() as folder:
        objective, batch = met(made(Path(folder)), value={"weight": 0.0}, entropy=0.3)
    rollout, model = batch.rollout, objective.policy
    torch.testing.assert_close(rollout.logps, rollout.reference)
    torch.testing.assert_close(rollout.more["earned"], rollout.score)
    loss, plain = objective.loss(model, batch)
    loss.backward()
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for row, (ids, learnt) in enumerate(rollout.rows):
        logp = model(input_ids=torch.from_numpy(ids)[None]).logits[0, :-1].log_softmax(-1)
        said = logp[range(len(ids) - 1), ids[1:]][learnt[1:] > 0]
        torch.testing.assert_close(said, rollout.logps[row, : len(said)], atol=1e-5, rtol=0)
        openness = -(logp.exp() * logp).sum(-1)[learnt[1:] > 0]
        gains = rollout.more["advantages"][row, : len(said)]
        total = total - (gains * said + 0.3 * openness).sum()
    total.backward()
    wanted = [p.grad for p in model.parameters() if p.grad is not None]
    torch.testing.assert_close(got, wanted, atol=5e-5, rtol=1e-4)
    tokens = sum(int(learnt.sum()) for _, learnt in rollout.rows)
    assert float(plain) == pytest.approx(-float(rollout.score.mean()) * tokens, rel=1e-5)


def test_before_anything_is_learnt_the_gradient_is_the_policys():
    check_gradient()


def check_divergence_is_paid() -> None:
    """A policy that has moved pays for each token, and the price follows how far it is."""
    kl = {"is": "adaptive", "coef": 0.5, "target": 0.01, "horizon": 12}
    with TemporaryDirectory() as folder:
        objective, batch = met(made(Path(folder)), kl=kl, no_end=1.0)
    assert objective.coef == pytest.approx(0.5 * 0.8)  # no divergence yet: cheaper by a fifth
    with torch.no_grad():
        for parameter in objective.policy.parameters():
            parameter.mul_(1.5)
    rollout = objective.work_out(batch.rollout)
    apart = (rollout.logps - rollout.reference).double().sum(1)  # k1, of whole answers
    assert apart.abs().max() > 0.1
    wanted = rollout.score - (~rollout.ended).float() - 0.4 * apart
    torch.testing.assert_close(rollout.more["earned"].double(), wanted, atol=1e-5, rtol=0)
    assert objective.coef == pytest.approx(0.4 * 0.8)
    nats, mask = torch.tensor([[0.004, 0.008], [0.01, 9.0]]), torch.tensor([[1, 1], [1, 0]]).bool()
    objective._follow(nats, mask)  # 0.011 an answer: a tenth too far, by 2 answers of 12
    assert objective.coef == pytest.approx(0.4 * 0.8 * (1 + 0.1 * 2 / 12))


def test_divergence_is_paid_token_by_token_and_sets_the_price():
    check_divergence_is_paid()


def test_what_ppo_cannot_do_is_refused(base):
    with pytest.raises(ConfigError, match=r"objective.gamma=1.5 must be in 0 … 1"):
        recipe(base, {"gamma": 1.5})
    with pytest.raises(ConfigError, match=r"objective.value.weight belongs to head, not to model"):
        recipe(base, {"value": {"is": "model", "weight": 1.0}})
    with pytest.raises(ConfigError, match=r"is='fixd' is not a choice; did you mean fixed"):
        recipe(base, {"kl": {"is": "fixd"}})
    assert math.isclose(recipe(base, {"kl": {"is": "adaptive"}}).options.kl.target, 6.0)
