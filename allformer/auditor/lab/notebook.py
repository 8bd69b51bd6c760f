"""What `--teach` has measured so far, on disk, so that a run that was stopped can go on.

notebook = Notebook(Path("lab"), settings(250, BUGS))
notebook.rows                # of an earlier run with the same settings, else none
notebook.add(row)            # on disk when it returns
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from allformer.auditor.lab.bugs import Bug
from allformer.errors import AuditError
from allformer.json_file import read_json

Row = dict[str, Any]


def settings(steps: int, bugs: tuple[Bug, ...]) -> dict[str, Any]:
    """All that a row depends on; the language is no part of it."""
    digest = hashlib.sha256(repr(bugs).encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())  # the models, the tasks and the checks
    names = [bug.name for bug in bugs]
    return {"steps": steps, "torch": torch.__version__, "auditor": digest.hexdigest(),
            "bugs": names}  # fmt: skip


class Notebook:
    """`lab.json`: the settings and a row for each bug, whole at any moment."""

    def __init__(
        self, out: Path, wanted: dict[str, Any], say: Callable[[str], None] | None = None
    ) -> None:
        self.path, self.settings = out / "lab.json", wanted
        self.rows, why = _read(self.path, wanted)
        if why and say is not None:
            say(f"{self.path} {why}; beginning anew")

    def add(self, row: Row) -> None:
        """One more bug."""
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        """What there is, in place of what was there."""
        text = json.dumps(
            {"settings": self.settings, "rows": self.rows}, ensure_ascii=False, indent=1
        )
        replace(self.path, lambda aside: aside.write_text(text + "\n", encoding="utf-8"))


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """`replace(page, lambda aside: aside.write_text(text))`: never half a file under its name."""
    aside = path.with_name(path.name + ".new")
    try:
        write(aside)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _read(path: Path, wanted: dict[str, Any]) -> tuple[list[Row], str]:
    """The rows to go on with, and why there are none where there is a file."""
    if not path.exists():
        return [], ""
    try:
        found = read_json(path, AuditError)
        was, rows = found["settings"], found["rows"]
        names = [row["bug"] for row in rows]
    except (AuditError, KeyError, TypeError):
        return [], "is not what --teach writes, or damaged"
    if was != wanted:
        other = [key for key in wanted if not isinstance(was, dict) or was.get(key) != wanted[key]]
        return [], f"is of other settings ({', '.join(other) or 'more of them'})"
    if names != wanted["bugs"][: len(names)]:
        return [], "has other bugs than its settings say"
    return rows, ""
