"""Small published results, end to end: data, training, a score that is declared beforehand.

outcome = reproduce("tiny-shakespeare-cpu", data="corpora/shakespeare")
outcome.passed, outcome.score
"""

from __future__ import annotations

from allformer.reproduce.entry import Entry, entries, find
from allformer.reproduce.run import Outcome, reproduce

__all__ = ["Entry", "Outcome", "entries", "find", "reproduce"]
