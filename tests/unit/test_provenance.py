"""Where a model comes from is one typed thing, and what a family was taught is its own data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import allformer
from allformer.core.model import build
from allformer.core.provenance import Provenance
from allformer.errors import ConfigError
from allformer.families import FAMILIES
from allformer.text.vocabulary import LANGUAGES_50
from tests.models import KINDS

ROOT = Path(allformer.__file__).parent


@pytest.mark.parametrize("name", KINDS)
def test_a_fresh_model_has_an_empty_provenance(name):
    assert build(KINDS[name], device="meta").provenance == Provenance()


def test_two_models_never_share_what_is_remembered():
    one, other = (build(KINDS["decoder paper"], device="meta").provenance for _ in range(2))
    one.extras["a"] = 1
    assert other.extras == {}


def test_no_code_asks_for_the_name_of_a_family():
    asked = re.compile(r"family\b[^\n=]*[!=]= [\"'](" + "|".join(FAMILIES) + ")")
    for path in sorted(ROOT.rglob("*.py")):
        found = asked.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found and found.group()}"


def test_a_family_knows_the_words_that_it_was_taught():
    prompts = FAMILIES["t5"].prompts
    assert prompts.summarise == "summarize: "
    assert prompts.way("en", "german") == "translate English to German: "
    assert FAMILIES["mt5"].prompts.summarise == ""
    with pytest.raises(ConfigError, match="language 'zh' is none that this family"):
        prompts.way("en", "zh")


def test_mbarts_languages_are_those_of_its_tokeniser():
    prompts = FAMILIES["mbart"].prompts
    assert set(prompts.languages) == {code.split("_")[0] for code in LANGUAGES_50}
    assert prompts.code("Hindi") == "hi"
