"""How often one check may run the module: no model makes an audit endless.

The checks stay far below it (a few dozen runs for a model of six layers). It is counted in runs,
not in seconds, so that a report does not depend on the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 2000


class Exhausted(BaseException):
    """Not an Exception: a check that tries calls must not take it for a call that failed."""


@dataclass
class Budget:
    """`budget.spend()` before each run; `budget.renew()` before each check."""

    left: int = MOST

    def renew(self) -> None:
        """As at the beginning."""
        self.left = MOST

    def spend(self) -> None:
        """One run."""
        self.left -= 1
        if self.left < 0:
            raise Exhausted(f"stopped after {MOST:,} runs of the module, without a result")
