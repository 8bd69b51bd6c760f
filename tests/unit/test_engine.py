"""An engine: requests that share every step say what each says alone."""

from __future__ import annotations

import gc
import re
import time
import weakref
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from allformer.config import Attention, DynamicScaling, LMHead, Rotary
from allformer.core.kernels import ragged
from allformer.core.kernels.kernel import Case
from allformer.core.kernels.ragged import RaggedFlash
from allformer.core.lean import native
from allformer.core.lean.native import find_few
from allformer.core.taps import listen
from allformer.errors import ConfigError, GenerationError, LengthError
from allformer.generate import engine as engine_room
from allformer.generate import graph
from allformer.generate.engine import Engine
from allformer.generate.fixed_steps import FixedSteps
from allformer.generate.line import Line
from allformer.generate.reader import Reader
from tests.engines import Ask, Heard, ask, check_alone, check_empty, writer
from tests.models import MODERN, SPREAD, decoder_only, loud, seq2seq

KINDS = ["decoder paper", "decoder modern", "decoder window", "rotary", "one key head",
         "seq2seq paper", "seq2seq modern", "seq2seq buckets", "two vocabularies"]  # fmt: skip
PLAIN = "decoder modern"


def small(kind: str = PLAIN, **changes: Any) -> Engine:
    return Engine(writer(kind), **({"pages": 40, "page": 4, "chunk": 6} | changes))


def mixed(model: Any) -> list[Ask]:
    """Prompts of several lengths, some that begin alike, some whose tokens are drawn."""
    first = ask(model, 9, 50).ids
    same = [ask(model, 3, i)._replace(ids=first + ask(model, i, i).ids) for i in (1, 4)]
    drawn = [ask(model, 5, 8, draw=3, do_sample=True, top_k=9, max_new_tokens=9)]
    return [ask(model, 1, 5), *same, ask(model, 14, 7, max_new_tokens=3), *drawn, ask(model, 4, 9)]


# --- what comes out -------------------------------------------------------------------------------


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_each_says_what_it_says_alone(kind: str, lean: bool) -> None:
    check_mixed(kind, lean)


def check_mixed(kind: str = PLAIN, lean: bool = False) -> None:
    """By the decoder as it runs on a CPU (`core/lean`), or by the model itself."""
    model, engine = writer(kind), small(kind, chunk=20 if lean else 6)
    if not lean:
        engine.reader.lean = None
    elif engine.reader.lean is None:
        pytest.skip("this one does not run lean")
    more = [ask(model, 37, 6)] if lean else []  # whose later pieces are read together too
    check_alone(model, [*more, *mixed(model)], engine)


@pytest.mark.skipif(find_few() is None, reason="there is no compiler here")
@pytest.mark.parametrize("kind", ["decoder", "seq2seq"])
def test_compiled_kernels_say_the_same(kind: str) -> None:
    check_compiled(kind)


