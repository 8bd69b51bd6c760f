"""Errors that a user can act on. Each message gives the field, the value and a way out."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did_you_mean("dimm", ("dim", "heads"))` → "did you mean dim? ", else nothing."""
    near = get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}? " if near else ""


class AllformerError(Exception):
    """Base of every error that Allformer raises on purpose; the command line prints it plainly."""

    exit_status = 1  # that a command ends with


class ConfigError(AllformerError, ValueError):
    """Cannot be built: `Attention.kv_heads=3 must divide heads=8; try 1, 2, 4 or 8`."""


class DataError(AllformerError, ValueError):
    """Text or files that cannot be read as asked: names the file, the line and the way out."""


class CheckpointError(AllformerError, RuntimeError):
    """A run directory or weight file that is missing, damaged or does not fit the model."""


class TrainingError(AllformerError, RuntimeError):
    """Training cannot go on: a loss that is not finite, a budget that no sentence fits."""


class LengthError(AllformerError, ValueError):
    """A sequence longer than the model can take; nothing is ever cut silently."""


class GenerationError(AllformerError, RuntimeError):
    """Generation cannot go on: the model's scores are not numbers."""


class AuditError(AllformerError, RuntimeError):
    """A module that cannot be audited: says what was tried and the way out."""


class TaskError(AllformerError, ValueError):
    """A checkpoint that cannot do what is asked, or a text without what the task needs."""
