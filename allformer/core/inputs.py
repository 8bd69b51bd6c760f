"""What a stack reads, in a layout; and what a caller may give, checked before anything is computed.

side = lay_out({"input_ids": ids}, attention_mask)
hidden = model.hidden(encoder=side)

Legend: B rows, T width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.layout import Grid, Layout, pack
from allformer.core.taps import listening
from allformer.errors import ConfigError


class Side(NamedTuple):
    """One stack's inputs, by the names that its source takes, in a layout.

    `ids` are those of the caller's grid, B T, for numbers that depend on the padding (RoBERTa) and
    heads that look for a token; None where there was no grid. No position_ids reach `bound`. The
    first tokens of each row may be `learned` ones, which the caller has not given.
    """

    layout: Layout
    inputs: Mapping[str, Tensor]
    ids: Tensor | None = None
    bound: int | None = None
    learned: int = 0

    def without(self, x: Tensor, given: Side) -> Tensor:
        """Of states in this side's layout those of the tokens that were given, in their layout."""
        if not self.learned or given.learned:
            return x
        return given.layout.lay(self.layout.to_grid(x)[:, self.learned :])

    def stacked(self, states: Sequence[Tensor], given: Side) -> Tensor:
        """The same of the states at several depths, one above the other."""
        return torch.stack([self.without(x, given) for x in states])


def lay_out(
    inputs: Mapping[str, Tensor],
    mask: Tensor | None,
    whole: bool = False,
    name: str = "attention_mask",
    shape: tuple[int, int] | None = None,
) -> Side:
    """A caller's grid as a side, without its padding where that is possible.

    The numbers are the same, the work is less. A trace shows the grid that the caller gave; a
    compiled graph cannot have a size that depends on the mask's values. `whole` keeps the grid.
    `name` is what errors call the mask. `shape` is that of the grid, where the first input is not
    one of its cells each.
    """
    rows, width = shape or next(iter(inputs.values())).shape[:2]
    ids = inputs.get("input_ids")
    if mask is None:
        return Side(Grid(rows, width), inputs, ids)
    keep = mask.bool()
    if torch.compiler.is_compiling():
        return Side(Grid(rows, width, keep), inputs, ids)
    # One look at the device answers both: is this a mask, and is anything padding?
    right, full = torch.stack([_is_mask(mask), keep.all()]).tolist()
    if not right:
        refuse_mask(mask, name)
    if whole or listening():
        return Side(Grid(rows, width, keep), inputs, ids)
    if full:
        return Side(Grid(rows, width), inputs, ids)
    packed = pack(keep)
    laid = {
        key: packed.lay(x.expand(rows, width) if x.ndim < 3 else x) for key, x in inputs.items()
    }
    return Side(packed, laid, ids)


def _is_mask(mask: Tensor) -> Tensor:
    """Nothing but 0 and 1."""
    return ((mask == 0) | (mask == 1)).all()


def check_values(mask: Tensor, name: str = "attention_mask") -> None:
    """Refuse a mask of other numbers than 0 and 1, on a CPU: a GPU would have to be waited for."""
    if mask.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if not bool(_is_mask(mask)):
        refuse_mask(mask, name)


def refuse_mask(mask: Tensor, name: str = "attention_mask") -> None:
    """Say what is wrong with a mask that has other numbers than 0 and 1."""
    odd = mask[(mask != 0) & (mask != 1)].flatten()
    advice = "give 1 (keep) and 0 (padding)"
    if bool((odd < 0).all()):
        advice = f"for an additive mask (0 = keep) give {name} == 0"
    raise ConfigError(f"{name} has the value {odd[0].item():g}, which is neither 0 nor 1; {advice}")


def check_mask(
    mask: Any,
    rows: int,
    width: int,
    name: str = "attention_mask",
    means: tuple[str, str] = ("keep", "padding"),
) -> None:
    """Refuse a mask of another shape than the ids'; `means`: what 1 and 0 say."""
    if not isinstance(mask, Tensor) or mask.shape != (rows, width):
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ConfigError(
            f"{name}={shape} must be rows × tokens, {(rows, width)}; give one 1 "
            f"({means[0]}) or 0 ({means[1]}) for each token"
        )


def check_ids(ids: Any, name: str, shape: tuple[int, ...] | None, count: int | None) -> None:
    """Refuse what are no ids: of another type or shape, or not in 0 … count − 1.

    Whether they are in range is asked on a CPU alone: a GPU would have to be waited for, and stops
    by itself.
    """
    if not isinstance(ids, Tensor):
        raise ConfigError(f"{name} is a {type(ids).__name__}; try torch.tensor({name})")
    whole = ids.dtype in (torch.long, torch.int)
    if not whole or (ids.ndim != 2 if shape is None else ids.shape not in (shape, (1, *shape[1:]))):
        must = "rows × tokens" if shape is None else str(shape)
        raise ConfigError(
            f"{name}={tuple(ids.shape)} of {ids.dtype} must be whole numbers (torch.long), {must}; "
            f"try torch.tensor([ids])"
        )
    if not ids.numel():
        raise ConfigError(f"{name}={tuple(ids.shape)} is empty; give at least one row of one token")
    if count is None or ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= count:
        odd = low if low < 0 else high
        raise ConfigError(
            f"{name} has the id {odd}, but there are 0 … {count - 1}; check its tokeniser"
        )


def refuse_inputs(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Inputs that nobody takes, by name."""
    odd = next(name for name in given if name not in known)
    near = get_close_matches(odd, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
    raise ConfigError(f"{odd} is no input of this model; {hint}")
