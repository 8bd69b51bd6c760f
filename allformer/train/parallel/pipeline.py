"""Pipeline parallel: every rank has some of the layers (torch.distributed.pipelining).

Micro-batches follow each other through the stages. Every stage has the batches themselves (the
order of the data is the same on all), so hidden states alone travel: the last states of the layers
so far, and in a decoder behind an encoder the encoder's states with them.

An objective's `loss` runs on every stage as it is. `model.hidden` stands in it for the stage's own
layers: before the last stage it ends the call there, with what the next stage needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from allformer.core.inputs import Side
from allformer.core.layout import Layout, Packed
from allformer.core.states import Cache
from allformer.core.whole import alike
from allformer.errors import AllformerError, ConfigError
from allformer.train.parallel.collectives import Group
from allformer.train.parallel.holding import Holding
from allformer.train.parallel.ranks import Backward, One


class Span(NamedTuple):
    """The layers `first` … `end` of a stack of `total` that a stage runs."""

    first: int
    end: int
    total: int

    @property
    def begins(self) -> bool:
        """Whether the stack's source is here."""
        return self.first == 0 and self.end > 0

    @property
    def ends(self) -> bool:
        """Whether what follows the last layer is here."""
        return self.end == self.total and self.end > self.first


def spans(layers: Mapping[str, int], stage: int, stages: int) -> dict[str, Span]:
    """A stage's layers of each stack: as equal in number as can be, in order."""
    total, begin = sum(layers.values()), 0
    first, end = total * stage // stages, total * (stage + 1) // stages
    found = {}
    for name, count in layers.items():
        a, b = (min(max(x - begin, 0), count) for x in (first, end))
        found[name] = Span(a, b, count)
        begin += count
    return found


def check_pipeline(model: Any, stages: int) -> None:
    """Refuse, in words, what cannot be cut into `stages`."""
    layers = {name: len(model.stack(name).order) for name in model.config.stacks}
    if model.extended:
        raise ConfigError(
            f"parallel.pipeline={stages} cannot cut what adapters put beside layers or before the "
            f"tokens; use shard instead, or the method lora"
        )
    if stages > sum(layers.values()):
        raise ConfigError(
            f"parallel.pipeline={stages} is more than the model's {sum(layers.values())} layers; "
            f"give at most so many"
        )
    for name in layers:
        if model.stack(name).flow is not None:
            raise ConfigError(
                f"parallel.pipeline={stages}: the layers of {name} are joined by "
                f"{type(model.stack(name).config.flow).__name__}, whose streams are not handed on; "
                f"use data parallel instead"
            )
        if model.stack(name).config.share:
            raise ConfigError(
                f"parallel.pipeline={stages}: the layers of {name} share weights (Stack.share), "
                f"which would lie in several stages; use shard instead"
            )


def cut_layers(model: Any, holding: Holding, stage: int, stages: int) -> dict[str, Span]:
    """Leave this stage's layers in the model; `holding` learns who has what."""
    check_pipeline(model, stages)
    layers = {name: len(model.stack(name).order) for name in model.config.stacks}
    for number in range(stages):
        for name in _names(model, spans(layers, number, stages), number == stages - 1):
            holders = holding.stages.setdefault(holding.canonical[name], [])
            if number not in holders:
                holders.append(number)
    mine = spans(layers, stage, stages)
    _strip(model, set(_names(model, mine, stage == stages - 1)))
    for name, span in mine.items():
        stack = model.stack(name)
        stack.order = tuple(range(span.first, span.end))
        if not span.ends:
            stack.final_norm = None
            stack.config = dataclasses.replace(stack.config, final_dropout=0.0)
    return mine


def _strip(model: nn.Module, keep: set[str]) -> None:
    """Take the tensors from every module that has none of `keep`; the modules themselves stay."""
    needed, others = set(), {}
    for path, module in model.named_modules(remove_duplicate=False):
        own = [*module._parameters, *module._buffers]
        if any((f"{path}.{name}" if path else name) in keep for name in own):
            needed.add(id(module))
        else:
            others[id(module)] = module
    for key, module in others.items():
        if key not in needed:
            for tensors in (module._parameters, module._buffers):
                for name in tensors:
                    tensors[name] = None


