"""Hashes of files, for certificates."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file in hexadecimal, as the hub shows it; read piece by piece."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
