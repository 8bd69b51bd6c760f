"""Classes of one's own in the tree, ranges by annotation, heads side by side, shared questions."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from allformer.config import (
    Attention,
    Beside,
    Block,
    ClassHead,
    Config,
    EncoderOnly,
    Feed,
    Head,
    Learned,
    LMHead,
    Mixer,
    Natural,
    Part,
    Pool,
    Positive,
    PretrainHead,
    Probability,
    Rotary,
    Several,
    Sinusoidal,
    Source,
    SpanHead,
    Stack,
    Tokens,
    config_from_json,
    cycle,
    from_dict,
    heads_of,
    repeat,
    words_of,
)
from allformer.count import count
from allformer.errors import CheckpointError, ConfigError
from allformer.families import preset
from allformer.families.config_json import write_config
from allformer.families.family import head_kind
from tests.models import PAPER, SPREAD, decoder_only, encoder_only, seq2seq, stack


@dataclass(frozen=True)
class Decay(Mixer):
    """A mixer of a user's: one rate for each head."""

    floor: Probability = 0.5
    kind: Literal["soft", "hard"] = "soft"

    def parameters(self, attention, dim):
        return attention.heads

    def keys(self, n, causal):
        return 1.0


@dataclass(frozen=True)
class Shared(Mixer):
    """One projection for queries and keys."""

    def projections(self, attention, dim):
        return {"qk": attention.heads * attention.size(dim), "v": dim}


@dataclass(frozen=True)
class Frames(Source):
    """A source of a user's that reads no tokens."""

    bands: Positive
    skip: Natural = 0

    def parameters(self, stack):
        return self.bands * stack.width


@dataclass(frozen=True)
class Score(Head):
    """A head of a user's."""

    ways: Positive = 1

    def parameters(self, stack):
        return stack.dim * self.ways


@dataclass(frozen=True)
class Wide(Source):
    """A source with fields of every kind."""

    sizes: tuple[Positive, ...] = (1,)
    rate: Probability | Literal["auto"] = "auto"
    pair: tuple[int, int] = (0, 0)
    heads: tuple[Head, ...] = ()


@dataclass(frozen=True)
class Silent(Head):
    """A head of a user's without tensors."""


def own() -> EncoderOnly:
    block = replace(PAPER, attention=Attention(4, mixer=Decay(0.25)))
    return EncoderOnly(stack(block, layers=3, source=Frames(80), position=None), Score(3))


# --- classes of one's own -------------------------------------------------------------------------


@pytest.mark.parametrize("head", [Score(3), Silent(), None])
def test_classes_of_ones_own_go_to_json_and_back(head):
    model = replace(own(), head=head)
    again = config_from_json(model.to_json())
    assert again == model
    assert hash(again) == hash(model)
    assert type(again.encoder.source) is Frames


def test_classes_of_ones_own_are_counted():
    plain = EncoderOnly(stack(layers=3, position=None), None)
    table = count(own())
    lines = {part.name: part for part in table.parts}
    assert lines["encoder source"] == Part("encoder source", "1,920", 80 * 24)
    assert lines["head"].parameters == 24 * 3
    embedding = 37 * 24
    assert table.parameters == count(plain).parameters - embedding + 80 * 24 + 24 * 3 + 3 * 4
    assert lines["encoder self-attention"].quadratic == 3 * 2 * 2 * 24  # one key a query
    assert count(replace(own(), head=Silent())).parameters == table.parameters - 24 * 3


def test_a_mixer_names_its_projections():
    attention = Attention(4, mixer=Shared(), bias=("qk", "out"))
    assert attention.biased("qk")
    assert not attention.biased("v")
    line = attention.line("x", 24, 10, causal=False)
    assert line.parameters == 24 * (24 + 24 + 24) + 24 + 24


