"""`audit_special`: the table of what is no whole model, with its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from allformer.auditor.report import Finding, Report
from allformer.auditor.standalone.feed_forward import feed
from allformer.auditor.standalone.loss import loss
from allformer.auditor.standalone.masks import mask_maker
from allformer.auditor.standalone.positions import positions
from allformer.auditor.standalone.search import search
from allformer.auditor.standalone.step import step
from allformer.errors import AuditError


def audit_special(module: Any, kind: str | None, *, pad: Any, eos: Any, only: Any) -> Report:
    """A report for one of these kinds."""
    checks: dict[str, tuple[tuple[str, ...], Callable[..., Iterator[Finding]]]] = {
        "positions": (("positions.missing", "positions.batch_axis", "positions.frequencies",
                       "positions.rotary", "positions.buffer", "dropout.eval"), positions),
        "feed": (("norm.axis", "batch.mixing", "weights.unused"), feed),
        "mask": (("mask.future_leak", "mask.off_by_one", "mask.inverted", "mask.blind_rows",
                  "mask.ambiguous", "mask.finite", "padding.ignored", "padding.query_axis"),
                 mask_maker),
        "loss": (("loss.shift", "loss.padding", "loss.eos", "loss.softmax"), loss),
        "step": (("loss.accumulation",), step),
        "search": (("search.wrong",), search),
    }  # fmt: skip
    if kind is None:
        raise AuditError(f"say what this {type(module).__name__} is: kind=")
    ids, function = checks[kind]
    report = Report(getattr(module, "__name__", type(module).__name__), kind)
    state: dict[str, Any] = {"pad": pad, "eos": eos, "report": report}
    report.findings = list(function(module, state))
    skipped = report.not_applicable
    report.passed = [i for i in ids if i not in report.checks and i not in skipped]
    if only:
        report.findings = [f for f in report.findings if f.check in only]
        report.passed = [p for p in report.passed if p in only]
    return report
