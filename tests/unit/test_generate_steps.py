"""Steps of decoding: nothing waits for the device, and when the host looks does not matter."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from allformer.config import Attention, LMHead, Rotary
from allformer.core.model import EncoderDecoderModel
from allformer.errors import GenerationError
from allformer.generate import beams, decode, rows, stepper
from allformer.generate.generate import generate
from allformer.generate.stepper import stepper_for
from tests.models import (
    EOS,
    KINDS,
    MODERN,
    PAD,
    decoder_only,
    left_padding,
    loud,
    restless,
    right_padding,
    tokens,
)
from tests.search import search

LENGTHS = [9, 4, 7, 1, 9, 6]
ENDS = list(range(EOS, 16))  # enough that rows end soon, and at different times
CONFIGS = {
    "gpt2": KINDS["decoder modern"],
    "llama": decoder_only(replace(MODERN, attention=Attention(4)), relative=Rotary(length=64)),
    "window": KINDS["decoder window"],
    "paper": KINDS["seq2seq paper"],
    "t5": KINDS["seq2seq buckets"],
}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"do_sample": True, "temperature": 1.5, "num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.6},
    "early": {"num_beams": 4, "early_stopping": True},
    "never": {"num_beams": 2, "early_stopping": "never"},
    "drawn beams": {"do_sample": True, "num_beams": 3, "eta_cutoff": 1e-3},
}
# Whatever else a step may have to do.
OPTIONS: dict[str, Any] = {
    "repetition_penalty": 1.1, "min_new_tokens": 2, "no_repeat_ngram_size": 3,
    "bad_words_ids": [[5], [6, 7]], "forced_eos_token_id": EOS, "renormalize_logits": True,
    "exponential_decay_length_penalty": (2, 1.01), "return_dict_in_generate": True,
    "output_scores": True, "encoder_repetition_penalty": 1.1, "encoder_no_repeat_ngram_size": 3,
    "suppress_tokens": [8], "begin_suppress_tokens": [9], "sequence_bias": {(5, 6): 1.0},
    "remove_invalid_values": True,
}  # fmt: skip
WARPS = {"top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95, "top_h": 0.9}


@cache
def model(kind: str) -> Any:
    if kind in ("paper", "t5"):
        head = LMHead(tied=False, bias=True)
        return restless(replace(CONFIGS[kind], head=head), seed=1, end=4.0)
    net = loud(replace(CONFIGS[kind], head=LMHead(tied=False)), seed=3)
    with torch.no_grad():
        net.decoder.source.embedding.weight.mul_(0.5)
    return net


def batch(net: Any) -> tuple[Tensor, Tensor]:
    side = right_padding if isinstance(net, EncoderDecoderModel) else left_padding
    mask = side(LENGTHS, max(LENGTHS))
    return tokens(len(LENGTHS), max(LENGTHS), seed=3).where(mask.bool(), PAD), mask


@contextmanager
def looking_every(steps: int, monkeypatch: pytest.MonkeyPatch):
    """As on an accelerator; gives the number of steps of each search that follows."""
    taken: list[int] = []
    plain = rows.Rows.look

    def look(self):
        parting = plain(self)
        if self.ended:
            taken.append(self.steps)
        return parting

    with monkeypatch.context() as patch:
        patch.setitem(rows.BETWEEN, "cpu", steps)
        patch.setattr(rows.Rows, "look", look)
        yield taken


# --- when the host looks -----------------------------------------------------------------------


@pytest.mark.parametrize("few", [8, 1])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", ["gpt2", "paper"])
def test_nothing_depends_on_when_the_host_looks(kind, search, few, monkeypatch):
    net = model(kind)
    monkeypatch.setattr(rows, "FEW", few)  # rows that are over leave the batch, or do not
    options = {
        "max_new_tokens": 20, "eos_token_id": ENDS, "return_dict_in_generate": True,
        "output_scores": True, "output_logits": True, **SEARCHES[search],
    }  # fmt: skip
    drawn = bool(options.get("do_sample"))

    def run(steps: int) -> tuple[Any, Tensor, int]:
        draws = torch.Generator().manual_seed(2)
        more = {"generator": draws} if drawn else {}
        with looking_every(steps, monkeypatch) as taken:
            found = generate(net, *batch(net), **options, **more)
        return found, draws.get_state(), taken[0]

    want, state, needed = run(1)
    assert len(want.scores) == needed
    assert kind != "gpt2" or needed < 20, "nothing was done too much"
    for steps in (3, 7):
        got, after, taken = run(steps)
        assert taken == min(-(-needed // steps) * steps, 20)
        assert got.sequences.tolist() == want.sequences.tolist()
        for name in ("scores", "logits"):
            assert len(getattr(got, name)) == needed
            torch.testing.assert_close(getattr(got, name), getattr(want, name))
        for name in ("sequences_scores", "beam_indices"):
            torch.testing.assert_close(getattr(got, name), getattr(want, name))
        assert torch.equal(after, state), "what is drawn next must not depend on it either"


def test_draws_of_the_global_generator_are_taken_back_too(monkeypatch):
    net, after, needed = model("gpt2"), [], 0
    for steps in (1, 7):
        with torch.random.fork_rng(), looking_every(steps, monkeypatch) as taken:
            torch.manual_seed(4)
            generate(net, *batch(net), max_new_tokens=50, eos_token_id=ENDS, do_sample=True)
            after.append(torch.get_rng_state())
        needed = needed or taken[0]
        assert taken[0] == -(-needed // steps) * steps
    assert needed % 7, "nothing was drawn too much"
    assert torch.equal(*after)


@pytest.mark.parametrize("beams", [1, 3])
def test_limits_of_the_rows_hold_however_seldom_the_host_looks(beams, monkeypatch):
    net = model("paper")
    limits = [3, 14, 5, 1, 9, 2]
    settings = {"max_new_tokens": limits, "num_beams": beams}
    want = search(net, *batch(net), **settings)
    with looking_every(5, monkeypatch):
        got = search(net, *batch(net), **settings)
    assert (got.ids, got.ended) == (want.ids, want.ended)
    assert got.scores == pytest.approx(want.scores, rel=1e-12)


def test_a_streamer_hears_each_token_at_once_and_none_too_much(monkeypatch):
    class Listener:
        def __init__(self) -> None:
            self.heard: list[list[int]] = []

        def put(self, value: Tensor) -> None:
            self.heard.append(value.tolist())

        def end(self) -> None: ...

    net, listeners = model("paper"), [Listener(), Listener()]
    for steps, listener in zip((1, 7), listeners, strict=True):
        with looking_every(steps, monkeypatch) as taken:
            generate(net, *batch(net), max_new_tokens=20, eos_token_id=ENDS, streamer=listener)
        assert len(listener.heard) == 1 + taken[0]
    assert listeners[0].heard == listeners[1].heard


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": True}])
def test_scores_that_are_not_numbers_are_found_at_the_next_look(options, monkeypatch):
    net = loud(replace(CONFIGS["gpt2"], head=LMHead(tied=False)), seed=3)
    with torch.no_grad():
        net.decoder.source.position.weight[6] = float("nan")  # read in the third step
    with looking_every(8, monkeypatch), pytest.raises(GenerationError, match=r"not numbers \(NaN"):
        generate(net, tokens(2, 4), max_new_tokens=20, eos_token_id=None, **options)


def test_what_a_row_would_say_after_its_end_cannot_stop_the_others(monkeypatch):
    """Row 1 may say nothing at all once it has ended: that is no NaN of anybody's."""
    net, (ids, mask) = model("paper"), batch(model("paper"))
    options = {"max_new_tokens": 20, "eos_token_id": ENDS, "do_sample": True, "temperature": 1.5}

    def run() -> Tensor:
        return generate(net, ids, mask, generator=torch.Generator().manual_seed(2), **options)

    monkeypatch.setattr(stepper, "FASTER", [])  # so that the model's step is asked
    want, plain = run(), net.step
    ends = [(want[1] == end).nonzero()[:1, 0] for end in ENDS]
    end = int(torch.cat(ends).min())
    assert end < want.shape[1] - 1

    def step(new, cache, *args, **kwargs):
        logits = plain(new, cache, *args, **kwargs)
        if cache.length > end:
            logits[1] = float("-inf")
        return logits

    monkeypatch.setattr(net, "step", step)
    assert run().tolist() == want.tolist()


