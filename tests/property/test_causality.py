"""A decoder never sees what comes later, in every layout and with every kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allformer.core.model import DecoderOnlyModel
from tests.models import (
    KINDS,
    VOCAB,
    left_padding,
    loud,
    on_the_grid,
    right_padding,
    tokens,
)

WIDTH = 50
MASKS = {
    "unpadded": None,
    "right-padded": right_padding([WIDTH, 41, 30], WIDTH),
    "left-padded": left_padding([WIDTH, 41, 30], WIDTH),
}
ROUTES = ["packed", "grid", "eager"]


def logits(model, ids: Tensor, mask: Tensor | None, route: str) -> Tensor:
    """Of a decoder, or of an encoder-decoder's decoder; `route` is how the batch is laid out."""
    kernel = "eager" if route == "eager" else "fast"
    inputs = (ids, mask)
    if not isinstance(model, DecoderOnlyModel):
        source = tokens(ids.shape[0], 20, seed=9)
        inputs = (source, right_padding([20, 11, 6], 20), ids, mask)
    with torch.no_grad():
        if route == "packed":
            return model(*inputs, kernel=kernel).logits
        with on_the_grid():
            return model(*inputs, kernel=kernel).logits


def check_causal(kind: str, padding: str, route: str, loudness: float = 1.0) -> None:
    """Change token t: no logit before t moves; those at t do, and the last feels the first."""
    model = loud(KINDS[kind])
    with torch.no_grad():
        for layer in model.decoder.layers:
            for part in ("q", "k"):
                layer.attention.qkv.part(part)[0].mul_(loudness)
    ids, mask = tokens(3, WIDTH), MASKS[padding]
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    before = logits(model, ids, mask, route)
    assert before[real].isfinite().all()
    for t in (20, 25, 29):
        changed = ids.clone()
        changed[:, t] = (ids[:, t] + 7) % VOCAB
        moved = (logits(model, changed, mask, route) - before).abs().amax(-1)  # B T
        past = real.clone()
        past[:, t:] = False
        assert past.any()
        assert moved[past].max() < 1e-11, f"changing token {t} moved a logit before it"
        assert moved[:, t][real[:, t]].min() > 1e-6, f"logits at {t} do not see token {t}"


def check_sees_the_past(kind: str) -> None:
    """The last logits feel the first token: the mask does not hide too much."""
    model = loud(KINDS[kind])
    ids = tokens(3, 6)
    changed = ids.clone()
    changed[:, 0] = (ids[:, 0] + 7) % VOCAB
    for mask in (None, left_padding([6, 6, 5], 6)):
        for route in ROUTES:
            moved = (logits(model, changed, mask, route) - logits(model, ids, mask, route)).abs()
            assert moved[:2, -1].amax(-1).min() > 1e-6


DECODERS = [kind for kind in KINDS if not kind.startswith("encoder")]


@pytest.mark.every(5)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("kind", DECODERS)
def test_changing_a_token_moves_no_logits_before_it(kind, padding, route):
    check_causal(kind, padding, route)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("padding", MASKS)
def test_the_future_stays_hidden_when_scores_are_huge(padding, route):
    # A mask of −1e9 instead of −∞ lets the future through once all allowed scores are below it.
    check_causal("decoder paper", padding, route, loudness=1e6)


@pytest.mark.parametrize("kind", DECODERS)
def test_the_last_logits_feel_the_first_token(kind):
    check_sees_the_past(kind)
