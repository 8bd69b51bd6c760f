"""Attention among those that hash alike (Kitaev et al., 2020, section 2).

    key = query / |query|;  buckets by argmax([xR; −xR]);  sort by bucket;  attend within chunks

Legend: B rows, H heads, T length, R rounds of hashing, L filled length, C chunks of all rounds,
c length of a chunk, w keys of a chunk, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from allformer import config
from allformer.core.chunks import ALONE, HIDDEN, Ring, past_of, ring, weigh
from allformer.core.dropout import drop
from allformer.core.fused.sorting import farthest, merge_rounds, merged, moved
from allformer.core.kernels.rings import attend_ring, ring_blocks, serves
from allformer.core.layout import Layout
from allformer.core.mixers.mixer import Mixer, Scene
from allformer.core.once import decided
from allformer.core.registry import implements
from allformer.core.relatives.relative import Extra
from allformer.core.states import Hashed, Hashes, State
from allformer.core.taps import tap
from allformer.errors import ConfigError


class Plan(NamedTuple):
    """`ring`: how sorted tokens are cut, all rounds one behind the other. `past`: how many tokens
    a state has; `keep` (B S) covers them too. `blocks`: a kernel serves, see `kernels.rings`."""

    layout: Layout
    ring: Ring
    past: int
    keep: Tensor | None
    blocks: BlockMask | None = None


@implements(config.LSH)
class LSH(Mixer):
    """Chunks of tokens that are sorted by bucket look at themselves and at their neighbours."""

    def new_state(self, causal: bool) -> State:
        return Hashed()

    def plan(self, scene: Scene) -> Plan:
        c, past = self.config, past_of(scene.query)
        if not isinstance(scene.state, Hashed | None) or not isinstance(past, int):
            raise ConfigError(
                f"attention by LSH cannot remember in {type(scene.state).__name__}: it needs the "
                f"buckets of all tokens; use model.new_cache()"
            )
        own = ring(scene, c.chunk, c.before, c.after)
        plan = Plan(scene.query, own, past, scene.query.keep)
        count = own.length * c.hashes
        if own.length > c.chunk and serves(scene, own, count, self.size, self._drops):
            return plan._replace(blocks=ring_blocks(own, count, scene.device))
        return plan

    @property
    def _drops(self) -> bool:
        return self.training and self.dropout > 0

    def put(self, x: Tensor, plan: Plan, key: bool) -> Tensor:
        return plan.layout.to_grid(x)

    def forward(
        self, parts: dict[str, Tensor], plan: Plan, state: State | None, extra: Extra | None
    ) -> Tensor:
        qk, v = (self._split(parts[name]) for name in ("qk", "v"))
        qk, v = tap(self, "qk", qk), tap(self, "v", v)  # B H T D
        if isinstance(state, Hashed) and plan.past:
            context = self._step(qk, v, plan, state)
        else:
            context = self._whole(qk, v, plan, state)
        return plan.layout.lay(context.transpose(1, 2).flatten(-2))  # B T H·D

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)  # B H T D

    # --- whole rows -------------------------------------------------------------------------------

    def _whole(self, qk: Tensor, v: Tensor, plan: Plan, state: State | None) -> Tensor:
        """All tokens of the rows: B H T D → B H T D."""
        own, width = plan.ring, qk.shape[2]
        if isinstance(state, Hashed):
            state.append(qk, v)
        qk, v = own.fill(qk), own.fill(v)  # B H L D
        if own.length <= self.config.chunk:  # all are one chunk: there is nothing to sort
            places = torch.arange(own.length, device=qk.device)[None, None]
            context, _ = self._attend(qk, v, places, own)
            return context[:, :, :width]
        hashes = self._hashes(qk, own.length)  # drawn again as well: dropout draws after it
        order = decided(lambda: self._order(qk, own, hashes, state, width)).long()  # B H R L
        ranks = torch.arange(own.length, device=qk.device).expand_as(order)
        back = torch.empty_like(order).scatter_(-1, order, ranks)  # where each token has gone
        each = (*qk.shape[:2], order.shape[2], *qk.shape[2:])

        def sort(x: Tensor) -> Tensor:  # B H L D → B H R·L D
            return moved(x[:, :, None].expand(each), order, back).flatten(2, 3)

        if plan.blocks is not None:
            q, k, u = sort(qk), sort(self._keys(qk)), sort(v)
            context, total = attend_ring(q, k, u, order.flatten(2), own, plan.blocks, False)
        else:
            context, total = self._attend(sort(qk), sort(v), order.flatten(2), own)
        return merged(context.view(each), total.view(each[:-1]), order, back, width)

    def _order(
        self, qk: Tensor, own: Ring, hashes: Hashes, state: State | None, width: int
    ) -> Tensor:
        """The places of tokens sorted by bucket, B H R L; those of one bucket stay in order."""
        buckets = _buckets(qk, hashes, own.keep)
        if isinstance(state, Hashed):
            state.hashes, state.buckets = hashes, buckets[..., :width]
            state.since = width
        buckets = tap(self, "buckets", buckets)
        return buckets.argsort(dim=-1, stable=True).to(torch.int32)

    def _hashes(self, qk: Tensor, n: int) -> Hashes:
        """What n tokens are hashed by: the same in every call with a seed."""
        c, generator = self.config, None
        if c.seed is not None:
            generator = torch.Generator(qk.device).manual_seed(c.seed)
        factors = c.factors(n)
        shape = (self.heads, self.size, c.hashes, sum(factors) // 2)
        turns = torch.randn(shape, generator=generator, device=qk.device, dtype=qk.dtype)
        return Hashes(turns, factors)

    def _attend(self, qk: Tensor, v: Tensor, places: Tensor, own: Ring) -> tuple[Tensor, Tensor]:
        """Tokens in sorted order at their `places` → their context, and how much each has seen."""
        q, k, v = own.cut(qk), own.look(own.cut(self._keys(qk))), own.look(own.cut(v))
        query = own.cut(places)
        key = own.look(query)
        scores = q @ k.transpose(-1, -2)  # B H C c w
        hidden = own.hidden(query, key)
        if hidden is not None:
            scores = scores.masked_fill_(hidden, HIDDEN.get(scores.dtype, -1e9))
        scores = scores.masked_fill_(_itself(query, key), ALONE.get(scores.dtype, -1e5))
        weights, total = weigh(scores)
        weights = drop(tap(self, "chunk_weights", weights), self.dropout, self.training)
        return (weights @ v).flatten(2, 3), total.flatten(2)

    def _keys(self, qk: Tensor) -> Tensor:
        """A key is its query, of one length: scores differ by direction alone."""
        return qk * ((qk * qk).mean(-1, keepdim=True) + 1e-6).rsqrt() * self.scale

    # --- a token behind what is remembered --------------------------------------------------------

    def _step(self, qk: Tensor, v: Tensor, plan: Plan, state: Hashed) -> Tensor:
        """New tokens, one after the other: B H T D → B H T D."""
        said = []
        for i in range(qk.shape[2]):
            new = slice(i, i + 1)
            keep = None if plan.keep is None else plan.keep[:, : plan.past + i + 1]
            said.append(self._next(qk[:, :, new], v[:, :, new], keep, state))
        return torch.cat(said, 2)

    def _next(self, q: Tensor, v: Tensor, keep: Tensor | None, state: Hashed) -> Tensor:
        """One token looks at those that hash like it, as transformers has it: at the chunk where it
        would stand among all so far, and the chunks around. B H 1 D → B H 1 D."""
        c = self.config
        all_qk, all_v = state.append(q, v)
        count = all_qk.shape[2]
        if state.buckets is None:  # not yet longer than a chunk: everything is near
            places = torch.arange(count, device=q.device).expand(*q.shape[:2], 1, count)
            if count >= c.chunk:
                state.hashes = self._hashes(all_qk, count)
                state.buckets = _buckets(all_qk, state.hashes, keep)
                state.since = count
        else:
            assert state.hashes is not None
            state.buckets = torch.cat([state.buckets, _buckets(q, state.hashes, None)], -1)
            order = state.buckets.argsort(dim=-1, stable=True)  # B H R S
            mine = (order == count - 1).long().argmax(-1, keepdim=True)
            reach = torch.arange(c.chunk * (1 + c.before + c.after), device=q.device)
            near = (mine // c.chunk - c.before) * c.chunk + reach
            places = order.gather(-1, near % count)  # B H R w
        return self._look_back(q, all_qk, all_v, places, keep)

    def _look_back(
        self, q: Tensor, qk: Tensor, v: Tensor, places: Tensor, keep: Tensor | None
    ) -> Tensor:
        """The last token looks at those at `places` (B H R w) → B H 1 D."""
        shape = (*places.shape, self.size)
        at = places.flatten(2)[..., None].expand(-1, -1, -1, self.size)
        k, v = self._keys(qk.gather(2, at)).view(shape), v.gather(2, at).view(shape)
        scores = (k @ q[:, :, None].transpose(-1, -2)).squeeze(-1)  # B H R w
        if keep is not None:
            there = keep[:, None, None].expand(-1, *places.shape[1:3], -1).gather(-1, places)
            scores = scores.masked_fill(~there, HIDDEN.get(scores.dtype, -1e9))
        scores = scores.masked_fill(places == qk.shape[2] - 1, ALONE.get(scores.dtype, -1e5))
        weights, total = weigh(scores)
        return merge_rounds((weights[..., None, :] @ v), total[..., None])


@torch.no_grad()
def _buckets(qk: Tensor, hashes: Hashes, keep: Tensor | None) -> Tensor:
    """B H T D → the buckets of each round, B H R T; padding has one of its own, the last."""
    halves = [factor // 2 for factor in hashes.factors]
    rounds = []
    for turns in hashes.turns.unbind(2):  # a round at a time: scores of all buckets are large
        bucket, times = torch.zeros((), dtype=torch.long, device=qk.device), 1
        for part in torch.split(qk @ turns, halves, dim=-1):
            bucket = bucket + times * farthest(part)
            times *= 2 * part.shape[-1]
        rounds.append(bucket)
    buckets = torch.stack(rounds, 2)
    return buckets if keep is None else buckets.masked_fill(~keep[:, None, None], times)


def _itself(query: Tensor, key: Tensor) -> Tensor:
    return query[..., None] == key[..., None, :]