def test_a_fill_beyond_the_vocabulary_is_written_and_never_read():
    net = model("gpt2")
    settings = {"max_new_tokens": 20, "eos_token_id": ENDS, "repetition_penalty": 1.1}
    far = generate(net, *batch(net), pad_token_id=1000, **settings)
    near = generate(net, *batch(net), pad_token_id=PAD, **settings)
    new = slice(max(LENGTHS), None)
    assert (far[:, new] == 1000).any()
    assert far[:, new].where(far[:, new] != 1000, PAD).tolist() == near[:, new].tolist()


# --- nothing waits -----------------------------------------------------------------------------


class NoWaiting(TorchDispatchMode):
    """Refuses what would have to wait for a GPU: numbers for the host, sizes that depend on them,
    and tensors made of the host's lists."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        listed = name == "lift_fresh" and args[0].ndim > 0
        assert name not in (*self.WAITS, "lift_fresh" if listed else ""), f"{func} waits"
        if name in ("index", "index_put", "index_put_"):
            kinds = [i.dtype for i in args[1] if i is not None]
            assert torch.bool not in kinds, f"{func} with a mask waits"
        return func(*args, **(kwargs or {}))


def _refused(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the host asks for numbers")


@contextmanager
def no_waiting():
    with pytest.MonkeyPatch.context() as patch, NoWaiting():
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__"):
            patch.setattr(Tensor, name, _refused)
        yield


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_step_does_not_wait_for_the_device(kind, padded):
    net = model(kind)
    ids, mask = batch(net)
    stepper = stepper_for(net)
    with torch.inference_mode():
        state = stepper.open(ids, mask if padded else None)
        prompt = ids[:, :1] if isinstance(net, EncoderDecoderModel) else ids
        token = stepper.prefill(prompt, state).argmax(-1)
        with no_waiting():
            for _ in range(4):
                state.select(torch.arange(len(ids)).flip(0), sources=False)
                token = stepper.step(token[:, None], state).argmax(-1)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_from_one_look_to_the_next_nothing_waits(kind, search, monkeypatch):
    """All that happens in a step but looking, with whatever can be asked for."""
    net, looks = model(kind), []
    options = {"max_new_tokens": 8, "eos_token_id": ENDS, **OPTIONS, **SEARCHES[search]}
    if options.get("do_sample"):
        options |= WARPS
    plain_look, plain_first = rows.Rows.look, decode.first_step
    quiet: list[Any] = []

    def begin() -> None:
        quiet.append(no_waiting())
        quiet[-1].__enter__()

    def first(*args):
        logits = plain_first(*args)
        begin()
        return logits

    def look(self):
        if self.steps % self.every and self.steps < self.longest:
            assert plain_look(self) is None
            return None
        quiet.pop().__exit__(None, None, None)
        parting = plain_look(self)
        looks.append(self.steps)
        if not self.ended:
            begin()
        return parting

    monkeypatch.setattr(stepper, "FASTER", [])  # it may look: it is on a CPU
    monkeypatch.setitem(rows.BETWEEN, "cpu", 4)
    monkeypatch.setattr(rows.Rows, "look", look)
    for module in (decode, beams):
        monkeypatch.setattr(module, "first_step", first)
    try:
        generate(net, *batch(net), **options)
    finally:
        while quiet:
            quiet.pop().__exit__(None, None, None)
    assert looks in ([4], [4, 8])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_on_a_gpu_nothing_waits_from_one_look_to_the_next(kind, search, monkeypatch):
    net = model.__wrapped__(kind).float().cuda()
    ids, mask = (x.cuda() for x in batch(net))
    options = {"max_new_tokens": 24, "eos_token_id": ENDS, **OPTIONS, **SEARCHES[search]}
    if options.get("do_sample"):
        options |= WARPS
    looks: list[int] = []
    plain_look, plain_first = rows.Rows.look, decode.first_step

    def first(*args):
        logits = plain_first(*args)
        torch.cuda.set_sync_debug_mode("error")
        return logits

    def look(self):
        due = self.steps % self.every == 0 or self.steps == self.longest
        if due:
            torch.cuda.set_sync_debug_mode("default")
            looks.append(self.steps)
        parting = plain_look(self)
        if due and not self.ended and parting is None:
            torch.cuda.set_sync_debug_mode("error")
        return parting

    monkeypatch.setattr(rows.Rows, "look", look)
    for module in (decode, beams):
        monkeypatch.setattr(module, "first_step", first)
    found = []
    try:
        for steps in (8, 1):
            monkeypatch.setitem(rows.BETWEEN, "cuda", steps)
            torch.cuda.manual_seed(3)
            found.append(generate(net, ids, mask, **options).sequences.tolist())
            torch.cuda.set_sync_debug_mode("default")
            found.append(torch.cuda.get_rng_state().tolist())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert looks[0] == 8
    assert found[:2] == found[2:]


# --- rolled back -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_cache_that_is_cut_back_goes_on_as_if_nothing_had_been(kind):
    net = model(kind)
    ids, mask = batch(net)
    ids, mask = ids[:, -3:], mask[:, -3:] | 1  # a window still has all of it
    draft, said = tokens(len(ids), 2, seed=8), tokens(len(ids), 3, seed=9)
    stepper = stepper_for(net)
    with torch.inference_mode():
        logits = []
        for goes_on in (False, True):
            state = stepper.open(ids, mask)
            stepper.prefill(ids[:, :2], state)
            if goes_on:
                stepper.step(draft, state)
                state.cache.cut(2)
            assert state.cache.length == 2
            logits.append([stepper.step(said[:, i : i + 1], state) for i in range(3)])
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)


def test_a_window_that_has_moved_on_cannot_be_cut_back():
    net = model("window")
    cache = net.new_cache()
    with torch.inference_mode():
        net.step(tokens(2, 9), cache)
    with pytest.raises(GenerationError, match="Ring cannot be taken back to 4 tokens"):
        cache.cut(4)
