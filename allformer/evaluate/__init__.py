"""How good a model is: likelihood of texts, scores of translations, figures of an objective."""

from __future__ import annotations

from allformer.evaluate.texts import evaluate_masked, evaluate_texts, open_texts
from allformer.evaluate.translation import check_run, evaluate_run, evaluate_translator

__all__ = [
    "check_run",
    "evaluate_masked",
    "evaluate_run",
    "evaluate_texts",
    "evaluate_translator",
    "open_texts",
]
