"""The fast way through a search says what the plain way says: by hand, replayed, in any room.

On a CPU the graphs are lists of operations (`tests/recorded.py`); a GPU has its own.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.config import LMHead
from allformer.core import few_rows
from allformer.generate import graph, room, rooms, rows, static, static_state
from allformer.generate.generate import generate
from allformer.generate.rooms import Rooms, forget
from allformer.generate.static import StaticStepper, static_stepper, unfit
from allformer.generate.stepper import DecoderStepper, stepper_for
from tests.models import EOS, KINDS, SPREAD, left_padding, loud, tokens
from tests.recorded import Recorded, by_graphs
from tests.unit.test_generate_steps import CONFIGS, ENDS, SEARCHES, batch, model, no_waiting

KEPT = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


@pytest.fixture
def fast() -> Iterator[None]:
    """The CPU counts as a device with graphs."""
    with counted():
        yield


@contextmanager
def counted() -> Iterator[None]:
    with by_graphs():
        for kind in CONFIGS:
            model(kind).__dict__.pop("_rooms", None)
        yield


def fast_check(check: Callable[[], None]) -> None:
    """A check as a test has it, outside of one."""
    with counted():
        check()


def both(net: Any, ids: Tensor, mask: Tensor | None = None, **options: Any) -> tuple[Any, Any]:
    """What the plain way says, and what the fast one does."""
    found = []
    for devices in (("cuda",), static.DEVICES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(static, "DEVICES", devices)
            draws = torch.Generator().manual_seed(2)
            more = {"generator": draws} if options.get("do_sample") else {}
            found.append(generate(net, ids, mask, **KEPT | options, **more))
    return found[0], found[1]


def alike(want: Any, got: Any) -> None:
    assert got.sequences.tolist() == want.sequences.tolist()
    for name in ("scores", "logits", "sequences_scores"):
        mine, hers = getattr(got, name), getattr(want, name)
        torch.testing.assert_close(mine, hers, rtol=1e-9, atol=1e-9)
    if want.beam_indices is not None:
        assert got.beam_indices.tolist() == want.beam_indices.tolist()


def graphs(net: Any) -> list[Any]:
    """Of the rooms that are kept, the graphs that were captured."""
    kept = Rooms.of(net).idle.values()
    return [g.captured for r in kept for g in r.graphs.values() if g.captured is not None]


@cache
def built(kind: str) -> Any:
    return loud(SPREAD[kind])


# --- the same tokens ------------------------------------------------------------------------------


def check_search(kind: str, search: str) -> None:
    """With an end that rows come to at different times, or not at all."""
    net = model(kind)
    options = {"max_new_tokens": 24, "eos_token_id": ENDS[:2], **SEARCHES[search]}
    alike(*both(net, *batch(net), **options))
    assert sum(g.replays for g in graphs(net)) >= 5


@pytest.mark.usefixtures("fast")
@pytest.mark.every(3)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_fast_way_says_what_the_plain_way_says(kind, search):
    check_search(kind, search)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("search", ["greedy", "drawn"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_long_prompt_is_read_outside_of_the_room(kind, search, monkeypatch):
    monkeypatch.setattr(static, "SHORT", 0)
    check_search(kind, search)
    assert not any(kept.prompts for kept in Rooms.of(model(kind)).idle.values())


def check_prompts(kind: str, padded: bool) -> None:
    """Prompts of about one width are read by one graph, whoever stands in it."""
    net = model(kind)
    wanted, got = [], []
    for seed, width in enumerate((9, 5, 12, 7, 9)):
        ids, mask = tokens(3, width, seed=seed), None
        if padded:
            mask = left_padding([width, 2, width - 1], width)
        options = {"max_new_tokens": 20, "eos_token_id": None, "pad_token_id": 1000, **KEPT}
        got.append((ids, mask, generate(net, ids, mask, **options)))
    (kept,) = Rooms.of(net).idle.values()
    (prompt,) = kept.prompts.values()
    assert prompt.graph.captured.replays == 3
    for ids, mask, found in got:
        wanted.append(both(net, ids, mask, **options)[0])
        alike(wanted[-1], found)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_short_prompts_are_read_by_a_graph_too(kind, padded):
    check_prompts(kind, padded)


@pytest.mark.usefixtures("fast")
def test_an_image_begins_in_a_room_too():
    """Its head asks where the last token stands."""
    net = built("text and an image")
    text = tokens(2, 6, seed=1) % 20
    alike(*both(net, text, max_new_tokens=35, eos_token_id=None))
    assert [kept for kept in Rooms.of(net).idle.values() if kept.prompts]


FIT = ["decoder paper", "linear", "random features", "one key head", "rotary stretched",
       "seq2seq modern", "two vocabularies", "unequal depths"]  # fmt: skip


@pytest.mark.usefixtures("fast")
@pytest.mark.every(2)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", FIT)
def test_every_kind_of_layer_that_can_be_captured_says_the_same(kind, beams):
    net = built(kind)
    ids = tokens(2, 7, seed=2) % 19
    settings = {"max_new_tokens": 22, "eos_token_id": None, "decoder_start_token_id": 2}
    if "decoder" in kind or isinstance(unplain(net), DecoderStepper):
        settings.pop("decoder_start_token_id")
    alike(*both(net, ids, num_beams=beams, pad_token_id=EOS, **settings))
    assert graphs(net)


def unplain(net: Any) -> Any:
    stepper = stepper_for(net)
    return stepper.plain if isinstance(stepper, StaticStepper) else stepper


@pytest.mark.usefixtures("fast")
def test_a_sound_is_written_down_by_graphs_too():
    net = loud(SPREAD["sound to text"])
    sound = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(1)).double()
    found = []
    for way in (("cuda",), ("cpu",)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(static, "DEVICES", way)
            found.append(
                generate(net, input_features=sound, max_new_tokens=24, eos_token_id=None,
                         num_beams=2, pad_token_id=0).tolist()
            )  # fmt: skip
    assert found[0] == found[1]
    assert graphs(net)


@pytest.mark.usefixtures("fast")
def test_short_requests_go_the_plain_way():
    net = model("gpt2")
    alike(*both(net, *batch(net), max_new_tokens=static_state.WORTH, num_return_sequences=2,
                do_sample=True))  # fmt: skip
    assert not Rooms.of(net).idle


# --- rooms ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast")
@pytest.mark.every(2)
@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize("kind", ["llama", "window", "paper"])
def test_a_text_that_outgrows_its_room_goes_on_in_a_larger_one(kind, search):
    check_growing(kind, search)


def check_growing(kind: str, search: str) -> None:
    """Room is made for little more than there is, and steps reach no further than they must."""
    net = model(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_state, "SPARE", 3)
        patch.setattr(room, "_LEAST", 8)
        alike(*both(net, *batch(net), max_new_tokens=50, eos_token_id=None, **SEARCHES[search]))
    sizes = [size.room for size in Rooms.of(net).idle]
    assert len(sizes) > 1, "it has not grown"
    reached = {reach for r in Rooms.of(net).idle.values() for reach in r.graphs}
    assert len(reached) >= len(sizes)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kind", ["window", "paper"])
def test_where_memory_is_short_a_room_is_spent_for_the_larger_one(kind, monkeypatch):
    monkeypatch.setattr(static_state, "SPARE", 3)
    monkeypatch.setattr(static_state, "fits", lambda *args: False)
    monkeypatch.setattr(room, "_LEAST", 8)
    net = model(kind)
    alike(*both(net, *batch(net), max_new_tokens=50, eos_token_id=None, num_beams=2))
    assert len(Rooms.of(net).idle) == 1


def check_leaving(kind: str, search: str) -> None:
    """Rows leave one after the other, and few go on in smaller rooms."""
    net = model(kind)
    ids, mask = batch(net)
    ids, mask = ids.repeat(3, 1), mask.repeat(3, 1)
    limits = [1, 3, 19, 5, 40, 40, 2, 6, 8, 9, 30, 5, 6, 7, 2, 40, 3, 4]
    settings = {"max_new_tokens": 40, "eos_token_id": ENDS[:1], "limits": limits}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "FEW", 1)
        alike(*both(net, ids, mask, **settings, **SEARCHES[search]))
    sizes = {size.texts for size in Rooms.of(net).idle}
    assert len(sizes) > 1, "nobody has gone on in a smaller room"


@pytest.mark.usefixtures("fast")
@pytest.mark.every(2)
@pytest.mark.parametrize("search", ["greedy", "drawn", "beams"])
@pytest.mark.parametrize("kind", ["gpt2", "window", "paper"])
def test_rows_leave_and_the_others_go_on(kind, search):
    check_leaving(kind, search)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("search", ["drawn", "beams"])
def test_rows_that_leave_before_the_first_step_are_gone(search, monkeypatch):
    monkeypatch.setattr(rows, "FEW", 1)
    net = model("paper")
    limits = [1, 24, 1, 24, 1, 24]
    alike(*both(net, *batch(net), limits=limits, max_new_tokens=24, eos_token_id=ENDS[:1],
                **SEARCHES[search]))  # fmt: skip
    assert max(size.texts for size in Rooms.of(net).idle) == {"drawn": 6, "beams": 9}[search]


@pytest.mark.usefixtures("fast")
def test_the_next_call_replays_from_its_first_step_on():
    net = model("llama")
    ids, mask = batch(net)
    first = generate(net, ids, mask, max_new_tokens=20, eos_token_id=None)
    (kept,) = Rooms.of(net).idle.values()
    made, before = Recorded.made, sum(g.replays for g in graphs(net))
    assert generate(net, ids, mask, max_new_tokens=20, eos_token_id=None).equal(first)
    # another text of about that length: the same room
    generate(net, ids[:, 2:], mask[:, 2:], max_new_tokens=25, eos_token_id=None)
    assert Recorded.made == made + 1, "of the prompt, in the third call"
    assert sum(g.replays for g in graphs(net)) == before + 19 + 24
    assert [*Rooms.of(net).idle.values()] == [kept]


@pytest.mark.usefixtures("fast")
def test_rows_that_nobody_uses_have_places_too():
    check_idle()


def check_idle() -> None:
    """What the last search has left in them must not lead out of the table of positions."""
    net = model("gpt2")
    options = {"max_new_tokens": 20, "eos_token_id": None, "pad_token_id": 0}
    long, short = (tokens(n, width, seed=6) for n, width in ((16, 14), (9, 3)))
    mask = left_padding([3] * 8 + [2], 3)
    want, _ = both(net, short, mask, **options)
    generate(net, long, left_padding([1] * 15 + [14], 14), **options)
    alike(want, generate(net, short, mask, **KEPT | options))
    assert [size.rows for size in Rooms.of(net).idle] == [16]


@pytest.mark.usefixtures("fast")
def test_graphs_go_with_the_weights_that_they_were_captured_with():
    check_again()


def check_again() -> None:
    """Graphs of other weights are not replayed."""
    net = loud(replace(CONFIGS["llama"], head=LMHead(tied=False)), seed=3)
    ids, options = tokens(2, 6), {"max_new_tokens": 20, "eos_token_id": None}
    old = generate(net, ids, **options)
    assert graphs(net)
    with torch.no_grad():
        net.head.table.weight.neg_()
    want, got = both(net, ids, **options)
    alike(want, got)
    assert got.sequences.tolist() != old.tolist()
    kept = [*Rooms.of(net).idle.values()]
    net.float()
    assert not Rooms.of(net).idle
    alike_in(torch.float32, net, ids, options)
    assert kept[0] not in Rooms.of(net).idle.values()


def alike_in(dtype: torch.dtype, net: Any, ids: Tensor, options: dict[str, Any]) -> None:
    want, got = both(net, ids, **options)
    assert got.logits[0].dtype == dtype
    assert got.sequences.tolist() == want.sequences.tolist()


@pytest.mark.usefixtures("fast")
def test_a_copy_of_a_model_has_no_rooms_and_can_be_forgotten():
    net = model("gpt2")
    generate(net, tokens(2, 4), max_new_tokens=20, eos_token_id=None)
    assert Rooms.of(net).idle
    assert not Rooms.of(deepcopy(net)).idle
    assert not [name for name in net.state_dict() if "rooms" in name]
    forget(net)
    assert not Rooms.of(net).idle


@pytest.mark.usefixtures("fast")
def test_two_searches_at_once_have_rooms_of_their_own():
    net = model("gpt2")
    ids = tokens(2, 6, seed=4)
    wanted = [generate(net, x, max_new_tokens=20, eos_token_id=None) for x in (ids, ids.flip(1))]
    inside: list[Tensor] = []

    class Listener:
        def __init__(self) -> None:
            self.heard = 0

        def put(self, value: Tensor) -> None:
            self.heard += 1
            if self.heard == 9:
                inside.append(generate(net, ids.flip(1), max_new_tokens=20, eos_token_id=None))

        def end(self) -> None: ...

    got = generate(net, ids, max_new_tokens=20, eos_token_id=None, streamer=Listener())
    assert got.equal(wanted[0])
    assert inside[0].equal(wanted[1])


@pytest.mark.usefixtures("fast")
def test_no_more_rooms_are_kept_than_there_is_place_for(monkeypatch):
    monkeypatch.setattr(rooms, "MOST", 2)
    net = model("gpt2")
    for count in (1, 2, 3):
        generate(net, tokens(count, 4), max_new_tokens=20, eos_token_id=None)
    assert [size.rows for size in Rooms.of(net).idle] == [2, 3]
    monkeypatch.setattr(rooms, "_budget", lambda device: 0.0)
    generate(net, tokens(1, 4), max_new_tokens=20, eos_token_id=None)
    assert not Rooms.of(net).idle


@pytest.mark.usefixtures("fast")
def test_a_room_that_nobody_has_gives_its_memory_back_at_once():
    """Not when Python next looks for circles: that goes by objects, and a room is gigabytes."""
    net = model("gpt2")
    generate(net, tokens(2, 4), max_new_tokens=20, eos_token_id=None)
    (kept,) = [weakref.ref(each) for each in Rooms.of(net).idle.values()]
    gc.disable()
    try:
        forget(net)
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("fast")
def test_without_memory_for_a_room_the_plain_way_is_taken(monkeypatch):
    monkeypatch.setattr(static, "fits", lambda *args: False)
    net = model("paper")
    for search in ("greedy", "drawn", "beams"):
        alike(*both(net, *batch(net), max_new_tokens=20, eos_token_id=None, **SEARCHES[search]))
    assert not Rooms.of(net).idle


def test_what_a_room_takes_is_known_before_it_is_made():
    net = model("paper")
    ids, mask = batch(net)
    stepper = StaticStepper(net)
    with torch.inference_mode():
        state = stepper.open(ids, mask)
        state.ahead = 30
        stepper.prefill(ids[:, :1], state)
        cache = state.cache
        assert cache is not None
        state.length = 1
        size = stepper._size(state, cache, len(ids))
        need = rooms.bytes_of(size, cache)
        stepper.step(ids[:, :1], state)
    assert state.room is not None
    assert state.room.bytes == need
    decoder = StaticStepper(model("llama"))
    with torch.inference_mode():
        state = decoder.open(ids, None)
        state.ahead = 30
        decoder.prefill(ids, state)
    assert state.room is not None
    assert state.room.bytes == decoder._bytes(state.room.size)


def test_sizes_come_in_few_numbers():
    assert [room.rounded(n) for n in (1, 64, 65, 97, 129, 200, 1000)] == [
        64, 64, 96, 128, 192, 256, 1024
    ]  # fmt: skip
    assert [room.common(n) for n in (1, 7, 8, 9, 17, 64, 65, 130)] == [1, 7, 8, 16, 24, 64, 96, 160]


@pytest.mark.usefixtures("fast")
@pytest.mark.every(2)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", [*CONFIGS, "linear"])
def test_a_state_can_come_out_of_its_room_again(kind, beams):
    net = built(kind) if kind == "linear" else model(kind)
    ids, mask = batch(net)
    encodes = kind in ("paper", "t5")
    found = []
    for ahead in (None, 30):
        stepper = stepper_for(net)
        assert isinstance(stepper, StaticStepper)
        with torch.inference_mode():
            state = stepper.open(ids, mask)
            state.ahead = ahead
            logits = stepper.prefill(ids[:, -1:] if encodes else ids, state)
            each = torch.arange(len(ids)).repeat_interleave(beams)
            state.spread(each, beams, True)
            logits = [logits[each]]
            for step in range(9):
                if step == 4:
                    state.keep(torch.tensor([0, 2, 3, 5]), together=beams)
                if step == 6:
                    assert (state.room is not None) == (ahead is not None)
                    state.plainly()
                    assert state.cache.length == (1 if encodes else ids.shape[1]) + 6
                rows = (6 if step < 4 else 4) * beams
                if beams > 1:
                    state.move(tokens(rows // beams, beams, seed=step) % beams)
                logits.append(stepper.step(tokens(rows, 1, seed=step), state).clone())
            state.close()
        found.append(logits)
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


# --- kernels of a few rows ------------------------------------------------------------------------


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_kernels_of_few_rows_take_the_step_where_they_serve(kind, padded, monkeypatch):
    asked: list[int] = []
    plain = few_rows.FewRows.step

    def step(self, tokens, *args):
        asked.append(len(tokens))
        return plain(self, tokens, *args)

    monkeypatch.setattr(
        few_rows.FewRows, "serves", staticmethod(lambda net, dtype, rows: few_rows.fits(net, rows))
    )
    monkeypatch.setattr(few_rows.FewRows, "step", step)
    net = model(kind)
    ids, mask = batch(net)
    options = {"max_new_tokens": 22, "eos_token_id": None, "pad_token_id": 1000}
    want, got = both(net, ids, mask if padded else None, **options)
    assert got.sequences.tolist() == want.sequences.tolist()
    assert asked == [len(ids)] * 3, "twice by hand, once to be captured"
    assert graphs(net)[0].replays == 19


# --- what cannot be captured ----------------------------------------------------------------------


@pytest.mark.usefixtures("fast")
def test_what_cannot_be_captured_goes_the_plain_way_and_says_why():
    assert unfit(built("two streams")) == "the mixer LSH goes by what the host counts"
    assert unfit(built("segments")) == "SegmentMemory has no form of a fixed size"
    net = loud(KINDS["decoder modern"])
    assert unfit(net) is None
    assert unfit(net.train()) == "the model is in training mode: dropout draws anew in each step"
    layer = net.eval().decoder.layers[1].feed
    with torch.autocast("cpu"):
        assert unfit(net) == "autocast is on, which a graph would not ask again"
    hook = layer.register_forward_hook(lambda *args: None)
    assert unfit(net) == "decoder.layers.1.feed has a hook, which a graph would not call"
    hook.remove()
    layer.up.delta = lambda x, y: y
    assert (
        unfit(net) == "decoder.layers.1.feed.up has a delta, whose settings a graph would not see"
    )
    assert static_stepper(net) is None
    assert isinstance(stepper_for(net), DecoderStepper)


def test_a_cpu_has_no_graphs():
    assert unfit(model("gpt2")) == "the model is on cpu, which has no graphs"
    assert static_stepper(model("gpt2")) is None


@pytest.mark.usefixtures("fast")
def test_a_step_that_will_not_be_captured_is_taken_by_hand(monkeypatch):
    def refuses(call, pool=None):
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    monkeypatch.setitem(graph.CAPTURES, "cpu", refuses)
    net = model("gpt2")
    alike(*both(net, *batch(net), max_new_tokens=20, eos_token_id=None))
    assert unfit(net) == "operation not permitted when stream is capturing"


@pytest.mark.usefixtures("fast")
@torch.inference_mode()
def test_numbers_that_are_none_leave_nothing_behind():
    """A room whose last text was not numbers serves the next one."""
    net = model("gpt2")
    ids = tokens(2, 6, seed=4)
    want = generate(net, ids, max_new_tokens=20, eos_token_id=None)
    for kept in Rooms.of(net).idle.values():
        for layer in kept.cache.layers:
            for store in layer.own.held():
                store.fill_(float("nan"))
    assert generate(net, ids, max_new_tokens=20, eos_token_id=None).equal(want)


# --- nothing waits --------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast")
@pytest.mark.every(2)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", CONFIGS)
def test_no_step_in_a_room_waits_for_the_device(kind, beams):
    net = model(kind)
    ids, mask = batch(net)
    stepper = stepper_for(net)
    assert isinstance(stepper, StaticStepper)
    with torch.inference_mode():
        state = stepper.open(ids, mask)
        state.ahead = 30
        prompt = ids[:, :1] if kind in ("paper", "t5") else ids
        logits = stepper.prefill(prompt, state)
        if beams > 1:
            each = torch.arange(len(ids)).repeat_interleave(beams)
            state.spread(each, beams, True)
            logits = logits[each]
        token = logits.argmax(-1)
        with no_waiting():
            for _ in range(6):
                if beams > 1:
                    state.move(torch.arange(beams).flip(0).repeat(len(ids), 1))
                token = stepper.step(token[:, None], state).argmax(-1)
        state.close()


# --- on a GPU -------------------------------------------------------------------------------------

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@GPU
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_on_a_gpu_graphs_say_what_the_plain_way_says(kind, search):
    net = model.__wrapped__(kind).cuda()  # fp64: sums in another order choose no other token
    ids, mask = (x.cuda() for x in batch(net))
    found = []
    for devices in ((), static.DEVICES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(static, "DEVICES", devices)
            torch.cuda.manual_seed(3)
            options = {"max_new_tokens": 40, "eos_token_id": ENDS[:2], **SEARCHES[search]}
            found.append(generate(net, ids, mask, **KEPT | options))
    alike(*found)
    assert Rooms.of(net).refused is None
    assert graphs(net)


@GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", CONFIGS)
def test_on_a_gpu_a_call_repeated_says_the_same(kind, dtype):
    net = model.__wrapped__(kind).to("cuda", dtype)
    ids, mask = (x.cuda() for x in batch(net))
    options = {"max_new_tokens": 40, "eos_token_id": None}
    first = generate(net, ids, mask, **options)  # by hand, then captured
    assert graphs(net)
    for _ in range(3):  # the prompt is captured in the third
        assert generate(net, ids, mask, **options).equal(first)
