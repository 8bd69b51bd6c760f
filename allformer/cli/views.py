"""What the tasks' verbs print: to read, and as one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def bar(score: float, width: int = 12) -> str:
    """`bar(0.5)` → ██████"""
    eighths = round(max(0.0, min(1.0, score)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _grid() -> Table:
    return Table(show_header=False, box=None, padding=(0, 1))


def fill_table(text: str, result: tuple[str, Any, str]) -> Group:
    """Tokens with their scores and the whole text; a block for each gap."""
    found = result[1]
    parts: list[Any] = []
    for fills in [found] if not isinstance(found[0], list) else found:
        grid = _grid()
        grid.add_column(no_wrap=True, style="bold")
        grid.add_column(justify="right")
        grid.add_column(min_width=12, style="cyan", no_wrap=True)
        grid.add_column(style="dim", overflow="fold")
        for one in fills:
            grid.add_row(
                Text(one.token.strip()), f"{one.score:.4f}", bar(one.score), Text(one.text)
            )
        parts.append(grid)
    return Group(*parts)


def best_filled(result: tuple[str, Any, str]) -> str:
    """The text with all its gaps filled with the likeliest."""
    text, found, mask = result
    out, done = "", 0
    for fills in [found] if not isinstance(found[0], list) else found:
        end = text.index(mask, done) + len(mask)
        filled = fills[0].text  # one gap filled, the others open: what lies up to its end is new
        out += filled[done : len(filled) - len(text[end:])]
        done = end
    return out + text[done:]


def label_table(text: str, result: Any) -> Table:
    """Labels with their scores."""
    grid = _grid()
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(justify="right")
    grid.add_column(style="cyan", no_wrap=True)
    for one in result if isinstance(result, list) else [result]:
        grid.add_row(Text(one.label), f"{one.score:.4f}", bar(one.score))
    return grid


def image_label_table(path: str, result: Any) -> Group:
    """The image's path, and its labels with their scores."""
    return Group(Text(path, "dim"), label_table(path, result))


def label_line(result: Any) -> str:
    """Label, tab, score, for one or all."""
    labels = result if isinstance(result, list) else [result]
    return "\t".join(f"{one.label}\t{one.score:.6f}" for one in labels)


def entity_text(text: str, result: Any) -> Group:
    """The text with its entities coloured, and a line for each."""
    labels = sorted({one.label for one in result})
    style = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    shown = Text(text)
    grid = _grid()
    for one in result:
        shown.stylize(f"bold {style[one.label]}", one.start, one.end)
        where = f"{one.start}-{one.end}"
        grid.add_row(Text(one.label, style[one.label]), Text(one.text), f"{one.score:.4f}", where)
    return Group(shown, grid)


def entity_line(result: Any) -> str:
    """LABEL text, with tabs between."""
    return "\t".join(f"{one.label} {' '.join(one.text.split())}" for one in result)


def answer_text(question: str, result: Any) -> Group:
    """The answers, each with what stands around it in the passage."""
    passage, answers = result
    grid = _grid()
    grid.add_column(style="bold", overflow="fold")
    grid.add_column(justify="right")
    grid.add_column(style="dim", overflow="fold")
    for one in answers:
        grid.add_row(Text(one.text or "(no answer)"), f"{one.score:.4f}", _around(passage, one))
    return Group(Text(question, "dim"), grid)


def _around(passage: str, one: Any, width: int = 30) -> Text:
    if not one.text:
        return Text("")
    first, last = max(0, one.start - width), min(len(passage), one.end + width)
    before = ("…" if first else "") + " ".join(passage[first : one.start].split())
    after = " ".join(passage[one.end : last].split()) + ("…" if last < len(passage) else "")
    spaces = [" " if passage[i : i + 1].isspace() else "" for i in (one.start - 1, one.end)]
    return Text.assemble(before, spaces[0], (one.text, "bold"), spaces[1], after)


def answer_line(result: Any) -> str:
    """Answer, tab, score, for each."""
    return "\t".join(f"{' '.join(one.text.split())}\t{one.score:.6f}" for one in result[1])


def matrix_table(texts: list[str], scores: Any) -> Table:
    """How near each text is to each other."""
    table = Table(box=None, padding=(0, 1))
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=40)
    for i in range(len(texts)):
        table.add_column(str(i + 1), justify="right")
    for i, row in enumerate(scores.tolist()):
        table.add_row(Text(f"{i + 1} {texts[i]}"), *(f"{score:.3f}" for score in row))
    return table


def cross_table(rows: Sequence[str], columns: Sequence[str], scores: Any) -> Table:
    """How near each of the rows is to each of the columns; the nearest of a row is bold."""
    table = Table(box=None, padding=(0, 1))
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=40)
    for name in columns:
        table.add_column(Text(name), justify="right")
    for name, row in zip(rows, scores.tolist(), strict=True):
        cells = [Text(f"{x:.3f}", "bold" if x == max(row) else "") for x in row]
        table.add_row(Text(name), *cells)
    return table


def match_table(asked: str, matches: Sequence[Any]) -> Group:
    """What is nearest to what was asked for, with its cosine."""
    grid = _grid()
    grid.add_column(justify="right", style="dim")
    grid.add_column(justify="right")
    grid.add_column(overflow="fold")
    for rank, match in enumerate(matches, 1):
        grid.add_row(str(rank), f"{match.score:.4f}", Text(str(match.found)))
    return Group(Text(asked, "dim"), grid)


def vector_text(text: str, vector: Any) -> Text:
    """The beginning of a vector, for a person."""
    some = "  ".join(f"{x:+.4f}" for x in vector[:6].tolist())
    length = float(vector.norm())
    return Text.assemble(some, "  …  ", (f"{len(vector)} numbers, length {length:.4f}", "dim"))
