"""What the checks share: the copies, the way to call them, and what was seen in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.calls import MODELS, ORDERED, Batch, Call, everything
from allformer.auditor.probe import distance, duplicate, scale_of
from allformer.auditor.report import Finding
from allformer.auditor.watch import Inject, Site, Watch

TOLERANCE = 1e-6  # of the output's size: far above fp64's rounding, far below a loud difference


class NotApplicable(Exception):
    """A check that cannot apply, with the reason."""


@dataclass
class Context:
    """One audit."""

    module: nn.Module  # the user's: read, never run or changed
    loud: nn.Module  # eval, fp64 where possible, loud weights
    call: Call
    build: Callable[[], nn.Module] | None = None
    profile: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    found_profile: list[str] = field(default_factory=list)
    eos: int | None = None

    @property
    def kind(self) -> str:
        """What the module is."""
        return self.call.kind

    @property
    def ordered(self) -> bool:
        """Whether positions must not see later ones."""
        return self.kind in ORDERED

    @cached_property
    def quiet(self) -> nn.Module:
        """A copy with the user's own weights, in eval and in the loud copy's dtype."""
        return duplicate(self.module).to(self.call.dtype).eval()

    def odd(self, said: str) -> None:
        """Say once which legitimate oddity was found."""
        if said not in self.found_profile:
            self.found_profile.append(said)

    def run(self, batch: Batch, module: nn.Module | None = None) -> Tensor:
        """The output for a batch."""
        with torch.no_grad():
            return self.call(module or self.loud, batch).main

    def watch(
        self, batch: Batch, inject: Any = None, module: nn.Module | None = None
    ) -> tuple[Watch, Tensor]:
        """The output and what the operators did."""
        target = module or self.loud
        seen = Watch(target, batch.inputs, inject)
        with torch.no_grad(), seen:
            out = self.call(target, batch).main
        return seen, out

    def inject(self, batch: Batch, inject: Any) -> Tensor:
        """The output when some operators give something else; cheaper than watching."""
        with torch.no_grad(), Inject(inject):
            return self.call(self.loud, batch).main

    @cached_property
    def one(self) -> Batch:
        """A batch of one row."""
        return self.call.batch(1)

    @cached_property
    def seen(self) -> Watch:
        """The operators of a run of `one`."""
        return self.watch(self.one)[0]

    @cached_property
    def same(self) -> tuple[Watch, Tensor]:
        """A run of one token repeated: what its operators did, and the output."""
        one = self.one
        batch = replace(one, x=one.x[:, :1].expand_as(one.x).clone())
        if one.source is not None:
            batch = replace(batch, source=one.source[:, :1].expand_as(one.source).clone())
        return self.watch(batch)

    def sites(self) -> list[Site]:
        """The attentions that were seen; none is a reason not to apply."""
        if not self.seen.sites:
            raise NotApplicable("no attention (matmul, softmax, matmul) was seen in its operators")
        return self.seen.sites

    def moved(self, a: Tensor, b: Tensor, like: Tensor | None = None) -> bool:
        """Whether two outputs differ by more than rounding."""
        return distance(a, b) > TOLERANCE * scale_of(b if like is None else like)

    @cached_property
    def pattern(self) -> Tensor:
        """T T boolean: whether output t moves with token j."""
        batch = self.one
        base = self.run(batch)
        if base.ndim != 3:
            raise NotApplicable("the output has no position axis")
        other = self.call.other(batch.x)
        columns = []
        for j in range(batch.x.shape[1]):
            x = batch.x.clone()
            x[:, j] = other[:, j]
            moved = self.run(replace(batch, x=x))
            gaps = [distance(moved[0, t], base[0, t]) for t in range(base.shape[1])]
            columns.append(torch.tensor(gaps) > TOLERANCE * scale_of(base))
        return torch.stack(columns, 1)

    @property
    def hides(self) -> bool:
        """Whether padding of x can be said: by a mask, or by an id that the module masks itself."""
        return self.call.x.keeps or (self.call.pad_inside and not self.call.has_source)

    def hidden(self, batch: Batch, keep: Tensor, side: str = "x") -> Batch:
        """The batch with padding where not `keep`: by a mask, else by the padding's id."""
        if self.call.side(side).keeps:
            return batch.hiding(side, keep)
        hidden = batch.content(side).masked_fill(~keep, self.call.pad or 0)
        return replace(batch, **{side: hidden})

    def hideable(self, side: str) -> bool:
        """Whether padding of a side can be said at all."""
        named = self.call.pad is not None and not self.one.content(side).is_floating_point()
        return self.call.side(side).keeps or named

    def with_hole(self, side: str) -> tuple[Batch, Tensor] | None:
        """`one` with two tokens of padding on a side, and which are real (1 T); None: no way."""
        if not self.hideable(side):
            return None
        content = self.one.content(side)
        keep = everything(content)
        keep[:, self.call.hole(side, content.shape[1])] = False
        return self.hidden(self.one, keep, side), keep

    def positions(self) -> int:
        """The length that is used."""
        return self.one.x.shape[1]


Result = Iterator[Finding] | None


@dataclass(frozen=True)
class Check:
    """A function that yields findings; `ids` are what it decides, `also` what else it can name."""

    ids: tuple[str, ...]
    also: tuple[str, ...]
    kinds: frozenset[str]
    function: Callable[[Context], Any]


CHECKS: list[Check] = []
PARTS = (*MODELS, "attention", "block")


def check(
    *ids: str, kinds: tuple[str, ...] = MODELS, also: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    """Register a check."""

    def register(function: Any) -> Any:
        CHECKS.append(Check(ids, also, frozenset(kinds), function))
        return function

    return register
