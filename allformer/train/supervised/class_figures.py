"""Figures of classified texts, and the texts beside what was said of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from allformer.data.table import Table
from allformer.metrics import accuracy, class_f1, matthews, pearson, spearman
from allformer.train.batch import Array
from allformer.train.predictions import Prediction

# What there is of each problem.
FIGURES = {
    "single": ("accuracy", "f1", "matthews"),
    "multi": ("accuracy", "f1", "f1_macro"),
    "regression": ("pearson", "spearman"),
}


def figures(scores: Array, wanted: Any) -> dict[str, float]:
    """Of classes, of several labels at once (two dimensions), or of a number (fractions)."""
    wanted = np.asarray(wanted)
    if wanted.ndim == 2:
        given = scores > 0.5
        each = class_f1(wanted > 0.5, given)
        right = accuracy(wanted > 0.5, given)
        return {"accuracy": right, "f1": each.micro, "f1_macro": each.macro}
    if wanted.dtype.kind == "f":
        both = {
            "pearson": pearson(wanted, scores[:, 0]),
            "spearman": spearman(wanted, scores[:, 0]),
        }
        return {name: float(np.nan_to_num(x)) for name, x in both.items()}  # 0: nothing varies
    given = scores.argmax(1)
    return {
        "accuracy": accuracy(wanted, given),
        "f1": class_f1(wanted, given).macro,
        "matthews": matthews(wanted, given),
    }


class Shown(NamedTuple):
    """Examples as a reader sees them."""

    examples: Table
    names: tuple[str, ...]

    def text(self, i: int) -> str:
        text: str = self.examples["text"][i]
        return f"{text} ‖ {self.examples['text_pair'][i]}" if "text_pair" in self.examples else text

    def one(self, i: int, wanted: int, given: int, scores: Array) -> Prediction:
        right = bool(wanted == given)
        names = self.names
        return Prediction(self.text(i), names[wanted], names[given], right, float(scores[given]))

    def several(self, i: int, wanted: Array, scores: Array) -> Prediction:
        sides = [
            ", ".join(name for name, x in zip(self.names, side, strict=True) if x > 0.5)
            for side in (wanted, scores)
        ]
        sure = float(np.maximum(scores, 1 - scores).min())
        return Prediction(self.text(i), sides[0], sides[1], sides[0] == sides[1], sure)

    def value(self, i: int, wanted: float, given: float) -> Prediction:
        return Prediction(self.text(i), f"{wanted:.4g}", f"{given:.4g}")
