"""`allformer audit --teach`: train every bug of the lab next to the right model, and show both.

teach(Path("lab"), "zh")        # lab/lab.md, lab/lab.png, lab/lab.json

Each bug is on disk as soon as it is measured; the same call goes on where one was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allformer.auditor.lab.bugs import BUGS, Bug
from allformer.auditor.lab.notebook import Notebook, Row, replace, settings
from allformer.auditor.lab.page import draw, to_markdown
from allformer.auditor.lab.plant import build, lines
from allformer.auditor.lab.tasks import VOCAB, train

STEPS = 250
SIZE: dict[str, Any] = {"vocab": VOCAB, "width": 32, "heads": 4, "layers": 2, "dropout": 0.0}
POSITIONS = {"decoder": "learned", "encoder": "learned", "seq2seq": "sinusoidal"}
DRAW_EVERY = 30.0  # seconds: the picture takes as long as a bug, the page no time


def teach(
    out: Path,
    lang: str = "en",
    *,
    steps: int = STEPS,
    bugs: tuple[Bug, ...] = BUGS,
    say: Callable[[str], None] | None = None,
    show: Callable[[list[Row], int], None] | None = None,
) -> Path:
    """Train and audit everything; write the page, the picture and the numbers. → the page.

    `show(rows, total)` is called with the rows so far: at first, and after each bug.
    """
    out.mkdir(parents=True, exist_ok=True)
    notebook = Notebook(out, settings(steps, bugs), say)
    rows, drawn = notebook.rows, -DRAW_EVERY
    notebook.write()  # before the work, not after it
    _write_page(rows, out, lang, steps, len(bugs))
    if show is not None:
        show(rows, len(bugs))
    try:
        for row in _measure(steps, bugs, rows.copy()):
            notebook.add(row)
            _write_page(rows, out, lang, steps, len(bugs))
            if show is not None:
                show(rows, len(bugs))
            if time.monotonic() - drawn > DRAW_EVERY:
                _write_picture(rows, out, lang)
                drawn = time.monotonic()
    finally:  # also of a run that is stopped
        if rows:
            _write_picture(rows, out, lang)
    return out / "lab.md"


def _write_page(rows: list[Row], out: Path, lang: str, steps: int, total: int) -> None:
    text = to_markdown(rows, lang, steps, total=total)
    replace(out / "lab.md", lambda aside: aside.write_text(text, encoding="utf-8"))


def _write_picture(rows: list[Row], out: Path, lang: str) -> None:
    replace(out / "lab.png", lambda aside: draw(rows, aside, lang))


def planted(bug: Bug, style: str, **changes: Any) -> nn.Module:
    """The model with the bug, as it is audited: with dropout."""
    options = {"positions": POSITIONS[bug.shape], **dict(bug.options), **changes}
    return build(bug.shape, bug.name, style, **{**SIZE, "dropout": 0.1, **options})


def measure(steps: int = STEPS, bugs: tuple[Bug, ...] = BUGS) -> list[Row]:
    """One row for each bug: both curves, both rates, what the auditor said."""
    return list(_measure(steps, bugs, []))


def _measure(steps: int, bugs: tuple[Bug, ...], have: list[Row]) -> Iterator[Row]:
    """The rows of the bugs after the first `len(have)`, whose right curves are not trained anew."""
    from allformer.auditor.run import audit

    right = {
        (bug.shape, bug.styles[0], bug.options): (row["right_loss"], row["right_answers"])
        for bug, row in zip(bugs, have, strict=False)
    }
    for bug in bugs[len(have) :]:
        style = bug.styles[0]
        key = bug.shape, style, bug.options
        if key not in right:
            right[key] = _train(bug.shape, "", style, dict(bug.options), steps)
        loss, answers = _train(bug.shape, bug.name, style, dict(bug.options), steps)
        report = audit(planted(bug, style), bug.shape, vocab=VOCAB, pad=bug.pad)
        right_line, wrong_line = lines(bug, style)
        finding = next((f for f in report.findings if f.check == bug.check), None)
        yield {
            "bug": bug.name, "shape": bug.shape, "style": style, "check": bug.check,
            "line": wrong_line, "right_line": right_line,
            "loss": loss, "right_loss": right[key][0],
            "answers": answers, "right_answers": right[key][1],
            "caught": finding is not None, "evidence": finding.evidence if finding else "",
        }  # fmt: skip


def _train(
    shape: str, bug: str, style: str, options: dict[str, Any], steps: int
) -> tuple[list[float], float]:
    """The loss as it is written, and the rate of right answers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: a second thread waits more than it works
    try:
        options = {"positions": POSITIONS[shape], **options}
        curve = train(shape, build(shape, bug, style, **{**SIZE, **options}), steps)
    finally:
        torch.set_num_threads(threads)
    return [round(v, 4) for v in curve.loss], curve.right
