"""Guesses judged in memory of a fixed size, by hand and replayed: the tokens stay what they are.

On a CPU a graph is a list of operations (`tests/recorded.py`); a GPU has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch

from allformer.core.taps import listen
from allformer.generate import fixed, graph, rows
from allformer.generate.fixed import FixedStepper, quickest
from tests.recorded import Recorded
from tests.unit.test_speculative import assistant, check_same, model, say


class Noted(Recorded):
    """Counts what was replayed."""

    every: ClassVar[list[Recorded]] = []

    def __init__(self, call: Any, pool: Any = None) -> None:
        super().__init__(call, pool)
        Noted.every.append(self)


@pytest.fixture(autouse=True)
def _graphs() -> Iterator[None]:
    with graphs():
        yield


@contextmanager
def graphs() -> Iterator[None]:
    """The CPU counts as a device with graphs, for calls as short as those here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fixed.CAPTURES, "cpu", Noted)
        patch.setattr(fixed, "WORTH", 8)
        patch.setattr(fixed, "CHUNK", 5)
        Noted.every.clear()
        yield


def replays() -> int:
    return sum(each.replays for each in Noted.every)


def guess(kind: str) -> dict[str, Any]:
    own = {"assistant_model": assistant(kind), "num_assistant_tokens": 3}
    return {**own, "assistant_confidence_threshold": 0.0}


def check_replayed(kind: str, search: str) -> None:
    """One row, whose prompt has no padding; the guesser has a graph of its own."""
    long = {"eos_token_id": None, "max_new_tokens": 24}
    plain, left = say(kind, search, 3, 1, **long)
    out, mine = say(kind, search, 3, 1, **long, **guess(kind))
    assert torch.equal(out.sequences, plain.sequences)
    assert mine == left
    for a, b in zip(out.scores, plain.scores, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert out.speculation.accepted
    assert len(Noted.every) == 2
    assert all(each.replays >= 3 for each in Noted.every)


def replayed(kind: str, search: str) -> None:
    """The check outside of a test."""
    with graphs():
        check_replayed(kind, search)


@pytest.mark.every(2)
@pytest.mark.parametrize("search", ["greedy", "drawn", "processed"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "paper"])
def test_replayed_rounds_say_what_steps_say(kind, search):
    check_replayed(kind, search)


def test_ngrams_have_one_graph_whatever_they_find():
    check_same("gpt2", "greedy", 1, prompt_lookup_num_tokens=4)
    assert replays() >= 3
    assert len(Noted.every) == 1


def test_sources_of_different_length_are_served_and_padded_prompts_go_the_plain_way():
    check_same("t5", "greedy", 4, prompt_lookup_num_tokens=3)
    assert replays() >= 3
    Noted.every.clear()
    check_same("llama", "greedy", 4, prompt_lookup_num_tokens=3)
    assert not Noted.every


def test_rows_that_leave_have_another_graph(monkeypatch):
    monkeypatch.setattr(rows, "FEW", 0)
    monkeypatch.setattr(graph, "WARM", 0)
    check_same("t5", "drawn", 10, prompt_lookup_num_tokens=3)
    assert len({each.result.shape[0] for each in Noted.every}) > 1


def test_what_waits_for_the_device_goes_on_by_hand(monkeypatch):
    def refusing(call: Any, pool: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setitem(fixed.CAPTURES, "cpu", refusing)
    check_same("gpt2", "greedy", 1, prompt_lookup_num_tokens=4)


def test_who_cannot_be_served_is_not():
    net = model("gpt2")
    assert isinstance(quickest(net, 10, 20, 5), FixedStepper)
    assert not isinstance(quickest(net, 10, 8, 5), FixedStepper)  # not worth it
    assert not isinstance(quickest(net, 40, 20, 5), FixedStepper)  # 65 of 64 positions
    assert not isinstance(quickest(model("window"), 10, 20, 5), FixedStepper)  # rings
    with listen(lambda name, x: None):
        assert not isinstance(quickest(net, 10, 20, 5), FixedStepper)
    handle = net.decoder.layers[0].register_forward_hook(lambda *_: None)
    assert not isinstance(quickest(net, 10, 20, 5), FixedStepper)
    handle.remove()
    layer = net.decoder.layers[0].feed.up
    layer.delta = lambda x, y: y
    assert not isinstance(quickest(net, 10, 20, 5), FixedStepper)  # an adapter
    layer.delta = None
    assert isinstance(quickest(net, 10, 20, 5), FixedStepper)
