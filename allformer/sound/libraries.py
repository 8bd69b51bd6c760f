"""soundfile and soxr, which read and resample sound: imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def optional(name: str) -> Any:
    """`optional("soundfile")`: the module, or None where it is not installed."""
    try:
        return import_module(name)
    except (ImportError, OSError):  # OSError: soundfile without its shared library
        return None
