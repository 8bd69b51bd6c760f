"""Where results go, tried before the work: what cannot be written is refused at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allformer.errors import TrainingError


def check_directory(path: Path, option: str = "--out") -> None:
    """Refuse a directory that cannot be made or written into; nothing is made yet."""
    there = path
    while not there.exists() and not there.is_symlink() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise TrainingError(f"{option} {path}: {there} is no directory; choose another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise TrainingError(f"{option} {path}: {there} cannot be written to; choose another")


def check_file(path: Path, option: str = "--output") -> None:
    """Refuse a file that cannot be written; what it holds stays as it is."""
    if path.is_dir():
        raise TrainingError(f"{option} {path} is a directory; give a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise TrainingError(f"{option} {path} cannot be written to; choose another")
    if not path.exists():
        if not path.parent.is_dir():
            raise TrainingError(f"{option} {path}: there is no directory {path.parent}; make it")
        check_directory(path.parent, option)


@contextmanager
def told(where: Path, way_out: str) -> Iterator[None]:
    """Errors of the system (a full disk, a lost mount) as one sentence of ours."""
    try:
        yield
    except BrokenPipeError:  # nobody listens any more: no error of the run's
        raise
    except OSError as error:
        said = error.strerror or str(error) or type(error).__name__
        raise TrainingError(f"{error.filename or where}: {said}; {way_out}") from None
