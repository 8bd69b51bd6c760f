"""The other CPU kernel: the same numbers and gradients, and out of the way of everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from allformer.core import matmul as module
from allformer.core.linear import Linear
from allformer.core.matmul import LARGE, MANY, added, few_rows_by, matmul, outer
from allformer.generate import reader, stepper
from allformer.generate.engine import Engine
from tests.models import SPREAD, loud

LARGEST = 4.0  # of the values below: differences count against it, as everywhere in fp32
needs_onednn = pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch without oneDNN")


def matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=make)  # noqa: E731
    return draw(3, 20, 700), draw(800, 700) / 700**0.5, draw(800)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each time that oneDNN was used."""
    seen: list[str] = []

    def spy(*args: object) -> torch.Tensor:
        seen.append("oneDNN")
        return torch.ops.mkldnn._linear_pointwise(*args)

    monkeypatch.setattr(module, "_onednn", spy)
    return seen


@needs_onednn
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("biased", [True, False])
def test_results_alone_come_from_onednn_and_agree(calls: list[str], mode, biased) -> None:
    x, weight, bias = matrices()
    b = bias if biased else None
    with mode():
        for rows in (x, x[0], x[..., 0, :], x[0, 0], x[:0], torch.cat([x, x], -1)[..., :700]):
            out = matmul(rows, weight, b)
            right = F.linear(rows.double(), weight.double(), None if b is None else b.double())
            assert out.shape == right.shape
            assert (out - right).abs().le(3e-6 * LARGEST).all()
    assert len(calls) == 3  # few rows go elsewhere


@needs_onednn
@pytest.mark.parametrize(("inputs", "first"), [(100, (100, 600)), (900, (800, 600))])
def test_of_two_matrices_that_make_a_gradient_the_smaller_is_copied(
    monkeypatch: pytest.MonkeyPatch, inputs: int, first: tuple[int, int]
) -> None:
    copied: list[tuple[int, ...]] = []

    def spy(x: torch.Tensor, *more: object) -> torch.Tensor:
        copied.append(tuple(x.shape))
        return torch.ops.mkldnn._linear_pointwise(x, *more)

    monkeypatch.setattr(module, "_onednn", spy)
    draw = torch.Generator().manual_seed(0)
    dy, x = torch.randn(600, 800, generator=draw), torch.randn(600, inputs, generator=draw)
    with torch.no_grad():
        found = outer(dy, x)
    assert copied == [first]
    wanted = dy.double().t() @ x.double()
    assert (found - wanted).abs().max() < 1e-6 * wanted.abs().max() * LARGEST


class Spied:
    """A kernel for few rows that keeps how many it was given."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def fp32(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        self.rows.append(x.numel() // x.shape[-1])
        assert bias is None or bias.is_contiguous()
        return F.linear(x, weight, bias)


def test_a_few_rows_are_the_compiled_kernels_where_somebody_says_so() -> None:
    x, weight, bias = matrices()
    kernel, spread = Spied(), torch.stack([bias, bias], 1)[:, 0]
    with few_rows_by(lambda w: kernel if w.shape == weight.shape else None), torch.no_grad():
        for rows in (x[0, 0], x[:, 0], x[:2, :4], x[0, :9], x[:0, 0]):
            assert torch.equal(matmul(rows, weight, spread), F.linear(rows, weight, bias))
        assert kernel.rows == [1, 3, 8]  # nine are too many, and none at all is nothing
        matmul(x[0, 0, :80], weight[:, :80].contiguous(), bias)  # it has none for this one
        matmul(x[0, 0].double(), weight.double(), bias.double())
        with torch.enable_grad():
            matmul(x[0, 0], weight, bias)
        with FlopCounterMode(display=False):
            matmul(x[0, 0], weight, bias)
        assert kernel.rows == [1, 3, 8]
    with torch.no_grad():
        matmul(x[0, 0], weight, bias)
    assert kernel.rows == [1, 3, 8]


@pytest.mark.parametrize("family", ["decoder window", "seq2seq buckets"])
def test_who_writes_token_by_token_says_so(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Also where the decoder does not run lean: the plain steppers, and an engine."""
    kernel = Spied()
    for room in (stepper, reader):
        monkeypatch.setattr(room, "few_for", lambda weight: kernel)
    model = loud(SPREAD[family]).float()
    plain: Any = stepper.plain_stepper(model)
    with torch.inference_mode():
        ids = torch.tensor([[5, 6]])
        state = plain.open(ids, None)
        plain.step(ids[:, :1], state)
        assert kernel.rows
        kernel.rows.clear()
        engine = Engine(model, pages=9, page=4)
        engine.reader.lean = None
        engine.add([5, 6], max_new_tokens=2).result()
    assert kernel.rows


