"""Windows over long rows: chunk by chunk they are what the mask over all pairs makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allformer.config import Attention, BucketBias, Full, Rotary, Window, cycle
from allformer.core import banded
from allformer.core.kernels import KERNELS, Case, choose
from allformer.core.kernels import banded as kernel_room
from allformer.core.kernels.banded import Banded
from allformer.core.layout import pack
from allformer.core.mixers import full as full_room
from allformer.core.mixers.mixer import Scene
from allformer.core.trace import trace
from tests.models import (  # fmt: skip
    MODERN,
    PAPER,
    decoder_only,
    encoder_only,
    left_padding,
    loud,
    right_padding,
    tokens,
)

CPU = torch.device("cpu")


def few(patcher):
    """Rows of some tens of places are long."""
    patcher.setitem(banded.CHUNK, "cpu", 5)
    patcher.setitem(kernel_room.LONG, "cpu", 30)


@pytest.fixture
def short(monkeypatch):
    few(monkeypatch)


@pytest.fixture
def no_square(short, monkeypatch):
    """A mask over all pairs is an error."""

    def refuse(*_):
        raise AssertionError("a mask over all pairs")

    monkeypatch.setattr(full_room, "mask_of", refuse)


def windowed(mixer, make=decoder_only, block=MODERN, **changes):
    attention = replace(block.attention, mixer=mixer)
    return loud(make(replace(block, attention=attention), **changes))


MASKS = {
    "whole": None,
    "left": left_padding([50, 31, 8], 50),
    "right": right_padding([50, 0, 12], 50),
    "holes": (torch.rand(3, 50, generator=torch.Generator().manual_seed(1)) < 0.7).long(),
}
MODELS = {
    "decoder": (Window(4), decoder_only, MODERN, {}),
    "encoder": (Window(3, 2), encoder_only, PAPER, {}),
    "dilated encoder": (Window(2, 3, 4), encoder_only, MODERN, {}),
    "dilated decoder": (Window(3, 0, 2), decoder_only, PAPER, {"relative": Rotary()}),
    "buckets": (Window(3, 3, 2), encoder_only, MODERN, {"relative": BucketBias(8, 20)}),
    "buckets, looking back": (Window(5), decoder_only, PAPER, {"relative": BucketBias(8, 20)}),
}


def check_long(kind: str, mask: str) -> None:
    """Hidden states and all gradients of a model, packed where a mask is given, against eager."""
    mixer, make, block, changes = MODELS[kind]
    model, ids, keep = windowed(mixer, make, block, **changes), tokens(3, 50), MASKS[mask]
    real = torch.ones_like(ids).bool() if keep is None else keep.bool()
    weights, found = list(model.parameters()), []
    for kernel in ("fast", "eager"):
        with pytest.MonkeyPatch.context() as patcher:
            few(patcher)
            out = model(ids, keep, kernel=kernel).last_hidden_state[real]
        torch.manual_seed(0)
        grads = torch.autograd.grad(out, weights, torch.randn_like(out), allow_unused=True)
        found.append([out, *(g for g in grads if g is not None)])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", MODELS)
def test_long_rows_are_what_the_formula_makes_of_them(kind, mask):
    check_long(kind, mask)


@pytest.mark.parametrize("mask", ["whole", "left"])
@pytest.mark.parametrize("kind", MODELS)
def test_no_mask_over_all_pairs_is_made(kind, mask, no_square):
    mixer, make, block, changes = MODELS[kind]
    windowed(mixer, make, block, **changes)(tokens(3, 50), MASKS[mask])


def test_packed_rows_stay_end_to_end_unless_they_have_holes(short):
    mixer = windowed(Window(3, 2), encoder_only).encoder.layers[0].attention.mixer
    for name, stays in (("left", True), ("right", True), ("holes", False)):
        layout = pack(MASKS[name])
        plan = mixer.plan(Scene(layout, layout, CPU, torch.float64))
        assert isinstance(plan.kernel, Banded)
        assert (plan.look is None) == stays == (plan.band.rows is not None)


@pytest.mark.parametrize("mask", ["whole", "left", "right"])
def test_a_window_over_everything_is_full_attention(mask, short, monkeypatch):
    monkeypatch.setattr(kernel_room, "DEARER", 0)  # however wide
    ids, keep = tokens(3, 50), MASKS[mask]
    for make, window in ((decoder_only, Window(49)), (encoder_only, Window(60, 49))):
        near, all_ = windowed(window, make), windowed(Full(), make)
        mine, wanted = (m(ids, keep).last_hidden_state for m in (near, all_))
        torch.testing.assert_close(mine, wanted, rtol=1e-11, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mixer", [Window(4), Window(3, 0, 2), Window(1, 0, 5)], ids=str)
def test_a_long_prompt_in_pieces_goes_through_the_ring(mixer, padded, no_square):
    """The prompt in two long pieces without the square: the second finds the end of the first."""
    model, ids = windowed(mixer, block=PAPER, relative=Rotary()), tokens(2, 90)
    keep = left_padding([90, 61], 90) if padded else None
    cache, done = model.new_cache(), 0
    made = []
    for width in (40, 45):
        mask = None if keep is None else keep[:, : done + width]
        made.append(model(ids[:, done : done + width], mask, cache=cache).logits)
        done += width
    whole = model(ids, keep).logits
    real = slice(29, None) if padded else slice(None)
    torch.testing.assert_close(torch.cat(made, 1)[:, real], whole[:, :85][:, real])
    assert cache[0].own._keys.shape[2] == mixer.left * mixer.dilation


@torch.no_grad()
@pytest.mark.parametrize("mixer", [Window(3, 0, 2), Window(1, 0, 5)], ids=str)
def test_dilated_windows_generate_as_they_read(mixer):
    model, ids = windowed(mixer, block=PAPER, relative=Rotary()), tokens(2, 24)
    keep = left_padding([24, 17], 24)
    cache = model.new_cache()
    steps = [model(ids[:, t : t + 1], keep[:, : t + 1], cache=cache).logits for t in range(24)]
    mine, whole = torch.cat(steps, 1), model(ids, keep).logits
    torch.testing.assert_close(mine[keep.bool()], whole[keep.bool()], rtol=1e-10, atol=1e-10)


def test_a_dilated_window_sees_every_other_place_alone():
    model = windowed(Window(2, 1, 3), encoder_only, layers=1)
    ids = tokens(1, 30)
    before = model(ids).last_hidden_state
    other = ids.clone()
    other[0, 12] += 1
    moved = (model(other).last_hidden_state - before).abs().amax(-1)[0].nonzero().flatten()
    assert moved.tolist() == [9, 12, 15, 18]


def test_to_look_still_shows_scores_and_weights(short):
    model, ids = windowed(Window(4), layers=1), tokens(2, 40)
    seen = trace(model, input_ids=ids)
    weights = seen["decoder.0.attention.weights"]
    assert weights.shape[-2:] == (40, 40)
    torch.testing.assert_close(seen["decoder.output"], model(ids).last_hidden_state)


def test_layers_alternate(short):
    """GPT-3: full attention in one layer, a window in the next; each has its plan."""
    narrow = replace(MODERN, attention=replace(MODERN.attention, mixer=Window(4)))
    model, ids = loud(decoder_only(blocks=cycle((MODERN, narrow), 4))), tokens(2, 60)
    mine, wanted = (model(ids, kernel=kernel).logits for kernel in ("fast", "eager"))
    torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


def case(**changes) -> Case:
    plain = Case("fast", CPU, torch.float32, 64, full=False, window=257, width=4096, row=4096)
    return plain._replace(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"asked": "eager"},
        {"window": 0},  # all, or places that are not in order
        {"window": 2000},  # the square is as cheap
        {"row": 600},  # packed rows, each of them short
        {"device": torch.device("cuda")},  # too short for so many launches
    ],
    ids=str,
)
def test_it_serves_where_it_is_cheaper_than_the_square(changes):
    assert isinstance(choose(case()), Banded)
    assert not isinstance(choose(case(**changes)), Banded)


def test_it_serves_where_flex_cannot(monkeypatch):
    from allformer.core.kernels import flex

    monkeypatch.setattr(flex, "has_triton", lambda: True)
    cuda = case(device=torch.device("cuda"), dtype=torch.bfloat16, width=2**16, row=2**16)
    assert not isinstance(choose(cuda), Banded)
    for changes in ({"dtype": torch.float32}, {"drops": True}, {"biased": True}, {"past": True}):
        assert isinstance(choose(cuda._replace(**changes)), Banded)
    assert [type(x).__name__ for x in KERNELS].index("Banded") < 4


def test_dilation_widens_the_reach_and_not_the_work():
    assert isinstance(choose(case(window=1 + 256 * 8, dilation=8)), Banded)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [Window(3), Window(4, 2), Window(2, 5, 3), Window(90, 90, 2)])
def test_keys_are_counted_as_they_are_seen(window, causal):
    for n in (1, 2, 5, 17, 40):
        d = window.dilation
        places = torch.arange(n)
        far = places[None] - places[:, None]
        seen = (far >= -window.left * d) & (far <= window.right * d) & (far % d == 0)
        seen = seen & (far <= 0) if causal else seen
        assert window.keys(n, causal) == pytest.approx(float(seen.sum()) / n)


def test_what_decoding_costs_does_not_grow_with_the_length():
    attention = Attention(8, mixer=Window(64, 0, 4))
    costs = [attention.mixer.flops(attention, 64, n, True) for n in (10_000, 1_000_000)]
    assert costs[1] / costs[0] < 1.02
