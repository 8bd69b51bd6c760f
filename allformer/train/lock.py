"""One process a run: a second one is refused while the first lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allformer.errors import TrainingError


@contextmanager
def only_one(run: Path) -> Iterator[None]:
    """`with only_one(run): …`; the lock is the system's, so that it ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks: there a user has to take care
        yield
        return
    with open(run / ".lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other = file.read().strip() or "unknown"
            raise TrainingError(
                f"{run} is being trained by another process ({other}); wait for it, stop it, or "
                f"choose another --out"
            ) from None
        except OSError:  # a file system without locks
            pass
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
