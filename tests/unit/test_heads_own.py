"""Heads beside others, heads on stacks that read no tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from allformer.config import (
    Attention,
    Beside,
    ClassHead,
    EncoderDecoder,
    EncoderOnly,
    Feed,
    Head,
    LMHead,
    Positive,
    Several,
    Source,
    SpanHead,
)
from allformer.core import heads
from allformer.core.linear import Linear
from allformer.core.loss import Sums
from allformer.core.model import build
from allformer.core.registry import implements
from allformer.core.sources import source
from allformer.errors import ConfigError
from tests.loud import make_loud
from tests.models import PAPER, crossed, decoder_only, seq2seq, stack, tokens

BESIDE = Beside("words", LMHead(), "logits", "labels")


@dataclass(frozen=True)
class Gauge(Head):
    """A head of a user's: a number for each token, under names of its own."""


@implements(Gauge)
class GaugeHead(heads.head.Head):
    gives, targets = ("gauge",), ("readings",)

    def __init__(self, head, stack, path, **given):
        super().__init__(head, stack, path)
        self.out = Linear(stack.dim, 1)

    def outputs(self, hidden):
        return {"gauge": hidden.layout.to_grid(self.out(hidden.states)).squeeze(-1)}

    def sums(self, outputs, targets, hidden):
        loss = (outputs["gauge"] - targets[self.targets[0]]).square().sum()
        return Sums(loss, loss.detach(), torch.tensor(outputs["gauge"].numel()))


@dataclass(frozen=True)
class Meter(Source):
    """A source of a user's that reads no tokens."""

    width_in: Positive = 3


@implements(Meter)
class MeterSource(source.Source):
    takes = ("measured",)

    def __init__(self, stack, path):
        super().__init__(stack, path)
        self.up = Linear(self.config.width_in, stack.width)
        self.finish()

    def check(self, inputs, prefix=""):
        return tuple(inputs["measured"].shape[:2])

    def vectors(self, side):
        return self.up(side.inputs["measured"])


METERED = stack(PAPER, source=Meter())


def test_a_head_with_names_of_its_own_stands_beside_another():
    alone = build(replace(decoder_only(), head=Gauge()), seed=0).eval()
    several = Several((BESIDE, Beside("gauge", Gauge(), "worth", "returns")))
    model = build(replace(decoder_only(), head=several), seed=0).eval()
    assert model.head.gives == ("logits", "worth")
    assert model.head.targets == ("labels", "returns")
    model.head.gauge.load_state_dict(alone.head.state_dict())
    model.decoder.load_state_dict(alone.decoder.state_dict())
    ids, aim = tokens(2, 7), torch.randn(2, 7)
    out, one = model(input_ids=ids, labels=ids, returns=aim), alone(input_ids=ids, readings=aim)
    torch.testing.assert_close(out.worth, one.gauge)
    words = build(decoder_only(), seed=0).eval()
    words.decoder.load_state_dict(alone.decoder.state_dict())
    both = words(input_ids=ids, labels=ids).loss + one.loss
    torch.testing.assert_close(out.loss, both)


def test_a_head_with_two_outputs_is_refused_beside_another():
    several = Several((BESIDE, Beside("span", SpanHead(), "span", "where")))
    with pytest.raises(
        ConfigError,
        match=r"^Beside\.head=SpanHead\(.*\) gives start_logits, end_logits and learns from "
        r"start_positions, end_positions, but one of several .*; use it alone$",
    ):
        build(replace(decoder_only(), head=several))


@pytest.mark.parametrize("left", [False, True])
def test_the_last_step_of_a_source_without_tokens_is_told_by_the_mask(left):
    model = build(EncoderOnly(METERED, ClassHead(("a", "b"), at="last"))).double()
    model = make_loud(model, seed=1).eval()
    x = torch.randn(1, 5, 3, dtype=torch.float64)
    filler = torch.randn(1, 4, 3, dtype=torch.float64)
    wide = torch.cat([filler, x] if left else [x, filler], dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 5 if left else [1] * 5 + [0] * 4])
    with torch.no_grad():
        torch.testing.assert_close(
            model(measured=wide, attention_mask=mask).logits, model(measured=x).logits
        )


def test_ids_are_not_generated_from_what_is_not_tokens():
    block = replace(PAPER, attention=Attention(4), feed=Feed(8))
    for config, why in (
        (
            replace(decoder_only(), decoder=replace(METERED, causal=True), head=Gauge()),
            r"cannot generate from ids: its decoder has the source Meter, .*; ",
        ),
        (
            EncoderDecoder(METERED, stack(crossed(block), causal=True), shared=False),
            r"input_ids=.* \(2, 5\), but the encoder reads measured; give ",
        ),
    ):
        with pytest.raises(ConfigError, match=why):
            build(config).generate(tokens(2, 5), max_new_tokens=2)


def test_an_error_names_the_inputs_of_the_stack_that_it_is_about():
    config = EncoderDecoder(METERED, seq2seq().decoder, shared=False)
    with pytest.raises(ConfigError, match=r"^decoder_input_ids has 3 rows, but measured 2; give"):
        build(config)(measured=torch.randn(2, 5, 3), decoder_input_ids=tokens(3, 4))
