"""Things that are no whole model: positions, a feed-forward layer, a mask, a loss, a step, …

audit(SinusoidalEncoding(64), kind="positions")
audit(lambda logits, labels: ..., kind="loss", pad=0)
audit(step, kind="step")        # step(model, micro_batches): leaves gradients in the model
audit(search, kind="search")    # search(log_probs, start, end, beams, longest) → ids
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.auditor.masks import mask as read_mask
from allformer.auditor.parts import feed, positions
from allformer.auditor.report import Finding, Report
from allformer.errors import AuditError


def audit_special(module: Any, kind: str | None, *, pad: Any, eos: Any, only: Any) -> Report:
    """A report for one of the kinds above."""
    checks: dict[str, tuple[tuple[str, ...], Callable[..., Iterator[Finding]]]] = {
        "positions": (("positions.missing", "positions.batch_axis", "positions.frequencies",
                       "positions.rotary", "positions.buffer", "dropout.eval"), positions),
        "feed": (("norm.axis", "batch.mixing", "weights.unused"), feed),
        "mask": (("mask.future_leak", "mask.off_by_one", "mask.inverted", "mask.blind_rows",
                  "mask.ambiguous", "mask.finite"), mask_maker),
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


# --- masks -----------------------------------------------------------------------------------------  # noqa: E501


def mask_maker(module: Any, state: Any) -> Iterator[Finding]:
    """A tensor, or something that makes one from a length or from ids."""
    tensor, how, ids = _make_mask(module, state["pad"])
    state["report"].inferred.append(how)
    doctor = read_mask(tensor)
    state["report"].notes += [
        str(doctor).split("\n")[0],
        *(f"doctor: {w}" for w in doctor.warnings),
    ]
    state["report"].not_applicable["mask.future_leak"] = "a mask alone: see off_by_one and inverted"
    for warning in doctor.warnings:
        if "float mask of 0 and 1" in warning:
            yield Finding("mask.ambiguous", "", warning)
        elif "hidden entries are only" in warning:
            yield Finding("mask.finite", "", warning)
        elif "rows see nothing" in warning and ids is None:
            yield Finding("mask.blind_rows", "", warning)
    yield from _causal_shape(doctor.visible)


def _causal_shape(visible: Tensor) -> Iterator[Finding]:
    if visible.ndim < 2 or visible.shape[-1] != visible.shape[-2] or visible.shape[-1] < 3:
        return
    m = visible.reshape(-1, *visible.shape[-2:])[0]
    full = torch.ones_like(m)
    for wrong, words in ((full.tril(1), "one later position is seen"),
                         (full.tril(-1), "no position sees itself")):  # fmt: skip
        # read either way round: off by one is off by one in both conventions
        if torch.equal(m, wrong) or torch.equal(~m, wrong):
            yield Finding("mask.off_by_one", "", f"{int(m.sum())} of {m.numel()} pairs: {words}")
            return
    if torch.equal(m, full.triu()):
        yield Finding(
            "mask.inverted",
            "",
            f"position t sees the later ones only ({int(m.triu(1).sum())} later, "
            f"{int(m.tril(-1).sum())} earlier pairs)",
        )


def _make_mask(module: Any, pad: int | None) -> tuple[Tensor, str, Tensor | None]:
    if isinstance(module, Tensor):
        return module, "a tensor", None
    ids = torch.randint(4, 30, (3, 7), generator=torch.Generator().manual_seed(0))
    if pad is not None:
        ids[0, -2:] = pad
    problems = []
    for arguments, how in (((7,), "called with a length of 7"), ((ids,), "called with ids (3, 7)"),
                           ((ids, pad), "called with ids (3, 7) and the padding id"),
                           ((torch.randn(3, 7, 16),), "called with vectors (3, 7, 16)")):  # fmt: skip  # noqa: E501
        try:
            out = module(*arguments)
        except Exception as error:
            problems.append(f"{how}: {error}")
            continue
        if isinstance(out, Tensor) and out.ndim >= 1:
            return out, how, arguments[0] if isinstance(arguments[0], Tensor) else None
    raise AuditError(f"no mask came back; tried {'; '.join(problems)[:300]}")


# --- the loss --------------------------------------------------------------------------------------  # noqa: E501


def loss(module: Any, state: Any) -> Iterator[Finding]:
    """loss(logits, labels) → a number: its targets are read off the gradient."""
    vocab, pad, eos = 23, state["pad"], state["eos"]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 9, vocab, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, vocab, (2, 9), generator=generator)

    def gradient(targets: Tensor) -> tuple[Tensor, Tensor]:
        x = logits.clone().requires_grad_(True)
        with torch.enable_grad():
            value = _call_loss(module, x, targets)
            (grad,) = torch.autograd.grad(value, x)
        return value.detach(), grad

    value, grad = gradient(labels)
    active = grad.abs().amax(-1) > 1e-14
    target = grad.argmin(-1)
    offsets = [
        o for o in (0, 1, 2, 3)
        if bool((target[:, : 9 - o] == labels[:, o:])[active[:, : 9 - o]].all())
    ]  # fmt: skip
    if not offsets or offsets[0] > 1:
        found = offsets[0] if offsets else "no fixed number of"
        yield Finding("loss.shift", "", f"the gradient at t points at labels[t + {found}]")
    else:
        said = "already shifted" if offsets[0] == 0 else "unshifted, as in the ecosystem"
        state["report"].inferred.append(f"labels come {said}")
    wrong = [float(F.cross_entropy(logits.softmax(-1)[:, : 9 - o].flatten(0, 1), labels[:, o:].flatten()))  # noqa: E501
             for o in (0, 1)]  # fmt: skip
    if any(abs(float(value) - w) < 1e-6 for w in wrong):
        yield Finding("loss.softmax", "", f"the loss {float(value):.4f} is that of softmax(logits)")
    yield from _ignored(gradient, labels, pad, eos, state)


def _call_loss(module: Any, logits: Tensor, labels: Tensor) -> Tensor:
    try:
        out = module(logits, labels)
    except Exception:
        out = module(logits.flatten(0, 1), labels.flatten())
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out, Tensor) or out.ndim:
        raise AuditError("the loss returned no single number")
    return out


def _ignored(gradient: Any, labels: Tensor, pad: Any, eos: Any, state: Any) -> Iterator[Finding]:
    def silent(value: int) -> bool:
        marked = labels.clone()
        marked[:, 4:6] = value
        try:
            grad = gradient(marked)[1].abs().amax(-1)
        except Exception:
            return False
        return bool((grad[:, 3:6] == 0).any())

    if pad is None and not silent(-100):
        yield Finding("loss.padding", "", "targets of −100 get a gradient or raise an error")
    elif (pad is not None and not silent(pad) and not silent(-100)) or (
        pad is not None and not silent(pad)
    ):
        yield Finding("loss.padding", "", f"targets of {pad}, the padding, get a gradient")
    if eos is None:
        state["report"].not_applicable["loss.eos"] = "give eos= to check it"
    elif silent(eos):
        yield Finding("loss.eos", "", f"targets of {eos}, the end, get no gradient")


# --- a training step -------------------------------------------------------------------------------  # noqa: E501


class _Tiny(nn.Module):
    """model(ids, labels) → an object with .logits and .loss (the mean over targets ≠ −100)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 11, dtype=torch.float64)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.table(input_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return _Output(logits, loss)


class _Output(dict):  # type: ignore[type-arg]
    def __init__(self, logits: Tensor, loss: Tensor | None) -> None:
        super().__init__(logits=logits, loss=loss)
        self.logits, self.loss = logits, loss


def step(module: Any, state: Any) -> Iterator[Finding]:
    """Accumulated over micro-batches of unequal length = the full batch at once."""
    ids = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(1))
    labels[0, 1:], labels[1, 3:] = -100, -100
    pairs = [(ids[i : i + 2], labels[i : i + 2]) for i in (0, 2)]
    torch.manual_seed(0)
    model, full = _Tiny(), _Tiny()
    full.load_state_dict(model.state_dict())
    with torch.enable_grad():
        full(ids, labels).loss.backward()
        module(model, pairs)
    want, got = full.table.weight.grad, model.table.weight.grad
    assert want is not None
    if got is None:
        raise AuditError("step(model, micro_batches) left no gradient in the model")
    ratio = float((got * want).sum() / (want * want).sum())
    gap = float((got - want).norm() / want.norm())
    if gap > 1e-6:
        yield Finding(
            "loss.accumulation",
            "",
            f"two micro-batches with {int((labels[:2] >= 0).sum())} and "
            f"{int((labels[2:] >= 0).sum())} targets give a gradient {ratio:.3g} times that of the "
            f"full batch, {gap:.2g} of it away",
        )