def _names(model: Any, mine: Mapping[str, Span], last: bool) -> list[str]:
    """The tensors that a stage needs, by all names that the whole model has for them."""
    found = []
    for name in model.state_dict():
        stack, _, rest = name.partition(".")
        if stack not in mine:  # head and pool
            needed = last
        elif rest.startswith("layers."):
            span = mine[stack]
            needed = span.first <= int(rest.split(".")[1]) < span.end
        elif rest.startswith("source."):
            needed = mine[stack].begins
        elif rest.startswith("final_norm."):
            needed = mine[stack].ends
        else:  # relative positions: of every layer
            needed = mine[stack].end > mine[stack].first
        if needed:
            found.append(name)
    return found


class Passed(Exception):
    """Ends a loss on a stage before the last: what goes on to the next one."""

    def __init__(self, states: tuple[Tensor, ...]) -> None:
        super().__init__("the rest is for the next stage")
        self.states = states


class StageHidden:
    """`Model.hidden` of one stage: the states `given` by the one before through its own layers."""

    def __init__(self, model: Any, mine: Mapping[str, Span], last: bool) -> None:
        self.model, self.mine, self.last = model, mine, last
        self.given: tuple[Tensor, ...] = ()
        self.calls = 0

    def __call__(
        self,
        sides: Mapping[str, Side],
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        cache: Cache | None = None,
    ) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls > 1:
            raise ConfigError(
                "parallel.pipeline: this objective calls the model twice for a batch, which has "
                "no way through stages; use shard or tensor instead"
            )
        out = self._run(sides, dtype, kernel)
        if self.last:
            return out
        # A pass-through must be a result, not the input itself: gradients are asked of both.
        raise Passed(tuple(x.view_as(x) for x in out.values()))

    def _run(
        self, sides: Mapping[str, Side], dtype: torch.dtype | None, kernel: str
    ) -> dict[str, Tensor]:
        """The states of every stack that has begun, those of the last one with our layers."""
        given = dict(zip(self._begun(sides), self.given, strict=True))
        memory: Tensor | None = None
        across: Layout | None = None
        for name, side in sides.items():
            span, x = self.mine[name], given.get(name)
            if memory is not None and across is not None:
                memory, across = alike(memory, across, side.layout)
            if span.end > span.first:
                stack = self.model.stack(name)
                if span.begins:
                    x = stack.source(side, dtype)
                x = stack(
                    x, side.layout, memory=memory, across=across, kernel=kernel,
                    inputs=side.inputs, head=self.model.head_of(name),
                )  # fmt: skip
            if x is None:
                break
            given[name] = x
            memory, across = x, side.layout
        return given

    def _begun(self, sides: Mapping[str, Side]) -> list[str]:
        """The stacks that earlier stages have begun, whose states were handed on."""
        return [name for name in sides if self.mine[name].first > 0]


def state_shapes(sides: Mapping[str, Side], names: Sequence[str], model: Any) -> list[Any]:
    """The sizes of the states that travel."""
    found = []
    for name in names:
        layout = sides[name].layout
        size = (len(layout.cells),) if isinstance(layout, Packed) else (layout.rows, layout.width)
        found.append((*size, model.config.stacks[name].dim))
    return found


class _Stage(nn.Module):
    """What torch runs for a micro-batch: the objective's loss, as far as this stage goes."""

    def __init__(self, model: nn.Module, hidden: StageHidden) -> None:
        super().__init__()
        self.model, self.hidden = model, hidden
        self.batches: Sequence[Any] = ()
        self.one: One | None = None
        self.nlls: list[Tensor] = []

    def forward(self, *given: Tensor, number: Tensor) -> Any:
        assert self.one is not None
        self.hidden.given, self.hidden.calls = given, 0
        try:
            mean, nll = self.one(self.batches[int(number)])
        except Passed as passed:
            return passed.states
        self.nlls.append(nll.detach().reshape(-1))
        return mean.reshape(1)


