"""What the sinusoid is chosen for, and what a learned table cannot do."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allformer.config import Learned, Sinusoidal
from allformer.core import position as modules
from allformer.core.layout import Grid
from allformer.core.position import divisors, sinusoid
from allformer.errors import LengthError
from tests.models import decoder_only, loud, tokens


def table(length: int, dim: int, **options: object) -> torch.Tensor:
    return sinusoid(torch.arange(length), dim, dtype=torch.float64, **options)


def check_formula(dim: int, base: float = 10_000.0) -> None:
    """PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos(the same)."""
    mine = table(60, dim, base=base)
    for pos in (0, 1, 7, 59):
        for i in range(dim // 2):
            angle = pos / base ** (2 * i / dim)
            assert math.isclose(mine[pos, 2 * i], math.sin(angle), abs_tol=1e-11)
            assert math.isclose(mine[pos, 2 * i + 1], math.cos(angle), abs_tol=1e-11)


@pytest.mark.parametrize("base", [10_000.0, 500.0])
@pytest.mark.parametrize("dim", [2, 6, 64])
def test_the_sinusoid_is_the_papers_formula(dim, base):
    check_formula(dim, base)


def check_unique() -> None:
    """No two of 5,000 positions are alike."""
    pe = table(5000, 64)
    nearest = torch.cdist(pe, pe) + torch.eye(5000) * 9
    assert nearest.min() > 0.1


def test_each_position_is_unique():
    check_unique()


def shift_matrix(k: int, dim: int, base: float = 10_000.0) -> torch.Tensor:
    """M with PE(pos + k) = M PE(pos): one rotation by k·ω for each pair of features."""
    m = torch.zeros(dim, dim, dtype=torch.float64)
    for i in range(dim // 2):
        angle = k / base ** (2 * i / dim)
        c, s = math.cos(angle), math.sin(angle)
        # sin(a + b) = cos(b) sin(a) + sin(b) cos(a);  cos(a + b) = −sin(b) sin(a) + cos(b) cos(a)
        m[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(
            [[c, s], [-s, c]], dtype=torch.float64
        )
    return m


def check_linear(k: int, dim: int = 32) -> None:
    pe = table(300, dim)
    m = shift_matrix(k, dim)  # of k alone: the same for every position
    torch.testing.assert_close(pe[: 300 - k] @ m.T, pe[k:], rtol=0, atol=1e-10)
    torch.testing.assert_close(m @ m.T, torch.eye(dim, dtype=torch.float64))


@given(st.integers(1, 200))
def test_a_shift_is_one_rotation_for_all_positions(k):
    check_linear(k)


def test_similarity_depends_on_the_distance_alone():
    gram = table(100, 64) @ table(100, 64).T
    for distance in (0, 1, 13, 60):
        diagonal = gram.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-10)


def test_the_sinusoid_goes_on_past_any_length():
    long = table(100_000, 16)
    assert torch.equal(long[:50], table(50, 16))
    assert long.abs().max() <= 1
    alone = sinusoid(torch.tensor([99_999]), 16, dtype=torch.float64)
    assert torch.equal(long[-1:], alone)
    for pos in (5_001, 99_999):
        angles = [pos / 10_000 ** (2 * i / 16) for i in range(8)]
        wanted = [f(angle) for angle in angles for f in (math.sin, math.cos)]
        torch.testing.assert_close(long[pos], torch.tensor(wanted, dtype=torch.float64))
    model = loud(decoder_only())  # it never saw a length at all
    assert model(tokens(1, 700)).logits.isfinite().all()


def check_speeds() -> None:
    """Wavelengths grow geometrically from 2π to 2π · 10000: low features fast, high ones slow."""
    pe = table(5000, 16)
    turns = [int((pe[1:, i].sign() != pe[:-1, i].sign()).sum()) for i in range(0, 16, 2)]
    assert turns == sorted(turns, reverse=True)
    assert 1585 <= turns[0] <= 1598  # 5000/π zero crossings
    assert turns[-1] <= 1
    d = divisors(16)["pow"]
    torch.testing.assert_close(d[1:] / d[:-1], (d[1] / d[0]).expand(7))
    assert d[0] == 1


def test_low_features_are_fast_and_high_features_are_slow():
    check_speeds()


@given(st.integers(1, 300).map(lambda n: 2 * n), st.sampled_from([10_000.0, 500.0, 2.5]))
def test_the_three_ways_to_write_the_divisor_agree(dim, base):
    ways = divisors(dim, base)
    assert set(ways) == {"exp-log", "pow", "**"}
    wanted = torch.tensor([base ** (2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)
    for way in ways.values():
        torch.testing.assert_close(way, wanted, rtol=1e-12, atol=0)
    angles = 1 / ways["pow"]
    torch.testing.assert_close(table(2, dim, base=base)[1, 0::2], angles.sin(), rtol=1e-12, atol=0)


def test_both_layouts_are_the_same_numbers_in_another_order():
    interleaved, halves = table(50, 12), table(50, 12, layout="halves")
    order = torch.cat([torch.arange(0, 12, 2), torch.arange(1, 12, 2)])
    assert torch.equal(interleaved[:, order], halves)
    assert not torch.equal(interleaved, halves)


def test_a_start_moves_every_position():
    from_two = modules.Sinusoidal(Sinusoidal(start=2), 8)
    rows = from_two(torch.arange(5), 5, torch.float64)
    assert torch.equal(rows, table(7, 8)[2:])


def check_too_long() -> None:
    """Never cut, never wrapped round: refused, with the length that would fit."""
    position = modules.Learned(Learned(20), 8)
    torch.nn.init.normal_(position.weight)
    rows = position(torch.arange(20), 20, torch.float32)
    assert torch.equal(rows, position.weight)
    model = loud(decoder_only(position=Learned(20)))
    assert model(tokens(1, 20)).logits.shape[1] == 20
    with pytest.raises(LengthError, match=r"21 tokens.*Learned\.length=20; shorten or split"):
        model(tokens(1, 21))


def test_a_learned_table_refuses_a_longer_sequence():
    check_too_long()


def test_positions_count_real_tokens_only_and_go_on_after_the_past():
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    assert Grid(2, 5, keep).positions(keep.device)[:, 2:].tolist() == [[0, 1, 2], [2, 3, 4]]
    assert Grid(2, 2, keep, past=3).positions(keep.device).tolist() == [[1, 2], [3, 4]]
    assert Grid(2, 2, None, past=3).positions(keep.device).tolist() == [3, 4]


def test_given_positions_are_used():
    for config in (decoder_only(), decoder_only(position=Learned(90))):
        model, ids = loud(config), tokens(2, 48)
        where = torch.arange(48)
        plain = model(ids).logits
        torch.testing.assert_close(model(ids, position_ids=where).logits, plain)
        moved = model(ids, position_ids=where + 30).logits
        assert (moved - plain).abs().max() > 1e-3
