"""What a module gives back: the tensor that is its output, wherever it sits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from allformer.errors import AuditError


@dataclass
class Out:
    """What came back."""

    main: Tensor  # B T F, or B F when pooled
    tensors: list[Tensor]
    loss: Tensor | None = None
    raw: Any = None
    pooled: bool = False


def read(raw: Any, rows: int, length: int, time_first: bool = False, scalar: bool = False) -> Out:
    """The output for a batch of so many rows and positions, with its loss if there is one.

    `scalar` says that there is one number for each position, (B, T), and not one row of numbers
    for each sequence.
    """
    tensors = floats(raw) or [t for v in attributes(raw) for t in floats(v)]
    if not tensors:
        raise AuditError(f"the module returned no floating tensor but {describe(raw)}")
    main = named(raw, "logits", "last_hidden_state")
    order = tensors if main is None else [main, *tensors]
    lead = (length, rows) if time_first else (rows, length)
    loss = named(raw, "loss")
    if loss is None:
        loss = next((t for t in tensors if t.ndim == 0), None)
    for t in order:
        if t.ndim >= 3 and tuple(t.shape[:2]) == lead:
            return Out((t.transpose(0, 1) if time_first else t).flatten(2), tensors, loss, raw)
    for t in order:
        if scalar and tuple(t.shape) == lead:
            return Out((t.transpose(0, 1) if time_first else t)[..., None], tensors, loss, raw)
    for t in order:
        if t.ndim == 2 and t.shape[0] == rows * length and length > 1:  # flattened for the loss
            return Out(t.view(rows, length, -1), tensors, loss, raw)
    for t in order:
        if t.ndim == 4 and t.shape[2] == length and t.shape[0] == rows:  # B H T D
            return Out(t.transpose(1, 2).flatten(2), tensors, loss, raw)
    for t in order:
        if t.ndim >= 1 and t.shape[0] == rows:
            return Out(t.reshape(rows, -1), tensors, loss, raw, pooled=True)
    raise AuditError(
        f"the module returned {describe(raw)}; none of it starts with the batch's {lead}"
    )


def flatten(raw: Any) -> list[Tensor]:
    """The tensors of tuples, dicts and outputs, in order."""
    if isinstance(raw, Tensor):
        return [raw]
    if isinstance(raw, dict) or hasattr(raw, "to_tuple"):
        values = list(raw.values()) if hasattr(raw, "values") else list(vars(raw).values())
        return [t for v in values for t in flatten(v)]
    if isinstance(raw, tuple | list):
        return [t for v in raw for t in flatten(v)]
    if hasattr(raw, "__dataclass_fields__"):
        return [t for name in raw.__dataclass_fields__ for t in flatten(getattr(raw, name))]
    return []


def attributes(raw: Any) -> list[Any]:
    """What an object holds that is no container: a SimpleNamespace, a class of the user's own."""
    if isinstance(raw, nn.Module | type) or callable(raw):
        return []
    names = [*getattr(raw, "__dict__", {}), *getattr(type(raw), "__slots__", ())]
    return [getattr(raw, name, None) for name in names]


def floats(raw: Any) -> list[Tensor]:
    """The floating tensors among them."""
    return [t for t in flatten(raw) if t.is_floating_point()]


def named(raw: Any, *names: str) -> Tensor | None:
    """The first of these that an output has, as a key or as an attribute."""
    for name in names:
        value = raw.get(name) if isinstance(raw, dict) else getattr(raw, name, None)
        if isinstance(value, Tensor) and not isinstance(raw, Tensor):
            return value
    return None


def describe(raw: Any) -> str:
    """A value in a few words."""
    if isinstance(raw, Tensor):
        return f"a tensor {tuple(raw.shape)}"
    if isinstance(raw, tuple | list):
        return f"a {type(raw).__name__} of " + ", ".join(describe(r) for r in raw[:4])
    return f"a {type(raw).__name__}"
