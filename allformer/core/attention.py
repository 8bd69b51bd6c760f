"""Multi-head attention: project, split into heads, mix, merge, project.

    MultiHead(Q, K, V) = Concat(head₁, …, head_H) W_O,  head_i = Attention(Q W_Q, K W_K, V W_V)

Legend: B batch, T queries, S keys, N packed tokens, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.linear import Fused, Linear
from allformer.core.registry import module_for
from allformer.core.relatives.relative import PLAIN, Extra, Relation, Relative
from allformer.core.states import LayerState
from allformer.core.taps import tap


class Attention(nn.Module):
    """Self-attention (one fused product) or, with `cross`, q and a fused k, v."""

    def __init__(
        self,
        attention: config.Attention,
        dim: int,
        path: str,
        cross: bool = False,
        relative: Relative | None = None,
    ) -> None:
        super().__init__()
        self.path, self.cross = path, cross
        parts = attention.mixer.projections(attention, dim)
        bias = attention.bias
        if cross:
            self.query = Fused(dim, bias, q=parts.pop("q"))
            self.memory = Fused(dim, bias, **parts)
        else:
            self.qkv = Fused(dim, bias, **parts)
        self.mixer = module_for(attention.mixer)(attention, dim, path)
        self.relative = None if relative is None else relative.part(attention, dim)
        width = attention.heads * attention.size(dim)
        self.out = Linear(width, dim, bias=attention.biased("out"))  # W_O
        self.turned = attention.heads + attention.groups  # heads of q and k, the first ones

    def forward(
        self,
        x: Tensor,
        plan: Any,
        memory: Tensor | None = None,
        state: LayerState | None = None,
        relation: Relation = PLAIN,
        seed: Tensor | None = None,
        before: Tensor | None = None,
        front: int | None = None,
    ) -> Tensor:
        """x B T dim (or N dim) looks at itself, or at `memory` B S dim → the shape of x.

        With a `relation` that turns, queries and keys are turned by their positions first. `seed`
        chooses the mask where a fused kernel drops out. An earlier segment is looked at too, in
        front of x itself: `before` B M dim, or what the state has of it. `front`: so many of the
        first tokens alone look, at all, by a plan for them → B front dim.
        """
        if state is None and self.mixer.takes_whole(plan):
            whole: Tensor = self.out(self._whole(x, plan, memory, relation, seed))
            return whole
        own = None
        if self.cross:
            parts = self._across(x, plan, memory, state, relation)
        else:
            own = None if state is None else state.own
            if before is None and own is not None:
                before = own.before()
            if front is None:
                parts = self._within(x, plan, before, relation)
            else:
                (q,), (k, v) = self.qkv.only(x[:, :front], "q"), self.qkv.only(x, "k", "v")
                parts = {"q": q, "k": k, "v": v}
        extra = None
        if relation.adds and type(relation).scores is not Relation.scores:
            extra = Extra(relation, self.relative)
        context = self.mixer(parts, plan, own, extra)
        if state is not None and len(context) != len(x):
            context = context.reshape(*x.shape[:-1], -1)  # from rows that share a source or a store
        return tap(self, "output", self.out(tap(self, "context", context)))

    @property
    def cuts(self) -> bool:
        """Whether queries can be made for some tokens alone: of a changed layer, all are."""
        return not self.cross and type(self.qkv) is Fused and self.qkv.delta is None

    def _whole(
        self,
        x: Tensor,
        plan: Any,
        memory: Tensor | None,
        relation: Relation,
        seed: Tensor | None,
    ) -> Tensor:
        if self.cross:
            assert memory is not None, "cross-attention needs the encoder's output"
            asked, seen = self.query(_plus(x, relation.own)), self._seen(memory, relation)
            context: Tensor = self.mixer.whole(asked, seen, plan, seed)
            return context
        fused = self._fused(x, relation)
        if relation.turns:
            fused = self._turn(fused, relation)
        context = self.mixer.whole(fused, None, plan, seed)
        return context

    def _fused(self, x: Tensor, relation: Relation) -> Tensor:
        """All projections side by side; values are of x itself, the others of x + its place."""
        if relation.own is None:
            whole: Tensor = self.qkv(x)
            return whole
        names = tuple(self.qkv.parts)
        placed = self.qkv.only(x + relation.own, *(name for name in names if name != "v"))
        return torch.cat([*placed, *self.qkv.only(x, "v")], -1)

    def _seen(self, memory: Tensor, relation: Relation) -> Tensor:
        """Keys and values of what is looked at across; keys know where they stand."""
        if relation.other is None:
            both: Tensor = self.memory(memory)
            return both
        keys = self.memory.only(memory + relation.other, "k")
        return torch.cat([*keys, *self.memory.only(memory, "v")], -1)

    def _within(
        self, x: Tensor, plan: Any, before: Tensor | None, relation: Relation
    ) -> dict[str, Tensor]:
        qkv: Fused = self.qkv  # looked up once: a module finds its parts slowly
        some = self.mixer.wants(plan)
        if some is not None:
            fewer = zip(some, qkv.only(x, *some), strict=True)
            return {name: self.mixer.put(part, plan, key=False) for name, part in fewer}
        fused = self._fused(x, relation)
        if relation.turns:
            fused = self._turn(fused, relation)
        names = qkv.parts
        parts = dict(zip(names, qkv.cut(self.mixer.put(fused, plan, key=False)), strict=True))
        if before is not None:  # keys and values of an earlier segment come first
            before = tap(self, "memory", before)
            seen = [name for name in names if name != "q"]
            for name, old in zip(seen, qkv.only(before, *seen), strict=True):
                parts[name] = torch.cat([old, parts[name]], dim=1)
        return parts

    def _across(
        self,
        x: Tensor,
        plan: Any,
        memory: Tensor | None,
        state: LayerState | None,
        relation: Relation,
    ) -> dict[str, Tensor]:
        q = self.mixer.put(self.query(_plus(x, relation.own)), plan, key=False)
        if state is not None and state.cross is not None:
            k, v = state.cross
        else:
            assert memory is not None, "cross-attention needs the encoder's output"
            both = self._seen(memory, relation)
            k, v = self.memory.cut(self.mixer.put(both, plan, key=True))
            if state is not None:
                state.cross = (k, v)
        if state is not None and len(k) < len(q):
            # Several rows have one source (beams of it): they ask side by side, as more queries of
            # one row, and the source's keys and values are read once for all of them.
            q = q.reshape(len(k), -1, q.shape[-1])
        return {"q": q, "k": k, "v": v}

    def _turn(self, fused: Tensor, relation: Relation) -> Tensor:
        """Turn the query and key heads of the fused product, … (H+2G)·D; values stay."""
        whole = relation.turn_whole(fused, self.turned)
        if whole is not None:
            return whole
        heads = fused.view(*fused.shape[:-1], -1, self.mixer.size)  # … H+2G D
        turned = relation.turn(heads[..., : self.turned, :])
        return torch.cat([turned, heads[..., self.turned :, :]], dim=-2).flatten(-2)


def _plus(x: Tensor, places: Tensor | None) -> Tensor:
    return x if places is None else x + places
