"""Structured output: whatever the weights, the search and the tokeniser, the text has the form."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from importlib.util import find_spec

import pytest
import torch

from allformer.core.model import DecoderOnlyModel
from allformer.errors import ConfigError, GenerationError
from allformer.generate.structured import Structured, Words
from allformer.tasks import open_kit
from allformer.tasks.writing import batch_row, text_of
from allformer.text.tokenizer import Tokenizer, train_tokenizer
from tests.tiny import checkpoint  # noqa: F401

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(find_spec("llguidance") is None, reason="llguidance is missing")
# ruff: noqa: F811

PROMPTS = ["Goethe", "A man is eating"]
SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "drawn": {"do_sample": True, "num_return_sequences": 3, "temperature": 2.0},
    "drawn beams": {"num_beams": 2, "do_sample": True},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,4}$"},
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["fair", "über"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def write(kit, form: Structured, prompts=PROMPTS, **options) -> list[str]:
    """What a model writes in a form, ragged rows side by side."""
    decoder = isinstance(kit.model, DecoderOnlyModel)
    batch = kit.tokenizer(prompts, padding_side="left" if decoder else "right")
    options = {
        "max_new_tokens": 55,
        "eos_token_id": kit.tokenizer.special_ids.get("eos", 1),
        **options,
    }
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    ids = kit.model.generate(
        **inputs, structured=form, tokenizer=kit.tokenizer,
        generator=torch.Generator().manual_seed(0), **options,
    )  # fmt: skip
    new = ids[:, batch.width if decoder else 1 :].tolist()
    share = len(new) // len(prompts)
    before = [batch_row(batch, i // share) if decoder else [] for i in range(len(new))]
    return [text_of(kit.tokenizer, b, row) for b, row in zip(before, new, strict=True)]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart", "marian"])
def test_every_output_matches_whatever_the_tokeniser_and_the_search(checkpoint, name, search):
    kit = open_kit(checkpoint(name))
    for pattern in ("[a-z]{2,5} [a-z]{2}", "yes|no|man", "(ein|der)( Hund){1,2}", "你好{1,3}！"):
        for text in write(kit, Structured.regex(pattern), **SEARCHES[search]):
            assert re.fullmatch(pattern, text), (pattern, text)


@pytest.mark.parametrize("search", ["greedy", "drawn"])
def test_every_output_satisfies_the_schema(checkpoint, search):
    kit = open_kit(checkpoint("gpt2"))
    for text in write(kit, Structured.json_schema(SCHEMA), **SEARCHES[search]):
        found = json.loads(text)
        assert list(found) == ["name", "age", "tags"]
        assert re.fullmatch("[a-z]{2,4}", found["name"])
        assert 10 <= found["age"] <= 99
        assert len(found["tags"]) <= 2
        assert set(found["tags"]) <= {"fair", "über"}
        assert text == json.dumps(found, ensure_ascii=False)
    assert Structured.json_schema(json.dumps(SCHEMA)) == Structured.json_schema(SCHEMA)


def test_every_output_has_its_parse(checkpoint):
    nested = Structured.grammar('start: "(" inner? ")"\ninner: "[" start "]"')
    texts = write(open_kit(checkpoint("gpt2")), nested, **SEARCHES["drawn"])
    for text in texts:
        depth = text.count("(")
        assert text == "(" + "[(" * (depth - 1) + ")]" * (depth - 1) + ")"
    assert len(set(texts)) > 1


def test_the_end_comes_when_nothing_can_follow_and_may_come_when_it_is_complete(checkpoint):
    kit = open_kit(checkpoint("gpt2"))
    eos = kit.tokenizer.special_ids["eos"]
    options = {"structured": Structured.regex("[0-9]{3}"), "tokenizer": kit.tokenizer}
    ids = torch.tensor([kit.tokenizer.encode("Goethe")])
    said = kit.model.generate(input_ids=ids, **options, max_new_tokens=30)[0, ids.shape[1] :]
    assert len(said) == 4  # digits are tokens of their own here
    assert said[-1] == eos
    options["structured"] = Structured.regex("x*")
    favoured = {"sequence_bias": {(eos,): 50.0}}
    said = kit.model.generate(input_ids=ids, **options, max_new_tokens=9, **favoured)
    assert said[0, ids.shape[1] :].tolist() == [eos]


def test_special_tokens_are_no_text(checkpoint):
    kit = open_kit(checkpoint("bart"))
    for text in write(kit, Structured.regex("</s>|<pad>|<mask>"), **SEARCHES["drawn"]):
        assert text in ("</s>", "<pad>", "<mask>")  # letter by letter


@cache
def letters() -> Tokenizer:
    """A token a byte, and some that are special."""
    return train_tokenizer(["abcdefxyzuvw"], "bytes", 260)


def form(pattern: str, start: int = 0):
    eos, vocab = (letters().eos_id,), letters().vocab_size
    return Structured.regex(pattern).form(letters(), vocab=vocab, eos=eos, start=start)


def left(keeps, *rows: str) -> list[str]:
    """What may follow each of these texts, as one text of all the tokens."""
    ids = torch.tensor([letters().encode(row, add_special_tokens=False) for row in rows])
    scores = keeps(ids, torch.zeros(len(ids), letters().vocab_size), torch.arange(len(ids)))
    return [letters().decode(row.isfinite().nonzero(), skip_special_tokens=False) for row in scores]


def check_rows_may_move() -> None:
    """What may follow depends on what was said alone: not on the row, nor on earlier questions."""
    keeps = form("ab(cd|ef)|xyz")
    assert left(keeps, "a", "x") == ["b", "y"]
    assert left(keeps, "xy", "ab", "ab") == ["z", "ce", "ce"]
    assert left(keeps, "abe", "abc", "xyz") == ["f", "d", "</s>"]
    assert left(keeps, "a", "x") == ["b", "y"]  # taken back
    assert left(keeps, "abc") == ["d"]


def test_rows_may_move_multiply_and_be_asked_again():
    check_rows_may_move()


def check_what_is_over_is_free() -> None:
    """A row that has ended runs on unseen, a dead beam is never chosen: neither is looked at."""
    keeps, eos = form("ab"), letters().eos_id
    scores = torch.zeros(3, letters().vocab_size)
    a, b, z = (letters().encode(letter)[0] for letter in "abz")
    ids = torch.tensor([[a, b, eos], [a, z, z], [a, b, z]])
    assert keeps(ids, scores, torch.arange(3)).eq(scores).all()
    assert keeps.complete([a, b, eos, z])
    assert keeps.complete([a, b])
    assert not keeps.complete([a, eos])
    assert not keeps.complete([a, z])


def test_what_is_over_is_free():
    check_what_is_over_is_free()


def check_start() -> None:
    """What stands before the first token that may be chosen is not looked at."""
    keeps = form("ab", start=3)
    assert left(keeps, "xyz", "uvw") == ["a", "a"]
    assert len(left(keeps, "xy")[0]) > 200  # a forced token is still to come
    assert left(keeps, "xyza") == ["b"]


def test_what_stands_before_the_first_free_token_is_not_looked_at():
    check_start()


def check_nothing_left() -> None:
    """Where the options leave nothing that the form allows, there is no number to choose by."""
    keeps, scores = form("ab"), torch.zeros(2, letters().vocab_size)
    a, b = letters().encode("ab")
    scores[0, a] = float("-inf")
    kept = keeps(torch.empty(2, 0, dtype=torch.long), scores, torch.arange(2))
    assert kept[0].isnan().all()
    assert kept[1, a] == 0
    assert kept[1, b] == float("-inf")


def test_where_nothing_is_left_there_is_no_number():
    check_nothing_left()


def check_special() -> None:
    """Special tokens are spelt like text and are none; nor are ids that the tokeniser lacks."""
    words = Words(letters(), letters().vocab_size + 2, (letters().eos_id,))
    beyond = range(letters().vocab_size, letters().vocab_size + 2)
    assert set(words.special_token_ids) >= {*letters().special_ids.values(), *beyond}
    assert left(form("<pad>|</s>"), "<") == ["/p"]


def test_special_tokens_and_missing_ids_are_no_text():
    check_special()


def test_options_that_forbid_the_only_way_on_are_an_error(checkpoint):
    kit = open_kit(checkpoint("gpt2"))
    for options in ({}, {"num_beams": 2}, {"do_sample": True}):
        with pytest.raises(GenerationError, match="options do not forbid every token"):
            write(kit, Structured.regex("ab"), min_new_tokens=9, **options)
    with pytest.raises(GenerationError, match="no token of this tokeniser spells"):
        write(open_kit(checkpoint("t5")), Structured.regex("[{]"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Structured.regex("("), r"regex='\(' cannot be used: unclosed group"),
        (lambda: Structured.regex("a(?=b)"), "look-around"),
        (lambda: Structured.regex(7), "regex=7 must be text"),
        (lambda: Structured.json_schema("{"), "is not JSON"),
        (lambda: Structured.json_schema({"enum": {1}}), "is not JSON: Object of type set"),
        (lambda: Structured.json_schema(False), "json_schema=false must be an object, or true"),
        (lambda: Structured.json_schema([1]), r"json_schema=\[1\] must be an object, or true"),
        (lambda: Structured.json_schema({"type": "text"}), "cannot be used: Invalid type: text"),
        (lambda: Structured.json_schema({"not": {}}), r'Unimplemented keys: \["not"\]'),
        (lambda: Structured.grammar("start: x"), r'at 1\(8\): unknown name: "x"'),
    ],
)
def test_what_cannot_be_a_form_is_refused_with_the_cause(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("schema", [True, " true\n"])
def test_a_schema_that_is_true_allows_what_the_empty_one_allows(schema):
    assert Structured.json_schema(schema) == Structured.json_schema({})


def test_what_a_form_needs_is_asked_for(checkpoint, monkeypatch):
    kit, digits = open_kit(checkpoint("gpt2")), Structured.regex("[0-9]")
    ids = torch.tensor([[1, 2]])
    with pytest.raises(ConfigError, match="structured needs the tokeniser"):
        kit.model.generate(input_ids=ids, structured=digits, max_new_tokens=3)
    with pytest.raises(ConfigError, match="give eos_token_id"):
        kit.model.generate(
            input_ids=ids, structured=digits, tokenizer=kit.tokenizer, eos_token_id=None,
            max_new_tokens=3,
        )  # fmt: skip
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match=r"allformer\[structured\]"):
        Structured.regex("x")
