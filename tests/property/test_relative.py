"""Positions inside the attention: rotary angles, buckets of distances, windows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from allformer.config import (
    Attention,
    BucketBias,
    LinearScaling,
    Llama3Scaling,
    Rotary,
    Window,
    repeat,
)
from allformer.core.places import Places, mask_of
from allformer.core.relatives import rotary
from allformer.core.relatives.bucket import bucket
from allformer.core.relatives.rates import frequencies
from tests.models import MODERN, decoder_only, encoder_only, left_padding, loud, on_the_grid, tokens

# --- rotary ---------------------------------------------------------------------------------------


def rotary_of(relative: Rotary, size: int) -> rotary.Rotary:
    """The module for one head of that size."""
    config = decoder_only(replace(MODERN, attention=Attention(1, head_dim=size)))
    return rotary.Rotary(relative, config.decoder, "decoder")


def check_rotary_is_relative() -> None:
    """q at m and k at n meet as q at m + s and k at n + s; and not as at another distance."""
    make = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 16, generator=make, dtype=torch.float64)
    turned = rotary_of(Rotary(), 16)

    def score(m: int, n: int) -> float:
        at = [turned(torch.tensor([p]), torch.float64) for p in (m, n)]
        return (at[0].turn(q) * at[1].turn(k)).sum().item()

    assert score(7, 3) == pytest.approx(score(4, 0), abs=1e-5)  # angles are fp32
    assert score(107, 103) == pytest.approx(score(4, 0), abs=1e-4)
    assert abs(score(7, 3) - score(3, 7)) > 1e-2
    assert abs(score(7, 3) - score(8, 3)) > 1e-2
    assert score(0, 0) == pytest.approx((q * k).sum().item(), abs=1e-12)


def test_rotary_scores_depend_on_the_distance_alone():
    check_rotary_is_relative()


def test_rotary_turns_pairs_half_a_head_apart():
    x = torch.zeros(1, 1, 8, dtype=torch.float64)
    x[..., 1] = 1.0
    out = rotary_of(Rotary(theta=100.0), 8)(torch.tensor([3]), torch.float64).turn(x)
    angle = 3 * 100 ** (-2 / 8)
    assert out[0, 0, 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert out[0, 0, 5].item() == pytest.approx(math.sin(angle), abs=1e-6)
    assert out.square().sum().item() == pytest.approx(1.0, abs=1e-6)


def check_scaling() -> None:
    """Linear: position / factor. LLaMA 3.1: fast kept, slow divided, a ramp between."""
    plain = frequencies(Rotary(theta=500_000.0), 128)
    torch.testing.assert_close(
        frequencies(Rotary(500_000.0, LinearScaling(4.0)), 128), plain / 4, rtol=1e-6, atol=0
    )
    scaled = frequencies(Rotary(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)), 128)
    length = 2 * math.pi / plain  # of one turn, in tokens
    fast, slow = length < 8192 / 4, length > 8192 / 1
    assert fast.sum() > 20
    assert slow.sum() > 10
    assert torch.equal(scaled[fast], plain[fast])
    torch.testing.assert_close(scaled[slow], plain[slow] / 8, rtol=1e-6, atol=0)
    between = ~fast & ~slow
    assert between.any()
    assert (scaled[between] < plain[between]).all()
    assert (scaled[between] > plain[between] / 8).all()
    shares = (scaled / plain)[between]  # from fast to slow
    assert (shares.diff() < 0).all(), "the slower, the more it is divided"


def test_scaled_frequencies_are_what_their_definition_says():
    check_scaling()


def test_left_padding_changes_a_rotary_model_by_rounding_alone():
    model = loud(decoder_only(MODERN_ROTARY, position=None, relative=Rotary()))
    ids, mask = tokens(2, 50), left_padding([50, 31], 50)
    alone = model(ids[1:, 19:]).logits
    torch.testing.assert_close(model(ids, mask).logits[1:, 19:], alone, rtol=1e-4, atol=1e-4)


MODERN_ROTARY = replace(MODERN, attention=Attention(4, kv_heads=2, bias=False))

# --- buckets --------------------------------------------------------------------------------------


def by_hand(distance: int, buckets: int, most: int, both: bool) -> int:
    """T5's rule, one distance at a time."""
    base = 0
    if both:
        buckets //= 2
        base = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(0, -distance)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    far = math.log(distance / exact) / math.log(most / exact) * (buckets - exact)
    return base + min(buckets - 1, exact + int(far + 1e-6))


def check_buckets() -> None:
    """Every distance, both sidednesses, far beyond the largest."""
    for buckets, most, both in ((32, 128, True), (32, 128, False), (8, 20, True), (8, 20, False)):
        distances = torch.arange(-300, 301)
        got = bucket(distances, buckets, most, both)
        wanted = [by_hand(d, buckets, most, both) for d in distances.tolist()]
        assert got.tolist() == wanted
        assert set(wanted) == set(range(buckets)) - ({buckets // 2} if both else set())


def test_distances_fall_into_t5s_buckets():
    check_buckets()


def test_buckets_reach_the_scores_with_and_without_a_cache_and_packed():
    model = loud(encoder_only(MODERN, position=None, relative=BucketBias(8, 20)))
    ids = tokens(2, 48)
    mask = left_padding([48, 20], 48)
    packed = model(ids, mask).logits
    with on_the_grid():
        grid = model(ids, mask).logits
    keep = mask.bool()
    torch.testing.assert_close(packed[keep], grid[keep], rtol=1e-10, atol=1e-10)
    flat = loud(encoder_only(MODERN, position=None))
    assert (flat(ids).logits - model(ids).logits).abs().max() > 0.1


# --- windows --------------------------------------------------------------------------------------


def windowed(window: Window | None, make=decoder_only):
    attention = Attention(4) if window is None else Attention(4, mixer=window)
    return loud(make(blocks=repeat(replace(MODERN, attention=attention), 1)))


def check_window() -> None:
    """A token further back than `left` cannot be told; one within can. A wide window is none."""
    ids, other = tokens(1, 40), tokens(1, 40)
    other[0, 10] = (ids[0, 10] + 1) % 30 + 4
    near = windowed(Window(5))
    moved = (near(ids).logits - near(other).logits).abs().amax(-1)[0]
    assert moved[:10].max() == 0
    assert moved[10:16].min() > 1e-9, "it is seen up to five tokens later"
    assert moved[16:].max() == 0, "and no further"
    torch.testing.assert_close(
        windowed(Window(39))(ids).logits, windowed(None)(ids).logits, rtol=1e-10, atol=1e-10
    )
    both = windowed(Window(2, 3), encoder_only)
    moved = (both(ids).logits - both(other).logits).abs().amax(-1)[0]
    assert (moved > 1e-9).nonzero().flatten().tolist() == [7, 8, 9, 10, 11, 12]


def test_a_window_hides_what_is_further_away():
    check_window()


def test_a_window_after_a_cache_is_shifted_with_the_queries():
    places = Places(torch.tensor([[4, 5]]), torch.arange(6)[None])
    seen = mask_of(places, causal=True, reach=(1, 0))
    assert seen[0, 0].long().tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1]]
