"""Heads side by side: each under its own name, with its own output and its own targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from allformer import config
from allformer.core.heads.head import Head, Hidden
from allformer.core.loss import Sums
from allformer.core.registry import implements, module_for
from allformer.errors import ConfigError


@implements(config.Several)
class Several(Head):
    """BERT's pair; a value beside words. The loss is the sum of theirs."""

    def __init__(self, head: config.Several, stack: config.Stack, path: str, **given: Any) -> None:
        super().__init__(head, stack, path)
        for part in head.parts:
            made = module_for(part.head)(part.head, stack, f"{path}.{part.name}", **given)
            _check_single(part, made)
            made.targets = (part.target,)
            self.add_module(part.name, made)
        heads = [one for _, one in self.each()]
        self.gives = tuple(part.output for part in head.parts)
        self.targets = tuple(dict.fromkeys(name for one in heads for name in one.targets))
        self.reads_first = any(one.reads_first for one in heads)
        fronts = [one.front for one in heads if one.front is not None]
        self.front = max(fronts) if len(fronts) == len(heads) else None
        self.reads_padding = any(one.reads_padding for one in heads)
        self.writes = any(one.writes for one in heads)

    def each(self) -> Iterator[tuple[str, Head]]:
        """The name of each one's output, and the head."""
        for part in self.config.parts:
            yield part.output, getattr(self, part.name)

    def outputs(self, hidden: Hidden) -> dict[str, Tensor]:
        found = {}
        for name, head in self.each():
            (found[name],) = head.outputs(hidden).values()
        return found

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        """One thing to learn: the sum of the heads' mean losses."""
        total = sum(
            head.loss({head.gives[0]: outputs[name]}, targets, hidden) for name, head in self.each()
        )
        assert isinstance(total, Tensor)
        return Sums(total, total.detach(), total.new_ones(()))


def _check_single(part: config.Beside, head: Head) -> None:
    """A head beside others has one output and one target: those that `Beside` names anew."""
    if len(head.gives) != 1 or len(head.targets) != 1:
        raise ConfigError(
            f"Beside.head={part.head!r} gives {', '.join(head.gives)} and learns from "
            f"{', '.join(head.targets)}, but one of several heads has one of each; use it alone"
        )