class Stages:
    """Runs the micro-batches of a step through all stages, one forward, one backward in turn."""

    def __init__(
        self, model: Any, mine: Mapping[str, Span], stage: int, stages: int, group: Group
    ) -> None:
        self.model, self.mine, self.group = model, mine, group
        self.stage, self.stages = stage, stages
        self.hidden = StageHidden(model, mine, stage == stages - 1)
        self.module = _Stage(model, self.hidden)
        self.known: Any = None
        self.schedule: Any = None

    def __call__(self, one: One, backward: Backward, batches: Sequence[Any]) -> list[Any]:
        shapes = [self._shapes(one, batch) for batch in batches]
        if any(shape != shapes[0] for shape in shapes):
            raise ConfigError(
                "parallel.pipeline: the micro-batches of a step differ in size, and stages hand on "
                "states of one size; this objective has no frame for its batches: use shard instead"
            )
        if self.known != (shapes[0], len(batches)):
            self.known = (shapes[0], len(batches))
            self.schedule = self._schedule(shapes[0], len(batches))
        self.module.one, self.module.batches, self.module.nlls = one, batches, []
        losses = self._run(len(batches))
        self.module.batches = ()
        if not self.hidden.last:
            return []
        return list(zip(losses, self.module.nlls, strict=True))

    def _run(self, count: int) -> list[Tensor]:
        number = torch.arange(count)
        losses: list[Tensor] = []
        self.model.hidden = self.hidden
        try:
            last = {"target": number, "losses": losses} if self.hidden.last else {}
            self.schedule.step(number=number, **last)
        except RuntimeError as error:  # torch tells every error of a stage as its own
            if isinstance(error.__cause__, AllformerError):
                raise error.__cause__ from None
            raise
        finally:
            del self.model.hidden
        return [loss.detach() for loss in losses]

    def _schedule(self, shapes: Any, count: int) -> Any:
        device, dtype = self.model.device, shapes[2]

        def example(sizes: Any) -> tuple[Tensor, ...]:
            return tuple(
                torch.empty(size, dtype=dtype, device="meta", requires_grad=True) for size in sizes
            )

        wide = torch.promote_types(dtype, torch.float32)  # as losses are
        out = torch.empty(1, dtype=wide, device="meta", requires_grad=True)
        stage = PipelineStage(
            self.module,
            self.stage,
            self.stages,
            device,
            input_args=example(shapes[0]),
            output_args=(out,) if self.hidden.last else example(shapes[1]),
            group=self.group,
        )
        make = Schedule1F1B if count >= self.stages else ScheduleGPipe
        return make(stage, count, loss_fn=lambda mean, _: mean.sum(), scale_grads=False)

    def _shapes(self, one: One, batch: Any) -> Any:
        """What this stage is given and gives for a batch: found by asking which sides it has."""
        asked = _Asked(self.model)
        self.model.hidden = asked
        try:
            one(batch)
        except Passed:
            pass
        finally:
            del self.model.hidden
        sides = asked.sides
        before = [name for name in sides if self.mine[name].first > 0]
        after = [name for name in sides if self.mine[name].end > 0]
        dtype = asked.dtype or next(self.model.parameters()).dtype
        return (
            state_shapes(sides, before, self.model),
            state_shapes(sides, after, self.model),
            dtype,
        )


class _Asked:
    """Stands for `Model.hidden` to learn what it would be called with."""

    def __init__(self, model: Any) -> None:
        self.sides: Mapping[str, Side] = {}
        self.dtype: torch.dtype | None = None

    def __call__(self, sides: Mapping[str, Side], *, dtype: Any = None, **more: Any) -> Any:
        self.sides, self.dtype = sides, dtype
        raise Passed(())
