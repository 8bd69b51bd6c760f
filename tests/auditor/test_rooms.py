"""How the auditor is laid out: one import for others, no check that borrows from another, and a lab
whose lines are its patches."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from allformer import auditor
from allformer.auditor.lab import BUGS, lines
from allformer.auditor.lab.plant import TEXT, text_of

HOME = Path(auditor.__file__).parent
CORE = ("allformer.core", "allformer.config", "allformer.checkpoint", "allformer.families")


def imported(path):
    """The modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_all_that_is_promised_is_there():
    for name in auditor.__all__:
        assert getattr(auditor, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'audits'"):
        _ = auditor.audits


def test_others_import_the_package_and_nothing_inside_it():
    inside = [
        f"{path.name}: {module}"
        for path in HOME.parent.rglob("*.py")
        if HOME not in path.parents
        for module in imported(path)
        if module.startswith("allformer.auditor.")
    ]
    assert not inside


def test_no_check_imports_a_check():
    for path in (HOME / "checks").glob("*.py"):
        assert not [m for m in imported(path) if m.startswith("allformer.auditor.checks")], path


def test_one_file_knows_allformers_own_models():
    users = {p.name for p in HOME.rglob("*.py") for m in imported(p) if m.startswith(CORE)}
    assert users == {"own_models.py"}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_what_the_lab_shows_is_what_it_puts_in(bug):
    planted = text_of(bug)
    for style in bug.styles:
        right, wrong = lines(bug, style)
        assert right != wrong
        shown = [edit for edit in bug.edits if " ".join(edit[0].split()) in right]
        assert shown
        for old, new in shown:
            assert old in TEXT
            assert old not in planted or old in new
            assert new in planted