def check_derivatives() -> None:
    """Gradients, of rows that are one row in memory too, and gradients of gradients."""
    x, weight, bias = (y.requires_grad_() for y in matrices())
    alike = x[:1, :1].expand(x.shape)
    push = torch.randn(3, 20, 800, generator=torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_onednn", torch.ops.mkldnn._linear_pointwise)
        for rows, given in ((x, push), (x[1], push[1]), (alike, push[:1, :1].expand(push.shape))):
            found, wanted = (
                torch.autograd.grad(y, (x, weight, bias), given.to(y.dtype))
                for y in (
                    matmul(rows, weight, bias),
                    F.linear(rows.double(), weight.double(), bias.double()),
                )
            )
            for mine, right in zip(found, wanted, strict=True):
                assert (mine - right).abs().max() <= 2e-6 * right.abs().max()
        again = [_twice(way, x, weight) for way in (matmul, F.linear)]
    for mine, right in zip(*again, strict=True):
        assert (mine - right).abs().max() <= 2e-5 * right.abs().max()


def _twice(way: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor):
    """The gradients of a gradient's length."""
    both = torch.autograd.grad(way(x, weight, None).square().sum(), (x, weight), create_graph=True)
    return torch.autograd.grad(sum(y.square().sum() for y in both), (x, weight))


@needs_onednn
def test_products_are_derived_as_often_as_one_likes() -> None:
    check_derivatives()


@needs_onednn
def test_a_product_on_top_of_another_is_added(calls: list[str]) -> None:
    x, weight, _ = matrices()
    y = torch.randn(3, 20, 800, generator=torch.Generator().manual_seed(2))
    for some in (x, x[:, :5]):  # by oneDNN, and what is too few rows for it
        found, right = added(y[:, : some.shape[1]], some, weight), some.double() @ weight.double().T
        assert (found - (right + y[:, : some.shape[1]])).abs().le(3e-6 * LARGEST).all()
    assert len(calls) == 1


@needs_onednn
@pytest.mark.parametrize("wanted", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_only_the_products_that_a_gradient_needs_are_computed_and_only_their_factors_kept(
    calls: list[str], wanted
) -> None:
    given = matrices()
    for i in wanted:
        given[i].requires_grad_()
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.ndim) or x, lambda x: x):
        out = matmul(*given)
    assert out.requires_grad == bool(wanted)
    assert sorted(kept) == sorted([2] * (0 in wanted) + [3] * (1 in wanted))  # weight, and x
    if wanted:
        torch.autograd.grad(out.sum(), [given[i] for i in wanted])
    assert len(calls) == 1 + len({0, 1}.intersection(wanted))


@needs_onednn
def test_other_kinds_of_derivatives_see_the_usual_operator(calls: list[str]) -> None:
    x, weight, bias = matrices()
    with fw.dual_level():
        dual = fw.make_dual(x, torch.ones_like(x))
        tangent = fw.unpack_dual(matmul(dual, weight, bias)).tangent
    assert torch.allclose(tangent[0, 0], weight.sum(1), atol=1e-4)
    jacobian = torch.func.jacfwd(lambda row: matmul(row, weight, bias))(x[0, 0])
    assert torch.allclose(jacobian, weight, atol=1e-5)
    slope = torch.func.grad(lambda w: matmul(x, w, bias).sum())(weight)
    assert torch.allclose(slope[0], x.sum((0, 1)), atol=1e-4)
    assert calls == []


@needs_onednn
def test_watchers_and_transforms_see_the_usual_operator(calls: list[str]) -> None:
    x, weight, bias = matrices()
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            matmul(x, weight, bias)
        assert counter.get_total_flops() == 2 * 60 * 700 * 800
        rows = torch.func.vmap(lambda row: matmul(row, weight, bias))(x)
        assert torch.allclose(rows, F.linear(x, weight, bias), atol=1e-5)
        matmul(x.double(), weight.double(), bias.double())
        matmul(x.bfloat16(), weight.bfloat16(), bias.bfloat16())
        with torch.backends.mkldnn.flags(enabled=False):
            matmul(x, weight, bias)
    assert calls == []


@needs_onednn
def test_small_products_and_few_rows_keep_torchs_choice(calls: list[str]) -> None:
    with torch.no_grad():
        small, large = Linear(64, 64), Linear(1024, LARGE // 1024 // MANY)
        small(torch.randn(LARGE // 64**2 - 1, 64))
        large(torch.randn(MANY - 1, 1024))
        assert calls == []
        small(torch.randn(LARGE // 64**2, 64))  # of many rows it is a large one
        large(torch.randn(MANY, 1024))
    assert calls == ["oneDNN"] * 2


@needs_onednn
@pytest.mark.parametrize(("vendor", "used"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_onednn_serves_where_mkl_is_not_at_home(monkeypatch, vendor, used) -> None:
    monkeypatch.setattr(module, "_processor", lambda: f"vendor_id\t: {vendor}\n")
    assert (module._find_onednn() is not None) == used


def test_a_compiled_graph_is_not_bound_to_the_number_of_rows() -> None:
    from torch._dynamo.testing import CompileCounter  # loads the whole compiler

    counter, (_, weight, bias) = CompileCounter(), matrices()
    call = torch.compile(matmul, backend=counter, dynamic=True)
    for rows in (MANY // 2, MANY, LARGE // weight.numel() + 1):
        x = torch.randn(rows, weight.shape[1])
        assert torch.equal(call(x, weight, bias), F.linear(x, weight, bias))
    assert counter.frame_count == 1
