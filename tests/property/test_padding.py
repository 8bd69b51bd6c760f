"""Padding is invisible: on either side, whatever ids it holds, in every layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allformer.core.model import AnyModel, EncoderDecoderModel
from tests.models import KINDS, PAD, left_padding, loud, on_the_grid, right_padding, tokens
from tests.property.test_causality import ROUTES

LENGTHS = [48, 31, 5]
SIDES = {"left": left_padding, "right": right_padding}


def hidden(model: AnyModel, route: str, *inputs: Tensor | None) -> Tensor:
    kernel = "eager" if route == "eager" else "fast"
    with torch.no_grad():
        if route == "packed":
            return model(*inputs, kernel=kernel).last_hidden_state
        with on_the_grid():
            return model(*inputs, kernel=kernel).last_hidden_state


def padded(rows: list[Tensor], side: str, width: int, fill: int) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one batch: ids and attention_mask."""
    mask = SIDES[side]([len(row) for row in rows], width)
    ids = torch.full(mask.shape, fill)
    for i, row in enumerate(rows):
        ids[i, mask[i].bool()] = row
    return ids, mask


def check_padding(kind: str, side: str, route: str, target_side: str = "right") -> None:
    """A padded batch gives each sentence what it gets alone."""
    model = loud(KINDS[kind])
    rows = [tokens(1, n, seed=n)[0] for n in LENGTHS]
    for fill in (PAD, 11):  # what stands under the padding does not matter
        ids, mask = padded(rows, side, 52, fill)
        if isinstance(model, EncoderDecoderModel):
            targets = [tokens(1, n, seed=n)[0] for n in (9, 50, 17)]
            target, target_mask = padded(targets, target_side, 51, fill)
            together = hidden(model, route, ids, mask, target, target_mask)
            alone = [
                hidden(model, route, row[None], None, t[None], None)[0]
                for row, t in zip(rows, targets, strict=True)
            ]
            mask = target_mask
        else:
            together = hidden(model, route, ids, mask)
            alone = [hidden(model, route, row[None], None)[0] for row in rows]
        for i, wanted in enumerate(alone):
            torch.testing.assert_close(
                together[i, mask[i].bool()], wanted, rtol=1e-10, atol=1e-10,
                msg=lambda m, i=i, fill=fill: f"row {i}, padded with id {fill}: {m}",
            )  # fmt: skip


def check_source_is_seen(route: str) -> None:
    """The logits depend on every real source token: the cross mask does not hide too much."""
    model = loud(KINDS["seq2seq paper"])
    ids, mask = padded([tokens(1, 6, seed=1)[0], tokens(1, 4, seed=2)[0]], "left", 8, PAD)
    target = tokens(2, 5)
    base = hidden(model, route, ids, mask, target, None)
    for row in range(2):
        for place in mask[row].nonzero():
            changed = ids.clone()
            changed[row, place] += 1
            moved = (hidden(model, route, changed, mask, target, None) - base).abs()
            assert moved[row].amax(-1).min() > 1e-6, f"source token {int(place)} is not seen"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_its_content_change_nothing(kind, side, route):
    check_padding(kind, side, route)


@pytest.mark.parametrize("route", ROUTES)
def test_left_padding_of_the_target_changes_nothing(route):
    check_padding("seq2seq paper", "left", route, target_side="left")


@pytest.mark.parametrize("route", ROUTES)
def test_every_real_source_token_is_seen(route):
    check_source_is_seen(route)


def test_a_mask_of_ones_is_the_same_as_none():
    for kind in ("decoder modern", "encoder paper"):
        model, ids = loud(KINDS[kind]), tokens(3, 48)
        for route in ROUTES:
            ones = hidden(model, route, ids, torch.ones_like(ids))
            torch.testing.assert_close(
                ones, hidden(model, route, ids, None), rtol=1e-10, atol=1e-10
            )
