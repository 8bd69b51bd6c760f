"""`allformer audit`: parse, run apart, print. Exit status 0 clean, 1 findings, 2 could not run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

KIND = (
    "decoder, encoder, seq2seq, attention, block, norm, positions, feed, mask, loss, step, search."
)


def audit(
    target: Annotated[
        str | None,
        typer.Argument(help="FILE.py:NAME (a module, or what builds one) or a directory."),
    ] = None,
    kind: Annotated[str | None, typer.Option(help=f"{KIND} Default: inferred.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Size of the vocabulary.")] = None,
    pad: Annotated[int | None, typer.Option(help="The padding's id.")] = None,
    eos: Annotated[int | None, typer.Option(help="The end's id.")] = None,
    profile: Annotated[
        list[str] | None, typer.Option(help="A legitimate oddity: t5, albert, no-positions, …")
    ] = None,
    consistency: Annotated[
        bool, typer.Option("--consistency", help="Compare ways of computing the same.")
    ] = False,
    teach: Annotated[
        bool,
        typer.Option("--teach", help="Show every bug of the lab and what it does to training."),
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown here.")] = None,
    out: Annotated[Path, typer.Option(help="Where --teach writes its page.")] = Path("lab"),
    timeout: Annotated[float, typer.Option(help="Seconds at most.")] = 300.0,
    memory: Annotated[int, typer.Option(help="Megabytes at most.")] = 8192,
    lang: Annotated[str, typer.Option(help="en or zh.")] = "en",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> None:
    """Find the classical Transformer bugs in anybody's PyTorch module."""
    if lang not in ("en", "zh"):
        _stop(f"--lang {lang}: there are en and zh")
    if teach:
        _teach(out, lang, as_json)
        return
    if target is None:
        _stop("give FILE.py:NAME or a directory, or --teach")
    from allformer.auditor.sandbox import run_apart

    given = {"kind": kind, "vocab": vocab, "pad": pad, "eos": eos, "profile": profile, "lang": lang}
    options = {k: v for k, v in given.items() if v is not None}
    assert target is not None
    say = _progress if sys.stderr.isatty() else None
    result = run_apart(
        target, options, seconds=timeout, megabytes=memory, consistency=consistency, say=say
    )
    if say is not None:
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    if result.problem:
        if as_json:
            print(json.dumps({"problem": result.problem}, ensure_ascii=False))
        _stop(result.problem)
    if result.rows is not None:
        _rows(result.rows, as_json)
        return
    report = result.report
    assert report is not None
    if junit is not None:
        junit.write_text(report.to_junit(), encoding="utf-8")
    if markdown is not None:
        markdown.write_text(report.to_markdown(), encoding="utf-8")
    if as_json:
        print(report.to_json())
    else:
        from rich.console import Console

        from allformer.auditor.render import show

        show(report, Console())
    raise typer.Exit(0 if report.ok else 1)


def _stop(problem: str) -> None:
    print(f"allformer audit: could not run: {problem}", file=sys.stderr)
    raise typer.Exit(2)


def _progress(line: str) -> None:
    print(f"\r{line[:58]:<60}", end="", file=sys.stderr, flush=True)


def _rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    bad = [r for r in rows if r["state"] == "differs"]
    if as_json:
        print(json.dumps({"ok": not bad, "rows": rows}, ensure_ascii=False))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table("comparison", "", "largest difference", "begins at, or why not")
        marks = {
            "same": "[green]same[/]",
            "differs": "[red]differs[/]",
            "not applicable": "[dim]n/a[/]",
        }
        for r in rows:
            number = (
                ""
                if r["state"] == "not applicable"
                else f"{r['difference']:.1e} (limit {r['limit']:.0e})"
            )
            table.add_row(r["name"], marks[r["state"]], number, r["begins"] or r["reason"])
        Console().print(table)
    raise typer.Exit(1 if bad else 0)


def _teach(out: Path, lang: str, as_json: bool) -> None:
    from allformer.auditor.lab.teach import teach

    page = teach(out, lang, say=None if as_json else lambda line: print(line, file=sys.stderr))
    print(json.dumps({"page": str(page)}) if as_json else f"{page}")
