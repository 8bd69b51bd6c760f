"""What was measured of one mechanism."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One mechanism at one length. `error` is ‖h − f‖/‖f‖ of the last hidden states h against those
    of full attention f; `fresh` says how many of its tensors are not the model's. `whole`: at this
    length everybody looks at everybody, so that it is full attention."""

    mechanism: str
    mixer: str = ""
    seconds: float | None = None
    peak_bytes: int | None = None
    error: float | None = None
    fresh: int = 0
    whole: bool = False
    refused: str = ""  # why it was not measured

    @property
    def measured(self) -> bool:
        """Whether there are figures."""
        return self.seconds is not None
