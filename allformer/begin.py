"""Ctrl-C while a command is still importing: one line, not a traceback.

Importing torch takes seconds. In that time a command has nothing to save and nothing to say; its
entry (`allformer.cli.entry`) takes the usual handler back before it begins to work. A program that
merely imports Allformer keeps its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

_NAMES = ("allformer", "allformer.exe")  # of the console script


def is_command() -> bool:
    """Whether this process is `allformer …` or `python -m allformer …`."""
    first = (getattr(sys, "argv", None) or [""])[0]
    if first == "-m":  # so it stands while Python looks for the module of that name
        return "allformer" in sys.orig_argv
    return os.path.basename(first) in _NAMES


def _stop(*_: Any) -> None:
    try:
        os.write(2, b"allformer: stopped\n")
    finally:
        os._exit(130)  # an exception may be lost, or be told as another, inside an import


def while_importing() -> None:
    """Let Ctrl-C end a command at once, until `begun()`."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def begun() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


while_importing()