def test_the_fields_of_ones_own_class_are_checked_by_its_annotations():
    for make, says in (
        (lambda: Decay(1.0), "Decay.floor=1.0 must be a probability, 0 <= p < 1; try 0.1"),
        (lambda: Decay("x"), "Decay.floor='x' must be float; correct its type"),
        (lambda: Decay(kind="mid"), "Decay.kind='mid' is not a choice; try 'soft', 'hard'"),
        (lambda: Frames(0), "Frames.bands=0 must be a whole number of at least 1; try 1 or more"),
        (lambda: Frames(True), "Frames.bands=True must be int; correct its type"),
        (lambda: Frames(2**31), "Frames.bands=2147483648 must be at most 2,147,483,647; check"),
        (lambda: Wide((1, 0)), "Wide.sizes[1]=0 must be a whole number of at least 1; try 1 or"),
        (lambda: Wide(("a",)), "Wide.sizes[0]='a' is not a int; correct its type"),
        (lambda: Wide(rate="none"), "Wide.rate='none' is not a choice; try 'auto'"),
        (lambda: Wide(rate=True), "Wide.rate=True is not a choice"),
        (lambda: Wide(rate=math.inf), "Wide.rate=inf must be a finite number"),
        (lambda: Wide(heads=(Frames(1),)), "Wide.heads[0]=Frames(bands=1, skip=0) is not a Head"),
        (lambda: Frames(1, -1), "Frames.skip=-1 must be a whole number of at least 0; try 0 or"),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert says in str(caught.value)


def test_fields_of_every_kind_go_to_json_and_back():
    for wide in (Wide(), Wide((3, 4), 0.5, (1, 2), (Score(2), Silent()))):
        assert config_from_json(wide.to_json()) == wide
        assert hash(config_from_json(wide.to_json())) == hash(wide)


def test_a_refusal_lists_ones_own_classes_too():
    with pytest.raises(ConfigError, match=r"not fit this slot; it takes Full, Window, .*Decay"):
        Attention(4, mixer=Silent())


def test_a_source_without_tokens_has_no_vocabulary():
    with pytest.raises(ConfigError, match=r"EncoderOnly\.head=LMHead.* its stack reads no tokens"):
        replace(own(), head=LMHead())
    with pytest.raises(ConfigError, match=r"Stack\.source=Frames.* reads no tokens; give it"):
        own().reader.tokens  # noqa: B018


def test_two_classes_of_one_name_are_refused_by_their_modules():
    with pytest.raises(
        ConfigError,
        match=r"^Window is defined in allformer\.config\.mixer and ag"
        r"ain in tests\.unit\.test_config_own,.*; rename one$",
    ):

        @dataclass(frozen=True)
        class Window(Mixer):
            pass

    from allformer.config import Window as known

    text = '{"is": "Window", "left": 3}'
    assert config_from_json(text) == known(3)


def test_a_class_defined_anew_replaces_the_old_one():
    def define(default: int) -> type[Config]:
        @dataclass(frozen=True)
        class Anew(Mixer):
            size: int = default

        return Anew

    define(1)
    second = define(2)
    assert config_from_json('{"is": "Anew"}') == second(2)


def test_a_slot_is_nothing_itself():
    with pytest.raises(ConfigError, match=r"^Mixer is a slot; try Full, Window"):
        Mixer()
    with pytest.raises(ConfigError, match=r"config\.is='Mixer' is not known"):
        config_from_json('{"is": "Mixer"}')


def test_an_unknown_class_may_be_one_that_was_not_imported():
    with pytest.raises(ConfigError, match=r"is='Mine' is not known; .*class of your own must"):
        config_from_json('{"is": "Mine"}')


# --- before memory is taken -----------------------------------------------------------------------


def layers(times: int) -> str:
    data = json.loads(encoder_only().to_json())
    data["encoder"]["blocks"][0]["times"] = times
    return json.dumps(data)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: repeat(PAPER, 10**12), "repeat with times=1000000000000 makes more than 10,000"),
        (lambda: cycle((PAPER,), 10**12), "cycle with times=1000000000000 makes more than 10,000"),
        (lambda: config_from_json(layers(10**12)), "blocks[0].times=1000000000000 makes more than"),
        (lambda: Tokens(10**12), "Tokens.vocab=1000000000000 must be at most 2,147,483,647; check"),
        (lambda: Feed(10**12), "Feed.width=1000000000000 must be at most"),
        (lambda: stack(dim=2**31 - 1, position=None), "Stack.dim=2147483647; try heads of 1"),
        (lambda: Attention(2**31 - 1, kv_heads=2), "must divide heads=2147483647; try 1 or 2147"),
        (lambda: config_from_json("[" * 10**5), "config cannot be read"),
        (lambda: config_from_json("1" * 10**4), "config cannot be read"),
    ],
)  # fmt: skip
def test_what_would_fill_the_memory_is_refused_at_once(make, says):
    began = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        make()
    assert time.perf_counter() - began < 1
    assert says in str(caught.value)
    assert "; " in str(caught.value), "no way out"


