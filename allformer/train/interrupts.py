"""Ctrl-C, a termination signal or a lost terminal: finish the step, save, say how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts(patient: bool = False) -> Iterator[list[int]]:
    """Collect Ctrl-C and termination signals, so that a step is finished and saved first.

    A second Ctrl-C stops at once, unless it is `patient`: torchrun repeats the terminal's, and
    kills who takes too long. Outside the main thread signals cannot be caught.
    """
    got: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield got
        return

    def note(number: int, frame: Any) -> None:
        if got and not patient:
            raise KeyboardInterrupt
        got.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    # A terminal that was closed; `nohup` has it ignored, and so it stays.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before: dict[int, Any] = {number: signal.signal(number, note) for number in numbers}
    try:
        yield got
    except BaseException:
        if patient:  # it ends already: torchrun, which ends all when one has, lets it say why
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
