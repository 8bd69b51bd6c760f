"""A step replayed as one CUDA graph is the plain step: new batches, rates, dropout each time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import pytest
import torch

from allformer.config import Attention, Block, EncoderDecoder, Feed
from allformer.core.graph import Captured
from allformer.core.model import EncoderDecoderModel, build
from allformer.train.batch import Frame, moved
from allformer.train.objectives.seq2seq import PairBatch
from allformer.train.optim import AdamW
from allformer.train.step import Stepper, StepSettings
from tests.models import seq2seq
from tests.unit.test_step import PAIRS, SEQ2SEQ

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FRAME = Frame(tokens=64, sentences=8, width=12)
# More than the plain steps before the capture, so that most are replays.
STEPS = [(0, 1), (2, 3, 4), (5,), (6, 7, 8, 9), (10, 11), (12, 13, 14), (15, 16), (17,), (18, 19)]


def tiny(dropout: float = 0.0) -> EncoderDecoder:
    """Heads of 8, as the ragged flash kernel needs them."""
    attention = Attention(3, head_dim=8, dropout=dropout)
    return seq2seq(Block(attention, Feed(40, act="gelu", dropout=dropout), dropout=dropout))


def stepper(config: EncoderDecoder, precision: str, compile: bool) -> Stepper:
    model = build(config, device="cuda", seed=0)
    assert isinstance(model, EncoderDecoderModel)
    settings = StepSettings(optim=AdamW(eps=1e-6), precision=precision, compile=compile)
    return Stepper(model.train(), SEQ2SEQ, settings)


def batch(index: tuple[int, ...]) -> PairBatch:
    return moved(SEQ2SEQ.collate(PAIRS, np.array(index), FRAME), "cuda")


@pytest.fixture(autouse=True)
def _capture_or_fail() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no CUDA graph")
        yield


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_are_the_compiled_steps(precision):
    replayed, plain = stepper(tiny(), precision, True), stepper(tiny(), precision, True)
    plain._can_replay = lambda batches: False
    for number, index in enumerate(STEPS, 1):
        mine, hers = (s([batch(index)], 3e-3 / number) for s in (replayed, plain))
        assert mine.tokens == hers.tokens
        for name in ("loss", "nlls", "norm"):
            a, b = float(getattr(mine, name).sum()), float(getattr(hers, name).sum())
            assert a == pytest.approx(b, rel=1e-3), (name, number)
    (graph,) = replayed._graphs.values()
    assert graph.captured is not None, "the last steps must be replays"


@pytest.mark.parametrize(("precision", "off"), [("fp32", 1e-4), ("bf16", 0.03)])
def test_compiled_steps_are_the_plain_steps(precision, off):
    compiled, plain = stepper(tiny(), precision, True), stepper(tiny(), precision, False)
    for number, index in enumerate(STEPS, 1):
        mine, hers = (s([batch(index)], 3e-3 / number) for s in (compiled, plain))
        for name in ("loss", "nlls", "norm"):
            a, b = float(getattr(mine, name).sum()), float(getattr(hers, name).sum())
            assert a == pytest.approx(b, rel=off), (name, number)


def test_a_replay_draws_new_dropout_and_a_rate_of_zero_changes_nothing():
    step = stepper(tiny(0.3), "bf16", True)
    losses = [float(step([batch((0, 1, 2, 3))], 0.0).loss) for _ in range(9)]
    assert len(set(losses)) == len(losses), losses


def test_a_restored_stepper_replays_what_it_was_given():
    step = stepper(tiny(), "fp32", True)
    for index in STEPS:
        step([batch(index)], 3e-3)
    state = deepcopy({"optimizer": step.optimizer.state_dict(), "scaler": None})
    other = stepper(tiny(), "fp32", True)
    other.model.load_state_dict(step.model.state_dict())
    other.load(state)
    for index in STEPS:
        mine, hers = step([batch(index)], 1e-3), other([batch(index)], 1e-3)
        assert float(mine.loss) == pytest.approx(float(hers.loss), rel=1e-4)


def test_after_a_capture_that_failed_numbers_can_be_drawn():
    number = torch.ones((), device="cuda")
    with pytest.raises(RuntimeError):
        Captured(lambda: torch.rand(3, device="cuda") * number.item())
    assert torch.rand(3, device="cuda").isfinite().all()