# --- a search --------------------------------------------------------------------------------------  # noqa: E501


def search(module: Any, state: Any) -> Iterator[Finding]:
    """With all beams of a tiny vocabulary, beam search is brute force; with one, greedy."""
    vocab, end, longest = 4, 3, 4
    for seed in range(6):
        scores = _Scores(vocab, seed)
        for beams, want in ((1, _greedy(scores, end, longest)),
                            (vocab**longest, _brute(scores, vocab, end, longest))):  # fmt: skip
            got = [
                int(i) for i in torch.as_tensor(module(scores, 0, end, beams, longest)).flatten()
            ]
            got = got[1:] if got[:1] == [0] and len(got) > len(want) else got
            if _total(scores, got) < _total(scores, want) - 1e-9 or not got:
                yield Finding(
                    "search.wrong",
                    "",
                    f"{beams} beams give {got} (log p {_total(scores, got):.3f}); "
                    f"{'greedy' if beams == 1 else 'brute force'} gives {want} "
                    f"({_total(scores, want):.3f})",
                )
                return
            if end in got[:-1]:
                yield Finding("search.wrong", "", f"{beams} beams run past the end: {got}")
                return


class _Scores:
    """log p of the next token for prefixes N T: a fixed random function of the last two."""

    def __init__(self, vocab: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(vocab, vocab, vocab, generator=generator).mul(1.5).log_softmax(-1)

    def __call__(self, prefixes: Tensor) -> Tensor:
        prefixes = torch.as_tensor(prefixes)
        prefixes = prefixes[None] if prefixes.ndim == 1 else prefixes
        last = prefixes[:, -1]
        before = prefixes[:, -2] if prefixes.shape[1] > 1 else torch.zeros_like(last)
        return self.table[before, last]


def _total(scores: _Scores, ids: list[int]) -> float:
    prefix, total = [0], 0.0
    for i in ids:
        total += float(scores(torch.tensor([prefix]))[0, i])
        prefix.append(i)
    return total


def _greedy(scores: _Scores, end: int, longest: int) -> list[int]:
    prefix: list[int] = [0]
    while len(prefix) <= longest and (len(prefix) == 1 or prefix[-1] != end):
        prefix.append(int(scores(torch.tensor([prefix]))[0].argmax()))
    return prefix[1:]


def _brute(scores: _Scores, vocab: int, end: int, longest: int) -> list[int]:
    best: tuple[float, list[int]] = (-1e9, [])
    stack: list[list[int]] = [[]]
    while stack:
        ids = stack.pop()
        if ids and (ids[-1] == end or len(ids) == longest):
            best = max(best, (_total(scores, ids), ids))
            continue
        stack += [[*ids, i] for i in range(vocab)]
    return best[1]