def test_a_tree_without_end_is_refused():
    deep: dict = {"is": "Beside", "name": "x", "output": "x", "target": "x"}
    for _ in range(3000):
        deep = {**deep, "head": deep}
    with pytest.raises(ConfigError, match=r"config is nested too deeply; "):
        from_dict(deep)


# --- a bias for each projection -------------------------------------------------------------------


def test_a_bias_may_be_of_some_projections_only():
    some = Attention(4, kv_heads=2, bias=("q", "v", "out"))
    assert [some.biased(part) for part in ("q", "k", "v", "out")] == [True, False, True, True]
    none, every = replace(some, bias=False), replace(some, bias=True)
    sizes = [a.line("x", 24, 5, causal=True).parameters for a in (none, some, every)]
    assert sizes[1] - sizes[0] == 24 + 12 + 24
    assert sizes[2] - sizes[1] == 12  # of the keys
    assert some.line("x", 24, 5, causal=True).formula == "2·d·HD + 2·d·GD + HD + GD + d"
    assert Attention(4, bias=("q", "v", "out")).line("x", 24, 5, False).formula == "4d² + 3d"


def test_equal_biases_are_equal_trees():
    assert Attention(4, bias=("out", "v", "k", "q")) == Attention(4)
    assert Attention(4, bias=()) == Attention(4, bias=False)
    some = Attention(4, bias=("v", "q"))
    assert some.bias == ("q", "v")
    assert config_from_json(some.to_json()) == some


def test_a_bias_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"\('x',\) names a projection that is not there; "):
        Attention(4, bias=("x",))
    with pytest.raises(ConfigError, match=r"Attention\.bias\[0\]=3 is not a str; correct its type"):
        Attention(4, bias=(3,))


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gpt2", "bert-base", "t5-small"])
def test_a_family_does_not_write_a_bias_that_it_cannot_say(name):
    model = preset(name)
    side, first = next(iter(model.stacks.items()))
    block = first.blocks[0]
    block = replace(block, attention=replace(block.attention, bias=("q", "v", "out")))
    model = replace(model, **{side: replace(first, blocks=repeat(block, len(first.blocks)))})
    with pytest.raises(CheckpointError, match="no family of transformers can say this model"):
        write_config(model)


# --- heads side by side ---------------------------------------------------------------------------

WORDS, PAIR = LMHead(bias=True), ClassHead(("a", "b"))


def test_berts_pair_is_two_heads_side_by_side():
    pair = PretrainHead(WORDS, PAIR)
    assert pair == Several((
        Beside("words", WORDS, "prediction_logits", "labels"),
        Beside("pair", PAIR, "seq_relationship_logits", "next_sentence_label"),
    ))  # fmt: skip
    assert (pair.part("words"), pair.part("pair")) == (WORDS, PAIR)
    assert words_of(pair) == words_of(WORDS) == WORDS
    assert words_of(PAIR) is words_of(None) is None
    assert heads_of(pair) == (WORDS, PAIR)
    assert head_kind(SPREAD["pretraining"]) == "pretrain"
    other = Several((Beside("value", ClassHead(("v",), at="last"), "value", "returns"),))
    assert head_kind(replace(decoder_only(), head=other)) == "Several"
    assert head_kind(own()) == "Score"


