"""States of a fixed size go on where others have stopped, whatever the device counts alone.

Legend: B rows, K beams, L tokens of the prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.config import Attention, BucketBias, Features, Window
from allformer.core.states import (
    Cache,
    Paths,
    Recurrent,
    State,
    StaticRecurrent,
    StaticRing,
)
from allformer.errors import GenerationError
from tests.models import FINAL, MODERN, SPREAD, decoder_only, left_padding, loud, tokens

ROOM, WIDTH, NEW = 40, 10, 9
NEAR = replace(MODERN, attention=Attention(4, mixer=Window(5)))
DECODERS = {
    "full": SPREAD["decoder modern"],
    "rotary": SPREAD["rotary"],
    "windows": decoder_only(NEAR, position=None, relative=BucketBias(8, 20), final_norm=FINAL),
    "long windows": decoder_only(
        replace(MODERN, attention=Attention(4, mixer=Window(14, dilation=2)))
    ),
    "both": SPREAD["decoder window"],
    "sums": decoder_only(
        replace(MODERN, attention=replace(MODERN.attention, mixer=Features("elu"))),
        final_norm=FINAL,
    ),
    "random sums": SPREAD["random features"],
    "codes": SPREAD["text and an image"],
}
# prompts of images have one length
CASES = [(name, padded) for name in DECODERS for padded in (False, True)]
CASES = [case for case in CASES if case != ("codes", True)]


def fixed(cache: Cache, rows: int, paths: Paths | None = None, room: int = ROOM) -> Cache:
    """Of a fixed size, going on from a cache."""
    made: list[State] = []
    for layer in cache.layers:
        state = layer.own.fixed(rows, room, paths)
        assert state is not None
        state.take(layer.own)
        made.append(state)
    out = Cache(made, room)
    out.length = torch.tensor(cache.length)
    return out


def begun(kind: str, rows: int, padded: bool) -> tuple[Any, Tensor, Tensor | None, Cache]:
    """A model that has read a prompt of WIDTH tokens."""
    model = loud(DECODERS[kind])
    ids = tokens(rows, WIDTH, seed=1)
    ids = ids % 20 if kind == "codes" else ids  # words alone
    mask = left_padding([WIDTH, 4, 7][:rows], WIDTH).bool() if padded else None
    cache = model.new_cache()
    model.step(ids, cache, mask, position_ids=numbers(mask, WIDTH))
    return model, ids, mask, cache


def numbers(mask: Tensor | None, new: int) -> Tensor | None:
    return None if mask is None else mask.cumsum(1)[:, -new:].sub(1).clamp_min(0)


def whole(model: Any, ids: Tensor, mask: Tensor | None) -> Tensor:
    """The logits behind a text, read at once."""
    if mask is not None:
        mask = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=True)
    where = {} if mask is None else {"position_ids": numbers(mask, ids.shape[1])}
    logits: Tensor = model(ids, mask, **where).logits[:, -1]
    return logits


def said(kind: str, rows: int, seed: int) -> Tensor:
    new = tokens(rows, 1, seed=seed)
    return new % 17 if kind == "codes" else new


@torch.no_grad()
def check_goes_on(kind: str, padded: bool = False) -> None:
    """From a prompt to its end, token by token, as if all had been read at once."""
    model, ids, mask, cache = begun(kind, 3, padded)
    mine = fixed(cache, 3)
    keep = None
    if mask is not None:
        keep = torch.nn.functional.pad(mask, (0, ROOM - WIDTH), value=True)
    left = None if mask is None else (~mask).sum(1, keepdim=True)
    for i in range(NEW):
        new = said(kind, 3, i)
        where = None if left is None else mine.length - left
        got = model.step(new, mine, keep, position_ids=where)
        ids = torch.cat([ids, new], 1)
        torch.testing.assert_close(got, whole(model, ids, mask), rtol=1e-9, atol=1e-9)
    assert int(mine.length) == WIDTH + NEW


@torch.no_grad()
def check_forks(kind: str, padded: bool = False) -> None:
    """Beams that take over from one another, each as if it had read its own text anew."""
    model, ids, mask, cache = begun(kind, 2, padded)
    beams, draws = 3, torch.Generator().manual_seed(5)
    paths = Paths(2, beams, ROOM, ids.device)
    mine = fixed(cache, 2, paths)
    keep = left = None
    if mask is not None:
        keep = torch.nn.functional.pad(mask, (0, ROOM - WIDTH), value=True)
        left = (~mask).sum(1, keepdim=True).repeat_interleave(beams, 0)
        mask = mask.repeat_interleave(beams, 0)
    texts = ids.repeat_interleave(beams, 0)
    stores = [layer.own.held()[0].data_ptr() for layer in mine.layers]
    for i in range(NEW):
        if i:
            beam = torch.randint(beams, (2, beams), generator=draws)
            paths.move(beam)
            texts = texts[(beam + torch.arange(2)[:, None] * beams).flatten()]
        new = said(kind, 2 * beams, 20 + i)
        where = None if left is None else mine.length - left
        got = model.step(new, mine, keep, position_ids=where)
        texts = torch.cat([texts, new], 1)
        torch.testing.assert_close(got, whole(model, texts, mask), rtol=1e-9, atol=1e-9)
    assert stores == [layer.own.held()[0].data_ptr() for layer in mine.layers]


@torch.no_grad()
def check_some_rows(kind: str) -> None:
    """Rows of one state of a fixed size go on in another, which had held something else."""
    model, ids, _, cache = begun(kind, 3, False)
    first = fixed(cache, 3)
    new = said(kind, 3, 1)
    model.step(new, first)
    ids = torch.cat([ids, new], 1)
    more = ROOM + 8  # what stands there is of neither
    second = Cache([x.own.fixed(2, more, None) for x in first.layers], more)  # type: ignore[misc]
    second.length = first.length.clone()  # type: ignore[union-attr]
    rows = torch.tensor([2, 0])
    for mine, other in zip(second.layers, first.layers, strict=True):
        mine.own.take(other.own, torch.tensor([1, 1]))
        for store in _stores(mine.own):
            store.fill_(float("nan"))
        mine.own.take(other.own, rows)
    new = said(kind, 2, 2)
    got = model.step(new, second)
    ids = torch.cat([ids[rows], new], 1)
    torch.testing.assert_close(got, whole(model, ids, None), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def check_outgrown(kind: str) -> None:
    """A room that is too small is left for a larger one, and no slot is looked at too early."""
    model, ids, _, cache = begun(kind, 3, False)
    mine = fixed(cache, 3, room=16)
    for i in range(28):
        length = WIDTH + i
        if length == 16:
            other = Cache([x.own.fixed(3, ROOM, None) for x in mine.layers])  # type: ignore[misc]
            other.length = mine.length
            for new, old in zip(other.layers, mine.layers, strict=True):
                new.own.take(old.own, torch.arange(3))
            mine = other
        mine.room = -(-(length + 1) // 4) * 4  # a step reaches no further than it must
        new_token = said(kind, 3, i)
        got = model.step(new_token, mine)
        ids = torch.cat([ids, new_token], 1)
        torch.testing.assert_close(got, whole(model, ids, None), rtol=1e-9, atol=1e-9)


def _stores(state: State) -> list[Tensor]:
    return [*state.values.values()] if isinstance(state, Recurrent) else [*state.held()]


def check_sums_stay() -> None:
    state = StaticRecurrent(3)
    state.values = {"sum": torch.ones(3, 2)}
    where = state.values["sum"].data_ptr()
    state.values = {"sum": torch.full((3, 2), 2.0)}
    state.values["sum"] = state.values["sum"] + 1
    state.select(torch.tensor([0, 0, 2]))
    assert state.values["sum"].data_ptr() == where
    assert state.values["sum"].tolist() == [[3.0, 3.0]] * 3


@pytest.mark.parametrize(("kind", "padded"), CASES)
def test_a_state_of_a_fixed_size_goes_on_where_another_stopped(kind, padded):
    check_goes_on(kind, padded)


@pytest.mark.parametrize(("kind", "padded"), [case for case in CASES if "sums" not in case[0]])
def test_beams_that_share_a_store_have_each_its_own_past(kind, padded):
    check_forks(kind, padded)


@pytest.mark.parametrize("kind", ["full", "both", "sums"])
def test_chosen_rows_go_on_in_another_state(kind):
    check_some_rows(kind)


@pytest.mark.parametrize("kind", ["full", "windows", "long windows"])
def test_a_room_that_is_too_small_is_left_for_a_larger_one(kind):
    check_outgrown(kind)


def test_each_state_has_its_fixed_form_or_none():
    def forms(kind: str) -> list[str]:
        states = [layer.own.fixed(1, 9, None) for layer in loud(SPREAD[kind]).new_cache().layers]
        return [type(state).__name__ for state in states]

    assert forms("decoder window") == ["Static", "StaticRing", "Static"]
    assert set(forms("linear")) == {"StaticRecurrent"}
    assert forms("two streams")[0] == "NoneType"
    assert set(forms("segments")) == {"NoneType"}
    assert Recurrent().fixed(1, 9, Paths(1, 2, 9, torch.device("cpu"))) is None


def test_a_ring_of_a_fixed_size_cannot_be_taken_back():
    with pytest.raises(GenerationError, match="StaticRing cannot be taken back to 3 tokens"):
        StaticRing(5, 9).cut(3)


def test_sums_of_a_fixed_size_stay_where_they_are():
    check_sums_stay()
