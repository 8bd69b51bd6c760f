"""Layers in eight and four bits: what the bytes mean, and that they stand where plain ones did."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from allformer.core.linear import Fused, Linear
from allformer.core.quantised import (
    Quantised,
    QuantisedApart,
    is_quantised,
    pack,
    unpack,
    widen_all,
    widened,
)
from allformer.core.quantised_cpu import rows_of_block
from allformer.errors import ConfigError

KINDS = [(4, True), (4, False), (8, True), (8, False)]
RANGES = {(4, True): (-8, 8), (4, False): (0, 16)}


def drawn(linear: Linear, bits: int, signed: bool, group: int = 16, seed: int = 0):
    """A quantised layer in the place of `linear`, and its matrix worked out the long way."""
    make = torch.Generator().manual_seed(seed)
    outputs, inputs = linear.weight.shape
    q = torch.randint(*RANGES.get((bits, signed), (-128, 128)), (outputs, inputs), generator=make)
    scale = torch.rand(outputs, inputs // group, generator=make) + 0.1
    least = None if signed else torch.randn(outputs, inputs // group, generator=make)
    wide = q * scale.repeat_interleave(group, 1)
    if least is not None:
        wide = wide + least.repeat_interleave(group, 1)
    return Quantised.like(linear, pack(q, bits, signed), scale, least, bits=bits), wide


def fused(bias: bool | tuple[str, ...] = ("q", "v")) -> Fused:
    torch.manual_seed(1)
    layer = Fused(64, bias, q=32, k=8, v=8)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def test_two_four_bit_numbers_lie_in_a_byte_the_earlier_in_the_low_half():
    assert pack(torch.tensor([[-8, 7, 0, -1]]), 4).tolist() == [[0xF0, 0x78]]
    assert pack(torch.tensor([[1, 15]]), 4, signed=False).tolist() == [[0xF1]]
    assert pack(torch.tensor([[-128, -1, 127]]), 8).tolist() == [[0x80, 0xFF, 0x7F]]


@pytest.mark.parametrize(("bits", "signed"), KINDS)
def test_packed_numbers_come_back(bits, signed):
    q = torch.arange(*RANGES.get((bits, signed), (-128, 128)))[None]
    assert torch.equal(unpack(pack(q, bits, signed), bits, signed), q)


def check_formula() -> None:
    """scale · q + least, the bias added, of every kind of number."""
    x = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(2))
    for bits, signed in KINDS:
        linear = fused()
        layer, wide = drawn(linear, bits, signed)
        torch.testing.assert_close(layer.dense(torch.float32), wide)
        torch.testing.assert_close(
            layer.plain(x), x @ wide.T + linear.addend(torch.float32), rtol=1e-4, atol=1e-3
        )


def check_fast() -> None:
    """The products on a CPU: of bytes without a loss that shows, of half bytes as in bf16."""
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(2))
    x = x * torch.logspace(-3, 3, 5)[:, None]
    x[:, 7] *= 100  # one loud input: in a single digit the others would drown
    for bits, signed, group, most in (
        (8, True, 256, 5e-4),
        (4, True, 32, 1e-2),
        (4, False, 32, 1e-2),
    ):
        layer, _ = drawn(Linear(256, 96), bits, signed, group=group)
        nn.init.normal_(layer.bias, std=0.1)
        for rows in (x[:1], x):
            with torch.no_grad():
                fast, plain = layer(rows), layer.plain(rows)
            gap = (fast - plain).abs().amax(1) / plain.abs().amax(1)
            assert fast.dtype == x.dtype
            assert gap.max() < most, (bits, signed, gap)


def check_kept() -> None:
    """Scales stay as they are when a model is converted, and a delta reaches every way."""
    layer, wide = drawn(fused(), 4, False)
    layer.to(torch.bfloat16)
    assert layer.scale.dtype == layer.least.dtype == torch.float32
    assert torch.equal(layer.dense(torch.bfloat16), wide.bfloat16())  # rounded once
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    y = layer(x)
    layer.delta = lambda x, y: y + 100
    torch.testing.assert_close(layer(x), y + 100)


def test_a_layer_multiplies_by_scale_q_plus_least():
    check_formula()


@pytest.mark.parametrize("bias", [False, True, ("q", "v")])
def test_parts_are_cut_and_made_alone_as_of_a_fused_layer(bias):
    layer, wide = drawn(fused(bias), 4, True)
    plain = fused(bias)
    plain.weight.data = wide
    x = torch.randn(2, 3, 64)
    assert layer.parts == plain.parts
    for a, b in zip(layer.cut(layer(x)), plain.cut(plain(x)), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(layer.only(x, "k", "v"), plain.only(x, "k", "v"), strict=True):
        torch.testing.assert_close(a, b)


def test_a_delta_reaches_the_whole_and_the_parts():
    layer, _ = drawn(fused(), 8, True)
    x = torch.randn(2, 64)
    y, (k,) = layer(x), layer.only(x, "k")
    layer.delta = lambda x, y: y + 1
    torch.testing.assert_close(layer(x), y + 1)
    torch.testing.assert_close(layer.only(x, "k")[0], k + 1, rtol=1e-4, atol=1e-4)


def test_gradients_reach_what_came_in():
    layer, wide = drawn(Linear(64, 48), 4, False)
    x = torch.randn(2, 64, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, wide.sum(0).expand(2, -1))


def test_half_precision_is_of_what_is_computed_and_scales_stay():
    check_kept()
    layer, _ = drawn(Linear(64, 48), 4, False)
    layer.to(torch.bfloat16)
    assert layer.bias.dtype == torch.bfloat16
    assert layer(torch.randn(2, 64).bfloat16()).dtype == torch.bfloat16
    assert layer.to("meta").scale.is_meta


def test_parts_held_each_in_its_own_way_are_one_layer():
    torch.manual_seed(0)
    kinds = {"q": (32, 4, False), "k": (8, 4, False), "v": (8, 8, True)}
    made = {
        name: drawn(Linear(64, size, bias=name != "k"), bits, signed)
        for name, (size, bits, signed) in kinds.items()
    }
    layer = QuantisedApart(**{name: each for name, (each, _) in made.items()})
    x = torch.randn(2, 64)
    assert layer.parts == {"q": 32, "k": 8, "v": 8}
    torch.testing.assert_close(layer.dense(torch.float32), torch.cat([w for _, w in made.values()]))
    for name, part in zip(layer.parts, layer.cut(layer(x)), strict=True):
        torch.testing.assert_close(layer.only(x, name)[0], part)
    wide = widened(layer, torch.float32)
    assert wide.biased == ("q", "v")
    torch.testing.assert_close(wide(x), layer(x))


def test_widened_layers_are_plain_ones_of_the_same_numbers():
    layer, _ = drawn(fused(), 4, True)
    model = nn.ModuleDict({"a": layer, "b": drawn(Linear(64, 48), 8, True)[0]})
    x = torch.randn(2, 64)
    before = [each(x) for each in model.values()]
    assert is_quantised(model)
    widen_all(model, torch.float32)
    assert not is_quantised(model)
    assert [type(each) for each in model.values()] == [Fused, Linear]
    for each, y in zip(model.values(), before, strict=True):
        torch.testing.assert_close(each(x), y)


@pytest.mark.parametrize(
    ("scale", "least", "bits", "said"),
    [
        ((48, 4), None, 3, "try 4 or 8"),
        ((47, 4), None, 4, "a row for each output"),
        ((48, 5), None, 4, "divide the inputs"),
        ((48, 4), (48, 2), 4, "scale's shape"),
    ],
)
def test_what_does_not_fit_is_refused(scale, least, bits, said):
    packed = torch.zeros(48, 32, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=said):
        Quantised(
            packed, torch.ones(scale), None if least is None else torch.ones(least), bits=bits
        )


def test_products_without_the_whole_matrix_are_its_products():
    check_fast()


def test_the_fast_form_is_not_taken_where_it_does_not_serve(monkeypatch):
    for group, rows in ((16, 2), (32, 65)):
        layer, _ = drawn(Linear(64, 48), 4, True, group=group)
        x = torch.randn(rows, 64)
        with torch.no_grad():
            assert torch.equal(layer(x), layer.plain(x))
    layer, _ = drawn(Linear(64, 48), 8, True, group=64)
    assert torch.equal(layer(x.double()), layer.plain(x.double()))
    monkeypatch.setattr("allformer.core.quantised.multiplies_bytes", lambda: False)
    assert torch.equal(layer(x), layer.plain(x))


def test_other_bytes_are_seen_and_a_copy_stands_alone():
    layer, _ = drawn(Linear(64, 48), 4, True, group=32)
    x = torch.randn(1, 64)
    with torch.no_grad():
        before, copy = layer(x), deepcopy(layer)
        layer.packed = layer.packed ^ 0x11
        torch.testing.assert_close(copy(x), before)
        torch.testing.assert_close(layer(x), layer.plain(x), rtol=0.02, atol=0.5)


def test_torchs_order_is_found_whatever_the_defaults_are():
    with torch.device("meta"):
        assert rows_of_block.__wrapped__() == rows_of_block()


@pytest.mark.parametrize("outputs", [48, 64, 144])  # less than a block of torch's, one, and more
@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bits_are_held_once_and_whoever_asks_has_the_plain_order(outputs, symmetric):
    check_held_once(outputs, symmetric)


def check_held_once(outputs: int = 144, symmetric: bool = True) -> None:
    layer, _ = drawn(Linear(64, outputs), 4, symmetric, group=32)
    plain, x = layer.packed.clone(), torch.randn(1, 64)
    whole = layer.dense(torch.float32)
    with torch.inference_mode():
        said = layer(x)
    assert layer._buffers["packed"].ndim == 3, "torch's product has an order of its own"
    held = [x for x in (layer._turned.packed, *layer.buffers()) if x.dtype == torch.uint8]
    assert len({x.data_ptr() for x in held}) == 1
    assert layer.dense(torch.float32).equal(whole)
    assert layer.state_dict()["packed"].equal(plain)
    twin = deepcopy(layer)
    assert twin._buffers["packed"].equal(plain)
    with torch.no_grad():
        twin(x)
    other, _ = drawn(Linear(64, outputs), 4, symmetric, group=32, seed=1)
    twin.load_state_dict(other.state_dict())
    assert twin.packed.equal(other.packed)
    with torch.no_grad():
        assert twin(x).equal(other(x))
    for _ in range(2):
        assert layer.to("cpu").packed.equal(plain)
        assert layer(x).equal(said)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_layer_that_has_spoken_is_compiled_and_exported_like_any_other(bits):
    layer, _ = drawn(Linear(64, 144), bits, True, group=32 if bits == 4 else 64)
    x = torch.randn(3, 64)
    with torch.no_grad():
        wanted = layer.plain(x)
        layer(x)
        compiled = torch.compile(layer.forward, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), wanted)
        torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), wanted)
