"""What multiplying and adding say of a tensor: factors of scores, trained biases, tables."""

from __future__ import annotations

from torch import Tensor

from allformer.auditor.watch.operators import Operator
from allformer.auditor.watch.records import Table, Tag
from allformer.auditor.watch.tags import Tags


def scale(op: Operator, tags: Tags, new: Tag) -> None:
    """A product with a number, or with a trained one, changes the factor."""
    one, other = op.args[:2]
    if isinstance(other, Tensor):
        if one.numel() == 1 and other.numel() > 1 and op.name == "mul":
            other = one
        tag = tags.of(other)
        if other.numel() != 1:
            small = other.shape[-1] == 1 and (other.ndim < 2 or other.shape[-2] == 1)
            if small and tag.trained and not tag.data:
                new.learned_factor = True
            return
        if tag.trained:
            new.learned_factor = True
            return
        other = float(other)
    if isinstance(other, int | float) and not isinstance(other, bool):
        value = float(other)
        if op.name == "div":
            value = 1 / value if value else float("inf")
        new.factor *= value


def keep_factor(tags: list[Tag], new: Tag) -> None:
    """What no linear map gave (a convolution's output, a sum) keeps its factor when it moves."""
    data = [tag for tag in tags if tag.data]
    if len(data) == 1 and new.linear < 0 and not (new.scores or new.probs or new.mixed):
        new.factor, new.learned_factor = data[0].factor, data[0].learned_factor
        new.terms, new.term_ops = data[0].terms, data[0].term_ops


def add(op: Operator, one: Tag, other: Tag, new: Tag) -> Table | None:
    """A sum of activations is a residual; a constant is a bias of scores, or a table."""
    if one.data == other.data:
        if one.scores is None and other.scores is None and one.linear != other.linear:
            new.linear, new.columns = -1, None  # a residual: no longer the output of one map
        if _product(one) and _product(other):
            new.terms = one.terms + other.terms
            if new.scores is not None:
                new.scores.term_ops |= one.term_ops | other.term_ops
            else:
                new.term_ops = one.term_ops | other.term_ops
        if one.mixed is not other.mixed:
            new.mixed = None
        return None
    constant, tag = (op.tensors[1], other) if one.data else (op.tensors[0], one)
    if new.scores is not None:
        new.learned_bias |= tag.trained
    elif constant.ndim >= 2 and constant.numel() > constant.shape[-1] and op.out.ndim >= 3:
        return Table(op.number, constant, tag.trained, tuple(op.out.shape))
    return None


def _product(tag: Tag) -> bool:
    """Whether this came out of a matmul: bare scores, or queries times a table of positions."""
    return tag.scores is not None or tag.linear >= 0 or tag.terms > 1
