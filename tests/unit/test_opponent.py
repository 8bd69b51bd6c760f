"""An opponent of the model: its own gradients, its own optimiser, kept across a resume."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from allformer.train.opponent import Opponent
from allformer.train.optim import AdamW, Sgd


def judge() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def sounds(seed: int = 1) -> Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))


def weights(opponent: Opponent) -> list[Tensor]:
    return [x.clone() for x in opponent.module.state_dict().values()]


def test_micro_batches_of_unequal_size_teach_it_what_the_whole_batch_does():
    whole, parts = Opponent(judge(), AdamW()), Opponent(judge(), AdamW())
    whole.learn(whole(sounds()).square().sum(), 6)
    for part in (sounds()[:4], sounds()[4:]):
        parts.learn(parts(part).square().sum(), torch.tensor(float(len(part))))
    before = weights(whole)
    for one in (whole, parts):
        one.step(0.01)
    torch.testing.assert_close(weights(whole), weights(parts))
    assert not any(map(torch.equal, before, weights(whole)))


def test_its_gradient_is_a_mean_and_is_clipped_by_its_norm():
    opponent = Opponent(judge(), Sgd(momentum=0.0, clip=0.5))
    reference = copy.deepcopy(opponent.module)
    (reference(sounds()).square().sum() / 6).backward()
    nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    opponent.learn(opponent(sounds()).square().sum(), 6)
    opponent.step(0.1)
    torch.testing.assert_close(weights(opponent), list(reference.state_dict().values()))


def test_frozen_it_hands_gradients_on_and_keeps_none():
    opponent, x = Opponent(judge(), AdamW()), sounds().requires_grad_(True)
    torch.testing.assert_close(opponent.frozen(x), opponent(x))
    opponent.frozen(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in opponent.parameters)


def test_learning_leaves_what_it_is_shown_without_gradient():
    opponent, made = Opponent(judge(), AdamW()), sounds().requires_grad_(True)
    opponent.learn(opponent(made).sum(), 6)
    assert made.grad is None


def test_a_gradient_that_is_not_finite_changes_nothing():
    opponent = Opponent(judge(), AdamW())
    before = weights(opponent)
    opponent.learn((opponent(sounds()) / 0).sum(), 6)
    opponent.step(0.1)
    assert all(map(torch.equal, before, weights(opponent)))


def test_restored_it_goes_on_as_if_nothing_had_happened():
    one = Opponent(judge(), AdamW())

    def steps(opponent: Opponent, seeds: range) -> None:
        for seed in seeds:
            opponent.learn(opponent(sounds(seed)).square().sum(), 6)
            opponent.step(0.01)

    steps(one, range(3))
    kept = copy.deepcopy(one.state())
    steps(one, range(3, 6))
    other = Opponent(judge(), AdamW())
    other.restore(kept)
    steps(other, range(3, 6))
    assert all(map(torch.equal, weights(one), weights(other)))