def check_compiled(kind: str = "decoder") -> None:
    """Pages are read where they lie, and prompts in pieces that are longer than a few tokens."""
    block = replace(MODERN, attention=Attention(4, kv_heads=2, head_dim=16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LARGE", 0)
        if kind == "decoder":
            tree: Any = decoder_only(block, dim=64, position=None, relative=Rotary())
        else:
            tree = seq2seq(replace(block, norm_at="post"), dim=64)
        model = loud(replace(tree, head=LMHead(tied=False)), 1).float()
        engine = Engine(model, pages=60, page=4, chunk=20)
        lean: Any = engine.reader.lean
        assert all(layer.few is not None for layer in lean.layers)
        long = [ask(model, 33, 2), ask(model, 21, 3), ask(model, 9, 4)]
        check_alone(model, [*mixed(model), *long], engine, rtol=1e-4, atol=1e-3)


def test_who_listens_is_shown_the_model_itself() -> None:
    engine, heard = small(), []
    engine.add([5, 6, 7], max_new_tokens=2).result()
    with listen(lambda name, x: heard.append(name)):
        engine.add([5, 6, 7], max_new_tokens=2).result()
    assert "decoder.0.attention.weights" in heard


@pytest.mark.parametrize("kind", [PLAIN, "rotary", "seq2seq paper"])
def test_steps_of_fixed_shapes_say_the_same(kind: str) -> None:
    check_fixed(kind)


def check_fixed(kind: str = PLAIN) -> None:
    model, engine = writer(kind), small(kind)
    across = kind.startswith("seq2seq")
    engine.reader.steps = FixedSteps(engine.reader.call, model.device, across, capture=False)
    check_alone(model, [*mixed(model), *mixed(model)], engine)


@pytest.mark.parametrize("kind", [PLAIN, "rotary", "seq2seq paper"])
def test_steps_that_are_replayed_say_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations written down and done again stand for a graph: nothing depends on the host."""
    recorded = pytest.importorskip("tests.recorded", reason="nothing here records operations")
    monkeypatch.setitem(graph.CAPTURES, "cpu", recorded.Recorded)
    model, engine = writer(kind), small(kind, pages=100)
    across = kind.startswith("seq2seq")
    steps = FixedSteps(engine.reader.call, model.device, across, capture=True)
    engine.reader.steps = steps
    check_alone(model, [*mixed(model), *mixed(model)], engine)
    assert any(each.captured is not None for each in steps._graphs.values())
    assert steps.refused is None


@pytest.mark.parametrize("kind", [PLAIN, "seq2seq paper"])
def test_an_engine_that_is_warm_captures_nothing_more(kind: str, monkeypatch) -> None:
    recorded = pytest.importorskip("tests.recorded", reason="nothing here records operations")
    monkeypatch.setitem(graph.CAPTURES, "cpu", recorded.Recorded)
    model, engine = writer(kind), small(kind, pages=100, rows=6)
    across = kind.startswith("seq2seq")
    engine.reader.steps = FixedSteps(engine.reader.call, model.device, across, capture=True)
    free = engine.free
    engine.warm_up()
    made = recorded.Recorded.made
    assert engine.free == free
    assert {shape.rows for shape in engine.reader.steps._graphs} == {1, 2, 4, 8}
    assert all(each.captured is not None for each in engine.reader.steps._graphs.values())
    check_alone(model, [*mixed(model), *mixed(model)], engine)
    assert recorded.Recorded.made == made


def test_where_nothing_is_captured_there_is_nothing_to_warm_up() -> None:
    engine = small()
    engine.warm_up()
    check_alone(engine.model, mixed(engine.model), engine)


@pytest.mark.parametrize("kind", [PLAIN, "rotary", "one key head", "decoder window"])
def test_prompts_are_read_end_to_end(kind: str) -> None:
    check_end_to_end(kind)


def check_end_to_end(kind: str = PLAIN) -> None:
    """By flash attention on a GPU; here by its formula, row by row. Layers with a window take the
    grid."""
    read: set[tuple[int, int]] = set()

    def by_rows(self: Any, q: Any, k: Any, v: Any, plan: Any, scale: float, dropout: float) -> Any:
        assert plan.causal
        new, all_of_it = (x.starts.diff().tolist() for x in (plan.query, plan.key))
        assert (len(q), len(k)) == (sum(new), sum(all_of_it))
        assert max(all_of_it) == plan.key.total
        read.update(zip(new, all_of_it, strict=True))
        said = []
        for one, *both in zip(q.split(new), k.split(all_of_it), v.split(all_of_it), strict=True):
            row = [x.transpose(0, 1)[None] for x in (one, *both)]
            shape = one.shape[0], both[0].shape[0]
            look = torch.ones(shape, dtype=torch.bool).tril(shape[1] - shape[0])  # ends together
            said.append(
                torch.nn.functional.scaled_dot_product_attention(
                    *row, attn_mask=look, scale=scale, enable_gqa=True
                )[0].transpose(0, 1)
            )
        return torch.cat(said)

    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(RaggedFlash, "fits", lambda self, case: case.packed and case.full)
        patcher.setattr(RaggedFlash, "resumes", lambda self, case: True)
        patcher.setattr(RaggedFlash, "__call__", by_rows)
        model, engine = writer(kind), small(kind)
        engine.reader.lean = None
        check_alone(model, [*mixed(model), *mixed(model)], engine)
    assert any(new == every > 1 for new, every in read), "prompts that begin"
    assert any(1 < new < every for new, every in read), "the rest of prompts"


@pytest.mark.parametrize("ends", [True, False])
def test_which_end_causal_rows_share_is_asked_of_the_kernel(ends: bool, monkeypatch) -> None:
    def flash(
        q: Any, k: Any, v: Any, sizes: Any, dropout: float, causal: bool, scale: float
    ) -> Any:
        assert causal
        look = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q) if ends else 0)
        row = (x.transpose(0, 1)[None] for x in (q, k, v))
        said = torch.nn.functional.scaled_dot_product_attention(*row, look, scale=scale)
        return said[0].transpose(0, 1)

    monkeypatch.setattr(ragged, "_flash", flash)
    ragged._ends_together.cache_clear()
    case = Case("fast", torch.device("cpu"), torch.float32, 64, packed=True)
    assert RaggedFlash().resumes(case) == ends
    ragged._ends_together.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.inference_mode()
def test_on_a_gpu_prompts_in_pieces_are_read_as_in_one() -> None:
    model = deepcopy(writer("rotary")).to("cuda", torch.bfloat16)
    case = Case("fast", model.device, torch.bfloat16, 64, packed=True)
    assert RaggedFlash().resumes(case)
    draw = torch.Generator().manual_seed(0)
    vocab = model.config.decoder.source.vocab
    ids = [torch.randint(vocab, (n,), generator=draw).tolist() for n in (40, 7)]
    pages, found = [list(range(1, 11)), [11, 12]], []
    for cuts in ([40, 7], [13, 5]):
        reader = Reader(model, pages=20, size=4)
        begin = [Line(x[:n], 0, p) for x, n, p in zip(ids, cuts, pages, strict=True)]
        logits = reader.read(begin)
        rest = [Line(x[n:], n, p) for x, n, p in zip(ids, cuts, pages, strict=True) if n < len(x)]
        found.append(reader.read(rest) if rest else logits)
    torch.testing.assert_close(*found, rtol=0.05, atol=0.05 * float(found[0].abs().max()))


def test_an_engine_that_nobody_has_gives_its_memory_back_at_once(monkeypatch) -> None:
    monkeypatch.setattr(Reader, "_captures", lambda self: True)
    engine = small(PLAIN)
    engine.add([5, 6, 7], max_new_tokens=4).result()
    cache = weakref.ref(engine.reader.cache)
    gc.disable()
    try:
        del engine
        assert cache() is None
    finally:
        gc.enable()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_of_a_gpu_say_what_steps_by_hand_say() -> None:
    model = deepcopy(writer("rotary")).to("cuda", torch.bfloat16)
    said = []
    for capture in (True, False):
        engine = Engine(model, pages=200, page=16)
        if engine.reader.steps is None:
            pytest.skip("no kernel reads pages here")
        engine.reader.steps.capture = capture
        replies = [engine.add(list(range(5, 9 + i)), max_new_tokens=20) for i in range(5)]
        said.append([reply.result().tolist() for reply in replies])
        graphs = engine.reader.steps._graphs.values()
        assert engine.reader.steps.refused is None
        assert any(each.captured is not None for each in graphs) == capture
    assert said[0] == said[1]


def test_what_cannot_be_captured_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(call: Any, pool: Any) -> None:
        raise RuntimeError("operation not permitted")

    monkeypatch.setitem(graph.CAPTURES, "cpu", refuse)
    model, engine = writer(PLAIN), small(pages=100)
    engine.reader.steps = FixedSteps(engine.reader.call, model.device, False, capture=True)
    check_alone(model, mixed(model), engine)
    assert engine.reader.steps.refused == "operation not permitted"


OPTIONS: dict[str, dict[str, Any]] = {
    "end": {"eos_token_id": (3, 9, 20, 22), "max_new_tokens": 20},
    "least": {"eos_token_id": (3, 9, 20, 22), "min_new_tokens": 5, "max_new_tokens": 20},
    "penalty": {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
    "words": {"bad_words_ids": [[29, 20], [28]], "sequence_bias": {(5,): 3.0}},
    "bold": {"do_sample": True, "temperature": 1.5, "top_p": 0.8, "top_k": 0},
    "bold too": {"do_sample": True, "temperature": 1.5, "top_p": 0.8, "top_k": 0},
    "less bold": {"do_sample": True, "temperature": 0.5, "top_p": 0.8, "top_k": 0},
    "renormalised": {"do_sample": True, "min_p": 0.05, "renormalize_logits": True},
    "held": {"do_sample": True, "typical_p": 0.7, "suppress_tokens": [4, 5, 6]},
    "plain": {},
}


def test_each_has_its_own_options() -> None:
    check_options()


def check_options() -> None:
    model, engine = writer(PLAIN), small(pages=100)
    asked = [
        ask(model, 5, i, draw=i if x.get("do_sample") else None, **x)
        for i, x in enumerate(OPTIONS.values())
    ]
    replies = [x.put(engine) for x in asked]
    engine.run()
    for x, reply in zip(asked, replies, strict=True):
        assert torch.equal(reply.result(), x.alone(model))
    assert len({len(reply.new) for reply in replies}) > 1  # some have ended by themselves


def test_tokens_come_as_they_are_made() -> None:
    model, engine = writer(PLAIN), small()
    one, two = ask(model, 4, 1), ask(model, 5, 2, max_new_tokens=3)
    first, second = one.put(engine), two.put(engine)
    said = []
    for token in first:
        said.append(token)
        assert first.new == said
    assert second.done  # it went on meanwhile
    assert repr(second) == "<Reply 1: done, 3 of 3 tokens>"
    third = two.put(engine)
    assert [token for reply, token in engine.stream() if reply is third] == second.new == third.new
    assert second.result()[0].tolist() == [*two.ids, *second.new]


def test_prompts_are_one_row_of_any_kind() -> None:
    engine = small()
    rows = ([5, 6, 7], torch.tensor([5, 6, 7]), torch.tensor([[5, 6, 7]]), (5, 6, 7))
    replies = [engine.add(row, max_new_tokens=3) for row in rows]
    engine.run()
    assert len({tuple(reply.ids) for reply in replies}) == 1
    begun = engine.add([], max_new_tokens=1)  # as generate: from the model's first token
    assert begun.result()[0, 0] == writer(PLAIN).config.decoder.source.bos_id


def test_a_request_has_only_so_much_time() -> None:
    engine = small()
    late, other = (
        engine.add([5], max_new_tokens=50, max_time=t, eos_token_id=None) for t in (1e-9, None)
    )
    time.sleep(0.001)
    engine.run()
    assert len(late.new) == 1
    assert len(other.new) == 50


# --- who waits for whom ---------------------------------------------------------------------------


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    model, engine = writer(PLAIN), small(pages=60)
    short = ask(model, 3, 1, max_new_tokens=30).put(engine)
    engine.step()
    long = ask(model, 40, 2).put(engine)
    for _ in range(40 // engine.chunk):
        before = len(short.new)
        engine.step()
        assert len(short.new) == before + 1
        assert not long.new
    engine.step()
    assert long.new


def test_prompts_are_read_in_chunks_that_say_the_same() -> None:
    model = writer(PLAIN)
    for chunk in (1, 3, 64):
        check_alone(model, [ask(model, 17, 1), ask(model, 11, 2)], small(chunk=chunk))


def test_no_more_run_than_rows() -> None:
    model, engine = writer(PLAIN), small(rows=2)
    replies = [ask(model, 3, i).put(engine) for i in range(5)]
    while not engine.idle:
        engine.step()
        assert len(engine.running) <= 2
    assert all(len(reply.new) == 7 for reply in replies)


def test_who_came_last_makes_room_and_loses_nothing() -> None:
    check_preempted()


def check_preempted(kind: str = PLAIN) -> None:
    model, engine = writer(kind), small(kind, pages=9)
    asked = [ask(model, 6, i, max_new_tokens=14) for i in range(3)]
    asked.append(ask(model, 6, 9, draw=1, do_sample=True, max_new_tokens=14))
    check_alone(model, asked, engine)
    assert engine.preempted


def test_the_oldest_goes_on_whatever_comes() -> None:
    model, engine = writer(PLAIN), small(pages=8)
    replies = [ask(model, 6, i, max_new_tokens=14).put(engine) for i in range(4)]
    ends = []
    while not engine.idle:
        engine.step()
        ends += [i for i, x in enumerate(replies) if x.done and i not in ends]
    assert ends == [0, 1, 2, 3]


def test_a_stream_says_nothing_of_the_cancelled() -> None:
    model, engine = writer(PLAIN), small()
    first, second = ask(model, 4, 1).put(engine), ask(model, 4, 2).put(engine)
    heard = []
    for reply, _ in engine.stream():
        heard.append(reply)
        second.cancel()  # its token of this step is made already
    assert second not in heard
    assert len(heard) == len(first.new)
    check_empty(engine)


def test_cancelling_frees_pages_at_once() -> None:
    check_cancelled()


def check_cancelled(kind: str = PLAIN) -> None:
    model, engine = writer(kind), small(kind)
    kept, dropped, waiting = (ask(model, 9, i, max_new_tokens=9) for i in range(3))
    engine.rows = 2
    one, two, three = (x.put(engine) for x in (kept, dropped, waiting))
    engine.step()
    engine.step()
    before = engine.free
    two.cancel()
    three.cancel()
    assert engine.free == before + len(range(0, 9 + len(two.new), 4))
    assert two.done
    assert two.cancelled
    assert [repr(x).split()[2] for x in (one, two)] == ["running,", "cancelled,"]
    assert list(three) == []  # it says no more, and is no error
    assert torch.equal(one.result(), kept.alone(model))
    assert torch.equal(two.result(), dropped.alone(model)[:, : two.result().shape[1]])
    one.cancel()  # too late: it stays as it is
    assert not one.cancelled
    with pytest.raises(ConfigError, match="another engine's"):
        small(kind).cancel(one)
    check_empty(engine)


# --- beginnings that are shared -------------------------------------------------------------------


def run(engine: Engine) -> None:
    """As `engine.run`, but not for ever."""
    for _ in range(100):
        engine.step()
    assert engine.idle


def test_a_beginning_is_read_once() -> None:
    check_shared()


def check_shared(kind: str = PLAIN) -> None:
    model, engine = writer(kind), small(kind, chunk=100)
    first = ask(model, 17, 1)
    more = first._replace(ids=(*first.ids, 7, 8))
    other = first._replace(ids=(*first.ids[:9], 9, *first.ids[10:]))
    one = first.put(engine)
    engine.step()
    two, three = more.put(engine), other.put(engine)  # while the first runs
    run(engine)
    assert engine.reused == 16 + 8  # whole pages of four
    four = first.put(engine)  # after it has gone; the last token is always read
    run(engine)
    assert engine.reused == 24 + 16
    whole = first._replace(ids=first.ids[:16])
    five = whole.put(engine)
    run(engine)
    assert engine.reused == 40 + 12
    for x, reply in ((first, one), (more, two), (other, three), (first, four), (whole, five)):
        assert torch.equal(reply.result(), x.alone(model))
    check_empty(engine)


def test_beginnings_behind_other_sources_are_not_shared() -> None:
    check_shared_across()


def check_shared_across() -> None:
    model, engine = writer("seq2seq modern"), small("seq2seq modern")
    begin = {"decoder_input_ids": [[2, 7, 8, 9, 10, 11, 12]]}
    for seed in (1, 2):
        x = ask(model, 6, seed)
        reply = x.put(engine, **begin)
        hers = x.alone(model, decoder_input_ids=torch.tensor(begin["decoder_input_ids"]))
        assert torch.equal(reply.result(), hers)
    assert engine.reused == 0
    assert torch.equal(x.put(engine, **begin).result(), hers)
    assert engine.reused == 4


def test_what_was_said_is_shared_too() -> None:
    check_said()


def check_said() -> None:
    model, engine = writer(PLAIN), small()
    first = ask(model, 6, 1, max_new_tokens=8)
    said = first.put(engine).result()[0].tolist()
    again = ask(model, 1)._replace(ids=(*said, 5, 6))
    assert torch.equal(again.put(engine).result(), again.alone(model))
    assert engine.reused == 12  # 13 of the 14 tokens were read: the last was said


def test_old_beginnings_make_room() -> None:
    model, engine = writer(PLAIN), small(pages=8)
    asked = [ask(model, 13, i) for i in range(4)]
    for x in [*asked, asked[0]]:
        assert torch.equal(x.put(engine).result(), x.alone(model))
    assert engine.reused == 0
    check_empty(engine)


def test_a_source_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = writer("seq2seq modern"), small("seq2seq modern")
    encoded: list[Any] = []
    encode = engine.reader.encode
    monkeypatch.setattr(
        engine.reader, "encode", lambda ids, pages: (encoded.extend(ids), encode(ids, pages))
    )
    first, other = ask(model, 10, 1), ask(model, 6, 2)
    for x in (first, other, first):
        assert torch.equal(x.put(engine).result(), x.alone(model))
    assert encoded == [first.ids, other.ids]


# --- one bad request never hurts another ----------------------------------------------------------


def test_an_error_is_its_own_requests() -> None:
    def fails(ids: Any, scores: Any, rows: Any) -> Any:
        if ids.shape[1] > 5:
            raise KeyError("mine")
        return scores

    model, engine = writer(PLAIN), small()
    good = ask(model, 4, 1)
    bad = ask(model, 4, 2).put(engine, processors=[fails])
    wide = ask(model, 4, 3).put(engine, processors=[lambda i, s, r: torch.cat([s, s], 1)])
    fine = good.put(engine)
    engine.run()
    assert torch.equal(fine.result(), good.alone(model))
    assert len(bad.new) == 2  # what it said before stands
    with pytest.raises(KeyError, match="mine"):
        bad.result()
    with pytest.raises(ConfigError, match="a processor made scores"):
        list(wide)
    check_empty(engine)


@pytest.mark.parametrize("kind", [PLAIN, "seq2seq modern"])
@pytest.mark.parametrize("where", ["encode", "read", "step", "pick"])
def test_a_step_that_is_broken_off_loses_no_request(
    kind: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, engine = writer(kind), small(kind)
    room, name = (engine_room, "pick") if where == "pick" else (engine.reader, where)
    asked, usual, calls = mixed(model), getattr(room, name), []

    def breaks(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return usual(*given)

    monkeypatch.setattr(room, name, breaks)
    replies = [x.put(engine) for x in asked[:-1]]
    for _ in range(4):
        try:
            engine.step()
        except KeyboardInterrupt:
            assert not engine.running
            assert engine.free == engine.pool.pages
    replies.append(asked[-1].put(engine))
    for _ in range(200):  # who is forgotten would be waited for without end
        with suppress(KeyboardInterrupt):
            engine.step()
    assert engine.idle
    for each, reply in zip(asked, replies, strict=True):
        if each.seed is None:  # of what is drawn, dice were thrown for nothing
            assert torch.equal(reply.result(), each.alone(model))
    check_empty(engine)


def test_a_step_inside_a_step_is_refused() -> None:
    model, engine = writer(PLAIN), small()
    good = ask(model, 4, 1)
    fine = good.put(engine)
    bad = ask(model, 4, 2).put(engine, processors=[lambda i, s, r: fine.result() and s])
    engine.run()
    assert torch.equal(fine.result(), good.alone(model))
    with pytest.raises(ConfigError, match="inside a step"):
        bad.result()


def test_numbers_that_are_none_stay_with_their_request() -> None:
    check_nan()


def check_nan(kind: str = PLAIN) -> None:
    model = deepcopy(writer(kind))
    with torch.no_grad():
        model.decoder.source.embedding.weight[11] = float("nan")
    engine = Engine(model, pages=12, page=4, chunk=100)
    good = ask(model, 6, 1)._replace(ids=(5, 6, 7, 8, 9, 10))
    bad = good._replace(ids=(5, 11, 7, 8, 9, 10))
    for _ in range(3):  # pages change hands, with what stands in them
        one, two, three = good.put(engine), bad.put(engine), good.put(engine)
        engine.run()
        with pytest.raises(GenerationError, match="not numbers"):
            two.result()
        assert torch.equal(one.result(), good.alone(model))
        assert torch.equal(three.result(), one.result())


REFUSALS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "too long": (list(range(5, 35)), {"max_new_tokens": 60}, LengthError, "but the model has 64"),
    "too large": ([5] * 30, {"max_new_tokens": 30}, ConfigError, "15 pages of 4 tokens.*pages=12"),
    "no such id": ([5, 99], {}, ConfigError, "input_ids has 5 … 99"),
    "a dictionary": ([5], {"generation": {"top_k": 3}}, ConfigError, "from_dict\\(generation\\)"),
    "a lone function": ([5], {"processors": print}, ConfigError, "list of functions"),
    "no generator": ([5], {"generator": 5}, ConfigError, "generator=5 must be"),
    "two rows": ([[5], [6]], {}, ConfigError, "one row"),
    "fractions": ([0.5], {}, ConfigError, "whole numbers"),
    "a text": ("abc", {}, ConfigError, "whole numbers"),
    "beams": ([5], {"num_beams": 2}, ConfigError, "num_beams=2"),
    "several": ([5], {"num_return_sequences": 2, "do_sample": True}, ConfigError, "so many times"),
    "strings": ([5], {"stop_strings": "a"}, ConfigError, "cancel the request"),
    "scores": ([5], {"output_scores": True}, ConfigError, "output_scores"),
    "one guess": ([5], {"prompt_lookup_num_tokens": 1}, ConfigError, "the tokens are the same"),
    "no cache": ([5], {"use_cache": False}, ConfigError, "use_cache"),
    "a form": ([5], {"structured": "a"}, ConfigError, "not take structured; give processors="),
    "a prefix": ([5], {"prefix": None}, ConfigError, "not take prefix; leave it out"),
    "eight bits": ([5], {"cache": "int8"}, ConfigError, "not take cache; leave it out, or call"),
    "a dtype": ([5], {"dtype": None}, ConfigError, "not take dtype; say it to all"),
    "a mask": ([5], {"attention_mask": 1}, ConfigError, "attention_mask; give ids without padding"),
    "a wrong config": ([5], {"generation_config": 5}, ConfigError, "must be allformer's"),
    "unknown": ([5], {"max_tokens": 5}, ConfigError, "no option 'max_tokens'"),
    "hot": ([5], {"temperature": -1.0}, ConfigError, "temperature"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_work_is_refused_and_the_engine_goes_on(name: str) -> None:
    ids, options, error, says = REFUSALS[name]
    model, engine = writer(PLAIN), small(pages=12)
    good = ask(model, 4, 1)
    reply = good.put(engine)
    engine.step()
    with pytest.raises(error, match=says):
        engine.add(ids, **{"max_new_tokens": 3, **options})
    assert torch.equal(reply.result(), good.alone(model))
    check_empty(engine)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"memory": "8GB"}, "memory='8GB' must be a whole number"),
        ({"pages": 2.5}, "pages=2.5 must be a whole number"),
        ({"rows": 0}, "rows=0 must be at least 1"),
        ({"dtype": torch.int8}, "dtype=torch.int8 cannot be computed in"),
        ({"dtype": "bf16"}, "dtype='bf16' cannot be computed in"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Engine(writer(PLAIN), **given)


def test_a_source_that_needs_too_many_pages_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"a source of 60 tokens, a prompt of 1 tokens .* 16 pages"
    ):
        small("seq2seq modern", pages=10).add([5] * 60, max_new_tokens=3)


def test_a_source_that_is_too_long_is_refused() -> None:
    with pytest.raises(LengthError, match="a source of 65 tokens, but the encoder has 64"):
        small("seq2seq modern").add([5] * 65, max_new_tokens=3, decoder_start_token_id=2)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("linear", "Features"),
        ("segments", "SegmentMemory"),
        ("two streams", "LSH"),
        ("sound to text", "source is Sound"),
        ("text and an image", "JoinedHead"),
        ("encoder paper", "no decoder"),
    ],
)
def test_models_that_pages_do_not_serve_are_refused(kind: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Engine(loud(SPREAD[kind]), pages=10)  # type: ignore[arg-type]


def test_angles_that_go_by_the_longest_text_of_a_call_are_refused() -> None:
    tree: Any = SPREAD["rotary squeezed"]
    turned = replace(tree.decoder, relative=Rotary(99.0, DynamicScaling(2.0, 8)))
    with pytest.raises(ConfigError, match="with DynamicScaling the longest text"):
        Engine(loud(replace(tree, decoder=turned)), pages=10)


def test_memory_is_counted_in_pages() -> None:
    model = writer(PLAIN)
    token = 2 * 2 * 2 * 5 * 8  # layers, keys and values, heads, sizes, bytes
    engine = Engine(model, memory=100 * 4 * token, page=4)
    assert engine.free == 99  # one is nobody's
    engine.add([5], max_new_tokens=1).result()
    stores = engine.reader.cache.stores
    assert sum(2 * store._keys.nbytes for store in stores) == 100 * 4 * token  # type: ignore[union-attr]
    for wrong in ({"memory": 10}, {"pages": 0}, {"pages": 5, "memory": 10**6}, {"chunk": 0}):
        with pytest.raises(ConfigError, match="Engine"):
            Engine(model, **wrong)  # type: ignore[arg-type]


def test_scores_are_shown_once_for_each_token() -> None:
    model, engine = writer(PLAIN), small(pages=9)
    ears = [Heard() for _ in range(4)]
    for i, ear in enumerate(ears):
        ask(model, 6, i, max_new_tokens=14).put(engine, processors=[ear])
    engine.run()
    assert engine.preempted
    assert [len(ear.scores) for ear in ears] == [14] * 4


@pytest.mark.parametrize("page", ["generation.md", "generation.zh-CN.md"])
def test_the_example_of_the_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    (code,) = (x for x in re.findall(r"```python\n(.*?)```", text, re.S) if "af.Engine(" in x)
    build = 'af.build(af.preset("gpt2"), seed=0)'
    assert build in code  # another takes less time
    names: dict[str, Any] = {"small": writer(PLAIN)}
    exec(compile(code.replace(build, "small").replace("1 << 30", "1 << 20"), page, "exec"), names)
    said = capsys.readouterr().out
    assert len(names["one"].new) <= 20
    assert str(names["one"].result()) in said
