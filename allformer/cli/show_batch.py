"""`--show-batch`: what is learnt of a first batch, in colour at a terminal and plain elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from allformer.cli.common import say
from allformer.train.shown_batch import ShownRow

LEARNT, READ = "bold green", "dim"
OPEN, CLOSE = "⟦", "⟧"  # around what is learnt, where there is no colour


def show_batch(recipe: Any, as_json: bool = False) -> None:
    """Print the rows of a recipe's first batch, or with `as_json` one object a row."""
    from allformer.train.first_batch import first_batch

    rows = first_batch(recipe, say=say)
    if as_json:
        for row in rows:
            told = {"ids": row.ids, "learnt": row.learnt, "parts": row.parts}
            print(json.dumps(told, ensure_ascii=False))
        return
    print_rows(rows, Console(file=sys.stdout))


def print_rows(rows: Sequence[ShownRow], console: Console) -> None:
    """Each row under a line of figures; what is learnt is green, or stands between signs."""
    colour = console.is_terminal and not console.no_color
    for number, row in enumerate(rows, 1):
        head = f"row {number}: {len(row.ids):,} tokens, {sum(row.learnt):,} of them learnt"
        text = Text()
        for part, learnt in row.parts:
            signed = f"{OPEN}{part}{CLOSE}" if learnt and not colour else part
            text.append(signed, style=(LEARNT if learnt else READ) if colour else None)
        console.print(Text(head, style="bold cyan" if colour else ""), soft_wrap=True)
        console.print(text, soft_wrap=True, end="\n\n")
    total, count = sum(len(row.ids) for row in rows), sum(sum(row.learnt) for row in rows)
    how = "in green" if colour else f"between {OPEN} and {CLOSE}"
    shown = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    console.print(
        f"{shown}, {total:,} tokens; {count:,} are learnt ({count / total:.0%}), {how}; "
        f"no row sees another",
        highlight=False,
        soft_wrap=True,
    )
