"""Faster ways through Whisper's decoder give what the model itself gives."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import allformer as af
from allformer.core.int8 import Int8, Int8Few, Int8Linear, has_int8, to_int8
from allformer.core.lean import LeanCache, LeanDecoder
from allformer.core.taps import listen
from allformer.errors import ConfigError
from allformer.families import whisper
from allformer.generate import graph
from allformer.speech.captured import CapturedListener
from allformer.speech.listener import Listener
from allformer.tasks.speech_pipeline import _check_int8
from tests.recorded import Recorded

SMALL = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 64}
SMALL |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 64}
SMALL |= {"max_source_positions": 50, "max_target_positions": 40}
int8 = pytest.mark.skipif(not has_int8(), reason="this torch has no products in eight bits")


def hearer() -> Any:
    """A small Whisper with loud weights, biases included."""
    model = af.build(
        whisper.FAMILY.make({**whisper.PRESETS["whisper-tiny"], **SMALL}), seed=0
    ).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.add_(torch.randn(x.shape, generator=draw), alpha=0.3 if "bias" in name else 0.1)
    return model


@functools.cache
def shared() -> Any:
    return hearer()


class Plain(Listener):
    """The model itself, always."""

    def _find_lean(self) -> None:
        return None


def written(listener: Any, memory: torch.Tensor) -> list[torch.Tensor]:
    """Scores of a prompt, and of steps while texts multiply and change places."""
    with torch.inference_mode():
        ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
        heard = listener.begin(ids, memory, 1)
        found = [heard.at, heard.next]
        found.append(listener.step(torch.tensor([3, 4]), heard.state).clone())
        found.append(listener.step(torch.tensor([4, 2]), heard.state).clone())
        heard.state.select(torch.tensor([0, 0, 0, 1, 1, 1]))
        found.append(listener.step(torch.arange(6), heard.state).clone())
        heard.state.select(torch.tensor([2, 1, 0, 5, 3, 3]))
        found.append(listener.step(torch.arange(6), heard.state).clone())
    return found


@functools.cache
def sound() -> torch.Tensor:
    return torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(2))


def check_same(listener: Any, tolerance: float = 1e-4) -> None:
    mine = written(listener, sound())
    own = written(Plain(shared(), None), sound())  # type: ignore[arg-type]
    for a, b in zip(mine, own, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() < tolerance * b.abs().max()


def check_lean() -> None:
    listener = Listener(shared(), None)  # type: ignore[arg-type]
    with torch.inference_mode():
        state = listener.begin(torch.tensor([[1]]), sound()[:1], 0).state
    assert isinstance(state, LeanCache)
    check_same(listener)


def test_the_lean_decoder_reads_several_tokens_after_others() -> None:
    model = shared()
    with torch.inference_mode():
        lean = LeanDecoder(model)
        ids, cache = torch.tensor([[5, 6, 7, 8, 9]]), lean.new_cache()
        parts = [lean(ids[:, :2], cache, sound()[:1]), lean(ids[:, 2:], cache)]
        whole = lean(ids, lean.new_cache(), sound()[:1])
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-4)


def check_fixed() -> None:
    listener = CapturedListener(shared(), None)  # type: ignore[arg-type]
    with torch.inference_mode():  # a window before: its keys and values are written over
        heard = listener.begin(torch.tensor([[1, 2], [2, 3]]), sound().flip(0), 0)
        listener.step(torch.tensor([1, 2]), heard.state)
    del heard  # its room is free
    assert len(listener._idle[2]) == 1
    check_same(listener)
    check_same(listener)
    assert len(listener._idle[2]) == 1


def test_the_encoder_is_as_ever_behind_graphs() -> None:
    mel = torch.randn(2, 80, 100)
    one, other = (kind(shared(), None) for kind in (CapturedListener, Listener))  # type: ignore[arg-type]
    torch.testing.assert_close(one.encode(mel), other.encode(mel))
    torch.testing.assert_close(one.encode(mel + 1), other.encode(mel + 1))


def check_by_graphs() -> None:
    """Operations written down and done again stand for graphs; two states are alive at a time."""
    listener, plain = CapturedListener(shared(), None), Plain(shared(), None)  # type: ignore[arg-type]
    ids, other = torch.tensor([[1, 2], [2, 3]]), torch.tensor([[4, 2], [7, 3]])
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setitem(graph.CAPTURES, "cpu", Recorded)
        for _ in range(3):
            states = [
                [x.begin(y, sound(), 0).state for x in (listener, plain)] for y in (ids, other)
            ]
            for step in range(4):
                for mine, theirs in states:
                    said = torch.tensor([step, 5])
                    close(listener.step(said, mine), plain.step(said, theirs))
            del states, mine, theirs
        assert [len(rooms) for rooms in listener._idle.values()] == [2], "rooms are used again"
        assert all(room.step.graph.captured for room in listener._idle[2])
        check_same(listener)  # texts multiply, and the room is free for others
        assert len(listener._idle[2]) == 2
        mel = torch.randn(5, 2, 80, 100)
        for each in mel:
            close(listener.encode(each), plain.encode(each))
        assert all(each.graph.captured for each in listener._encoders.values())


def close(mine: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


def test_what_was_captured_gives_what_the_model_gives() -> None:
    check_by_graphs()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.inference_mode()
def test_graphs_of_a_gpu_give_what_the_model_gives() -> None:
    model = hearer().cuda()
    listener, plain = CapturedListener(model, None), Plain(model, None)  # type: ignore[arg-type]
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]], device="cuda")
    for window in torch.randn(4, 2, 80, 100):
        memory = listener.encode(window)
        close(memory, plain.encode(window))
        mine, theirs = (x.begin(ids, memory, 1).state for x in (listener, plain))
        for step in range(3):
            said = torch.tensor([step, 5], device="cuda")
            close(listener.step(said, mine), plain.step(said, theirs))
        for rows in ([1, 0], [0, 0, 1, 1]):
            at = torch.tensor(rows, device="cuda")
            mine.select(at)
            theirs.select(at)
            close(listener.step(at, mine), plain.step(at, theirs))
        del mine, theirs
    [room] = listener._idle[2]
    for graphs in (room.step.graph, *(each.graph for each in listener._encoders.values())):
        assert graphs.captured is not None, graphs.refused


def test_what_cannot_be_captured_is_heard_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted")

    monkeypatch.setitem(graph.CAPTURES, "cpu", refuse)
    listener = CapturedListener(shared(), None)  # type: ignore[arg-type]
    for _ in range(3):
        check_same(listener)


def test_memory_is_kept_for_a_few_sizes_alone() -> None:
    listener = CapturedListener(shared(), None)  # type: ignore[arg-type]
    with torch.inference_mode():
        for rows in (1, 2, 3, 4, 1, 5):
            ids = torch.tensor([[1, 2]] * rows)
            listener.begin(ids, sound()[:1].expand(rows, -1, -1), 0)
    assert list(listener._idle) == [3, 4, 1, 5]


def test_the_lean_decoder_gives_what_the_model_gives() -> None:
    check_lean()


def test_steps_with_a_fixed_memory_give_what_the_model_gives_window_after_window() -> None:
    check_fixed()


def test_who_learns_or_listens_gets_the_model_itself() -> None:
    model = shared()
    assert not LeanDecoder.serves(model)  # somebody may differentiate
    with torch.inference_mode():
        assert LeanDecoder.serves(model)
        with listen(lambda name, x: None):
            assert not LeanDecoder.serves(model)


@int8
@pytest.mark.parametrize("kind", [Int8, Int8Few])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_products_in_eight_bits_are_within_their_steps(kind: Any, rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(48, 64, generator=draw), torch.randn(48, generator=draw)
    x = torch.randn(rows, 64, generator=draw) * torch.logspace(-3, 3, rows)[:, None]
    exact = x @ weight.t()
    # Each of 64 addends is off by half a step of x times W, and of W times x, at most.
    most = x.abs().amax(1)[:, None] * weight.abs().amax(1) / 127
    assert ((kind(weight, bias)(x) - bias - exact).abs() < 64 * most).all()
    near = (kind(weight, None)(x) - exact).norm(dim=1) / exact.norm(dim=1)
    assert (near < 0.02).all()
    assert (kind(weight, None)(torch.zeros(rows, 64)) == 0).all()


@int8
@pytest.mark.parametrize("eight", [False, True])
def test_weights_that_change_in_place_are_heard(eight: bool) -> None:
    model = hearer()
    listener = Listener(model, None, int8=eight)  # type: ignore[arg-type]
    written(listener, sound())
    made = listener._lean
    written(listener, sound())
    assert listener._lean is made  # nothing is made twice
    with torch.no_grad():
        for name, x in model.decoder.named_parameters():
            if "attention" in name:
                x.mul_(0.5)
    for a, b in zip(written(listener, sound()), written(Plain(model, None), sound()), strict=True):  # type: ignore[arg-type]
        assert (a - b).abs().max() < (0.1 if eight else 1e-4) * b.abs().max()


@int8
def test_eight_bits_hear_nearly_the_same() -> None:
    model = hearer()
    mel = torch.randn(1, 80, 100, generator=torch.Generator().manual_seed(3))
    before = Listener(model, None).encode(mel)  # type: ignore[arg-type]
    to_int8(model.encoder)
    assert any(isinstance(part, Int8Linear) for part in model.encoder.modules())
    after = Listener(model, None).encode(mel)  # type: ignore[arg-type]
    assert (after - before).norm() / before.norm() < 0.05
    check_same(Listener(shared(), None, int8=True), 0.1)  # type: ignore[arg-type]


def test_eight_bits_are_refused_on_a_gpu() -> None:
    with pytest.raises(ConfigError, match="is for a CPU"):
        _check_int8("int8", torch.device("cuda"))
    with pytest.raises(ConfigError, match="'int4' is not known"):
        _check_int8("int4", torch.device("cpu"))
