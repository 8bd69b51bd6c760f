"""The config tree: JSON and back, frozen, hashable, and every refusal says the way out."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from types import NoneType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allformer.config import (
    ACTIVATIONS,
    PROBLEMS,
    Attention,
    Block,
    ClassHead,
    Config,
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    Feed,
    Full,
    Learned,
    LinearScaling,
    Llama3Scaling,
    LMHead,
    Norm,
    Rotary,
    Sinusoidal,
    SpanHead,
    Stack,
    Tokens,
    Transform,
    Window,
    YarnScaling,
    config_from_json,
    cycle,
    repeat,
)
from allformer.core.model import build
from allformer.errors import AllformerError, CheckpointError, ConfigError
from allformer.families import FAMILIES, preset, presets
from tests.models import PAPER, SPREAD, crossed, decoder_only, encoder_only, seq2seq, stack

# --- JSON -----------------------------------------------------------------------------------------


def check_json(name: str) -> None:
    config = SPREAD[name]
    again = config_from_json(config.to_json())
    assert again == config
    assert hash(again) == hash(config)
    assert again.to_json() == config.to_json()


@pytest.mark.parametrize("name", SPREAD)
def test_a_config_goes_to_json_and_back(name):
    check_json(name)


@pytest.mark.parametrize("name", presets())
def test_a_preset_goes_to_json_and_back(name):
    assert config_from_json(preset(name).to_json()) == preset(name)


def test_a_preset_has_no_field_that_nobody_reads():
    with pytest.raises(CheckpointError, match="n_embdd=64"):
        FAMILIES["gpt2"].make({"n_embdd": 64})


rates = st.floats(0, 0.99)
norms = st.builds(Norm, st.sampled_from(["layer", "rms"]), st.floats(1e-12, 0.5))
attentions = st.integers(1, 4).flatmap(
    lambda groups: st.builds(
        Attention,
        heads=st.integers(1, 3).map(lambda share: share * groups),
        kv_heads=st.just(groups),
        head_dim=st.just(6),
        mixer=st.just(Full()) | st.builds(Window, st.integers(0, 9), st.integers(0, 9)),
        bias=st.booleans(),
        scale=st.none() | st.floats(0.01, 9.0),
        dropout=rates,
    )
)
feeds = st.builds(
    Feed, st.integers(1, 99), st.sampled_from(ACTIVATIONS), st.booleans(), st.booleans(), rates
)
blocks = st.builds(
    Block, attentions, feeds, st.none(), norms, st.sampled_from(["pre", "post"]), rates
)
positions = (
    st.none()
    | st.builds(Learned, st.integers(1, 99), st.integers(0, 3), st.sampled_from(["kept", "all"]))
    | st.builds(
        Sinusoidal,
        st.sampled_from(["interleaved", "halves"]),
        st.floats(1.5, 1e6),
        st.integers(0, 9),
    )
)
relatives = st.none() | st.builds(
    Rotary,
    st.floats(2, 1e6),
    st.none()
    | st.builds(LinearScaling, st.floats(0.5, 9))
    | st.builds(Llama3Scaling, st.floats(0.5, 9), st.floats(0.1, 2), st.floats(3, 9))
    | st.builds(YarnScaling, st.floats(0.5, 9), st.integers(1, 99), gain=st.none() | st.just(1.2)),
    st.none() | st.integers(1, 99),
)
stacks = st.builds(
    Stack,
    dim=st.integers(1, 50).map(lambda n: 2 * n),
    source=st.builds(
        Tokens,
        st.integers(4, 99),
        scale=st.booleans(),
        types=st.integers(0, 2),
        pad_id=st.none() | st.integers(0, 3),
        pad_fixed=st.booleans(),
    ),
    position=positions,
    blocks=st.lists(blocks, min_size=1, max_size=4).map(tuple),
    causal=st.just(True),
    source_norm=st.none() | norms,
    final_norm=st.none() | norms,
    relative=relatives,
    share=st.none(),
    dropout=rates,
)
classes = st.builds(
    ClassHead,
    st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple),
    at=st.sampled_from(["token", "last", "first"]),
    dense=st.none() | st.sampled_from(ACTIVATIONS),
    problem=st.sampled_from(PROBLEMS),
)
heads = (
    st.none()
    | st.builds(
        LMHead,
        st.booleans(),
        st.booleans(),
        st.none() | st.builds(Transform, st.sampled_from(ACTIVATIONS), norms),
        st.none() | st.floats(0.1, 2),
        st.booleans(),
    )
    | classes
    | st.builds(SpanHead, st.booleans(), rates)
)


@given(st.builds(DecoderOnly, stacks, heads))
def test_any_config_goes_to_json_and_back(config):
    again = config_from_json(config.to_json(indent=None))
    assert again == config
    assert repr(again) == repr(config)  # 1 and 1.0 are equal but not alike


def test_json_writes_equal_layers_once_and_differing_ones_in_order():
    data = json.loads(SPREAD["layers that differ"].to_json())
    assert [b["times"] for b in data["encoder"]["blocks"]] == [1] * 5
    data = json.loads(preset("original-base").to_json())
    assert [b["times"] for b in data["encoder"]["blocks"]] == [6]


def test_json_may_leave_defaults_out():
    text = '{"is": "Attention", "heads": 8}'
    assert config_from_json(text) == Attention(8)
    assert config_from_json('{"is": "Norm", "eps": 1e-6}') == Norm(eps=1e-6)


def changed(path: str, value: object) -> str:
    """The JSON of a small model with one value changed: "decoder.dim"."""
    data = json.loads(seq2seq().to_json())
    *owners, last = path.split(".")
    place = data
    for key in owners:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", r"not JSON \(line 1.*check the file"),
        ("[]", r'config is \[\]; it must be an object with its class under "is"'),
        ('{"heads": 8}', r'class under "is"'),
        ('{"is": "Attn"}',
         r"config\.is='Attn' is not known; did you mean Attention\? a class of your own must be"),
        ('{"is": "Attention"}', r"config lacks Attention\.heads; give it a value"),
        (changed("decoder.dimm", 3),
         r"config\.decoder has no field 'dimm'; did you mean dim\? Stack has dim, "),
        (changed("decoder.xyz", 3), r"config\.decoder has no field 'xyz'; Stack has dim, "),
        (changed("decoder.is", []), r"^config\.decoder\.is=\[\] is not known; try Norm, "),
        (changed("decoder.is", {}), r"^config\.decoder\.is=\{\} is not known; try Norm, "),
        (changed("decoder.dim", "24"),
         r"^config\.decoder: Stack\.dim='24' must be int; correct its type$"),
        (changed("encoder.dropout", None),
         r"^config\.encoder: Stack\.dropout=None must be float; correct its type$"),
        (changed("encoder.causal", 1),
         r"^config\.encoder: Stack\.causal=1 must be bool; correct its type$"),
        (changed("encoder.source.pad_id", "0"),
         r"^config\.encoder\.source: Tokens\.pad_id='0' must be None or int; correct its type$"),
        (changed("encoder.blocks.0.attention.scale", "x"),
         r"^config\.encoder\.blocks\[0\]\.attention: Attention\.scale='x' must be None or float; "),
        (changed("encoder.blocks.0.attention.scale", math.inf),
         r"\.blocks\[0\]\.attention: Attention\.scale=inf must be a finite number; correct its v"),
        (changed("encoder.blocks.0.norm.eps", math.nan), r"Norm\.eps=nan must be a finite number"),
        (changed("encoder.blocks.0.dropout", 10**400),
         r"Block\.dropout=10+ must be a finite number"),
        (changed("encoder.position.base", []),
         r"^config\.encoder\.position: Sinusoidal\.base=\[\] must be float; correct its type$"),
        (changed("shared", None), r"^config: EncoderDecoder\.shared=None must be bool; correct"),
        *((changed("encoder.blocks.0.times", times),
           rf"^config\.encoder\.blocks\[0\]\.times={re.escape(repr(times))} must be a whole "
           r"number of at least 1; try 1 or more$")
          for times in ("2", 1.5, 0, -1, True, None, [])),
        (changed("encoder.blocks", 3), r"config\.encoder\.blocks is 3; it must be a list"),
        (changed("encoder.blocks.0.norm_at", "mid"), r"norm_at='mid' is not a choice; try 'pre'"),
        (changed("encoder.blocks.0.feed", {"is": "Norm"}), r"Block\.feed=Norm.* it takes Feed"),
        (changed("encoder.blocks.0.feed", 5), r"Block\.feed=5 does not fit this slot"),
        (changed("head", {"is": "LMHead", "tied": 1}),
         r"^config\.head: LMHead\.tied=1 must be bool"),
    ],
)  # fmt: skip
def test_json_that_cannot_be_read_is_refused_with_the_place(text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        config_from_json(text)
    assert re.search(r"; \w|check the file", str(caught.value)), "no way out"


ODD = [None, True, 0, -1, 3, 1.5, math.inf, math.nan, 10**400, "", "x", [], [None], {}, {"is": 1},
       {"is": "Norm"}, {"is": "LMHead"}, {"is": "Attention", "heads": 2}]  # fmt: skip


def places(data: object) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON tree."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, dict | list):
            yield from places(value)


def check_any_value_anywhere(name: str) -> None:
    """Whatever stands in whatever place: a config that goes to JSON and back, or a refusal."""
    data = json.loads(SPREAD[name].to_json())
    refusals = []
    for place, key in places(data):
        before = place[key]
        for value in ODD:
            place[key] = value
            try:
                config = config_from_json(json.dumps(data))
            except ConfigError as error:
                refusals.append(str(error))
            else:
                assert config_from_json(config.to_json()) == config
        place[key] = before
    assert len(refusals) > 500
    assert [says for says in refusals if not re.search(r"; \w", says)] == [], "no way out"


@pytest.mark.parametrize("name", ["two vocabularies", "decoder modern"])
def test_any_value_in_any_place_of_the_json_is_read_or_refused(name):
    check_any_value_anywhere(name)


# --- refusals -------------------------------------------------------------------------------------

REFUSALS = [
    (lambda: Attention(8, kv_heads=3),
     "Attention.kv_heads=3 must divide heads=8; try 1, 2, 4 or 8"),
    (lambda: Attention(1, kv_heads=3), "Attention.kv_heads=3 must divide heads=1; try 1"),
    (lambda: Attention(0), "Attention.heads=0 must be a whole number of at least 1; try 1 or more"),
    (lambda: Attention(True), "Attention.heads=True must be int; correct its type"),
    (lambda: Attention(2.0), "Attention.heads=2.0 must be int; correct its type"),
    (lambda: Attention(8, head_dim=-1), "Attention.head_dim=-1 must be a whole number"),
    (lambda: Attention(8, scale="x"), "Attention.scale='x' must be None or float; correct its"),
    (lambda: Attention(8, scale=math.inf), "Attention.scale=inf must be a finite number; correct"),
    (lambda: Attention(8, scale=math.nan), "Attention.scale=nan must be a finite number; correct"),
    (lambda: Attention(8, scale=10**400), f"Attention.scale={10**400} must be a finite number"),
    (lambda: Attention(8, bias=None),
     "Attention.bias=None must be bool or tuple of str; correct its type"),
    (lambda: Attention(8, scale=0.0), "Attention.scale=0.0 must be positive; leave it out"),
    (lambda: Attention(8, dropout=1.0), "Attention.dropout=1.0 must be a probability, 0 <= p < 1"),
    (lambda: Feed(0), "Feed.width=0 must be a whole number"),
    (lambda: Feed(8, act="swish"),
     "Feed.act='swish' is not a choice; try 'relu', 'gelu', 'gelu_tanh', 'quick_gelu', "
     "'silu'"),
    (lambda: Feed(8, dropout=-0.1), "Feed.dropout=-0.1 must be a probability"),
    (lambda: Norm("batch"), "Norm.kind='batch' is not a choice; try 'layer', 'rms'"),
    (lambda: Norm(eps=0.0), "Norm.eps=0.0 must be a small positive number; try 1e-5"),
    (lambda: Sinusoidal("mixed"), "Sinusoidal.layout='mixed' is not a choice; try 'interleaved'"),
    (lambda: Sinusoidal(base="x"), "Sinusoidal.base='x' must be float; correct its type"),
    (lambda: Sinusoidal(base=1.0), "Sinusoidal.base=1.0 must be greater than 1; the paper has"),
    (lambda: Sinusoidal(start=-1), "Sinusoidal.start=-1 must be a whole number of at least 0"),
    (lambda: Learned(0), "Learned.length=0 must be a whole number"),
    (lambda: Learned(8, count="ids"), "Learned.offset=0 must be at least 1 with count=\"ids\""),
    (lambda: Tokens(0), "Tokens.vocab=0 must be a whole number"),
    (lambda: Tokens(10, pad_id=10), "Tokens.pad_id=10 must be in 0 … 9 (vocab=10); give an id"),
    (lambda: Tokens(10, eos_id=-1), "Tokens.eos_id=-1 must be in 0 … 9"),
    (lambda: Tokens(5, pad_id="1"), "Tokens.pad_id='1' must be None or int; correct its type"),
    (lambda: Tokens(5, pad_id=1.5), "Tokens.pad_id=1.5 must be None or int; correct its type"),
    (lambda: LMHead(tied="no"), "LMHead.tied='no' must be bool; correct its type"),
    (lambda: stack(causal="no"), "Stack.causal='no' must be bool; correct its type"),
    (lambda: stack(dropout=None), "Stack.dropout=None must be float; correct its type"),
    (lambda: replace(PAPER, attention=None), "Block.attention=None does not fit this slot; "
     "it takes Attention"),
    (lambda: replace(PAPER, cross=Feed(3)), "it takes Attention, None"),
    (lambda: replace(PAPER, norm_at="both"), "Block.norm_at='both' is not a choice"),
    (lambda: replace(PAPER, dropout=True), "Block.dropout=True must be float; correct its type"),
    (lambda: replace(PAPER, dropout=1.5), "Block.dropout=1.5 must be a probability"),
    (lambda: stack(dim=23), "Stack.dim=23 must be even for Sinusoidal positions; try 24"),
    (lambda: stack(dim=26), "Stack.blocks[0] has Attention.heads=4, which must divide Stack.dim=26;"
     " try heads of 1, 2"),
    (lambda: stack(blocks=()), "Stack.blocks=() must be a tuple of at least one Block; try repeat"),
    (lambda: stack(blocks=[PAPER]), "must be a tuple"),
    (lambda: stack(blocks=(PAPER, None)), "Stack.blocks[1]=None is not a Block; try repeat"),
    (lambda: stack(position=7), "Stack.position=7 does not fit this slot; "
     "it takes Sinusoidal, StoredSinusoids, Learned, "),
    (lambda: stack(source=7), "Stack.source=7 does not fit this slot; it takes Tokens"),
    (lambda: stack(final_norm=7), "Stack.final_norm=7 does not fit this slot"),
    (lambda: stack(final_norm_at="layers"), "Stack.final_norm_at='layers' is for stacks of one st"),
    (lambda: stack(source_norm=7), "Stack.source_norm=7 does not fit this slot"),
    (lambda: encoder_only(causal=True),
     "EncoderOnly.encoder has causal=True; use DecoderOnly, or causal=False"),
    (lambda: encoder_only(crossed(PAPER)),
     "EncoderOnly.encoder has a Block with cross-attention but nothing to look across at; "
     "set cross=None, or use EncoderDecoder"),
    (lambda: DecoderOnly(stack()), "DecoderOnly.decoder has causal=False, so it would see the token"
     " it has to predict; set causal=True"),
    (lambda: decoder_only(crossed(PAPER)), "DecoderOnly.decoder has a Block with cross-attention"),
    (lambda: EncoderDecoder(stack(), stack(causal=True)),
     "EncoderDecoder.decoder has a Block with cross=None; give cross=Attention(...)"),
    (lambda: EncoderDecoder(stack(), stack(crossed(PAPER))), "decoder has causal=False"),
    (lambda: EncoderDecoder(stack(causal=True), stack(crossed(PAPER), causal=True)),
     "EncoderDecoder.encoder has causal=True; an encoder sees everything: set False"),
    (lambda: EncoderDecoder(stack(crossed(PAPER)), stack(crossed(PAPER), causal=True)),
     "EncoderDecoder.encoder has a Block with cross-attention"),
    (lambda: EncoderDecoder(stack(), stack(crossed(PAPER), causal=True, dim=28)),
     "EncoderDecoder.encoder.dim=24 differs from decoder.dim=28; give both the same dim"),
    (lambda: EncoderDecoder(stack(), stack(crossed(PAPER), causal=True, source=Tokens(9))),
     "EncoderDecoder.shared=True needs one vocabulary, but the encoder has 37 tokens and the "
     "decoder 9; set shared=False"),
    (lambda: EncoderDecoder(None, None), "EncoderDecoder.encoder=None does not fit this slot"),
    (lambda: EncoderOnly(stack(), head=True), "EncoderOnly.head=True does not fit this slot"),
    (lambda: preset("original-huge"),
     "preset='original-huge' is not known; try original-big, original-"),
    (lambda: build("original-base"), "build got str; it takes EncoderDecoder, EncoderOnly"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "says"), REFUSALS, ids=[says[:40] for _, says in REFUSALS])
def test_a_refusal_names_the_field_the_value_and_the_way_out(make, says):
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)
    assert re.search(r"; \w", str(caught.value)), "no way out"
    assert isinstance(caught.value, AllformerError)
    assert isinstance(caught.value, ValueError)


# What a plain field may hold, by its annotation; a whole number is a float, a bool is not a number.
PLAIN = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "int | None": (int, NoneType),
    "float | None": (float, int, NoneType),
    "str": (str,),
    "str | None": (str, NoneType),
}
# Names for a type and a range, as they stand in the annotations.
RANGES = {"Positive": "int", "Natural": "int", "Probability": "float", "Activation": "str"}
TUPLES = {
    "Stack.share", "Stack.blocks", "ClassHead.labels", "Attention.bias",
    "AdaptiveTokens.cutoffs", "AdaptiveHead.shares", "Axial.shape", "Axial.dims", "LSH.buckets",
    "SoundClassHead.labels",
}  # fmt: skip


def plain(annotation: str) -> str:
    """The plain types of an annotation: `Positive | None` is `int | None`."""
    annotation = re.sub(r"^Annotated\[([^,]+), .*\]( \| None)?$", r"\1\2", annotation)
    return re.sub(r"\w+", lambda word: RANGES.get(word[0], word[0]), annotation)


def check_types() -> None:
    """Every plain field of every class refuses each value of another type, by name."""
    checked = set()
    for node in {type(n): n for config in SPREAD.values() for n in nodes(config)}.values():
        for field in dataclasses.fields(node):
            if f"{type(node).__name__}.{field.name}" in TUPLES:
                continue
            allowed = plain(field.type)
            if allowed not in PLAIN:
                assert not re.search(r"\b(int|float|bool|str)\b", allowed), field
                continue
            checked.add(f"{type(node).__name__}.{field.name}")
            for value in (None, True, 1, 0.5, "1", (1,), node):
                if type(value) in PLAIN[allowed]:
                    continue
                says = f"{type(node).__name__}.{field.name}={value!r} must be "
                with pytest.raises(ConfigError, match=re.escape(says)) as caught:
                    replace(node, **{field.name: value})
                message = str(caught.value).removeprefix(says)
                assert message.split("; ") == [
                    " or ".join(sorted(allowed.split(" | "))),
                    "correct its type",
                ]
    assert len(checked) >= 52, sorted(checked)


def check_finite() -> None:
    """No field takes an infinite number, NaN, or a whole number that is infinite as a float."""
    for node in {type(n): n for config in SPREAD.values() for n in nodes(config)}.values():
        for field in dataclasses.fields(node):
            for value in (math.inf, -math.inf, math.nan, 10**400, -(10**400)):
                if "float" in plain(field.type):
                    says = f"{type(node).__name__}.{field.name}={value!r} must be a finite number; "
                    with pytest.raises(ConfigError, match=re.escape(says)):
                        replace(node, **{field.name: value})


def test_every_plain_field_checks_its_type():
    check_types()


def test_every_number_is_finite():
    check_finite()


@pytest.mark.parametrize("value", [1, 1.0])
def test_a_whole_number_may_stand_for_a_float(value):
    assert Attention(8, scale=value) == Attention(8, scale=1.0)


def test_a_model_without_a_head_says_how_to_get_logits():
    model = build(replace(seq2seq(), head=None), seed=0)
    with pytest.raises(
        ConfigError, match=r"EncoderDecoder\.head=None gives no logits over the vocabulary"
    ):
        model.logits(model.encoder.source.embedding.weight)


# --- the tree -------------------------------------------------------------------------------------


def nodes(config: object) -> list[Config]:
    if isinstance(config, tuple):
        return [n for item in config for n in nodes(item)]
    if not isinstance(config, Config):
        return []
    return [
        config,
        *(n for f in dataclasses.fields(config) for n in nodes(getattr(config, f.name))),
    ]


def test_every_node_is_frozen_and_hashable():
    found = [node for config in SPREAD.values() for node in nodes(config)]
    kinds = {type(node) for node in found}
    assert {Norm, Sinusoidal, Learned, Attention, Feed, Block, Tokens, Stack, LMHead} < kinds
    assert {EncoderOnly, DecoderOnly, EncoderDecoder} < kinds
    for node in found:
        assert hash(node) == hash(replace(node))
        if not dataclasses.fields(node):
            continue
        field = dataclasses.fields(node)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(node, field, None)


def test_repeat_and_cycle_make_layers_as_data():
    other = replace(PAPER, dropout=0.5)
    assert repeat(PAPER, 3) == (PAPER, PAPER, PAPER)
    assert cycle((PAPER, other), 5) == (PAPER, other, PAPER, other, PAPER)


def test_defaults_are_filled_in_by_the_attention_itself():
    assert (Attention(8).groups, Attention(8).size(512)) == (8, 64)
    assert (Attention(8, kv_heads=2, head_dim=5).groups, Attention(8, head_dim=5).size(512)) == (
        2,
        5,
    )
