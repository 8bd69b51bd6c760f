"""BigBird's attention: blocks of queries meet the few blocks of keys that they look at.

No square of the length is made. On a CPU, and in full precision, the keys and values of each
block's slots are gathered beside each other and looked at by one softmax; in half precision on a
GPU, FlexAttention leaves out the tiles that nobody sees. A block whose keys count m times in the
softmax (see `config.BlockSparse`) is gathered once and gets log m added to its scores.

Legend: B batch, T tokens, N tokens filled up to whole blocks, H heads, D head size, n blocks of
b tokens, c slots.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.core.attend import attention_scores, attention_weights, mix
from allformer.core.compiling import constant
from allformer.core.gathered import gathered
from allformer.core.kernels.tiles import Tiles, fits, make_tiles, pad_tiles
from allformer.core.kernels.tiles import attend as by_tiles
from allformer.core.layout import Layout
from allformer.core.look import Look, blind_rows, make_look
from allformer.core.mixers.full import Full
from allformer.core.mixers.mixer import Mixer, Scene
from allformer.core.random_blocks import Slots, slots_of, table_of
from allformer.core.registry import implements
from allformer.core.relatives.relative import Extra
from allformer.core.states import State
from allformer.core.taps import listening_exactly, tap
from allformer.errors import ConfigError


class Plan(NamedTuple):
    """How rows are looked at that are long enough. One of `tiles`, `columns` and `look` serves."""

    layout: Layout
    blocks: int
    keep: Tensor | None  # B T, False at padding; None: there is none
    tiles: Tiles | None = None
    columns: Tensor | None = None  # H n−2 c: the blocks that each block looks at
    bias: Tensor | None = None  # B H n−2 1 c·b, or 1 in place of B and H: added to the scores
    edges: Tensor | None = None  # B 1 1 N: the same for the first and the last block
    look: Look | None = None  # written out over all pairs


@implements(config.BlockSparse)
class BlockSparse(Mixer):
    """Global, window and random blocks; rows too short for them are looked at in full."""

    def __init__(self, attention: config.Attention, dim: int, path: str) -> None:
        super().__init__(attention, dim, path)
        self.full = Full(attention, dim, path)

    def plan(self, scene: Scene) -> Any:
        if scene.relation.adds:
            raise ConfigError(
                "BlockSparse has no place for what Stack.relative adds to scores; "
                "try relative=Rotary() or None"
            )
        if scene.cached:
            raise ConfigError(
                "BlockSparse looks at whole rows, and not at parts of them that are generated or "
                "cut among ranks; try mixer=Full()"
            )
        width = scene.query.total
        if width <= self.config.short:
            return self.full.plan(scene)
        blocks = -(-width // self.config.block)
        if torch.compiler.is_compiling():  # a graph of its own for each number of blocks
            blocks = len([*range(blocks)])
        plan = Plan(scene.query, blocks, scene.query.keep)
        if scene.kernel == "eager":
            return plan._replace(look=self._look(plan, scene))
        if fits(scene.device, scene.dtype, self.size, self.config.block):
            plan = plan._replace(tiles=self._tiles(plan, scene))
        else:
            plan = self._gathering(plan, scene)
        # Scores and weights are shown beside the run.
        return plan._replace(look=self._look(plan, scene)) if listening_exactly() else plan

    def _drawn(self, plan: Plan) -> Drawn:
        """What the blocks depend on: in evaluation neither on the layer nor on the head."""
        c, drawn = self.config, self.training or bool(self.config.always)
        seed, heads = (c.seed, self.heads) if drawn else (0, 1)
        return Drawn(c.block, c.random, seed, c.table, heads, plan.blocks, drawn)

    def _tiles(self, plan: Plan, scene: Scene) -> Tiles:
        padded = plan.keep is not None
        made = _tiles(self._drawn(plan), scene.query.total, str(scene.device), padded)
        return made if plan.keep is None else pad_tiles(made, plan.keep)

    def _gathering(self, plan: Plan, scene: Scene) -> Plan:
        columns, times = _slots(*self._drawn(plan), str(scene.device)).unbind(0)  # H n-2 c
        block, least = self.config.block, torch.finfo(scene.dtype).min
        # Not −∞: padding may look at nothing, and yet its softmax must be a number.
        bias = times.to(scene.dtype).log().clamp_min(least)
        bias = bias[..., None].expand(*bias.shape, block).flatten(-2)[None]  # 1 H n-2 c·b
        edges, real = None, self._real(plan, scene.device)
        if real is not None:
            seen = real.view(len(real), -1, block)[:, columns].flatten(-2)  # B H n-2 c·b
            bias = bias.masked_fill(~seen, least)
            edges = torch.zeros_like(real, dtype=scene.dtype).masked_fill(~real, least)
            edges = edges[:, None, None]
        columns = columns.expand(self.heads, -1, -1)
        return plan._replace(columns=columns, bias=bias[..., None, :], edges=edges)

    def _real(self, plan: Plan, device: torch.device) -> Tensor | None:
        """B N or 1 N: False at padding, that of the caller and what fills the last block."""
        width = plan.layout.total
        extra = plan.blocks * self.config.block - width
        if plan.keep is None and not extra:
            return None
        keep = plan.keep
        if keep is None:
            keep = torch.ones(1, width, dtype=torch.bool, device=device)
        return F.pad(keep, (0, extra))

    def _look(self, plan: Plan, scene: Scene) -> Look:
        """The formula as it stands: a mask and what is added, B H T T."""
        slots = Slots(*_slots(*self._drawn(plan), str(scene.device)).unbind(0))
        times = table_of(slots, plan.blocks)  # H n n
        width, block = plan.layout.total, self.config.block
        times = times.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :width, :width]
        mask = times[None] > 0
        bias = times.clamp_min(1).to(scene.dtype).log()[None]
        if plan.keep is None:
            return make_look(mask, bias=bias)
        mask = mask & plan.keep[:, None, None, :]
        return make_look(mask, blind=blind_rows(mask), bias=bias)

    def takes_whole(self, plan: Any) -> bool:
        return not isinstance(plan, Plan) and self.full.takes_whole(plan)

    def whole(self, x: Tensor, memory: Tensor | None, plan: Any, seed: Tensor | None) -> Tensor:
        return self.full.whole(x, memory, plan, seed)

    def put(self, x: Tensor, plan: Any, key: bool) -> Tensor:
        """Packed rows on their grid."""
        return plan.layout.to_grid(x) if isinstance(plan, Plan) else self.full.put(x, plan, key)

    def forward(
        self, parts: dict[str, Tensor], plan: Any, state: State | None, extra: Extra | None
    ) -> Tensor:
        if not isinstance(plan, Plan):
            return self.full(parts, plan, state, extra)  # type: ignore[no-any-return]
        q, k, v = (self._split(parts[name]) for name in "qkv")
        q, k, v = tap(self, "q", q), tap(self, "k", k), tap(self, "v", v)  # B H T D
        out = self._attend(q, k, v, plan).transpose(1, 2).flatten(-2)  # B T H·D
        if plan.layout.packed:
            return plan.layout.lay(out)
        # The reference's padding looks at nothing.
        return out if plan.keep is None else out * plan.keep[..., None]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)  # B T H·D → B H T D

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        if plan.look is not None:
            scores = attention_scores(q, k, scale=self.scale, bias=plan.look.bias)
            patched_scores = tap(self, "scores", scores)
            weights = attention_weights(patched_scores, plan.look)
            patched = tap(self, "weights", weights)
            written_out = plan.tiles is None and plan.columns is None
            if written_out or patched_scores is not scores or patched is not weights:
                return mix(patched, v)
        if plan.tiles is not None:
            return by_tiles(q, k, v, plan.tiles, self.scale)
        return self._gather(q, k, v, plan)

    def _gather(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        """B H T D: the first and the last block over all keys, the others over gathered ones."""
        assert plan.columns is not None
        assert plan.bias is not None
        block, blocks, width = self.config.block, plan.blocks, q.shape[2]
        times = self.heads // self.groups
        k, v = (x.repeat_interleave(times, 1) if times > 1 else x for x in (k, v))
        q, k, v = (F.pad(x, (0, 0, 0, blocks * block - width)) for x in (q, k, v))  # B H N D
        ends = torch.cat([q[:, :, :block], q[:, :, -block:]], 2)
        ends = F.scaled_dot_product_attention(ends, k, v, plan.edges, scale=self.scale)
        q, k, v = (x.view(*x.shape[:2], blocks, block, self.size) for x in (q, k, v))
        middle = gathered(q[:, :, 1:-1], k, v, plan.columns, plan.bias, scale=self.scale)
        return torch.cat([ends[:, :, :block], middle, ends[:, :, block:]], 2)[:, :, :width]


class Drawn(NamedTuple):
    """What the blocks that look at each other depend on."""

    block: int
    random: int
    seed: int
    table: int
    heads: int
    blocks: int
    drawn: bool

    def slots(self) -> Slots:
        mixer = config.BlockSparse(self.block, self.random, self.seed, self.table)
        return slots_of(mixer, self.heads, self.blocks, self.drawn)


@constant
def _slots(*given: Any) -> Tensor:
    """Columns and times of `Slots`, 2 H n−2 c, on a device: `_slots(*drawn, "cpu")`. A graph that
    is compiled takes them as they are: it cannot draw."""
    return _drawn_slots(*given)


@lru_cache(maxsize=256)
def _drawn_slots(*given: Any) -> Tensor:
    *numbers, device = given
    slots = Drawn(*numbers).slots()
    return torch.stack([slots.columns, slots.times]).to(device)


@lru_cache(maxsize=256)
def _tiles(drawn: Drawn, length: int, device: str, padded: bool) -> Tiles:
    slots = Slots(*_drawn_slots(*drawn, device).unbind(0))
    more = 0 if drawn.drawn else drawn.random
    return make_tiles(slots, drawn.block, drawn.blocks, length, more, padded)
