"""PPO's parts against cases that were worked out by hand."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer.config import Attention, Block, DecoderOnly, Feed, Sinusoidal, Stack, Tokens, repeat
from allformer.errors import AllformerError, ConfigError
from allformer.train.optim import AdamW, Sgd
from allformer.train.policy.critic import Critic
from allformer.train.policy.gae import advantages, whiten
from allformer.train.policy.kl_control import Adaptive, Control, Fixed, estimate
from allformer.train.policy.ppo import (
    Experience,
    appraised,
    ended_scores,
    explained,
    token_rewards,
    value_losses,
)
from allformer.train.policy.ratio import clipped, clipped_loss, ratios
from allformer.train.policy.value_head import HEAD, MODEL, OfItsOwn, OnBody, Value, ValueHead
from allformer.train.preferences.said import lay_said, said_states
from allformer.train.sections.model import CheckpointModel

KEEP = torch.tensor([[True, True, True], [True, True, False]])


def wide(*rows: object) -> Tensor:
    return torch.tensor(rows if len(rows) > 1 else rows[0], dtype=torch.float64)


# --- advantages ----------------------------------------------------------------------------------


def check_advantages() -> None:
    """By hand: γ = 0.9, λ = 0.5; the second answer has two tokens, and what lies behind is junk."""
    rewards, values = wide([1, 2, 3], [1, -1, 99]), wide([0.5, 1, 1.5], [2, 0.5, 77])
    found = advantages(rewards, values, KEEP, gamma=0.9, lam=0.5)
    # δ = 1.4, 2.35, 1.5 and −0.55, −1.5; each takes 0.45 of the next one
    torch.testing.assert_close(found, wide([2.76125, 3.025, 1.5], [-1.225, -1.5, 0.0]))


def test_advantages_are_the_discounted_sums_of_what_surprised():
    check_advantages()


def test_with_lambda_one_the_returns_are_what_came():
    rewards, values = wide([1, 2, 3], [1, -1, 0]), wide([5, 6, 7], [8, 9, 0])
    found = advantages(rewards, values, KEEP, gamma=1.0, lam=1.0) + values
    torch.testing.assert_close(found, wide([6, 5, 3], [0, -1, 0]))


def check_whitening() -> None:
    """2, 4, 6, 8, 10 of mean 6 and variance 10 (of a sample); what is no token counts nowhere."""
    x, root = wide([2, 4, 6], [8, 10, 500]), math.sqrt(10)
    wanted = wide([-4, -2, 0], [2, 4, 0]) / root
    torch.testing.assert_close(whiten(x, KEEP), wanted, atol=1e-8, rtol=0)
    stays = torch.where(KEEP, wanted + 6, 0.0)
    torch.testing.assert_close(whiten(x, KEEP, shift=False), stays, atol=1e-8, rtol=0)


def test_whitening_is_over_the_tokens_of_all_answers():
    check_whitening()


def test_a_single_token_is_whitened_to_a_number():
    one = torch.tensor([[True, False]])
    assert whiten(wide([[3.0, 9.0]]), one).tolist() == [[0.0, 0.0]]
    assert whiten(wide([[3.0, 9.0]]), one, shift=False).tolist() == [[3.0, 0.0]]


# --- divergence ----------------------------------------------------------------------------------


def check_estimators() -> None:
    """Both are right in the mean: over all tokens, by their chances, they are the divergence."""
    p, q = wide([0.5, 0.3, 0.2]), wide([0.2, 0.2, 0.6])
    real = (p * (p / q).log()).sum()
    for kind in ("k1", "k3"):
        torch.testing.assert_close((p * estimate(p.log(), q.log(), kind)).sum(), real)
    assert (estimate(p.log(), q.log(), "k3") >= 0).all()
    assert estimate(p.log(), q.log(), "k1")[2] == (p.log() - q.log())[2] < 0


def test_estimates_of_the_divergence_are_right_in_the_mean():
    check_estimators()


def check_control() -> None:
    """512 answers of a horizon of 10,240: a twentieth of the error, which is 0.2 at most."""
    control = Adaptive(coef=0.2, target=6.0, horizon=10_240)
    assert control.next(0.2, 6.6, 512) == pytest.approx(0.2 * 1.005)  # 10 % too far
    assert control.next(0.2, 60.0, 512) == pytest.approx(0.2 * 1.01)
    assert control.next(0.2, 0.0, 512) == pytest.approx(0.2 * 0.99)
    assert Fixed(coef=0.05).next(0.05, 60.0, 512) == 0.05


def test_an_adaptive_price_follows_the_divergence_by_small_steps():
    check_control()


def test_the_price_is_chosen_by_name():
    assert Control.read({"is": "adaptive", "target": 3}) == Adaptive(target=3.0)
    assert Control.read({}) == Fixed(coef=0.05, estimator="k1")
    with pytest.raises(ConfigError, match=r"target belongs to adaptive, not to fixed"):
        Control.read({"target": 3})
    with pytest.raises(ConfigError, match=r"estimator='k2' is not a choice; try k1, k3"):
        Control.read({"estimator": "k2"})


# --- what tokens earn, and what is lost -----------------------------------------------------------


def check_token_rewards() -> None:
    kl = wide([0.1, 0.2, 0.3], [0.4, 0.5, 99])
    found = token_rewards(kl, wide([1, -2]), torch.tensor([3, 2]), coef=0.5)
    torch.testing.assert_close(found, wide([-0.05, -0.1, 0.85], [-0.2, -2.25, 0.0]))


def test_the_score_is_earned_by_the_last_token_and_divergence_is_paid_by_each():
    check_token_rewards()


def check_no_end() -> None:
    scores, ended = wide([1, 2, 3]), torch.tensor([True, False, True])
    torch.testing.assert_close(ended_scores(scores, ended, 1.5), wide([1, 0.5, 3]))
    assert torch.equal(ended_scores(scores, ended, 0.0), scores)


def test_an_answer_without_an_end_scores_less():
    check_no_end()


def check_appraised() -> None:
    """Two answers of 2 and 1 tokens, γ = λ = 1: a token is worth what the answer earns from there
    on, whatever was expected. Scores 4 and 3 − 1 (no end), a nat costs 0.5."""
    kl, keep = wide([1, 2], [4, 9]), torch.tensor([[True, True], [True, False]])
    ended, counts = torch.tensor([True, False]), torch.tensor([2, 1])
    expected = wide([1, 0.5], [2, 0])
    drawn = Experience(kl, expected, wide([4, 3]), ended, counts)
    found = appraised(drawn, coef=0.5, gamma=1.0, lam=1.0, no_end=1.0)
    torch.testing.assert_close(found.returns, wide([2.5, 3], [0, 0]))
    torch.testing.assert_close(found.earned, wide([2.5, 0]))
    torch.testing.assert_close(found.advantages, whiten(wide([1.5, 2.5], [-2, 0]), keep))
    even = appraised(drawn, coef=0.5, gamma=1.0, lam=1.0, no_end=1.0, whiten_rewards=True)
    earned = whiten(wide([-0.5, 3], [0, 0]), keep, shift=False)
    torch.testing.assert_close(even.returns[0], torch.stack([earned[0].sum(), earned[0, 1]]))
    torch.testing.assert_close(even.earned, found.earned)


def test_a_rollout_is_appraised_token_by_token():
    check_appraised()


def check_policy_loss() -> None:
    """Ratios 1, 1.5, 0.5, 1.5, 0.5 under advantages of either sign; only what goes on in the wrong
    direction, or has not gone far enough yet, has a gradient."""
    moved = wide([1, 1.5, 0.5, 1.5, 0.5])[None]
    gains, mask = wide([2, 2, 2, -2, -2])[None], torch.ones(1, 5, dtype=torch.bool)
    logps = (moved.log() - 1).requires_grad_(True)
    ratio = ratios(logps, torch.full_like(logps, -1.0), mask)
    each = clipped_loss(ratio, gains, 0.2, 0.2)
    torch.testing.assert_close(each, wide([-2, -2.4, -1, 3, 1.6])[None])
    each.sum().backward()
    torch.testing.assert_close(logps.grad, wide([-2, 0, -1, 3, 0])[None])
    assert clipped(ratio, gains, 0.2, 0.2).tolist() == [[False, True, False, False, True]]


def test_the_policy_learns_nothing_more_of_a_token_that_has_moved_far_enough():
    check_policy_loss()


def check_value_loss() -> None:
    """From 1 to 1.1 (near), 2 (far, the wrong way), 2 (far, the right way: the nearer one counts,
    and has no gradient)."""
    values = wide([1.1, 2, 2]).requires_grad_(True)
    before, returns = wide([1, 1, 1]), wide([2, 0, 3])
    each = value_losses(values, before, returns, clip=0.2)
    torch.testing.assert_close(each, wide([0.81, 4, 1.8**2]) / 2)
    each.sum().backward()
    torch.testing.assert_close(values.grad, wide([-0.9, 2, 0]))
    plain = value_losses(values, before, returns, clip=None)
    torch.testing.assert_close(plain, wide([0.81, 4, 1]) / 2)


def test_a_value_that_has_moved_far_enough_learns_no_more():
    check_value_loss()


def test_what_a_value_explains_is_the_share_of_the_variance():
    """Returns 1, 3, 5, 7, 9 (variance 8); missed by −1, 1, −1, 1, 0 (variance 0.8); one cell is
    no token."""
    returns = wide([1, 3, 5], [7, 9, 100])
    values = returns - wide([-1, 1, -1], [1, 0, 50])
    assert float(explained(values, returns, KEEP)) == pytest.approx(0.9)
    assert float(explained(torch.zeros(2, 3).double(), returns, KEEP)) == 0.0


# --- the value ------------------------------------------------------------------------------------

ROWS = [([1, 5, 6, 7, 2], [0, 0, 1, 1, 1]), ([1, 8, 9], [0, 0, 1])]


def policy(vocab: int = 12, seed: int = 0) -> af.core.model.AnyModel:
    block = Block(Attention(2), Feed(32, act="gelu"), norm_at="pre")
    tree = DecoderOnly(Stack(16, Tokens(vocab), Sinusoidal(), repeat(block, 2), causal=True))
    return af.build(tree, seed=seed).double().eval()


def quiet(line: str) -> None:
    pass


def critic(asked: Value, model: object, start: CheckpointModel | None = None) -> Critic:
    module = asked.make(model, start, quiet).double()
    return Critic(module, asked, Sgd(rate=0.5, momentum=0.0, clip=None))


def test_values_begin_at_nothing_and_come_to_what_they_shall():
    model, said = policy(), lay_said(ROWS)
    asked = OnBody(weight=0.0, clip=None, rate=0.05)
    found = Critic(ValueHead(16).double(), asked, AdamW(rate=0.05))
    states, returns = said_states(model, said).detach(), wide([1, -1, 2, 0.5])
    assert found.values(states, said).tolist() == [0.0] * 4
    for _ in range(150):
        found.learn(states, said, torch.zeros(4).double(), returns)
        found.step(0.05)
    torch.testing.assert_close(found.values(states, said), returns, atol=0.3, rtol=0)


def check_shared_body() -> None:
    """What the head loses teaches the body by its weight, and the head by itself: as if both were
    one model with one loss."""
    model, said = policy(), lay_said(ROWS)
    found, returns = critic(OnBody(weight=0.1, rate=1.0, clip=None), model), wide([1, -1, 2, 0.5])
    with torch.no_grad():
        found.module.out.weight.normal_(generator=torch.Generator().manual_seed(1))
    head = ValueHead(16).double()
    head.load_state_dict(found.module.state_dict())
    states = said_states(model, said)
    body, each = found.learn(states, said, torch.zeros(4).double(), returns)
    (body.sum() / 4).backward()
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    values = head(said_states(model, said), said)
    ((values - returns).square() / 2).mean().mul(0.1).backward()
    wanted = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(got) == len(wanted) > 10
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(each.mean(), ((values - returns).square() / 2).mean().detach())
    found.step(0.5)  # twice as fast as the policy, and not by the weight: a step of 1
    stepped = head.out.weight - head.out.weight.grad / 0.1
    torch.testing.assert_close(found.module.out.weight, stepped)


def test_a_head_on_the_body_learns_by_its_own_rate_and_teaches_the_body():
    check_shared_body()


def test_a_value_goes_on_from_its_state():
    model, said = policy(), lay_said(ROWS)
    asked, returns = OnBody(weight=0.0), wide([1, -1, 2, 0.5])
    states = said_states(model, said).detach()
    one, two = (Critic(ValueHead(16).double(), asked, AdamW()) for _ in range(2))

    def go(critic: Critic) -> None:
        critic.learn(states, said, torch.zeros(4).double(), returns)
        critic.step(0.1)

    go(one)
    two.restore(copy.deepcopy(one.state()))
    for each in (one, two):
        go(each)
    assert torch.equal(one.values(states, said), two.values(states, said))


def test_a_kept_head_is_where_another_run_begins(tmp_path: Path):
    model = policy()
    head = ValueHead(16)
    torch.nn.init.ones_(head.out.weight)
    head.keep(tmp_path)
    again = OnBody(checkpoint=str(tmp_path)).make(model, None, quiet)
    assert torch.equal(again.out.weight, head.out.weight)
    (tmp_path / HEAD).unlink()
    with pytest.raises(ConfigError, match=r"has no value_head.safetensors; give a run .*keep=true"):
        OnBody(checkpoint=str(tmp_path)).make(model, None, quiet)


def test_a_model_of_its_own_begins_as_the_policy_without_a_value(tmp_path: Path):
    model, said = policy().float(), lay_said(ROWS)
    af.save(model, tmp_path / "base", family="allformer")
    start = CheckpointModel(str(tmp_path / "base"))
    own = OfItsOwn().make(model, start, quiet)
    states = said_states(model, said)
    assert own(states, said).tolist() == [0.0] * 4
    torch.testing.assert_close(said_states(own.model, said), states)
    torch.nn.init.ones_(own.model.head.out.weight)
    wanted = own(states, said)
    own.keep(tmp_path)
    again = OfItsOwn(checkpoint=str(tmp_path / MODEL)).make(model, start, quiet)
    torch.testing.assert_close(again(states, said), wanted)
    assert af.load(tmp_path / MODEL)(input_ids=torch.tensor([[1, 5, 6]])).logits.shape == (1, 1)


def test_a_model_of_its_own_has_the_policys_words(tmp_path: Path):
    af.save(policy(20), tmp_path, family="allformer")
    with pytest.raises(AllformerError, match=r"has 20 ids, but the policy has 12; give one with"):
        OfItsOwn(checkpoint=str(tmp_path)).make(policy(12), None, quiet)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"value.checkpoint=.* is an adapter .* --merge"):
        OfItsOwn(checkpoint=str(tmp_path)).make(policy(12), None, quiet)
    with pytest.raises(ConfigError, match=r"the policy has no checkpoint to begin with; give"):
        OfItsOwn().make(policy(12), None, quiet)
