"""Compiled attention of whole rows: torch's numbers, and out of the way of everything else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.kernels import attend
from allformer.core.kernels import sdpa as module
from allformer.core.kernels.whole import LEAST, find_whole, whole_rows, whole_serves
from allformer.core.lean.native import find_few
from allformer.core.look import Look, make_look

compiled = pytest.mark.skipif(find_whole() is None, reason="no compiler, or smaller registers")


def heads(rows: int, count: int, length: int, size: int, draw: torch.Generator) -> Tensor:
    """B H T D of a fused product, as an attention cuts it: strided."""
    whole = torch.randn(rows, length, count + 3, size, generator=draw)
    return whole.transpose(1, 2)[:, 2 : count + 2]


@compiled
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ((6, 6, 64), (150, 150)),
        ((4, 2, 32), (37, 131)),
        ((2, 1, 80), (25, 64)),
        ((2, 2, 16), (90, 70)),
        ((1, 1, 16), (1, 1)),
    ],
)
def test_it_is_torchs_attention(
    sizes: tuple[int, int, int], lengths: tuple[int, int], threads: int, causal: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    (h, g, size), (asked, seen) = sizes, lengths
    q = heads(2, h, asked, size, draw)
    k, v = (heads(2, g, seen, size, draw) for _ in range(2))
    wanted = F.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), scale=0.3, enable_gqa=True, is_causal=causal
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = whole_rows(q, k, v, 0.3, causal)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    assert found.transpose(1, 2).is_contiguous()
    mixed = k.transpose(2, 3).contiguous().transpose(2, 3)  # a head's numbers lie apart
    assert torch.equal(whole_rows(q, mixed, v, 0.3, causal), found)
    other = whole_rows(torch.cat([q, -q]), torch.cat([k, v]), torch.cat([v, k]), 0.3, causal)
    assert torch.equal(other[:2], found)  # whoever else is in the batch


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each time that the compiled kernel was used."""
    seen: list[str] = []

    def spy(*args: Any) -> Tensor:
        seen.append("compiled")
        return whole_rows(*args)

    monkeypatch.setattr(module, "whole_rows", spy)
    return seen


@compiled
def test_only_long_rows_without_a_mask_are_its_own(calls: list[str]) -> None:
    draw = torch.Generator().manual_seed(0)
    x = heads(1, 2, LEAST, 16, draw)
    mask = torch.ones(1, 1, LEAST, LEAST, dtype=torch.bool).tril()
    with torch.no_grad():
        attend(x, x, x, make_look(mask), scale=0.3)
        attend(x[:, :, 1:], x, x, Look(), scale=0.3)
        attend(x, x[:, :, 1:], x[:, :, 1:], Look(), scale=0.3)
        attend(x, x, x, Look(), scale=0.3, dropout=0.5)
        attend(x.double(), x.double(), x.double(), Look(), scale=0.3)
        attend(x[..., :8], x[..., :8], x[..., :8], Look(), scale=0.3)
        assert calls == []
        attend(x, x, x, Look(), scale=0.3)
        causal = attend(x, x, x, Look(causal=True), scale=0.3)
        right = attend(x, x, x, make_look(mask), scale=0.3)
    assert calls == ["compiled"] * 2
    torch.testing.assert_close(causal, right, rtol=1e-5, atol=1e-5)
    needs = x.clone().requires_grad_()
    attend(needs, x, x, Look(), scale=0.3).sum().backward()
    assert needs.grad is not None
    assert calls == ["compiled"] * 2


def test_without_a_compiler_torchs_kernel_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert find_whole.__wrapped__() is None
    monkeypatch.setenv("ALLFORMER_NATIVE", "0")
    assert find_whole.__wrapped__() is None


@compiled
def test_it_is_tried_on_fp32_whatever_the_defaults_are() -> None:
    """It would write past the end of what has half the size, or none."""
    find, before = find_whole.__wrapped__, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert find() is not None
            assert find_few.__wrapped__() is not None
    finally:
        torch.set_default_dtype(before)


def test_a_compiled_graph_is_not_bound_to_the_length() -> None:
    from torch._dynamo.testing import CompileCounter  # loads the whole compiler

    counter = CompileCounter()

    def choice(x: Tensor) -> Tensor:
        return x + whole_serves(x, x, Look(), 0.0)

    call = torch.compile(choice, backend=counter, dynamic=True)
    with torch.no_grad():
        for length in (LEAST // 2, LEAST + 6):
            call(torch.ones(1, 2, length, 16))
    assert counter.frame_count == 1
