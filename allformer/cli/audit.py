"""`allformer audit`: parse, run apart, print. Exit status 0 clean, 1 findings, 2 could not run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from allformer.errors import AllformerError

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
    with _one_line():
        if lang not in ("en", "zh"):
            _stop(f"--lang {lang}: there are en and zh")
        if teach:
            _teach(out, lang, as_json)
            return
        if target is None:
            _stop("give FILE.py:NAME or a directory, or --teach")
        for path in (junit, markdown):  # before the work, not after it
            if path is not None:
                path.open("a", encoding="utf-8").close()
        given = {"kind": kind, "vocab": vocab, "pad": pad, "eos": eos, "profile": profile}
        options = {k: v for k, v in {**given, "lang": lang}.items() if v is not None}
        report = _run(str(target), options, timeout, memory, consistency, as_json)
        if junit is not None:
            junit.write_text(report.to_junit(), encoding="utf-8")
        if markdown is not None:
            markdown.write_text(report.to_markdown(), encoding="utf-8")
        _print(report, as_json)
        raise typer.Exit(0 if report.ok else 1)


def _run(
    target: str, options: dict[str, Any], timeout: float, memory: int, compare: bool, as_json: bool
) -> Any:
    """The report of an audit in a process of its own; rows of consistency are printed here."""
    from allformer.auditor import run_apart

    say = _progress if sys.stderr is not None and sys.stderr.isatty() else None
    result = run_apart(
        target, options, seconds=timeout, megabytes=memory, consistency=compare, say=say
    )
    if say is not None:
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    if result.problem:
        if as_json:
            _json({"problem": result.problem})
        _stop(result.problem)
    if result.rows is not None:
        _rows(result.rows, as_json)
    return result.report


def _print(report: Any, as_json: bool) -> None:
    if as_json:
        _json(report.as_dict(), indent=2)
        return
    from rich.console import Console

    from allformer.auditor import show

    show(report, Console())
    sys.stdout.flush()


def _json(value: Any, indent: int | None = None) -> None:
    """One object; where standard output cannot show every letter, they are escaped."""
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    print(json.dumps(value, ensure_ascii=plain, indent=indent), flush=True)


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """What goes wrong around an audit (files, a full disk, Ctrl-C) is one line and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal has no √
    try:
        if sys.stdout is None:
            _stop("standard output is closed")
        yield
    except AllformerError as error:
        _stop(str(error))
    except BrokenPipeError:
        raise  # whoever reads has read enough: not an error of the audit
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # so that leaving does not try again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        where = f"{error.filename}: " if error.filename else ""
        _stop(f"{where}{error.strerror or error}")
    except MemoryError:
        _stop("there is not enough memory")
    except KeyboardInterrupt:
        _stop("stopped")


def _stop(problem: str) -> NoReturn:
    line = " ".join(problem.split())
    print(f"allformer audit: could not run: {line}", file=sys.stderr)
    raise typer.Exit(2)


def _progress(line: str) -> None:
    print(f"\r{line[:58]:<60}", end="", file=sys.stderr, flush=True)


def _rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    bad = [r for r in rows if r["state"] == "differs"]
    if as_json:
        _json({"ok": not bad, "rows": rows})
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
        sys.stdout.flush()
    raise typer.Exit(1 if bad else 0)


def _teach(out: Path, lang: str, as_json: bool) -> None:
    from allformer.auditor import teach

    watch = _Watch()
    try:
        page = teach(
            out, lang, say=None if as_json else watch.say, show=None if as_json else watch.show
        )
    except KeyboardInterrupt:
        watch.close()
        _stop(f"stopped; {out / 'lab.md'} has what was measured, and the same command goes on")
    finally:
        watch.close()
    print(json.dumps({"page": str(page)}) if as_json else f"{page}", flush=True)


class _Watch:
    """The lab's progress: a bar with the time left on a terminal, a line for each bug elsewhere."""

    def __init__(self) -> None:
        self.bar: Any = None

    def show(self, rows: list[dict[str, Any]], total: int) -> None:
        if self.bar is None:
            from allformer.train.progress import Progress

            if rows:
                self.say(f"{len(rows)} of {total} bugs were measured before: they are kept")
            if len(rows) < total and sys.stderr is not None:
                self.bar = Progress(total, len(rows), plain_every=0, what="lab", unit="bug")
        else:
            self.bar.update(len(rows), **_figures(rows[-1], brief=sys.stderr.isatty()))

    @staticmethod
    def say(line: str) -> None:
        if sys.stderr is not None:  # else print would take standard output
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _figures(row: dict[str, Any], brief: bool) -> dict[str, str]:
    """What is said of a bug in passing; in brackets, the right model. A bar has little room."""
    verdict = {row["bug"]: "caught" if row["caught"] else "NOT caught"}
    if brief:
        return verdict
    return {
        **verdict,
        "loss": f"{row['loss'][-1]:.2f} ({row['right_loss'][-1]:.2f})",
        "right answers": f"{row['answers']:.0f} % ({row['right_answers']:.0f} %)",
    }
