"""Which tests a change touches: `make quick` runs these and no others.

A room is a package of the library (`allformer/text`), or a module beside them (`allformer/count`).
A test file belongs to the rooms from which it imports something, itself or through helpers of the
tests; `af.load` counts as the module that it comes from. Pages and recipes belong to the test files
that name them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
EVERYTHING = {"pyproject.toml", "constraints.txt", "tests/conftest.py"}


def changed_files(root: Path = ROOT) -> list[str]:
    """What is not committed; if all is, what the branch has beyond origin/main, or the last commit:
    `["allformer/text/bpe.py", "tests/unit/test_bpe.py"]`.
    """
    if names := _git(root, "diff", "--name-only", "HEAD"):
        return names + _git(root, "ls-files", "--others", "--exclude-standard")
    if names := _git(root, "ls-files", "--others", "--exclude-standard"):
        return names
    return _git(root, "diff", "--name-only", "origin/main...HEAD") or _git(
        root, "diff", "--name-only", "HEAD~1"
    )


def which_tests(changed: Iterable[str]) -> list[str]:
    """The test files to run: `which_tests(["allformer/data/fetch.py"])` → `["tests/unit/…", …]`;
    `["tests"]` where any of them may be touched.
    """
    names = set(changed)
    if names & EVERYTHING:
        return ["tests"]
    rooms = {room(name) for name in names if name.startswith("allformer/")}
    pages = {f'"{name.split("/")[0]}' for name in names} - {'"tests', '"allformer'}
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        used = reached(path)
        own = {file.relative_to(ROOT).as_posix() for file in used}
        named = any(page in path.read_text(encoding="utf-8") for page in pages)
        if own & names or named or any(imported(file)[0] & rooms for file in used):
            found.append(path.relative_to(ROOT).as_posix())
    return found


def room(path: str) -> str:
    """`allformer/core/attend.py` → `allformer/core`; `allformer/count.py` → `allformer/count`."""
    return "/".join(path.removesuffix(".py").split("/")[:2])


def reached(path: Path) -> set[Path]:
    """A test file and the helpers of the tests that it imports, and theirs."""
    found, waiting = {path}, [path]
    while waiting:
        new = imported(waiting.pop())[1] - found
        found |= new
        waiting += new
    return found


@cache
def imported(path: Path) -> tuple[set[str], set[Path]]:
    """The rooms and the files of the tests that a file names in imports, wherever they stand."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            modules |= {_words().get(node.attr, "allformer")} if node.value.id == "af" else set()
    rooms = {"/".join(name.split(".")[:2]) for name in modules if name.startswith("allformer.")}
    rooms |= {"allformer/__init__"} if "allformer" in modules else set()
    files = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in modules}
    return rooms, {file for file in files if file.is_file() and ROOT / "tests" in file.parents}


@cache
def _words() -> dict[str, str]:
    """`load` → `allformer.checkpoint.load`, for all that the package itself offers."""
    tree = ast.parse((ROOT / "allformer" / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def _git(root: Path, *arguments: str) -> list[str]:
    """The lines that git says; none where it does not know the name of a commit."""
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


if __name__ == "__main__":
    chosen = which_tests(changed_files())
    print(*chosen)
    if not chosen:
        sys.exit("no test names what has changed; `make test` runs them all")
