"""A model that lives on a GPU is audited there."""

from __future__ import annotations

import pytest
import torch

from allformer.auditor import audit
from allformer.auditor.lab import BUGS, SIZE, VOCAB, build, planted

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
STAYING = [bug for bug in BUGS if bug.name == "buffer"]  # cannot be called after .to("cuda")
FOLLOWING = [bug for bug in BUGS if bug not in STAYING]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("style", ["separate", "fused", "mha"])
@pytest.mark.parametrize("shape", ["decoder", "encoder", "seq2seq"])
def test_sound_models_have_no_findings(shape, style, dtype):
    model = build(shape, "", style, **{**SIZE, "dropout": 0.1}).to("cuda", dtype)
    report = audit(model, shape, vocab=VOCAB)
    assert report.ok, report.text()
    assert next(model.parameters()).is_cuda


@pytest.mark.parametrize("bug", FOLLOWING, ids=[bug.name for bug in FOLLOWING])
def test_the_right_check_names_the_bug(bug):
    model = planted(bug, bug.styles[0]).to("cuda")
    report = audit(model, bug.shape, vocab=VOCAB, pad=bug.pad, only=[bug.check])
    assert bug.check in report.checks, report.text()


def test_a_table_that_stays_behind_is_named():
    (bug,) = STAYING
    model = planted(bug, bug.styles[0]).to("cuda")
    report = audit(model, bug.shape, vocab=VOCAB)
    assert "positions.buffer" in report.checks, report.text()
