"""A report as text, with or without colour (rich)."""

from __future__ import annotations

import io
from typing import Any

WORDS = {
    "en": ("evidence", "why", "mend", "passed", "not applicable", "inferred", "profile", "notes",
           "clean", "finding(s)", "where", "the module"),
    "zh": ("证据", "原因", "改法", "通过", "不适用", "推断", "特例", "备注",
           "没有发现问题", "个问题", "位置", "模块本身"),
}  # fmt: skip


def render(report: Any, colour: bool = False, width: int = 100) -> str:
    """The text of a report; `colour` keeps the terminal's escape codes."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, no_color=not colour, highlight=False
    )
    show(report, console)
    return out.getvalue()


def show(report: Any, console: Any) -> None:
    """Print a report on a rich console."""
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    w = WORDS[report.lang if report.lang in WORDS else "en"]
    state = w[8] if report.ok else f"{len(report.findings)} {w[9]}"
    head = Text.assemble(
        (f" {state} ", "bold black on green" if report.ok else "bold white on red"),
        f"  {report.subject} · {report.kind} · {report.seconds:.1f} s",
    )
    console.print(head)
    for f in report.findings:
        mark = "red" if f.severity == "error" else "yellow"
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value, style in (
            (w[10], f.where or w[11], ""),
            (w[0], f.evidence, "bold"),
            (w[1], f.why, ""),
            (w[2], f.mend, "green"),
            ("", f.link, "dim"),
        ):
            grid.add_row(label, Text(value, style=style))
        title = Text.assemble((f.check, f"bold {mark}"), (f"  {f.title}", "bold"))
        console.print(Panel(grid, title=title, title_align="left", border_style=mark))
    for label, rows in ((w[5], report.inferred), (w[6], report.profile), (w[7], report.notes)):
        for i, row in enumerate(rows):
            console.print(Padding(Text(f"{label if i == 0 else '':>{len(label)}}  {row}"), (0, 1)))
    console.print(
        Padding(Text(f"{w[3]} {len(report.passed)}: {', '.join(report.passed)}", "green"), (0, 1))
    )
    if report.not_applicable:
        reasons: dict[str, list[str]] = {}
        for check, reason in report.not_applicable.items():
            reasons.setdefault(reason, []).append(check)
        console.print(Padding(Text(f"{w[4]} {len(report.not_applicable)}:", "dim"), (0, 1)))
        for reason, checks in reasons.items():
            console.print(Padding(Text(f"{', '.join(checks)}: {reason}", "dim"), (0, 1, 0, 3)))
