"""What is written down to the disk itself: a power cut takes nothing of it back.

with path.open("w") as file:
    file.write(text)
    sync(file)
sync_folder(path.parent)     # and that it has this name
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any


def sync(file: IO[Any]) -> None:
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """The same for the names in a folder, where the system can: Windows opens no folders."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
