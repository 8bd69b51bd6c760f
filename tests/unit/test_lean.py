"""Decoders that run lean on a CPU give what the model itself gives, however rows move."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import allformer as af
from allformer.config import Attention, LMHead, Norm, Rotary
from allformer.core.int8 import Int8, Int8Few, evened, has_int8
from allformer.core.lean import LeanCache, LeanDecoder, native, products
from allformer.core.lean.layer import attend
from allformer.core.lean.native import Few, Heads, find_few
from allformer.core.lean.served import plain_tree
from allformer.core.model import EncoderDecoderModel
from allformer.core.taps import listen
from allformer.errors import ConfigError
from allformer.generate import lean
from allformer.generate.generate import generate
from allformer.generate.lean import LeanStepper, lean_stepper
from allformer.generate.stepper import DecoderStepper, EncoderDecoderStepper, stepper_for
from tests.models import (
    KINDS,
    MODERN,
    SPREAD,
    decoder_only,
    left_padding,
    loud,
    right_padding,
    seq2seq,
    tokens,
)

TREES = {
    "gpt2": KINDS["decoder modern"],  # grouped heads, RMS norms, gates, a table of positions
    "paper": KINDS["decoder paper"],
    "llama": decoder_only(
        replace(MODERN, attention=Attention(4, kv_heads=2)), position=None, relative=Rotary()
    ),
    "one key head": replace(SPREAD["one key head"], head=LMHead(tied=False, bias=True)),
    "marian": KINDS["seq2seq paper"],
    "bart": replace(seq2seq(source_norm=Norm()), head=LMHead(scale=0.5)),
    "modern seq2seq": KINDS["seq2seq modern"],
    "t5": KINDS["seq2seq buckets"],
}
few = pytest.mark.skipif(find_few() is None, reason="there is no compiler here")
int8 = pytest.mark.skipif(not has_int8(), reason="this torch has no products in eight bits")


@cache
def model(kind: str) -> Any:
    return loud(TREES[kind], seed=2)


def steppers(net: Any, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """The lean one, made anew, and the model itself."""
    lean._HELD.clear()
    plain = EncoderDecoderStepper if isinstance(net, EncoderDecoderModel) else DecoderStepper
    found = lean_stepper(net, dtype)
    assert isinstance(found, LeanStepper)
    return found, plain(net, dtype)


def written(stepper: Any, net: Any, padded: bool = True) -> list[Tensor]:
    """Logits of a prompt and of steps, while rows multiply, change places and leave."""
    side = right_padding if isinstance(net, EncoderDecoderModel) else left_padding
    ids = tokens(3, 7, seed=5)
    mask = side([7, 4, 5], 7) if padded else None
    prompt = ids[:, :2] if isinstance(net, EncoderDecoderModel) else ids
    with torch.inference_mode():
        state = stepper.open(ids, mask)
        found = [stepper.prefill(prompt, state)]
        found.append(stepper.step(tokens(3, 1, seed=6), state))
        state.select(torch.arange(3).repeat_interleave(2), sources=True)
        found.append(stepper.step(tokens(6, 1, seed=7), state))
        for seed, moves in ((8, [0, 1, 3, 3, 5, 4]), (9, [1, 1, 2, 3, 5, 5])):  # among copies
            state.select(torch.tensor(moves), sources=False)
            found.append(stepper.step(tokens(6, 1, seed=seed), state))
        state.select(torch.tensor([4, 5, 1, 0]), sources=True)  # a source leaves, two change
        found.append(stepper.step(tokens(4, 1, seed=10), state))
        state.select(torch.tensor([3, 0, 1]), sources=True)  # copies are torn apart
        found.append(stepper.step(tokens(3, 1, seed=11), state))
        found.append(stepper.step(tokens(3, 3, seed=12), state))  # several at once
        state.cache.cut(left := 9 if prompt is ids else 4)
        if prompt is ids and state.mask is not None:
            state.mask = state.mask[:, :left]
        found.append(stepper.step(tokens(3, 1, seed=13), state))
    assert isinstance(stepper, LeanStepper) == isinstance(state.cache, LeanCache)
    return found


def check_same(kind: str, padded: bool = True) -> None:
    net = model(kind)
    mine, own = (written(stepper, net, padded) for stepper in steppers(net))
    for a, b in zip(mine, own, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("kind", TREES)
def test_the_same_numbers_however_rows_move(kind: str, padded: bool) -> None:
    check_same(kind, padded)


def check_copies_tear() -> None:
    """Copies part, and leave at once, before they have said anything."""
    net = model("llama")
    found = []
    for stepper in steppers(net):
        with torch.inference_mode():
            state = stepper.open(tokens(2, 5), left_padding([5, 3], 5))
            stepper.prefill(tokens(2, 5), state)
            state.select(torch.tensor([0, 0, 0, 1, 1, 1]), sources=True)
            state.select(torch.tensor([4, 1, 2]), sources=True)
            found.append(stepper.step(tokens(3, 1), state))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_copies_may_part_before_they_have_said_anything() -> None:
    check_copies_tear()


def test_very_many_copies_have_caches_of_their_own() -> None:
    net = model("llama")
    found = []
    for stepper in steppers(net):
        with torch.inference_mode():
            state = stepper.open(tokens(2, 5), left_padding([5, 3], 5))
            stepper.prefill(tokens(2, 5), state)
            state.select(torch.arange(2).repeat_interleave(9), sources=True)
            stepper.step(tokens(18, 1), state)
            state.select(torch.arange(18).flip(0), sources=True)
            found.append(stepper.step(tokens(18, 1), state))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_beams_change_places_and_nothing_is_copied() -> None:
    stepper = stepper_for(model("marian"))
    with torch.inference_mode():
        state = stepper.open(tokens(2, 6), None)
        stepper.prefill(tokens(2, 3), state)
        state.select(torch.tensor([0, 0, 0, 1, 1, 1]), sources=True)
        cache: Any = state.cache
        keys, cross = cache[0].own._keys, cache[0].cross[0]
        for _ in range(4):
            state.select(torch.tensor([2, 0, 0, 4, 3, 3]), sources=False)
            stepper.step(tokens(6, 1), state)
        assert cache[0].own._keys is keys
        assert cache[0].cross[0] is cross
        assert (len(keys), cache.columns, cache.length) == (2, 3 + 4 * 3, 7)


def check_chunks() -> None:
    """A prompt is read some of it at a time, padding and all."""
    net = model("llama")
    ids, mask = tokens(3, 11, seed=3), left_padding([11, 2, 6], 11)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(lean, "CHUNK", 4)
        found = []
        for stepper in steppers(net):
            state = stepper.open(ids, mask)
            found.append([stepper.prefill(ids, state), stepper.step(ids[:, :1], state)])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_a_long_prompt_is_read_in_parts() -> None:
    check_chunks()


class Largest(TorchDispatchMode):
    """The most numbers in anything that is computed."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.most = max(self.most, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor)))
        return out


