"""Texts that a model was not made for: too long, or in letters that it never saw."""

from __future__ import annotations

import warnings

import pytest

from allformer.tasks import classify, generate, open_kit, tag, translate
from tests.tiny import checkpoint  # noqa: F401

pytest.importorskip("transformers")


def test_a_prompt_beyond_what_the_model_was_trained_for_is_warned_of(checkpoint, recwarn):  # noqa: F811
    kit = open_kit(checkpoint("llama"))  # rotary: 512 told, none enforced
    generate(kit, ["he " * 100], max_new_tokens=1)
    assert not [w for w in recwarn if "trained for" in str(w.message)]
    with pytest.warns(UserWarning, match="a prompt is longer than the 512 tokens that the model"):
        generate(kit, ["he " * 600], max_new_tokens=1)
    marian = open_kit(checkpoint("marian"))  # sinusoidal: 64
    with pytest.warns(UserWarning, match="a source is longer than the 64 tokens that the model"):
        translate(marian, ["he " * 100], max_new_tokens=1)


def test_one_file_of_long_prompts_is_told_once(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("llama"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        generate(kit, ["he " * n for n in (600, 700, 5000)], max_new_tokens=1)
    assert len([w for w in told if "trained for" in str(w.message)]) == 1


@pytest.mark.parametrize("name", ["bert-class", "bert-ner", "marian", "t5"])
def test_texts_that_the_tokeniser_does_not_know_are_warned_of(checkpoint, name):  # noqa: F811
    kit = open_kit(checkpoint(name))
    tasks = {"bert-class": classify, "bert-ner": tag}
    work = tasks.get(name, lambda kit, texts: generate(kit, texts, max_new_tokens=2))
    texts = ["he was born", "☃ ♞ ☂ ♜ ☭ ♬ ♝ ☮", "he ☃"]
    match = r"1 text is mostly unknown to the tokeniser \(\w+\), the first: \d+% of \"☃ ♞"
    with pytest.warns(UserWarning, match=match):
        work(kit, texts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work(kit, ["he was born in Paris", ""])


def test_bytes_spell_every_text(checkpoint):  # noqa: F811
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(open_kit(checkpoint("gpt2")), ["☃ ♞ ☂"], max_new_tokens=2)
