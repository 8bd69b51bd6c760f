"""Rows of a batch do not know each other; tokens without positions have no order."""

from __future__ import annotations

import pytest
import torch

from allformer.core.model import EncoderDecoderModel
from tests.models import KINDS, MODERN, PAPER, encoder_only, loud, right_padding, tokens
from tests.property.test_causality import ROUTES
from tests.property.test_padding import hidden

BATCHES = [3, 4, 6]  # the models have 4 and 6 heads: B = H hides a confusion of the two axes


def check_rows(kind: str, rows: int, route: str, ragged: bool) -> None:
    """Change one row: no other moves."""
    model = loud(KINDS[kind])
    ids = tokens(rows, 48)
    mask = right_padding([48 - 5 * i for i in range(rows)], 48) if ragged else None
    inputs = (ids, mask)
    if isinstance(model, EncoderDecoderModel):
        target = tokens(rows, 48, seed=5)
        target_mask = right_padding([40 - 3 * i for i in range(rows)], 48) if ragged else None
        inputs = (ids, mask, target, target_mask)
    before = hidden(model, route, *inputs)
    for row in (0, rows - 1):
        changed = tuple(None if x is None else x.clone() for x in inputs)
        for x in changed[::2]:
            x[row] = tokens(1, 48, seed=77 + row)[0]
        moved = (hidden(model, route, *changed) - before).abs().amax((1, 2))
        others = torch.arange(rows) != row
        assert moved[others].max() < 1e-11, f"changing row {row} moved another"
        assert moved[row] > 1e-6


def check_twins(kind: str, route: str) -> None:
    """Two rows with the same content give the same output (positions on the batch axis do not)."""
    model = loud(KINDS[kind])
    ids = tokens(1, 48).expand(4, 48)
    mask = torch.ones_like(ids)
    mask[2:, 44:] = 0
    out = hidden(model, route, ids, mask)
    for twin, length in ((1, 48), (3, 44)):
        torch.testing.assert_close(
            out[twin, :length], out[twin - 1, :length], rtol=1e-10, atol=1e-10
        )


def check_permutation(block, route: str) -> None:
    """Without positions an encoder is equivariant: shuffled in, shuffled out."""
    model = loud(encoder_only(block, position=None))
    ids, shuffle = tokens(2, 49), torch.randperm(49)
    plain, shuffled = hidden(model, route, ids, None), hidden(model, route, ids[:, shuffle], None)
    torch.testing.assert_close(shuffled, plain[:, shuffle], rtol=1e-10, atol=1e-10)
    assert (shuffled - plain).abs().max() > 1e-3


def check_order_matters(kind: str) -> None:
    """With positions one token repeated looks different at each place."""
    model = loud(KINDS[kind])
    out = hidden(model, "packed", torch.full((1, 48), 9), None)[0]
    apart = (out[:, None] - out[None]).abs().amax(-1) + torch.eye(48)
    assert apart.min() > 1e-6


@pytest.mark.every(5)
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize("rows", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_changing_a_row_moves_no_other(kind, rows, ragged):
    for route in ROUTES:
        check_rows(kind, rows, route, ragged)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", ["encoder paper", "decoder modern"])
def test_equal_rows_give_equal_outputs(kind, route):
    check_twins(kind, route)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("block", [PAPER, MODERN], ids=["paper", "modern"])
def test_an_encoder_without_positions_is_permutation_equivariant(block, route):
    check_permutation(block, route)


@pytest.mark.parametrize("kind", ["encoder paper", "decoder paper", "decoder modern"])
def test_a_repeated_token_differs_by_position(kind):
    check_order_matters(kind)