@pytest.mark.parametrize("padded", [True, False])
def test_a_long_prompt_needs_no_memory_for_pairs(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "CHUNK", 16)
    net, width = model("llama"), 320
    ids, mask = tokens(2, width), left_padding([width, 200], width)
    stepper, _ = steppers(net)
    with torch.inference_mode():
        state = stepper.open(ids, mask if padded else None)
        with Largest() as seen:
            stepper.prefill(ids, state)
    assert seen.most < 2 * 4 * 16 * width  # not even the scores of a part, of two rows, four heads


@pytest.mark.parametrize("name", ["mistral-7b", "reformer-enwik8", "transfo-xl-wt103", "dalle"])
def test_unusual_decoders_are_left_to_the_model(name: str) -> None:
    assert not plain_tree(af.preset(name))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "original-base", "marian-base", "bart-base",
                                  "t5-small", "whisper-tiny"])  # fmt: skip
def test_the_usual_ones_run_lean(name: str) -> None:
    assert plain_tree(af.preset(name))  # type: ignore[arg-type]


def test_who_looks_or_differentiates_or_remembers_nothing_gets_the_model_itself() -> None:
    net, ids = model("gpt2"), tokens(2, 4)
    stepper = stepper_for(net)
    assert not isinstance(stepper.open(ids, None).cache, LeanCache)  # gradients
    with torch.inference_mode():
        assert isinstance(stepper.open(ids, None).cache, LeanCache)
        assert stepper.open(ids, None, use_cache=False).cache is None
        with listen(lambda name, x: None):
            assert not isinstance(stepper.open(ids, None).cache, LeanCache)
    assert lean_stepper(loud(KINDS["decoder window"])) is None
    training = loud(TREES["gpt2"]).train()
    assert lean_stepper(training) is None


