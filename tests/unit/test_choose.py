"""`choose`: the best of several texts, as transformers' own model scores them."""

from __future__ import annotations

import pytest
import torch

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.errors import DataError, LengthError
from tests.tiny import checkpoint  # noqa: F401

hf = pytest.importorskip("transformers")
QUESTION, CHOICES = "the capital of france", ["is paris.", "eating food", "he"]


@pytest.mark.parametrize("name", ["bert-choice", "longformer-choice"])
def test_scores_are_a_softmax_over_transformers_logits(checkpoint, name):  # noqa: F811
    kit = af.open_kit(checkpoint(name))
    batch = kit.tokenizer([QUESTION] * 3, CHOICES, padding_side="right")
    theirs = getattr(hf, kit.architecture).from_pretrained(kit.directory).eval()
    inputs = {x: batch[x][None] for x in ("input_ids", "attention_mask")}
    if name == "bert-choice":
        inputs["token_type_ids"] = batch["token_type_ids"][None]
    with torch.no_grad():
        wanted = theirs(**inputs).logits[0].softmax(0)
    found = af.choose(kit, QUESTION, CHOICES, all=True)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        assert one.score == pytest.approx(wanted[CHOICES.index(one.label)].item(), abs=1e-5)
    assert af.choose(kit, QUESTION, CHOICES) == found[0]


def test_each_question_has_its_own_choices_or_all_the_same(checkpoint):  # noqa: F811
    kit = af.open_kit(checkpoint("bert-choice"))
    own = [CHOICES, ["a man", "two women"]]
    both = af.choose(kit, [QUESTION, "who"], own, all=True)
    for question, choices, found in zip([QUESTION, "who"], own, both, strict=True):
        alone = af.choose(kit, question, choices, all=True)
        assert [x.label for x in alone] == [x.label for x in found]
        assert [x.score for x in alone] == pytest.approx([x.score for x in found], abs=1e-5)
    assert len(af.choose(kit, [QUESTION, "who"], CHOICES)) == 2


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ("he", "choices='he' is one text; give a list"),
        ([["he"]], "there are 2 questions but 1 lists of choices"),
        ([["he"], []], "question 2 has no choices"),
        ([["he"], [1]], "of question 2: choice 1 is 1; it must be a text"),
        ([], "there are 2 questions but 0 lists"),
    ],
)
def test_what_is_no_list_of_choices_is_refused(checkpoint, choices, says):  # noqa: F811
    with pytest.raises(DataError, match=says):
        af.choose(checkpoint("bert-choice"), ["who", "where"], choices)


def test_a_long_one_is_refused_or_cut(checkpoint):  # noqa: F811
    kit = af.open_kit(checkpoint("bert-choice"))
    with pytest.raises(LengthError, match=r"text 2 .*takes 48; split it"):
        af.choose(kit, "who", ["he", "he " * 60])
    with pytest.warns(UserWarning, match="cut to 48 tokens"):
        assert af.choose(kit, "who", ["he", "he " * 60], truncate=True).label


def test_it_is_converted_with_a_certificate(checkpoint, tmp_path):  # noqa: F811
    """Which runs transformers' model beside ours, on questions with choices."""
    certificate = convert(checkpoint("bert-choice"), tmp_path / "out")
    assert certificate["sound"] is True
    pairs = [row["between"] for row in certificate["outputs"] if row["output"] == "logits"]
    assert len(pairs) == 3
