"""What a layer remembers: whatever the state, stepping gives what reading everything at once gives.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from allformer import config
from allformer.config import Attention, BucketBias, Window
from allformer.core.attention import Attention as AttentionLayer
from allformer.core.layout import Grid
from allformer.core.mixers.mixer import Scene
from allformer.core.model import DecoderOnlyModel
from allformer.core.places import Places
from allformer.core.states import Cache, Growing, LayerState, Recurrent, Ring, State, Static
from allformer.errors import ConfigError, GenerationError
from tests.loud import make_loud
from tests.models import (  # fmt: skip
    FINAL,
    KINDS,
    MODERN,
    SPREAD,
    decoder_only,
    left_padding,
    loud,
    right_padding,
    tokens,
)

DECODERS = {name: c for name, c in SPREAD.items() if isinstance(c, config.DecoderOnly)}
DECODERS = {name: c for name, c in DECODERS.items() if isinstance(c.head, config.LMHead)}
DECODERS = {  # sums have a state of their own: test_features.py
    name: c for name, c in DECODERS.items()
    if not isinstance(c.decoder.blocks[0].attention.mixer, config.Features)
}  # fmt: skip
DECODERS["decoder buckets"] = decoder_only(
    MODERN, position=None, relative=BucketBias(8, 20), final_norm=FINAL
)
DECODERS["windows alone"] = decoder_only(replace(MODERN, attention=Attention(4, mixer=Window(5))))
ROOM = 40
CHUNKS = [7, 1, 1, 5, 1, 8]  # a prompt, and then steps and drafts


def _each(make: Callable[[], State]) -> Callable[[DecoderOnlyModel], Cache]:
    return lambda model: Cache(make() for _ in model.decoder.order)


STATES: dict[str, Callable[[DecoderOnlyModel], Cache]] = {
    "own": lambda model: model.new_cache(),  # a ring for windows, else growing
    "growing": _each(Growing),
    "static": lambda model: Static.cache(len(model.decoder.order), ROOM),
}


def close(mine: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


class Reader:
    """Reads ids piece by piece into a cache, and everything at once for comparison."""

    def __init__(self, kind: str, state: str, left_padded: bool = True, rows: int = 3) -> None:
        self.model = loud(DECODERS[kind])
        assert isinstance(self.model, DecoderOnlyModel)
        self.cache = STATES[state](self.model)
        self.ids = torch.empty(rows, 0, dtype=torch.long)
        width, lengths = sum(CHUNKS), [sum(CHUNKS), 18, 4]
        self.mask = left_padding(lengths[:rows], width) if left_padded else None

    def read(self, ids: Tensor) -> None:
        """The new tokens' logits are those of the whole text so far."""
        self.ids = torch.cat([self.ids, ids], dim=1)
        width, new = self.ids.shape[1], ids.shape[1]
        mask = None if self.mask is None else self.mask[:, :width]
        mine = self.model(ids, mask, cache=self.cache).logits
        whole = self.model(self.ids, mask).logits[:, -new:]
        real = torch.ones_like(ids) if mask is None else mask[:, -new:]
        close(mine[real.bool()], whole[real.bool()])
        assert int(self.cache.length) == width

    def cut(self, length: int) -> None:
        self.cache.cut(length)
        self.ids = self.ids[:, :length]

    def select(self, rows: Tensor) -> None:
        self.cache.select(rows)
        self.ids = self.ids[rows]
        self.mask = None if self.mask is None else self.mask[rows]


@torch.no_grad()
def check_stepping(kind: str, state: str, left_padded: bool = True) -> None:
    reader = Reader(kind, state, left_padded)
    for i, chunk in enumerate(CHUNKS):
        reader.read(tokens(3, chunk, seed=i))


@torch.no_grad()
def check_cut(kind: str, state: str) -> None:
    """A draft that is not accepted is as if it had never been: others come in its place."""
    reader = Reader(kind, state)
    reader.read(tokens(3, 9, seed=1))
    for length, draft in ((10, 1), (10, 8), (3, 6)):
        reader.read(tokens(3, draft, seed=2))
        reader.cut(min(length, reader.ids.shape[1]))
    reader.read(tokens(3, 5, seed=3))
    reader.cut(20)  # there are not so many: nothing is forgotten
    assert int(reader.cache.length) == reader.ids.shape[1] == 8
    reader.read(tokens(3, 6, seed=4))


