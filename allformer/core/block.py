"""One layer of a stack: attention and feed-forward, each with a residual and a norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.attention import Attention
from allformer.core.dropout import drop
from allformer.core.feed_forward import Feed
from allformer.core.fused.norm import NOTHING, Thinning, add_norm, norm_of_sum
from allformer.core.norm import make_norm
from allformer.core.precision import cast
from allformer.core.relatives.relative import PLAIN, Relation, Relative
from allformer.core.states import LayerState
from allformer.core.taps import tap
from allformer.errors import ConfigError

SITES = {"attention": 0, "cross": 2, "feed": 4}  # numbers of masks: inside a sub-layer, behind it


class Step(NamedTuple):
    """A sub-layer: its name, its norm, and what it does to its input.

    `late(x, h)`, if there is one, gives what is added to x in h's place, which `work` gave.
    """

    name: str
    norm: nn.Module
    work: Callable[[Tensor], Tensor]
    late: Callable[[Tensor, Tensor], Tensor] | None = None

    def added(self, x: Tensor, read: Tensor) -> Tensor:
        """What the sub-layer adds to x, having read what was made of it."""
        h = self.work(read)
        return h if self.late is None else self.late(_first(x, h), h)


class Carried(NamedTuple):
    """Between layers that run by fused kernels: what the last one has not yet added, how that is to
    be thinned out, and the seed of this layer's masks."""

    h: Tensor | None
    before: Thinning
    seed: Tensor | None


class LayerScale(nn.Module):
    """A learned factor for each feature of what a sub-layer gives."""

    def __init__(self, dim: int, first: float) -> None:
        super().__init__()
        self.first = first
        self.weight = nn.Parameter(torch.empty(dim))

    def reset_parameters(self) -> None:
        """All as the config says."""
        nn.init.constant_(self.weight, self.first)

    def forward(self, h: Tensor) -> Tensor:
        return h * cast(self.weight, h.dtype)


