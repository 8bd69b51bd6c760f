# mypy: disable-error-code="no-untyped-call,no-any-return"
"""How a mask is handed over: its shape and its polarity, tried one after the other.

B rows, T queries, S keys. "BS" is a mask over keys; the shapes with T are full masks, and "SS"
is that of a source over itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

KEY_SHAPES = ("BS", "B1S", "B11S")
FULL_SHAPES = ("BTS", "B1TS")
CAUSAL_SHAPES = ("TS", "1TS", "11TS")
POLARITIES = ("keep", "block", "add", "keep_int")


@dataclass(frozen=True)
class Encoding:
    """One way to write a mask."""

    shape: str
    polarity: str

    def __str__(self) -> str:
        shape = "(" + ", ".join(self.shape) + ")"
        if self.shape == "lengths":
            return "the number of real tokens of each row"
        words = {
            "keep": "boolean, True = may be seen", "block": "boolean, True = blocked",
            "add": "float, 0 and -inf are added", "keep_int": "integer, 1 = keep",
        }  # fmt: skip
        return f"{shape} {words[self.polarity]}"

    @property
    def per_row(self) -> bool:
        """Whether rows may have different padding."""
        return self.shape.startswith("B")

    @property
    def full(self) -> bool:
        """Whether it can say who sees whom."""
        return "T" in self.shape

    def __call__(self, keep: Tensor, queries: int, causal: bool, dtype: torch.dtype) -> Tensor:
        """`keep` B S boolean → the mask."""
        rows, keys = keep.shape
        if self.shape == "lengths":
            return keep.long().sum(-1)
        mask = keep
        if self.shape == "SS":
            mask = keep[:, None, :].expand(rows, keys, keys)
        elif self.full:
            mask = keep[:, None, :].expand(rows, queries, keys)
            if causal:
                mask = mask & torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        shared = mask.any(0)  # by all rows: it hides what all of them hide
        mask = {
            "BS": lambda m: m, "B1S": lambda m: m[:, None], "B11S": lambda m: m[:, None, None],
            "BTS": lambda m: m, "B1TS": lambda m: m[:, None], "TS": lambda _: shared,
            "1TS": lambda _: shared[None], "11TS": lambda _: shared[None, None],
            "SS": lambda _: shared,
        }[self.shape](mask)  # fmt: skip
        if self.polarity == "block":
            return ~mask
        if self.polarity == "keep_int":
            return mask.long()
        if self.polarity == "add":
            return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, float("-inf"))
        return mask.clone()


def padding_encodings(name: str) -> list[Encoding]:
    """What to try for a padding mask, the likeliest for this argument's name first."""
    if "len" in name.split("_")[-1]:
        return [Encoding("lengths", "keep")]
    shapes: tuple[str, ...] = (*KEY_SHAPES, *FULL_SHAPES)
    order: tuple[str, ...] = ("keep", "block", "keep_int", "add")
    if "pad" in name:
        order = ("block", "keep", "keep_int", "add")
    elif name == "attention_mask" or name.endswith("_attention_mask"):
        order = ("keep_int",)  # the ecosystem's convention: 1 = keep
        shapes = KEY_SHAPES
    return [Encoding(s, p) for s in shapes for p in order]


def causal_encodings(name: str) -> list[Encoding]:
    """What to try for a mask that says who sees whom."""
    shapes = ("BTS", "B1TS", *CAUSAL_SHAPES)
    return [Encoding(s, p) for s in shapes for p in ("keep", "block", "add", "keep_int")]
