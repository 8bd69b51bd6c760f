"""`make quick` runs the tests of what has changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rooms import ROOT, changed_files, reached, room, which_tests


@pytest.mark.parametrize(
    ("changed", "runs", "leaves"),
    [
        ("allformer/text/tokenizer.py", "tests/unit/test_tokenizer.py", "tests/unit/test_init.py"),
        ("allformer/core/any.py", "tests/property/test_cache.py", "tests/unit/test_fetch.py"),
        ("allformer/core/any.py", "tests/mutants/test_mutants.py", "tests/unit/test_phrasebook.py"),
        ("allformer/data/fetch.py", "tests/unit/test_fetch.py", "tests/property/test_cache.py"),
        ("allformer/checkpoint/x.py", "tests/parity/test_encoders.py", "tests/unit/test_parts.py"),
        ("allformer/auditor/x.py", "tests/auditor/test_zoo.py", "tests/unit/test_tokenizer.py"),
        ("tests/parity/zoo.py", "tests/parity/test_decoders.py", "tests/unit/test_tokenizer.py"),
        ("tests/unit/test_fetch.py", "tests/unit/test_fetch.py", "tests/unit/test_init.py"),
        ("docs/training.md", "tests/unit/test_docs.py", "tests/unit/test_tokenizer.py"),
        ("README.md", "tests/unit/test_docs.py", "tests/unit/test_tokenizer.py"),
    ],
)
def test_a_change_runs_the_tests_of_its_room_and_leaves_others(changed, runs, leaves):
    chosen = which_tests([changed])
    assert (ROOT / leaves).is_file()
    assert runs in chosen
    assert leaves not in chosen


def test_what_all_tests_stand_on_runs_all():
    assert which_tests(["tests/conftest.py", "README.md"]) == ["tests"]


def test_every_package_of_the_library_has_a_test_that_names_it():
    packages = {room(p.relative_to(ROOT).as_posix()) for p in (ROOT / "allformer").rglob("*/*.py")}
    assert [name for name in sorted(packages) if not which_tests([f"{name}/any.py"])] == []


def test_helpers_are_followed_to_those_they_import():
    names = {path.name for path in reached(ROOT / "tests/mutants/test_mutants.py")}
    assert {"mutants.py", "zoo.py", "loud.py", "test_cache.py"} <= names


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_what_is_not_committed_comes_before_what_is(tmp_path: Path):
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    git("init", "--quiet")
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "--quiet", "--message", name)
    assert changed_files(tmp_path) == ["two"]
    (tmp_path / "three").write_text("3")
    assert changed_files(tmp_path) == ["three"]
    (tmp_path / "one").write_text("1")
    assert changed_files(tmp_path) == ["one", "three"]