@torch.no_grad()
def check_select(kind: str, state: str) -> None:
    """Rows are repeated, exchanged and dropped, and each goes on with its own past."""
    reader = Reader(kind, state)
    reader.select(torch.tensor([1, 0, 2]))  # before anything is remembered
    reader.read(tokens(3, 7, seed=1))
    for i, rows in enumerate(([2, 2, 0], [1, 0, 2], [2, 0], [1, 1, 0, 0])):
        reader.select(torch.tensor(rows))
        reader.read(tokens(len(rows), 3, seed=2 + i))


@torch.no_grad()
def check_cross(state: str) -> None:
    """Rows that leave take their source with them."""
    model = loud(KINDS["seq2seq paper"])
    source, keep, target = tokens(4, 20, 1), right_padding([20, 9, 13, 4], 20), tokens(4, 16, 2)
    cache = {
        "growing": model.new_cache(),
        "static": Static.cache(3, ROOM),
    }[state]
    model.step(target[:, :9], cache, model.encode(source, keep), keep)
    rows = torch.tensor([3, 1])
    cache.select(rows, cross=True)
    out = model.step(target[rows, 9:], cache, None, keep[rows])
    close(out, model(source[rows], keep[rows], target[rows]).logits[:, -1])


@torch.no_grad()
def check_ring() -> None:
    """No more is kept than the window looks back, and what is out of it cannot be had again."""
    ring, everything = Ring(5), torch.randn(2, 3, 30, 4)
    done = 0
    for chunk in (3, 4, 1, 9, 13):
        grid, end = Grid(2, chunk, past=done), done + chunk
        places = ring.places(grid, torch.device("cpu"))
        k, v = ring.update(everything[:, :, done:end], -everything[:, :, done:end], places)
        first = max(0, done - 5)
        assert places.key.tolist() == [list(range(first, end))]
        assert places.query.tolist() == [list(range(done, end))]
        assert torch.equal(k, everything[:, :, first:end])
        assert torch.equal(v, -everything[:, :, first:end])
        done = end
        assert ring._keys is not None
        assert ring._keys.shape[2] == min(5, done)
    with pytest.raises(GenerationError, match="Ring cannot be taken back to 29 tokens"):
        ring.cut(29)
    ring.cut(30)  # nothing is asked of it
    young = Ring(5)
    young.update(everything[:, :, :4], everything[:, :, :4], None)
    young.cut(2)
    k, _ = young.update(everything[:, :, 9:10], everything[:, :, 9:10], None)
    assert torch.equal(k, everything[:, :, [0, 1, 9]])


@torch.no_grad()
def check_spare() -> None:
    """A ring with some to spare can be taken back by as many, wherever it stands."""
    ring, everything = Ring(5), torch.randn(2, 3, 30, 4)
    ring.spare(3)
    for done, chunk in ((0, 9), (9, 3), (12, 1)):
        ring.update(everything[:, :, done : done + chunk], everything[:, :, :chunk], None)
        assert ring._keys is not None
        assert ring._keys.shape[2] == 8
    assert [ring.cuts(length) for length in (13, 12, 11, 10, 9, 3)] == [True] * 4 + [False] * 2
    ring.cut(10)
    places = ring.places(Grid(2, 2, past=10), torch.device("cpu"))
    assert places.key.tolist() == [list(range(5, 12))]
    k, _ = ring.update(everything[:, :, 20:22], everything[:, :, 20:22], places)
    assert torch.equal(k, everything[:, :, [*range(5, 10), 20, 21]])
    with pytest.raises(GenerationError, match="Ring cannot be taken back to 9 tokens"):
        ring.cut(9)


def check_static_stays() -> None:
    """The counter and the memory stay where they are, so that a captured graph can go on."""
    reader = Reader("decoder paper", "static", left_padded=False)
    counter = reader.cache.length
    with torch.no_grad():
        reader.read(tokens(3, 4, seed=1))
        where = reader.cache[0].own._keys.data_ptr()  # type: ignore[attr-defined]
        reader.select(torch.tensor([2, 0, 0]))
        reader.cut(3)
        reader.read(tokens(3, 4, seed=2))
    assert reader.cache.length is counter
    assert reader.cache[0].own._keys.data_ptr() == where  # type: ignore[attr-defined]


