"""Linear layers: the formula, named parts of a fused product, and a change to their result."""

from __future__ import annotations

import pytest
import torch

from allformer.config import Attention, Block, Feed
from allformer.core.linear import Fused, Linear
from allformer.core.model import build
from allformer.count import count
from tests.loud import make_loud
from tests.models import decoder_only, loud, tokens

BIASES: list[bool | tuple[str, ...]] = [True, False, ("q",), ("k",), ("v",), ("q", "v"), ("k", "v")]


def _fused(bias: bool | tuple[str, ...]) -> Fused:
    return make_loud(Fused(6, bias, q=8, k=2, v=3).double(), seed=1)


def _x() -> torch.Tensor:
    return torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def check_fused(bias: bool | tuple[str, ...]) -> None:
    """Each part is its own rows of the matrix and, where it has one, of the bias."""
    fused, x, at, row = _fused(bias), _x(), 0, 0
    has = {"q": 8, "k": 2, "v": 3} if bias is True else {n: fused.parts[n] for n in bias or ()}
    assert (fused.bias is None) == (not has)
    assert fused.bias is None or len(fused.bias) == sum(has.values())
    for name, out in zip(("q", "k", "v"), fused.cut(fused(x)), strict=True):
        size = fused.parts[name]
        wanted = x @ fused.weight[at : at + size].T
        if name in has:
            assert fused.bias is not None
            wanted = wanted + fused.bias[row : row + size]
            row += size
        at += size
        torch.testing.assert_close(out, wanted)
        weight, own = fused.part(name)
        assert (own is None) == (name not in has)
        torch.testing.assert_close(x @ weight.T + (0 if own is None else own), wanted)


@torch.no_grad()
def check_only() -> None:
    """Some of the parts alone are what the whole product has there."""
    for bias in BIASES:
        fused, x = _fused(bias), _x()
        whole = dict(zip(fused.parts, fused.cut(fused(x)), strict=True))
        for names in (("k", "v"), ("v",), ("q",), ("v", "q")):
            mine = fused.only(x, *names)
            assert len(mine) == len(names)
            for name, out in zip(names, mine, strict=True):
                torch.testing.assert_close(out, whole[name])


@torch.no_grad()
def check_delta() -> None:
    """What is put beside a layer changes its result, in a fused product's parts too."""
    plain, x = make_loud(Linear(6, 5).double(), 1), _x()
    before = plain(x)
    plain.delta = lambda x, y: y + x.sum(-1, keepdim=True)
    torch.testing.assert_close(plain(x), before + x.sum(-1, keepdim=True))
    fused = _fused(("q", "v"))
    before = fused(x)
    added = torch.arange(13, dtype=torch.float64)
    fused.delta = lambda x, y: y + added
    torch.testing.assert_close(fused(x), before + added)
    k, v = fused.only(x, "k", "v")
    torch.testing.assert_close(k, (before + added)[:, 8:10])
    torch.testing.assert_close(v, (before + added)[:, 10:])
    model, ids = loud(decoder_only()), tokens(2, 5)
    logits = model(ids).logits
    model.decoder.layers[1].attention.qkv.delta = lambda x, y: 2 * y
    assert (model(ids).logits - logits).abs().max() > 0.1


@pytest.mark.parametrize("bias", BIASES, ids=str)
def test_the_parts_of_a_fused_product_are_its_rows(bias):
    check_fused(bias)


def test_some_parts_alone_are_what_the_whole_has_there():
    check_only()


def test_a_change_beside_a_layer_reaches_its_result():
    check_delta()


@pytest.mark.parametrize("bias", [("q", "v", "out"), ("out",), ("k",)], ids=str)
def test_a_model_with_some_biases_is_built_and_counted(bias):
    config = decoder_only(Block(Attention(4, kv_heads=2, bias=bias), Feed(16)))
    model = build(config, seed=0)
    assert sum(p.numel() for p in model.parameters()) == count(config).parameters
    assert torch.isfinite(model(tokens(2, 5)).logits).all()
