"""Figures that say how good answers are, each by its reference definition; one file each."""

from __future__ import annotations

from allformer.metrics.accuracy import accuracy
from allformer.metrics.answers import exact_and_f1, exact_and_f1_chinese
from allformer.metrics.correlation import pearson, spearman
from allformer.metrics.entities import entities, entity_f1
from allformer.metrics.f1 import class_f1
from allformer.metrics.likelihood import bits_per_byte, perplexity
from allformer.metrics.matthews import matthews
from allformer.metrics.word_error import character_error, word_error

__all__ = [
    "accuracy",
    "bits_per_byte",
    "character_error",
    "class_f1",
    "entities",
    "entity_f1",
    "exact_and_f1",
    "exact_and_f1_chinese",
    "matthews",
    "pearson",
    "perplexity",
    "spearman",
    "word_error",
]
