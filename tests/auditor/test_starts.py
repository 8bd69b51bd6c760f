"""How a model starts: what can never move, what is saturated; audits end whatever the start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from allformer.auditor import audit, budget
from tests.auditor.test_neighbours import Encoder, Model, first
from tests.auditor.zoo import LectureGPT


def all_zero(model):
    """Blocks and head at 0, gains too: no part is like a norm any more."""
    for p in (*model.blocks.parameters(), *model.lm_head.parameters()):
        nn.init.zeros_(p)


def large(model, std=1.5):
    for p in model.blocks.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=std)


def usual(model):
    for p in model.blocks.parameters():
        if p.ndim > 1:
            nn.init.kaiming_normal_(p, nonlinearity="relu")


def large_tables(model):
    """Embeddings times √n and more, as in the first Transformer: the matrices are not to blame."""
    for table in (model.token_embedding_table, model.position_embedding_table):
        nn.init.normal_(table.weight, std=30)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("start", "check"),
    [
        (all_zero, "training.gradients"),
        (large, "training.gradients"),
        (usual, ""),
        (large_tables, ""),
    ],
)
def test_starts_of_a_whole_model(start, check):
    torch.manual_seed(0)
    model = LectureGPT()
    start(model)
    assert first(model) == check


def test_a_large_start_is_named_with_its_numbers():
    torch.manual_seed(0)
    model = LectureGPT(n_layer=2)
    large(model)
    report = audit(model, "decoder", only=("training.gradients",))
    (finding,) = report.findings
    assert "each of the 10 attentions" in finding.evidence
    assert "times larger" in finding.evidence


def test_a_check_that_runs_the_module_too_often_is_stopped(monkeypatch):
    monkeypatch.setattr(budget, "MOST", 5)
    torch.manual_seed(0)
    report = audit(Model(), "decoder", only=("mask.future_leak", "dropout.eval"))
    assert report.ok
    assert "stopped after 5 runs" in report.not_applicable["mask.future_leak"]
    assert "dropout.eval" in report.passed


def test_a_norm_is_looked_at_once_while_its_block_runs(monkeypatch):
    """A copy has the hooks of what it was copied from: looking at it must not look again."""
    from allformer.auditor.checks import branch_norms as branches

    depth, most, judge = 0, 0, branches.judge

    def counted(*args):
        nonlocal depth, most
        depth += 1
        most = max(most, depth)
        try:
            return judge(*args)
        finally:
            depth -= 1

    monkeypatch.setattr(branches, "judge", counted)
    torch.manual_seed(0)
    assert audit(Encoder(place="branch"), "encoder", only=("residual.after_norm",)).ok
    assert most == 1
