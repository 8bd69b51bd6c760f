"""The small parts against their formulas, written out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from allformer.config import Feed, LMHead, Norm, Sinusoidal
from allformer.core import feed_forward
from allformer.core.linear import Fused
from allformer.core.norm import make_norm
from allformer.core.position import sinusoid
from allformer.core.trace import trace
from tests.loud import make_loud
from tests.models import decoder_only, loud, right_padding, tokens


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def check_norm(kind: str, eps: float) -> None:
    """Over the features of each token, the biased variance, ε under the root."""
    norm = make_loud(make_norm(Norm(kind, eps), 7).double(), seed=2)
    x = double(2, 5, 7) * 0.3 + 0.5
    with torch.no_grad():
        out = norm(x)
    for b in range(2):
        for t in range(5):
            row = x[b, t].tolist()
            mean = sum(row) / 7 if kind == "layer" else 0.0
            square = sum((v - mean) ** 2 for v in row) / 7
            for i, v in enumerate(row):
                wanted = norm.weight[i].item() * (v - mean) / math.sqrt(square + eps)
                wanted += norm.bias[i].item() if kind == "layer" else 0.0
                assert math.isclose(out[b, t, i], wanted, rel_tol=1e-10)


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_a_norm_is_its_formula(kind, eps):
    check_norm(kind, eps)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_of_half_precision_compute_in_fp32(kind):
    norm = make_loud(make_norm(Norm(kind), 64), seed=2)
    x = torch.randn(3, 64).mul(300).half()  # squares of 300 overflow fp16
    out = norm(x)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), norm(x.float()), rtol=2e-3, atol=2e-3)


ACTS = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def check_feed(act: str, gated: bool, bias: bool) -> None:
    """act(x W₁ + b₁) W₂ + b₂; gated: (act(x W_g + b_g) ⊙ (x W₁ + b₁)) W₂ + b₂."""
    feed = make_loud(feed_forward.Feed(Feed(9, act, gated, bias), 5, "feed").double(), seed=4)
    x = double(3, 5) * 2
    f = ACTS[act]
    for t in range(3):
        up = feed.up.weight @ x[t] + (feed.up.bias if bias else 0)
        gate = feed.gate.weight @ x[t] + (feed.gate.bias if bias else 0) if gated else up
        inner = torch.tensor([f(v) for v in gate.tolist()], dtype=torch.float64)
        inner = inner * up if gated else inner
        wanted = feed.down.weight @ inner + (feed.down.bias if bias else 0)
        torch.testing.assert_close(feed(x)[t], wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("act", ACTS)
def test_a_feed_forward_layer_is_its_formula(act, gated, bias):
    check_feed(act, gated, bias)


def test_the_parts_of_a_fused_matrix_are_its_rows_in_order():
    fused = make_loud(Fused(6, True, q=8, k=2, v=3).double(), seed=1)
    x = double(4, 6)
    for name, out in zip(("q", "k", "v"), fused.cut(fused(x)), strict=True):
        weight, bias = fused.part(name)
        torch.testing.assert_close(out, x @ weight.T + bias)
        assert weight.untyped_storage().data_ptr() == fused.weight.untyped_storage().data_ptr()


def check_ends() -> None:
    """In: norm(E[ids]·√d + PE). Out: norm, then h Wᵀ + b."""
    config = decoder_only(source_norm=Norm(), final_norm=Norm("rms"), position=Sinusoidal(start=3))
    model = loud(replace(config, head=LMHead(tied=False, bias=True)))
    ids = tokens(2, 9)
    seen = trace(model, input_ids=ids)
    mask = right_padding([9, 6], 9)
    padded = trace(model, input_ids=ids, attention_mask=mask)["decoder.embedded"]
    stack = model.decoder
    with torch.no_grad():
        x = stack.source.embedding.weight[ids] * math.sqrt(24)
        x = x + sinusoid(torch.arange(3, 12), 24, dtype=torch.float64)
        torch.testing.assert_close(seen["decoder.embedded"], stack.source.norm(x))
        real = mask.bool()  # positions of many rows are looked up, not computed
        torch.testing.assert_close(padded[real], stack.source.norm(x)[real])
        hidden = stack.final_norm(seen["decoder.1.feed_norm"])
        torch.testing.assert_close(seen["decoder.output"], hidden)
        logits = hidden @ model.head.table.weight.T + model.head.bias
        torch.testing.assert_close(seen.output.logits, logits)


def test_both_ends_of_a_stack_are_their_formulas():
    check_ends()
