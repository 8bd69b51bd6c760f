"""Dropout on a CPU: as likely as it is said, unbiased, and repeated by torch's own random state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allformer.core.dropout import drop
from allformer.core.kernels import attend
from allformer.core.look import Look, blind_rows, make_look


@pytest.mark.parametrize("p", [0.5, 0.1, 0.001, 0.99999])
def test_values_are_kept_as_often_as_is_said_and_scaled_by_as_much(p):
    check_kept(p)


def check_kept(p: float = 0.1) -> None:
    torch.manual_seed(0)
    count = 1 << 20
    y = drop(torch.ones(1024, count // 1024, dtype=torch.float64), p)
    kept, *more = y[y != 0].unique().tolist()
    assert not more
    lost = 1 - 1 / kept  # the level that p was brought to
    assert abs(lost - p) <= 1 / (1 << 16)
    deviation = (count * lost * (1 - lost)) ** 0.5
    assert abs(int((y == 0).sum()) - count * lost) < 4 * deviation + 1


def test_neighbours_are_dropped_independently():
    torch.manual_seed(1)
    lost = (drop(torch.ones(1 << 20), 0.3) == 0).double().view(-1, 8)
    assert (torch.corrcoef(lost.T) - torch.eye(8)).abs().max() < 0.015


def test_a_random_state_gives_the_same_values_and_the_gradient_is_that_of_what_was_kept():
    x = torch.randn(3, 5, 7, requires_grad=True)
    torch.manual_seed(2)
    y = drop(x, 0.4)
    torch.manual_seed(2)
    assert torch.equal(drop(x, 0.4), y)
    assert not torch.equal(drop(x, 0.4), y)
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(y == 0, 0.0, 1 / (1 - round(0.4 * 65536) / 65536)))


@pytest.mark.parametrize("size", [(), (0, 3), (1,), (5, 1), (2, 3, 3)])
def test_any_shape_and_dtype_is_taken(size):
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        y = drop(torch.ones(size, dtype=dtype), 0.1)
        assert (y.shape, y.dtype) == (torch.Size(size), dtype)


def test_without_training_or_chance_nothing_is_done():
    x = torch.randn(4)
    assert drop(x, 0.5, False) is x
    assert drop(x, 0.0) is x


def looks() -> dict[str, Look]:
    keep = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    keep[1, :, :, 4:] = False
    keep[1, :, 0] = False
    bias = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    blind = blind_rows(keep)
    return {
        "all": Look(),
        "causal": Look(causal=True),
        "mask": make_look(keep[:1]),
        "blind": make_look(keep, blind=blind),
        "bias": make_look(None, bias=bias),
        "bias and blind": make_look(keep, blind=blind, bias=bias),
    }


@pytest.mark.parametrize("name", looks())
def test_attention_that_drops_weights_out_is_the_formula(name):
    check_attention(name)


def check_attention(name: str = "bias and blind") -> None:
    torch.manual_seed(3)
    look = looks()[name]
    given = [torch.randn(2, h, 6, 8, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2)]

    def run(kernel: str) -> list[Tensor]:
        torch.manual_seed(4)
        out = attend(*given, look, scale=0.3, dropout=0.25, kernel=kernel)
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    for fast, plain in zip(run("fast"), run("eager"), strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-12, atol=1e-12)


def test_under_vmap_each_row_may_have_values_of_its_own():
    torch.manual_seed(5)
    apart = torch.func.vmap(lambda x: drop(x, 0.5), randomness="different")(torch.ones(4, 64))
    alike = torch.func.vmap(lambda x: drop(x, 0.5), randomness="same")(torch.ones(4, 64))
    assert len(apart.unique(dim=0)) == 4
    assert len(alike.unique(dim=0)) == 1
