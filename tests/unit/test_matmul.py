"""The CPU kernel for results alone: the same numbers, and out of the way of everything else."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from allformer.core import matmul as module
from allformer.core.linear import Linear
from allformer.core.matmul import LARGE, MANY, matmul

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
def test_gradients_are_never_lost(calls: list[str]) -> None:
    x, weight, bias = matrices()
    weight.requires_grad_()
    matmul(x, weight, bias).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad[0], x.sum((0, 1)), atol=1e-4)
    with torch.no_grad(), fw.dual_level():
        dual = fw.make_dual(x, torch.ones_like(x))
        tangent = fw.unpack_dual(matmul(dual, weight, bias)).tangent
    assert torch.allclose(tangent[0, 0], weight.sum(1), atol=1e-4)
    with torch.no_grad():
        jacobian = torch.func.jacfwd(lambda row: matmul(row, weight, bias))(x[0, 0])
    assert torch.allclose(jacobian, weight, atol=1e-5)
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
