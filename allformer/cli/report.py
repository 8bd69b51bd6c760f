"""`allformer report RUN`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from allformer.cli.common import Device, say, show, writable

REPORT = (
    "Examples: `allformer report runs/mine`, then open `runs/mine/report.html` in a browser; "
    "`allformer report runs/mine --split val --sentences 100 --out mine.html`; "
    "`allformer report runs/chat --reward runs/reward` says who wins, before or after"
)


def report(
    run: Annotated[Path, typer.Argument(help="The directory that training wrote.")],
    out: Annotated[Path | None, typer.Option(help="The page; default: RUN/report.html.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Of a translator: test, val or train; default: test, else val."),
    ] = None,
    sentences: Annotated[int, typer.Option(help="How many of them to translate and score.")] = 500,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            help="Who judges answers before and after: file.py:function, a run (DIR:label), or "
            "command: …; default: what the run was tuned for."
        ),
    ] = None,
    answers: Annotated[int, typer.Option(help="How many answers are judged.")] = 32,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> None:
    """One page that shows a run, offline, in English and Chinese.

    Figures, examples and mistakes, training curves, what was tuned and who wins, statistics of
    layers, attention maps of every layer and head, positions, a diagram with shapes, parameters by
    formula.
    """
    from allformer.core.precision import pick_device
    from allformer.run_report import report_run

    page = run / "report.html" if out is None else out
    if out is not None or run.is_dir():
        writable(page)
    result = report_run(
        run,
        page,
        split=split,
        sentences=sentences,
        rewards=reward or (),
        answers=answers,
        device=pick_device(device),
        say=say,
    )
    if as_json:
        print(json.dumps({"report": str(result.page), **result.scores}, ensure_ascii=False))
        return
    if "sentences" in result.scores:
        from allformer.cli.tables import scores_table

        show(scores_table(result.scores))
    else:
        for name, value in result.scores.items():
            print(f"{name.replace('_', ' '):<20} {value:.4g}")
    print(f"Open {result.page} in a browser. 在浏览器中打开（可切换中文）。")