class Block(nn.Module):
    """Post-norm: norm(x + dropout(f(x))). Pre-norm: x + dropout(f(norm(x)))."""

    def __init__(
        self, block: config.Block, dim: int, path: str, relative: Relative | None = None
    ) -> None:
        super().__init__()
        self.path = path
        self.pre = block.norm_at == "pre"
        self.dropout = block.dropout
        self.attention = Attention(block.attention, dim, f"{path}.attention", relative=relative)
        self.attention_norm = make_norm(block.norm, dim)
        if block.cross is not None:
            self.cross = Attention(block.cross, dim, f"{path}.cross", cross=True)
            self.cross_norm = make_norm(block.norm, dim)
        self.has_cross = block.cross is not None
        self.feed = Feed(block.feed, dim, f"{path}.feed")
        self.feed_norm = make_norm(block.norm, dim)
        self.drop_path = block.drop_path
        self.delta: Any = None  # adapters: `delta.wrap(block, step)` is what runs in a step's place
        self.scaled = block.scale is not None
        if block.scale is not None:
            for name in ("attention", "cross", "feed") if self.has_cross else ("attention", "feed"):
                setattr(self, f"{name}_scale", LayerScale(dim, block.scale))

    def forward(
        self,
        x: Tensor,
        plan: Any,
        memory: Tensor | None = None,
        memory_plan: Any = None,
        state: LayerState | None = None,
        relation: Relation = PLAIN,
        carried: Carried | None = None,
        front: int | None = None,
    ) -> Any:
        """x … dim → the same shape, one layer further; with `carried` see `carry`.

        `front`: so many of each row's first tokens alone go on, B T dim → B front dim.
        """
        if carried is not None:
            steps = self.steps(plan, memory, memory_plan, state, relation, carried.seed, front)
            return self.carry(x, carried, steps)
        for step in self.steps(plan, memory, memory_plan, state, relation, front=front):
            x = self.join(x, step)
        return x

    def steps(
        self,
        plan: Any,
        memory: Tensor | None = None,
        memory_plan: Any = None,
        state: LayerState | None = None,
        relation: Relation = PLAIN,
        seed: Tensor | None = None,
        front: int | None = None,
    ) -> list[Step]:
        """The sub-layers in order, for whoever joins them in another way (reversible layers).

        `seed` chooses the masks of dropout inside fused kernels. With `front` the first of them
        gives fewer tokens than it reads.
        """
        look = partial(self.attention, plan=plan, state=state, relation=relation, seed=seed)
        if front is not None:
            look = partial(look, front=front)
        if self.pre and state is not None and (before := state.own.before()) is not None:
            look = partial(look, before=norm_of_sum(before, None, self.attention_norm))
        steps = [Step("attention", self.attention_norm, look)]
        if self.has_cross:
            across = partial(self.cross, plan=memory_plan, memory=memory, state=state, seed=seed)
            if relation.own is not None:  # queries know where they stand here too
                across = partial(across, relation=relation)
            steps.append(Step("cross", self.cross_norm, across))
        feed = self.feed if seed is None else partial(self.feed, seed=seed)
        steps.append(Step("feed", self.feed_norm, feed))
        steps = [self._scale(step) for step in steps] if self.scaled else steps
        steps = steps if self.delta is None else [self.delta.wrap(self, step) for step in steps]
        return [self._thin(step) for step in steps] if self.training and self.drop_path else steps

    def _thin(self, step: Step) -> Step:
        """The same sub-layer, whose result some rows do not get; the others the more of it."""
        keep = 1 - self.drop_path

        def work(x: Tensor) -> Tensor:
            h = step.work(x)
            if h.ndim != 3:
                raise ConfigError(
                    f"Block.drop_path={self.drop_path} leaves out whole rows, which packed texts "
                    f"have not kept apart; set it to 0, or train on images"
                )
            mask = torch.empty(h.shape[0], 1, 1, dtype=h.dtype, device=h.device)
            return h * mask.bernoulli_(keep).div_(keep)

        return step._replace(work=work)

    def _scale(self, step: Step) -> Step:
        """The same sub-layer, its result multiplied."""
        scale = getattr(self, f"{step.name}_scale")

        def work(x: Tensor) -> Tensor:
            return tap(self, f"{step.name}_scaled", scale(step.work(x)))

        return step._replace(work=work)

    def join(self, x: Tensor, step: Step) -> Tensor:
        """One sub-layer with its residual and its norm."""
        added, normed = f"{step.name}_added", f"{step.name}_norm"
        if self.pre:
            h = step.added(x, tap(self, normed, step.norm(x)))
            return tap(self, added, _first(x, h) + drop(h, self.dropout, self.training))
        h = step.added(x, x)
        h = tap(self, added, _first(x, h) + drop(h, self.dropout, self.training))
        return tap(self, normed, step.norm(h))

    def carry(self, x: Tensor, carried: Carried, steps: list[Step]) -> tuple[Tensor, Tensor | None]:
        """All `steps` as `join` does them, in fused kernels: sum and norm are one pass.

        With pre-norm the last sub-layer's result is not added but handed on, so that the next
        layer's norm adds it.
        """
        h, before, seed = carried
        for step in steps:
            own = self.thinning(step.name, seed)
            if not self.pre:
                if h is not None:  # from a layer of the other kind
                    x, h = x + before(h), None
                h = step.added(x, x)
                x, h = norm_of_sum(_first(x, h), h, step.norm, own), None
                continue
            if h is None:
                y = norm_of_sum(x, None, step.norm)
            else:
                x, y = add_norm(x, h, step.norm, before)
            h, before = step.added(x, y), own
            x = _first(x, h)
        return x, h

    def thinning(self, step: str, seed: Tensor | None) -> Thinning:
        """The dropout behind a sub-layer."""
        if not self.training or not self.dropout:
            return NOTHING
        return Thinning(self.dropout, seed, SITES[step] + 1)


def _first(x: Tensor, h: Tensor) -> Tensor:
    """Those tokens of each row that a sub-layer gave something for: all, or the first ones."""
    return x if x.shape == h.shape else x[:, : h.shape[1]]
