"""Every bug of the lab is caught in every style, and the lab's right models are clean."""

from __future__ import annotations

import pytest

from allformer.auditor import CATALOGUE, audit
from allformer.auditor.lab import BUGS, SIZE, VOCAB, build, draw, measure, planted, to_markdown

CASES = [(bug, style) for bug in BUGS for style in bug.styles]


@pytest.mark.parametrize(("bug", "style"), CASES, ids=[f"{b.name}-{s}" for b, s in CASES])
def test_the_right_check_names_the_bug(bug, style):
    report = audit(planted(bug, style), bug.shape, vocab=VOCAB, pad=bug.pad, only=[bug.check])
    assert bug.check in report.checks, report.text()
    finding = next(f for f in report.findings if f.check == bug.check)
    assert any(c.isdigit() for c in finding.evidence) or len(finding.evidence) > 20


@pytest.mark.parametrize("style", ["separate", "fused", "mha", "einsum"])
@pytest.mark.parametrize("shape", ["decoder", "encoder", "seq2seq"])
def test_the_right_models_are_clean(shape, style):
    model = build(shape, "", style, **{**SIZE, "dropout": 0.1})
    report = audit(model, shape, vocab=VOCAB)
    assert report.ok, report.text()
    assert not [r for r in report.not_applicable.values() if r.startswith("could not run")]


def test_every_bug_has_its_words_in_both_languages():
    for bug in BUGS:
        entry = CATALOGUE[bug.check]
        for pair in (entry.title, entry.why, entry.mend):
            assert len(pair) == 2
            assert all(pair)


def test_a_leak_trains_well_and_answers_badly(tmp_path):
    leak = [b for b in BUGS if b.name == "no_mask"]
    (row,) = measure(60, tuple(leak))
    assert row["caught"]
    assert row["loss"][-1] < row["loss"][0]
    draw([row] * 2, tmp_path / "lab.png", "zh")
    assert (tmp_path / "lab.png").stat().st_size > 1000
    page = to_markdown([row], "zh", 60)
    assert "mask.future_leak" in page
    assert "位置看到了未来" in page