def check_recurrent() -> None:
    state = Recurrent()
    state.values = {"sum": torch.arange(6.0).view(3, 2), "count": torch.tensor([5.0, 6.0, 7.0])}
    state.select(torch.tensor([2, 0, 2, 1]))
    assert state.values["sum"].tolist() == [[4, 5], [0, 1], [4, 5], [2, 3]]
    assert state.values["count"].tolist() == [7, 5, 7, 6]
    with pytest.raises(GenerationError, match="Recurrent cannot be taken back to 1 tokens"):
        state.cut(1)


class Segment(State):
    """Hidden states of the segment before, which the new tokens look at too."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden

    def before(self) -> Tensor:
        return self.hidden

    def places(self, grid: Grid, device: torch.device) -> Places:
        past = self.hidden.shape[1]
        everywhere = torch.arange(past + grid.width, device=device)[None]
        return Places(everywhere[:, past:], everywhere)


@torch.no_grad()
def check_segment(bias: bool | tuple[str, ...] = ("q", "v"), changed: bool = False) -> None:
    """Keys and values of an earlier segment stand before one's own, as if read together."""
    layer = AttentionLayer(config.Attention(4, kv_heads=2, bias=bias), 24, "layer").double()
    make_loud(layer, 1)
    if changed:
        layer.qkv.delta = lambda x, y: y + x.mean(-1, keepdim=True)
    old, new = torch.randn(2, 2, 5, 24, dtype=torch.float64).unbind()
    for causal in (False, True):
        together, alone = Grid(2, 10), Grid(2, 5)
        scene = Scene(together, together, old.device, old.dtype, causal)
        wanted = layer(torch.cat([old, new], dim=1), layer.mixer.plan(scene))[:, 5:]
        state = LayerState(Segment(old))
        scene = Scene(alone, alone, old.device, old.dtype, causal, state=state.own)
        close(layer(new, layer.mixer.plan(scene), state=state), wanted)


OWN = {"two streams"}  # hashes are remembered in a state of their own
FITS = [(k, s) for s in STATES for k in DECODERS if s == "own" or k not in OWN]
CUT = [(kind, state) for kind, state in FITS if state != "own"] + [(k, "own") for k in OWN]


@pytest.mark.every(3)
@pytest.mark.parametrize("left_padded", [False, True], ids=["unpadded", "left-padded"])
@pytest.mark.parametrize(("kind", "state"), FITS)
def test_stepping_gives_the_logits_of_the_whole_text(kind, state, left_padded):
    check_stepping(kind, state, left_padded)


@pytest.mark.parametrize(("kind", "state"), CUT)
def test_a_draft_that_was_cut_off_leaves_nothing_behind(kind, state):
    check_cut(kind, state)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ["decoder paper", "windows alone", "rotary"])
def test_selected_rows_keep_their_past(kind, state):
    check_select(kind, state)


@pytest.mark.parametrize("kind", ["decoder paper", "windows alone", "segments"])
def test_other_rows_than_are_remembered_are_refused(kind):
    model = loud(DECODERS[kind]).eval()
    cache = model.new_cache()
    model(tokens(2, 9), cache=cache)
    with pytest.raises(ConfigError, match=r"has 2 rows, but the input 3; .* or begin anew"):
        model(tokens(3, 4), cache=cache)
    cache.select(torch.tensor([1, 1, 0]))  # as beams do: there are three now
    assert model(tokens(3, 4), cache=cache).logits.shape[0] == 3


@pytest.mark.parametrize("state", ["growing", "static"])
def test_rows_leave_with_their_source(state):
    check_cross(state)


def test_a_ring_keeps_what_the_window_needs():
    check_ring()


def test_a_ring_with_some_to_spare_can_be_taken_back():
    check_spare()


def test_a_recurrent_state_moves_with_its_rows():
    check_recurrent()


@pytest.mark.parametrize("bias", [True, False, ("q", "v"), ("k",)])
def test_an_earlier_segment_is_looked_at_as_if_read_together(bias):
    check_segment(bias)


def test_a_change_to_the_projections_reaches_the_earlier_segment():
    check_segment(changed=True)


def test_a_windowed_model_remembers_in_rings_where_it_looks_back_alone():
    model = loud(DECODERS["decoder window"])
    kinds = [type(layer.own).__name__ for layer in model.new_cache().layers]
    assert kinds == ["Growing", "Ring", "Growing"]


def test_a_static_step_does_not_depend_on_numbers_of_the_host():
    check_static_stays()