def test_several_heads_go_to_json_and_back():
    model = SPREAD["pretraining"]
    assert config_from_json(model.to_json()) == model


def test_the_pair_as_it_was_written_before_still_reads():
    data = json.loads(SPREAD["pretraining"].to_json())
    words, pair = (part["head"] for part in data["head"]["parts"])
    data["head"] = {"is": "PretrainHead", "words": words, "pair": pair}
    assert from_dict(data) == SPREAD["pretraining"]
    data["head"]["more"] = 1
    with pytest.raises(ConfigError, match=r"config\.head has no field 'more'; Several has parts"):
        from_dict(data)
    data["head"] = {"is": "PretrainHead", "words": words}
    with pytest.raises(ConfigError, match=r"config\.head\.parts\[1\]: Beside\.head=None does not"):
        from_dict(data)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Several(()), "Several.parts=() must be a tuple of at least one Beside; see"),
        (lambda: Several((WORDS,)), "is not a Beside; see"),
        (lambda: Beside("a b", WORDS, "x", "y"), "Beside.name='a b' must be an identifier; try"),
        (lambda: Beside("a", WORDS, "x", "1"), "Beside.target='1' must be an identifier; try"),
        (lambda: Several((Beside("a", WORDS, "x", "y"), Beside("a", PAIR, "z", "y"))),
         "has one name twice; give each its own"),
        (lambda: Several((Beside("a", WORDS, "x", "y"), Beside("b", PAIR, "x", "y"))),
         "has one output twice; give each its own"),
        (lambda: Beside("a", PretrainHead(WORDS, PAIR), "x", "y"), "is itself several heads; put"),
        (lambda: EncoderOnly(stack(), PretrainHead(WORDS, PAIR)), "EncoderOnly.pool=None is what"),
        (lambda: replace(decoder_only(), head=PretrainHead(WORDS, PAIR)), 'try at="last"'),
        (lambda: EncoderOnly(stack(source=Tokens(9, width=4)), PretrainHead(WORDS, PAIR), Pool()),
         "is tied to an embedding of width 4, but states have 24"),
    ],
)  # fmt: skip
def test_heads_side_by_side_are_checked(make, says):
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)


# --- shared questions -----------------------------------------------------------------------------


def test_a_model_names_its_stacks_in_the_order_in_which_they_run():
    model = seq2seq()
    assert model.stacks == {"encoder": model.encoder, "decoder": model.decoder}
    assert list(model.stacks) == ["encoder", "decoder"]
    assert (model.reader, model.writer) == (model.encoder, model.decoder)
    alone = decoder_only()
    assert alone.reader is alone.writer is alone.decoder
    assert EncoderOnly(stack(), SpanHead()).stacks.keys() == {"encoder"}


@pytest.mark.parametrize(
    ("changes", "longest", "trained"),
    [
        ({"position": None}, None, None),
        ({"position": Sinusoidal()}, None, None),
        ({"position": Sinusoidal(length=9)}, None, 9),
        ({"position": Learned(7, offset=2)}, 7, 7),
        ({"position": None, "relative": Rotary(length=5)}, None, 5),
        ({"position": Learned(7), "relative": Rotary(length=5)}, 7, 7),
    ],
)
def test_a_stack_says_how_long_a_text_may_be(changes, longest, trained):
    asked = stack(Block(Attention(4), Feed(8)), **changes)
    assert isinstance(asked, Stack)
    assert (asked.longest, asked.trained) == (longest, trained)
