"""`audit`: run the checks on any module from outside.

    report = audit(model, kind="decoder", vocab=1000)
    report.ok; [f.check for f in report.findings]

The module is never run or changed itself: the checks work on copies, and the random state, the
default dtype and the grad mode of the process are as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.blockers import blocker
from allformer.auditor.budget import Exhausted
from allformer.auditor.context import CHECKS, Context, NotApplicable
from allformer.auditor.infer import infer
from allformer.auditor.probe import bare, brief, duplicate, guarded, make_loud
from allformer.auditor.profiles import read_profile
from allformer.auditor.report import Finding, Report
from allformer.errors import AuditError

MODEL_KINDS = ("decoder", "encoder", "seq2seq", "attention", "block", "norm")
SPECIAL_KINDS = ("positions", "mask", "loss", "step", "search", "feed")
ALIASES = {
    "layer": "block", "encoder_layer": "block", "decoder_layer": "block", "lm": "decoder",
    "causal": "decoder", "gpt": "decoder", "bert": "encoder", "encoder-decoder": "seq2seq",
    "encoder_decoder": "seq2seq", "mha": "attention", "position": "positions",
    "positional": "positions", "rotary": "positions", "rope": "positions", "layernorm": "norm",
    "classifier": "encoder", "ffn": "feed", "mlp": "feed", "feedforward": "feed",
    "beam": "search", "training": "step", "accumulation": "step", "criterion": "loss",
}  # fmt: skip
Progress = Callable[[str, int, int], None]


def audit(
    module: Any,
    kind: str | None = None,
    *,
    vocab: int | None = None,
    source_vocab: int | None = None,
    call: Callable[..., Any] | None = None,
    pad: int | None = None,
    eos: int | None = None,
    width: int | None = None,
    profile: str | tuple[str, ...] | list[str] | None = None,
    only: tuple[str, ...] | list[str] | None = None,
    lang: str = "en",
    progress: Progress | None = None,
) -> Report:
    """Find the classical Transformer bugs: `audit(model, kind="decoder", vocab=1000)`.

    `module` is an nn.Module or a function without arguments that builds one (then saving and
    loading is checked between two builds). `kind` is "decoder", "encoder", "seq2seq", "attention",
    "block", "norm", "positions", "feed", "mask", "loss", "step" or "search"; inferred if left out.
    `call(module, ids[, keep])`, for seq2seq `call(module, source, target[, source_keep, keep])`,
    says how to run it where that cannot be inferred. `profile` names legitimate oddities. `only`
    runs the checks with these ids. Raises AuditError if the module cannot be run.
    """
    begin = time.perf_counter()
    kind = _known(kind)
    wanted = read_profile(profile)
    printed: list[str] = []
    build = None
    with guarded(printed), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if _is_builder(module, kind):
            build, module = module, module()
        if isinstance(module, Tensor):
            kind = "mask"
        if kind in SPECIAL_KINDS or (kind is None and not isinstance(module, nn.Module)):
            from allformer.auditor.standalone import audit_special

            report = audit_special(module, kind, pad=pad, eos=eos, only=only)
        else:
            report = _audit_module(
                module, kind, build, wanted, only, progress, vocab=vocab,
                source_vocab=source_vocab, call=call, pad=pad, eos=eos, width=width,
            )  # fmt: skip
    if printed:
        lines = sum(len(text.splitlines()) for text in printed)
        report.notes.append(f"the module printed {lines} lines, which are not shown")
    report.lang = lang
    report.findings = [f.in_language(lang) for f in report.findings]
    report.seconds = time.perf_counter() - begin
    return report


def _known(kind: str | None) -> str | None:
    if kind is None:
        return None
    kind = ALIASES.get(kind.lower(), kind.lower())
    if kind not in MODEL_KINDS and kind not in SPECIAL_KINDS:
        choices = ", ".join((*MODEL_KINDS, *SPECIAL_KINDS))
        raise AuditError(f"kind={kind!r} is not known; there are {choices}")
    return kind


def _is_builder(module: Any, kind: str | None) -> bool:
    if isinstance(module, nn.Module | Tensor) or not callable(module):
        return False
    if isinstance(module, type) and issubclass(module, nn.Module):
        return True
    if kind in ("mask", "loss", "step", "search"):
        return False
    import inspect

    needed = [
        p for p in inspect.signature(module).parameters.values()
        if p.default is p.empty and p.kind.value < 2
    ]  # fmt: skip
    return not needed


def _audit_module(
    module: Any,
    kind: str | None,
    build: Any,
    profile: frozenset[str],
    only: Any,
    progress: Progress | None,
    **how: Any,
) -> Report:
    from allformer.auditor.checks import ORDER

    if not isinstance(module, nn.Module):
        more = " that takes arguments" if callable(module) else ""
        raise AuditError(
            f"audit takes an nn.Module or a function without arguments that builds one; this is a "
            f"{type(module).__name__}{more}"
        )
    module = bare(module)
    report = Report(type(module).__name__, kind or "")
    ctx = _context(module, kind, build, profile, how)
    config_eos = getattr(getattr(module, "config", None), "eos_token_id", None)
    stated = config_eos if isinstance(config_eos, int) else None
    ctx.eos = stated if how["eos"] is None else how["eos"]
    report.kind, report.inferred = ctx.kind, ctx.call.notes
    ctx.call.budget.renew()
    nothing = blocker(ctx)
    if nothing is not None:
        report.findings, report.notes = [nothing], ["no other check was made"]
        return report
    chosen = [
        c for c in CHECKS
        if ctx.kind in c.kinds and (not only or any(i in only for i in c.ids + c.also))
    ]  # fmt: skip
    chosen.sort(key=lambda c: ORDER.index(c.function.__module__.rpartition(".")[2]))
    for number, item in enumerate(chosen):
        if progress is not None:
            progress(item.ids[0], number, len(chosen))
        _one(item, ctx, report)
    if progress is not None:
        progress("", len(chosen), len(chosen))
    report.passed = [p for p in dict.fromkeys(report.passed) if p not in report.checks]
    for name in (*report.checks, *report.passed):
        report.not_applicable.pop(name, None)
    report.notes += list(dict.fromkeys(ctx.notes))
    report.profile = [f"{p} (named by you)" for p in sorted(profile)] + ctx.found_profile
    return report


def _one(item: Any, ctx: Context, report: Report) -> None:
    found: list[Finding] = []
    ctx.call.budget.renew()
    try:
        for finding in item.function(ctx) or ():
            found.append(finding)
    except Exhausted as reason:
        report.not_applicable.update({i: str(reason) for i in item.ids})
        return
    except NotApplicable as reason:
        if not found:
            report.not_applicable.update({i: str(reason) for i in item.ids})
            return
    except Exception as error:
        text = brief(error, 160)
        if not found:
            failed = f"could not run: {type(error).__name__}: {text}"
            report.not_applicable.update(dict.fromkeys(item.ids, failed))
            return
    report.findings += [f for f in found if f.check not in report.checks]
    names = {f.check for f in found}
    report.passed += [i for i in item.ids if i not in names]


def _context(module: nn.Module, kind: str | None, build: Any, profile: Any, how: Any) -> Context:
    """Copies and the way to call them: in fp64 if the module can, else in fp32."""
    size = sum(p.numel() for p in module.parameters())
    if size == 0 and kind is None:
        raise AuditError("the module has no parameters; say what it is: kind=")
    if kind == "norm" or (kind is None and isinstance(module, nn.LayerNorm | nn.RMSNorm)):
        return _norm_context(module, profile, how)
    problems = []
    for dtype in (torch.float64, torch.float32) if size < 2e8 else (torch.float32,):

        def loud(tables: frozenset[int], dtype: torch.dtype = dtype) -> nn.Module:
            return make_loud(duplicate(module).to(dtype).eval(), 1, tables)

        try:
            call, twin = infer(module, loud, kind, **how)
            if "right-padding" in profile:
                call.x.counted = call.source.counted = True
            return Context(module, twin, call, build, profile)
        except AuditError as error:
            problems.append(error)
            if "could not be called" not in str(error):
                raise
    raise problems[-1]


def _norm_context(module: nn.Module, profile: Any, how: Any) -> Context:
    from allformer.auditor.calls import Call, Side

    vectors = list(module.parameters())
    width = how.get("width") or (vectors[0].shape[-1] if vectors else 16)
    twin = duplicate(module).double().eval()
    call = Call("norm", style="forward(x)", x=Side(["x"], ids=False, width=int(width)))
    call.notes = [f"called with vectors of {width}"]
    return Context(module, twin, call, None, profile)


def assert_sound(module: Any, kind: str | None = None, **options: Any) -> Report:
    """For tests: raise an AssertionError that names every finding; returns the report."""
    report = audit(module, kind, **options)
    if not report.ok:
        raise AssertionError("\n" + report.text())
    return report
