"""What mixers take beside the source's inputs: it reaches them in the layout, or is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from allformer import config
from allformer.core.mixers.full import Full
from allformer.core.model import build
from allformer.core.registry import implements
from allformer.errors import ConfigError
from tests.models import PAPER, SPREAD, loud, right_padding, seq2seq, stack, tokens


@dataclass(frozen=True)
class Listening(config.Mixer):
    """Full attention that takes a mark for each token."""


@implements(Listening)
class ListeningMixer(Full):
    takes = ("marks",)
    heard: list = []  # noqa: RUF012

    def plan(self, scene):
        self.heard.append((scene.inputs.get("marks"), scene.query.packed, scene.head))
        return super().plan(scene)


MIXED = replace(PAPER, attention=config.Attention(4, mixer=Listening()))
HEAD = config.ClassHead(("a", "b"), at="first")
IDS, MASK = tokens(2, 5), right_padding([5, 3], 5)
MARKS = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 1, 0, 0]])


@pytest.fixture(autouse=True)
def _nothing_heard():
    ListeningMixer.heard.clear()


def test_what_a_mixer_takes_reaches_it_on_the_grid_and_packed():
    model = loud(config.EncoderOnly(stack(MIXED), HEAD))
    assert model.encoder.takes[-1] == "marks"
    model(input_ids=IDS, marks=MARKS)
    (marks, packed, head), *more = ListeningMixer.heard
    assert not more  # one plan for all layers
    assert torch.equal(marks, MARKS)
    assert not packed
    assert head == HEAD
    model(input_ids=IDS, attention_mask=MASK, marks=MARKS)
    marks, packed, _ = ListeningMixer.heard[1]
    assert packed
    assert torch.equal(marks, MARKS[MASK.bool()])


def test_a_mixer_that_is_given_nothing_finds_nothing():
    loud(config.EncoderOnly(stack(MIXED)))(input_ids=IDS)
    assert ListeningMixer.heard == [(None, False, None)]


def test_the_head_is_told_to_the_stack_that_it_reads_alone():
    tree = replace(seq2seq(), encoder=stack(MIXED), head=config.LMHead())
    model = build(tree, seed=0).eval()
    model(input_ids=IDS, decoder_input_ids=IDS, marks=MARKS)
    assert ListeningMixer.heard[0][2] is None
    assert torch.equal(ListeningMixer.heard[0][0], MARKS)
    with pytest.raises(ConfigError, match=r"decoder_marks is no input of this model"):
        model(input_ids=IDS, decoder_input_ids=IDS, decoder_marks=MARKS)
    memory = model.encode(IDS, marks=MARKS)
    assert memory.shape[:2] == IDS.shape
    assert torch.equal(ListeningMixer.heard[1][0], MARKS)


@pytest.mark.parametrize("kind", ["encoder paper", "decoder window", "seq2seq paper"])
def test_a_model_whose_mixers_take_nothing_refuses_it_by_name(kind):
    with pytest.raises(ConfigError, match=r"^marks is no input of this model; it takes input_ids"):
        loud(SPREAD[kind])(input_ids=IDS, marks=MARKS)


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        (MARKS[:1], r"^marks=\(1, 5\) must be rows × tokens, \(2, 5\)"),
        (MARKS * 2, "^marks has the value 2, which is neither 0 nor 1"),
        ([1, 0], "^marks=list must be"),
    ],
)
def test_marks_that_do_not_fit_are_refused(marks, says):
    with pytest.raises(ConfigError, match=says):
        loud(config.EncoderOnly(stack(MIXED)))(input_ids=IDS, marks=marks)
