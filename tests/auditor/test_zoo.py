"""Sound models in many styles give no finding; the bugs typed into them give the right one."""

from __future__ import annotations

import pytest
import torch

from allformer.auditor import audit
from tests.auditor.planted import PLANTED, plant
from tests.auditor.zoo import SOUND

SLOW = {"lecture", "lecture, no dropout"}  # one module a head: many attentions
FEW = [case for i, case in enumerate(PLANTED) if case[0] not in SLOW or i % 4 == 0]


@pytest.mark.every(5)
@pytest.mark.parametrize("name", SOUND)
def test_sound_models_have_no_findings(name):
    build, kind, options = SOUND[name]
    torch.manual_seed(1)
    report = audit(build(), kind, **options)
    assert report.ok, report.text()
    assert not [r for r in report.not_applicable.values() if r.startswith("could not run")]


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["nano", "mha encoder", "torch seq2seq", "meta llama", "alibi"])
def test_bf16_models_have_no_findings(name):
    build, kind, _ = SOUND[name]
    report = audit(build().to(torch.bfloat16), kind)
    assert report.ok, report.text()


@pytest.mark.parametrize("name", ["nano", "annotated", "tutorial", "mha encoder", "meta llama"])
def test_the_kind_is_inferred(name):
    build, kind, _ = SOUND[name]
    report = audit(build(), only=["batch.mixing"])
    assert report.kind == kind
    assert any("inferred" in line for line in report.inferred)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("model", "old", "new", "check"), FEW, ids=[f"{i}-{c[0]}-{c[3]}" for i, c in enumerate(FEW)]
)
def test_planted_bugs_are_named(model, old, new, check):
    torch.manual_seed(2)
    module, kind = plant(model, old, new)
    report = audit(module, kind, only=[check])
    assert check in report.checks, report.text()
