"""Context parallel: every row cut among the ranks, each with the columns from `first` on.

What acts on each token alone needs nothing. Attention looks at all keys: a rank's queries stand
behind the tokens before them as new tokens behind cached ones, so the part that cannot be computed
here is a layer's state: `AllKeys` gathers it from the other ranks. Who may look at whom is a
comparison of places, as ever: causality, windows, padding and relative positions come out right by
themselves.

The last states are gathered again, so any head and any objective reads whole rows; the scores over
the vocabulary, which are the largest part there, are shared out.

Legend: R rows, W width, w = W / C columns of one of C ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from allformer.core.heads.words import LMHead
from allformer.core.inputs import Side
from allformer.core.layout import Grid, Packed
from allformer.core.places import Places
from allformer.core.states import Cache, State
from allformer.errors import ConfigError
from allformer.train.parallel.collectives import Group, gathered


class AllKeys(State):
    """Keys and values of the rows' other parts; of a causal stack none after this part."""

    def __init__(self, group: Group, keep: Tensor | None, end: int) -> None:
        self.group, self.keep, self.end = group, keep, end

    def places(self, grid: Grid, device: torch.device) -> Places:
        query = grid.columns(device)[None]
        key = torch.arange(self.end, device=device)[None]
        plain = self.keep is None and int(grid.past) + grid.width == self.end
        return Places(query, key, None if self.keep is None else self.keep[:, : self.end], plain)

    def update(self, k: Tensor, v: Tensor, places: Places | None) -> tuple[Tensor, Tensor]:
        keys, values = gathered(torch.stack([k, v]), self.group, 3)[:, :, :, : self.end].unbind(0)
        return keys, values


class Columns:
    """This rank's columns of a side, and the way back."""

    def __init__(self, side: Side, group: Group) -> None:
        self.layout, self.group = side.layout, group
        count, rank = dist.get_world_size(group), dist.get_rank(group)
        self.rows, self.total = side.layout.rows, side.layout.total
        self.wide = -(-self.total // count) * count  # W, so that it can be cut
        width = self.wide // count
        self.first, self.end = rank * width, (rank + 1) * width
        self.keep = self._keep(side)
        grid = Grid(self.rows, width, self.keep, self.first)
        # Rows begin at the left (`pack_rows`), so numbers over columns are those over tokens.
        inputs = {name: self._mine(x) for name, x in side.inputs.items()}
        self.side = Side(grid, inputs, None, side.bound)

    def _keep(self, side: Side) -> Tensor | None:
        keep = side.layout.keep
        extra = self.wide - self.total
        if keep is None and not extra:
            return None
        if keep is None:
            some = next(iter(side.inputs.values()))
            keep = torch.ones(self.rows, self.total, dtype=torch.bool, device=some.device)
        return F.pad(keep, (0, extra))

    def _mine(self, x: Tensor) -> Tensor:
        if isinstance(self.layout, Packed):
            x = self.layout.to_grid(x)
        dim = 0 if x.ndim == 1 else 1  # one row of position_ids for all
        extra = self.wide - self.total
        if extra:
            shape = list(x.shape)
            shape[dim] = extra
            x = torch.cat([x, x.new_zeros(shape)], dim)
        return x.narrow(dim, self.first, self.end - self.first)

    def cache(self, layers: int, causal: bool) -> Cache:
        """A state for each layer that runs."""
        end = self.end if causal else self.wide
        return Cache(AllKeys(self.group, self.keep, end) for _ in range(layers))

    def together(self, x: Tensor) -> Tensor:
        """R w dim of each rank → R W dim, on the side's own grid."""
        return gathered(x, self.group, 1)[:, : self.total]


@contextmanager
def cut_rows(model: Any, group: Group) -> Iterator[None]:
    """Meanwhile `model.hidden` shares every row out among the group's ranks, and so does `score`.

    Each rank's loss is then C times its share: to be divided by C, and summed over the ranks. What
    all compute alike (a head over labels) fits into the same sum.
    """
    if model.extended:
        raise ConfigError(
            "parallel.context cuts rows, which adapters beside layers or before the tokens do not "
            "see; use data parallel instead, or the method lora"
        )
    hidden = _Hidden(model, group)
    heads: list[Any] = [part for part in model.modules() if isinstance(part, LMHead)]
    model.hidden = hidden
    for head in heads:
        head.score = _Score(head.score, group)
    try:
        yield
    finally:
        del model.hidden
        for head in heads:
            del head.score


class _Hidden:
    """`Model.hidden` on this rank's columns."""

    def __init__(self, model: Any, group: Group) -> None:
        self.model, self.group = model, group

    def __call__(
        self,
        sides: Mapping[str, Side],
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        cache: Cache | None = None,
    ) -> dict[str, Tensor]:
        assert cache is None, "rows that are cut among ranks are not generated"
        out: dict[str, Tensor] = {}
        memory: Tensor | None = None
        across: Grid | None = None
        for name, side in sides.items():
            stack, mine = self.model.stack(name), Columns(side, self.group)
            x = stack(
                stack.source(mine.side, dtype), mine.side.layout, memory=memory, across=across,
                cache=mine.cache(len(stack.order), stack.config.causal), kernel=kernel,
                inputs=mine.side.inputs, head=self.model.head_of(name),
            )  # fmt: skip
            memory = mine.together(x)
            across = Grid(mine.rows, mine.total, side.layout.keep)
            out[name] = side.layout.lay(memory)
        return out


class _Score:
    """`LMHead.score` of every C-th part of the tokens, times C."""

    def __init__(self, score: Any, group: Group) -> None:
        self.score, self.group = score, group

    def __call__(
        self, hidden: Tensor, targets: Tensor, *args: Any, **more: Any
    ) -> tuple[Tensor, Tensor]:
        count, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        width = -(-len(targets) // count)
        mine = slice(rank * width, (rank + 1) * width)
        loss, nll = self.score(hidden[mine], targets[mine], *args, **more)
        return loss * count, nll * count
