"""What a precision's name means, and products in float8 against their formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allformer.config import Attention, Block, Feed
from allformer.core.linear import Fused
from allformer.core.model import build
from allformer.errors import ConfigError
from allformer.train.float8 import BACKWARD, FORWARD, Float8Product, to_float8, use_float8
from allformer.train.optim.muon import hidden_matrices
from allformer.train.precision import find_precision
from tests.loud import make_loud
from tests.models import decoder_only, tokens

CPU = torch.device("cpu")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
            reason="no GPU with float8",
        ),
    ),
]


def test_names_mean_dtypes_and_scaling():
    said = {n: find_precision(n, CPU) for n in ("auto", "fp32", "bf16", "fp16")}
    assert [p.dtype for p in said.values()] == [None, None, torch.bfloat16, torch.float16]
    assert [p.scaler(CPU) is not None for p in said.values()] == [False, False, False, True]


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"precision='bf61' is not a choice; did you mean bf16"):
        find_precision("bf61", CPU)
    with pytest.raises(ConfigError, match=r"fp8 needs an NVIDIA GPU .* this is a cpu; try bf16"):
        find_precision("fp8", CPU)


def test_an_older_gpu_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    capability = (8, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(ConfigError, match=r"this is NVIDIA A100 of capability 8\.0; try bf16"):
        find_precision("fp8", torch.device("cuda"))
    capability = (8, 9)
    assert find_precision("fp8", torch.device("cuda")).float8


def rounded(x: Tensor, kind: torch.dtype) -> Tensor:
    """What float8 makes of it, in fp64."""
    q, scale = to_float8(x, kind)
    return q.double() * scale.double()


def off(x: Tensor, wanted: Tensor) -> float:
    return float((x.detach().double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("device", DEVICES)
def test_scaling_uses_the_whole_range_and_keeps_zeros(device):
    for size in (1e-30, 1.0, 1e30):
        x = torch.randn(64, 64, device=device) * size
        q, scale = to_float8(x, FORWARD)
        assert q.float().abs().max() == 448
        assert off(q.double() * scale.double(), x.double()) < 2**-4  # three bits of mantissa
    q, scale = to_float8(torch.zeros(16, 16, device=device), FORWARD)
    assert not q.float().any()
    assert scale.isfinite()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [32, 37])  # also what is no multiple of 16
def test_a_product_and_its_gradients_are_those_of_the_rounded_factors(device, rows):
    torch.manual_seed(0)
    x = torch.randn(rows, 48, device=device, dtype=torch.bfloat16).requires_grad_()
    w = (torch.randn(64, 48, device=device) / 7).requires_grad_()
    g = torch.randn(rows, 64, device=device, dtype=torch.bfloat16)
    y = Float8Product.apply(x, w)
    y.backward(g)
    xd, wd, gd = rounded(x.detach(), FORWARD), rounded(w.detach(), FORWARD), rounded(g, BACKWARD)
    assert (y.dtype, x.grad.dtype, w.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert off(y, xd @ wd.T) < 2**-8  # the rounding of bf16, and of the chip's sums
    assert off(x.grad, gd @ wd) < 2**-8
    assert off(w.grad, gd.T @ xd) < 2**-10
    exact = x.detach().double(), w.detach().double(), g.double()
    assert off(y, exact[0] @ exact[1].T) < 2**-4
    assert off(x.grad, exact[2] @ exact[1]) < 2**-3  # e5m2: two bits
    assert off(w.grad, exact[2].T @ exact[0]) < 2**-3


BLOCK = Block(
    Attention(4, kv_heads=2, bias=("q", "v")), Feed(64, act="gelu"), norm_at="pre", dropout=0.0
)


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_in_float8_is_near_itself_and_every_weight_learns(device):
    def loss_of(float8: bool) -> tuple[Tensor, dict[str, Tensor]]:
        model = make_loud(build(decoder_only(BLOCK, dim=32), seed=0), seed=1).to(device)
        if float8:
            assert use_float8(model) == 8  # two layers of qkv, out, up, down
        ids = tokens(3, 15).to(device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss.detach(), {n: p.grad for n, p in model.named_parameters()}

    (plain, before), (loss, grads) = loss_of(False), loss_of(True)
    assert loss == pytest.approx(plain.item(), rel=0.03)
    assert loss != plain
    for name, grad in before.items():
        near = torch.cosine_similarity(grad.flatten(), grads[name].flatten(), dim=0)
        assert near > 0.95, name


def test_names_weights_and_kinds_stay():
    model = build(decoder_only(BLOCK, dim=32), seed=0)
    named, matrices = dict(model.named_parameters()), hidden_matrices(model)
    use_float8(model)
    assert all(p is named[n] for n, p in model.named_parameters())
    assert hidden_matrices(model) == matrices
    assert sum(isinstance(m, Fused) for m in model.modules()) == 2


def test_sizes_that_do_not_fit_are_left_or_refused():
    with pytest.raises(ConfigError, match=r"fp8 wants layers whose sizes are multiples of 16, and"):
        use_float8(build(decoder_only(), seed=0))  # dim 24
    odd = Block(Attention(4), Feed(40), norm_at="pre")
    assert use_float8(build(decoder_only(odd, dim=32), seed=0)) == 4  # qkv and out of two layers