def check_changed_weights() -> None:
    """What was made of weights is made anew when they are written to, or are others."""
    net = loud(TREES["marian"], seed=4).float()
    ids = tokens(2, 5)
    options: dict[str, Any] = {"max_new_tokens": 4, "output_logits": True}
    options |= {"return_dict_in_generate": True}

    def logits() -> Tensor:
        return torch.stack(generate(net, ids, **options).logits)

    def wanted() -> Tensor:
        return torch.stack(generate(net, ids, **options, use_cache=False).logits)

    before = logits()
    held = lean._HELD[net][torch.float32]
    logits()
    assert lean._HELD[net][torch.float32] is held
    for change in (lambda p: p.mul_(-1.3), lambda p: setattr(p, "data", p.data * 0.7)):
        with torch.no_grad():
            change(net.decoder.layers[0].feed.down.weight)
            change(net.vocab_head.table.weight)
        torch.testing.assert_close(logits(), wanted(), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(logits(), before, atol=1e-2)


def test_other_weights_are_seen() -> None:
    check_changed_weights()


def test_what_was_made_of_a_model_goes_with_it() -> None:
    net = loud(TREES["gpt2"])
    generate(net, tokens(1, 3), max_new_tokens=2)
    count = len(lean._HELD)
    del net
    gc.collect()
    assert len(lean._HELD) == count - 1
    net = loud(TREES["gpt2"])
    generate(net, tokens(1, 3), max_new_tokens=2)
    assert net in lean._HELD
    assert lean_stepper(net.train()) is None
    assert net not in lean._HELD


def test_half_precision_is_as_the_models_own() -> None:
    net = loud(TREES["llama"]).float()
    mine, own = (written(stepper, net) for stepper in steppers(net, torch.bfloat16))
    for a, b in zip(mine, own, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.02 * b.norm()


@int8
@pytest.mark.parametrize("kind", ["gpt2", "marian"])
def test_eight_bits_are_near(kind: str) -> None:
    net = loud(TREES[kind]).float()
    eight, own = lean_stepper(net, torch.int8), steppers(net)[1]
    for a, b in zip(written(eight, net), written(own, net), strict=True):
        assert (a - b).norm() < 0.2 * b.norm()
    said = generate(net, tokens(2, 5), max_new_tokens=4, dtype=torch.int8)
    assert len(said) == 2
    assert all(p.dtype == torch.float32 for p in net.parameters())  # the model is as it was


@int8
def test_a_loud_column_of_the_vocabulary_leaves_the_others_their_levels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = loud(TREES["one key head"]).float()
    with torch.no_grad():  # as trained ones have it: large in every row
        net.vocab_head.table.weight[:, 3] = 30.0
    own = written(steppers(net)[1], net)

    def lost() -> float:
        lean._HELD.clear()
        found = 0.0
        for a, b in zip(written(lean_stepper(net, torch.int8), net), own, strict=True):
            # What all words share says nothing.
            a, b = (x - x.mean(-1, keepdim=True) for x in (a, b))
            found += float((a - b).norm() / b.norm())
        return found

    after = lost()
    monkeypatch.setattr("allformer.core.lean.decoder.evened", lambda w: (w, torch.ones(w.shape[1])))
    assert after < 0.5 * lost()


def test_evened_weights_give_what_they_gave() -> None:
    draw = torch.Generator().manual_seed(0)
    weight, x = torch.rand(9, 40, generator=draw) - 0.5, torch.randn(3, 40, generator=draw)
    same, more = evened(weight)
    assert torch.equal(same, weight)
    assert torch.equal(more, torch.ones(40))
    weight[:, 7] *= 100
    less, more = evened(weight)
    torch.testing.assert_close((x * more) @ less.t(), x @ weight.t(), rtol=1e-4, atol=1e-3)
    before, after = (w.abs().amax(0) / w.abs().amax(0).median() for w in (weight, less))
    assert after[7] < 2 * before[7] ** 0.5  # half of the powers, beyond what is usual
    torch.testing.assert_close(after[:7], before[:7])
    evened(torch.zeros(2, 3))


@int8
def test_what_attention_compares_and_what_the_feed_forward_gives_back_keep_sixteen_bits() -> None:
    net: Any = loud(TREES["marian"]).float()
    for layer in LeanDecoder(net, int8=True).layers:
        parts = {"qkv": layer.qkv, "out": layer.out, "up": layer.up, "down": layer.down}
        fine = {name for name, product in parts.items() if product.plain.fine}  # type: ignore[attr-defined]
        assert fine == {"qkv", "down"}
    weight, x = torch.randn(8, 64), torch.randn(3, 64)
    for fine, most in ((False, 2e-2), (True, 1e-4)):
        times = products.Eight(weight, None, fine)
        exact = x @ (times.weight * times.plain.scale[:, None]).t()
        lost = (times(x) - exact).norm() / exact.norm()
        assert most / 100 < lost < most


def test_eight_bits_are_refused_where_there_are_none() -> None:
    with pytest.raises(ConfigError, match="for the usual decoders on a CPU"):
        generate(loud(KINDS["decoder window"]), tokens(1, 3), max_new_tokens=2, dtype=torch.int8)
    with pytest.raises(ConfigError, match="use_cache=False"):
        generate(
            loud(TREES["gpt2"]).float(), tokens(1, 3), max_new_tokens=2, dtype=torch.int8,
            use_cache=False,
        )  # fmt: skip


# --- compiled ------------------------------------------------------------------------------------


def compiled() -> Few:
    found = find_few()
    assert found is not None
    return found


@few
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 21])
def test_compiled_products_are_torchs(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(29, 128, generator=draw), torch.randn(29, generator=draw)
    x = torch.randn(2 * rows, 128, generator=draw)[::2]  # rows that do not lie side by side
    wanted = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(compiled().fp32(x, weight, bias), wanted, rtol=1e-4, atol=1e-4)
    more = compiled().fp32(x, weight, None, wanted)
    torch.testing.assert_close(more, wanted + x @ weight.t(), rtol=1e-4, atol=1e-4)
    for fine in (False, True):
        plain = Int8Few(weight, bias, fine)
        rounded = plain.weight
        how = x, rounded, plain.scale, rounded.sum(1, dtype=torch.int32), bias
        mine = compiled().int8(*how, fine=fine)
        torch.testing.assert_close(mine, plain(x), rtol=1e-5, atol=1e-4)  # the same whole numbers
        twice = compiled().int8(*how, mine, fine=fine)
        torch.testing.assert_close(twice, 2 * mine, rtol=1e-5, atol=1e-4)
        exact = torch.nn.functional.linear(x, rounded * plain.scale[:, None], bias)
        assert ((mine - exact).norm() < 1e-4 * exact.norm()) == fine


@few
@int8
@pytest.mark.parametrize("rows", [1, 3, 21])
def test_compiled_rounding_and_scaling_are_torchs(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(29, 128, generator=draw), torch.randn(29, generator=draw)
    x, more = torch.randn(rows, 2, 128, generator=draw), torch.randn(rows, 2, 29, generator=draw)
    x[0, 0] = 0.0
    for added in (None, bias):
        plain, mine = Int8(weight, added), Int8(weight, added, compiled())
        close_bytes(mine(x), plain(x))
        close_bytes(mine(x, more), plain(x) + more)
        close_bytes(plain(x, more), plain(x) + more)


def close_bytes(mine: torch.Tensor, wanted: torch.Tensor) -> None:
    """A number that lies between two bytes may be rounded to the other one."""
    torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=0.05)
    assert (mine - wanted).abs().median() < 1e-5


@few
@pytest.mark.parametrize("size", [16, 64, 80])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("columns", [1, 16, 37])
def test_compiled_attention_is_the_formula(columns: int, groups: int, size: int) -> None:
    draw = torch.Generator().manual_seed(columns)
    heads, (sources, new) = Heads(6, groups, size, 1.2 / size**0.5), (3, 2 - columns % 2)
    q = torch.randn(sources, new, 10, size, generator=draw)[:, :, :6] * 5
    keys = torch.randn(sources, groups, columns + 9, size, generator=draw)[:, :, :columns]
    values = torch.randn(sources, groups, columns + 9, size, generator=draw)
    bias = torch.randn(sources * groups, 6 // groups * new, columns, generator=draw)
    bias[:, :, 1::3] = float("-inf")
    for added in (None, bias, bias[:, :1]):
        wanted = attend(q, keys, values[:, :, :columns], added, heads)
        found = compiled().look(q, keys, values, added, heads)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@few
@pytest.mark.parametrize("size", [16, 64, 80])
@pytest.mark.parametrize("groups", [1, 2])
def test_compiled_attention_in_pages_is_the_formula(groups: int, size: int) -> None:
    draw = torch.Generator().manual_seed(size)
    heads, page, lengths = Heads(6, groups, size, 1.2 / size**0.5), 5, torch.tensor([1, 37, 16, 5])
    q = torch.randn(4, 10, size, generator=draw)[:, :6] * 5  # rows lie apart
    keys, values = (torch.randn(13 * page, groups, size, generator=draw) for _ in range(2))
    table = torch.stack([torch.randperm(13, generator=draw)[:8] for _ in range(4)])
    found = compiled().pages(q, keys, values, table, lengths, page, heads)
    for row, length in enumerate(lengths.tolist()):
        slots = (table[row][:, None] * page + torch.arange(page)).flatten()[:length]
        seen = (x[slots].transpose(0, 1)[None] for x in (keys, values))
        wanted = attend(q[row][None, None], *seen, None, heads)
        torch.testing.assert_close(found[row], wanted[0, 0], rtol=1e-4, atol=1e-5)


def check_compiled_decoder() -> None:
    """All that is compiled, in a decoder whose sizes it takes."""
    block = replace(MODERN, attention=Attention(4, kv_heads=2, head_dim=16))
    tree = decoder_only(block, dim=64, position=None, relative=Rotary())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LARGE", 0)
        for each in (tree, seq2seq(replace(block, norm_at="post"), dim=64)):
            net = loud(each).float()
            stepper, plain = steppers(net)
            with torch.inference_mode():
                layer = stepper.lean.layers[0]
            assert layer.few is not None
            assert layer.qkv.few is not None
            for a, b in zip(written(stepper, net), written(plain, net), strict=True):
                assert (a - b).norm() < 1e-4 * b.norm()


@few
def test_a_compiled_decoder_gives_what_the_model_gives() -> None:
    check_compiled_decoder()


def test_without_a_compiler_torchs_products_serve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert find_few.__wrapped__() is None
    broken = tmp_path / "gcc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find_few.__wrapped__() is None
    monkeypatch.setenv("ALLFORMER_NATIVE", "0")
    assert find_few.__wrapped__() is None


@pytest.mark.parametrize("rows", [1, 20])
def test_products_of_many_outputs_are_the_same_from_every_copy(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "few_for", lambda weight: None)
    monkeypatch.setattr(products, "WIDE", 8)
    draw = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(40, 64, generator=draw), torch.randn(40, generator=draw)
    x = torch.randn(rows, 1, 64, generator=draw)
    wanted = torch.nn.functional.linear(x, weight, bias)
    words = products.Words(weight, bias)
    for _ in range(products.PAYS + 2):  # before long from oneDNN's order
        torch.testing.assert_close(words(x), wanted, rtol=1e-4, atol=1e-4)
    assert words.calls == (0 if rows == 1 else products.PAYS + 2)


def test_where_onednn_is_faster_it_has_a_copy_of_every_large_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "LARGE", 1 << 11)
    draw = torch.Generator().manual_seed(0)
    weight, x = torch.randn(40, 64, generator=draw), torch.randn(20, 64, generator=draw)
    for faster in (True, False):
        monkeypatch.setattr(products, "onednn_is_faster", lambda faster=faster: faster)
        times = products.Times(weight, None)
        for _ in range(products.PAYS):
            torch.testing.assert_close(times(x), x @ weight.t(), rtol=1e-4, atol=1e-4)
        assert (times.packed is not weight) == faster
        assert not products.Times(weight, None, copies=False).packs


def test_a_cache_is_empty_at_first_and_moves_nothing() -> None:
    with torch.inference_mode():
        cache = LeanDecoder(model("gpt2")).new_cache()
        cache.select(torch.tensor([0, 0]), cross=True)
    assert (cache.copies, cache.columns) == (1, 0)
