"""How a sound codec's losses are weighed: lengths of gradients, judges in some of the steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.train.optim import Sgd
from allformer.train.waves.balance import Balance
from allformer.train.waves.codec_options import Judges
from allformer.train.waves.duel import Duel
from allformer.train.waves.hinge import judging

CPU = torch.device("cpu")


def pulls(seed: int = 0, rows: int = 4) -> Tensor:
    return torch.randn(rows, 50, generator=torch.Generator().manual_seed(seed))


def balance(decay: float | None = 0.5) -> Balance:
    return Balance(("one", "other"), decay, CPU)


def even(given: Tensor, before: Tensor) -> Tensor:
    """Divided by the mean length of those before, or by its own."""
    mean = before.norm(dim=1).mean()
    return torch.stack([x / max(x.norm(), mean) for x in given])


def check_lengths() -> None:
    """A weight is the length of what its loss adds to a crop that is as the mean, whatever the
    loss's own scale; one that pulls harder pulls no harder than that."""
    keep = torch.ones(4)
    for scale in (1e-3, 1.0, 1e3):
        made = balance()
        first = made.joined({"one": (2.0, scale * pulls())}, keep)
        torch.testing.assert_close(first, 2.0 * even(pulls(), pulls()), rtol=1e-3, atol=1e-5)
        assert 1.8 < float(first.norm(dim=1).mean()) < float(first.norm(dim=1).max()) < 2.001
        made.settle()
        both = made.joined({"one": (2.0, scale * pulls(1)), "other": (0.5, pulls(2))}, keep)
        rest = both - 0.5 * even(pulls(2), pulls(2))
        wanted = 2.0 * even(pulls(1), pulls())  # by the step before
        torch.testing.assert_close(rest, wanted, rtol=1e-3, atol=1e-5)


def test_a_weight_is_the_length_of_a_gradient_whatever_the_scale_of_its_loss():
    check_lengths()


def test_without_a_decay_gradients_are_weighed_as_they_are():
    made = balance(None)
    found = made.joined({"one": (2.0, pulls()), "other": (0.5, pulls(1))}, torch.ones(4))
    made.settle()
    torch.testing.assert_close(found, 2 * pulls() + 0.5 * pulls(1))


def check_moving_lengths() -> None:
    """Lengths are moving means over steps; micro-batches are one step, and filler is nothing."""
    whole, parts = balance(), balance()
    for seed in (0, 1, 2):
        given, keep = pulls(seed), torch.tensor([1.0, 1.0, 1.0, 0.0])
        whole.joined({"one": (1.0, given)}, keep)
        parts.joined({"one": (1.0, given[:1])}, keep[:1])
        parts.joined({"one": (1.0, given[1:3])}, keep[1:3])
        for each in (whole, parts):
            each.settle()
    torch.testing.assert_close(whole.lengths, parts.lengths)
    means = [float(pulls(seed)[:3].norm(dim=1).mean()) for seed in (0, 1, 2)]
    wanted = 0.5 * (0.5 * means[0] + 0.5 * means[1]) + 0.5 * means[2]
    assert whole.lengths.tolist() == pytest.approx([wanted, 0.0])  # the other was not met


def test_lengths_move_with_the_steps():
    check_moving_lengths()


def test_lengths_outlast_a_resume():
    made, again = balance(), balance()
    made.joined({"one": (1.0, pulls())}, torch.ones(4))
    made.settle()
    again.restore(made.state())
    assert torch.equal(made.lengths, again.lengths)


# --- judges ---------------------------------------------------------------------------------------


def duel(**more: Any) -> Duel:
    torch.manual_seed(0)
    return Duel(Judges(windows=(64,), width=4, **more), Sgd(momentum=0.0, rate=1.0), CPU)


def check_sitting() -> None:
    """From the step after `after` on, and in each so many-th step."""
    for given, wanted in (({}, "111111"), ({"after": 3}, "000111"), ({"every": 2}, "101010"),
                          ({"after": 2, "every": 3}, "001001")):  # fmt: skip
        made, found = duel(**given), ""
        for step in range(1, 7):
            made.at(step)
            found += str(int(made.sits))
        assert found == wanted


def test_judges_sit_in_the_steps_that_are_theirs():
    check_sitting()


def check_one_pass() -> None:
    """Asked once, for both sides: the judges' gradient, and the wave's, are those of two passes."""
    made, real, keep = 0.1 * pulls(0, 3).repeat(1, 4), 0.1 * pulls(1, 3).repeat(1, 4), torch.ones(3)
    one, other = duel(), duel()
    leaf = made.clone().requires_grad_()
    lost = one.against(leaf, real, keep)
    (gradient,) = torch.autograd.grad((lost.fool + 2 * lost.match).sum(), leaf)
    apart = made.clone().requires_grad_()
    plain = other.against(apart, real, keep, learn=False)
    (wanted,) = torch.autograd.grad((plain.fool + 2 * plain.match).sum(), apart)
    torch.testing.assert_close(gradient, wanted)
    learnt = [p.grad for p in one.opponent.parameters]
    assert all(x is not None and x.isfinite().all() for x in learnt)
    assert not any(x is not None for x in (p.grad for p in other.opponent.parameters))
    assert leaf.grad is None  # what they learn is not laid at the codec's door
    again = duel()
    loss = judging(again.opponent(real), again.opponent(made)).sum()
    for x, y in zip(learnt, torch.autograd.grad(loss, again.opponent.parameters), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_one_pass_of_the_judges_serves_both_sides():
    check_one_pass()
