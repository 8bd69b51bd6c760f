"""A stack: a source in front, and layers over hidden states.

Legend: B batch, T length, N packed tokens, dim model width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from allformer import config
from allformer.core import flows, mixers, relatives, sources  # noqa: F401  (registers them)
from allformer.core.block import Block, Carried
from allformer.core.dropout import drop
from allformer.core.flows.flow import Run
from allformer.core.fused import ready
from allformer.core.fused.norm import NOTHING, Thinning, norm_of_sum
from allformer.core.fused.random import draw
from allformer.core.inputs import Side
from allformer.core.layout import Grid, Layout, Packed
from allformer.core.mixers.mixer import NOTHING as NO_INPUTS
from allformer.core.mixers.mixer import Scene
from allformer.core.norm import make_norm
from allformer.core.recompute import recomputed
from allformer.core.registry import module_for
from allformer.core.relatives.relative import PLAIN, Relation, refuse_memory
from allformer.core.states import Cache, LayerState
from allformer.core.states.segment import leading
from allformer.core.taps import listening, speaking_as, tap
from allformer.errors import ConfigError

Plans = dict[tuple[config.Mixer, int, bool], Any]  # by what mixes alike, and the form of its heads


class Stack(nn.Module):
    """An encoder or a decoder, as its `config.Stack` says.

    `source(side)` gives the hidden states of a side's inputs; the stack itself is layers only.
    """

    def __init__(self, stack: config.Stack, path: str, **shared: Any) -> None:
        super().__init__()
        self.config, self.path = stack, path
        self.source = module_for(stack.source)(stack, path, **shared)
        self.relative = None
        if stack.relative is not None:
            self.relative = module_for(stack.relative)(stack.relative, stack, path)
        self.order = stack.share or tuple(range(len(stack.blocks)))  # which layer runs when
        self.layers = nn.ModuleList(
            Block(stack.blocks[self.order.index(i)], stack.dim, f"{path}.{i}", self.relative)
            for i in range(len(set(self.order)))
        )
        own = dict.fromkeys(name for mixer in self._mixers() for name in mixer.takes)
        self.takes: tuple[str, ...] = (*self.source.takes, *own)  # inputs, by their names
        self._share()
        self.between = None
        if stack.between is not None:
            count = len(stack.blocks) - 1
            self.between = module_for(stack.between)(stack.between, stack.dim, count)
        self.final_norm = None
        if stack.final_norm is not None:
            self.final_norm = make_norm(stack.final_norm, stack.states)
        self.norms_each = stack.final_norm_at == "layers"
        self.flow = None if stack.flow is None else module_for(stack.flow)(stack.flow, path)
        self.delta: Any = None  # adapters: learned keys and values before every row (see `laid`)
        self.recompute: str | None = None  # for the backward pass; see `core.recompute`
        self.drops = any(_drops(block) for block in stack.blocks)
        kinds = {block.attention.mixer for block in stack.blocks}
        self.draws = any(mixer.draws for mixer in kinds)
        self.adapters_draw = False  # whether adapters that act drop out
        self.chunks = tuple(sorted({mixer.chunk for mixer in kinds if mixer.chunk is not None}))

    def check(
        self, inputs: Mapping[str, Tensor], head: config.Head | None = None, prefix: str = ""
    ) -> tuple[int, int]:
        """Refuse wrong inputs (errors say `prefix` before a name); rows and width of the others."""
        shape: tuple[int, int] = self.source.check(inputs, prefix)
        for mixer in self._mixers():
            mixer.check(inputs, shape, self.config, head, prefix)
        return shape

    def _mixers(self) -> list[Any]:
        """Of those that mix alike, one each."""
        layers: Any = self.layers
        return list({x.attention.mixer.config: x.attention.mixer for x in layers}.values())

    def _share(self) -> None:
        """What layers that mix alike have together."""
        first: dict[config.Mixer, Any] = {}
        for layer in self.layers:
            mixer: Any = layer.attention.mixer  # type: ignore[union-attr]
            mixer.share(first.setdefault(mixer.config, mixer))

    def new_cache(
        self,
        memory: int | None = None,
        mems: Tensor | Sequence[Tensor] | None = None,
        real: Tensor | None = None,
    ) -> Cache:
        """Empty states, one for each layer that runs: what its mixer asks for.

        Where earlier segments are remembered, `memory` tokens of them (None: as the config says),
        at first `mems`: for each layer B M dim, of which `real` B M says who stands there.
        """
        layers: Any = self.layers
        states = [layers[j].attention.mixer.new_state(self.config.causal) for j in self.order]
        given = _each(mems, len(states), self.config.dim)
        _check_memory(self.config, memory)
        if self.relative is not None:
            make = self.relative.new_state
            states = [make(x, memory, h, real) for x, h in zip(states, given, strict=True)]
        elif memory is not None or mems is not None:
            refuse_memory(memory, mems)
        cache = Cache(states)
        cache.rows = None if mems is None else given[0].shape[0]
        cache.before = None if self.delta is None else self.delta.ahead
        return cache

    def laid(self, side: Side, cache: Cache | None = None) -> Side:
        """A side as adapters make it: learned tokens come first where the text begins, and the
        layout tells of learned keys that stand before all. Without adapters, as it is."""
        adds = self.source.delta
        if adds is not None and not side.learned:
            if cache is None or not (cache.length or cache.learned):
                side = adds.lengthen(self.source, side)
            elif cache.learned and "position_ids" in side.inputs:
                numbers = side.inputs["position_ids"] + cache.learned
                side = side._replace(inputs={**side.inputs, "position_ids": numbers})
        layout = self._behind(side.layout)
        return side if layout is side.layout else side._replace(layout=layout)

    def _behind(self, layout: Layout) -> Layout:
        if self.delta is None or layout.ahead is not None:
            return layout
        return layout._replace(ahead=self.delta.ahead(layout.rows))

    @property
    def extended(self) -> bool:
        """Whether adapters stand beside sub-layers, or before the tokens: who runs the layers in
        another way than `forward` does not see those."""
        slots = (self.delta, self.source.delta, *(layer.delta for layer in self.layers))
        return any(slot is not None for slot in slots)

    @property
    def before(self) -> int:
        """How many positions adapters take before the first token of a row."""
        return sum(x.count for x in (self.delta, self.source.delta) if x is not None)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        *,
        memory: Tensor | None = None,
        across: Layout | None = None,
        cache: Cache | None = None,
        kernel: str = "fast",
        inputs: Mapping[str, Tensor] = NO_INPUTS,
        head: config.Head | None = None,
        relation: Relation | None = None,
        seen: list[Tensor] | None = None,
        entered: list[Tensor] | None = None,
        front: int | None = None,
    ) -> Tensor:
        """Hidden states B T dim, or packed N dim, through all layers.

        `memory` in the layout `across` is what cross-attention looks at; a cache that has its
        keys and values needs `across` alone. `inputs`, in the layout, are for the mixers that take
        any (and position_ids for relative positions); `head` is what reads the states. `relation`
        is the model's, where it is not the stack's own; `seen` takes the states after each layer,
        normed as the last ones are, `entered` what each layer reads. `front`, of a grid: the states
        of each row's first tokens alone are wanted, B front dim; then the last layer computes no
        others where its mixer can.
        """
        layout = self._behind(layout)
        if cache is None and self.blank:
            return self._from_blank(x, layout, kernel, inputs)[:, :front]
        if relation is None:
            relation = self._relation(layout, x, inputs.get("position_ids"))
        between = self._between(x, inputs)
        scene = Scene(layout, layout, x.device, x.dtype, self.config.causal, kernel, relation)
        told: dict[str, Any] = {"inputs": inputs, "stack": self.config, "head": head}
        scene = scene._replace(cached=cache is not None, chunks=self.chunks, **told)
        wide = None
        if across is not None:
            wide = scene._replace(key=across, causal=False, relation=PLAIN, inputs=NO_INPUTS)
        within: Plans = {}
        outside: Plans = {}
        fused = (cache is None or cache[0].own.learns) and self.flow is None and ready(x)
        recompute = self.recompute if cache is None else None
        beside = self.training and self.adapters_draw
        random = self.draws or beside or (self.training and self.drops)
        runs: list[Run] = []
        seeds = draw(len(self.order), x.device) if fused and self.training and self.drops else None
        h: Tensor | None = None
        learned = None if self.delta is None else self.delta.pairs(layout.rows, x.dtype)
        before = NOTHING
        zeros = self._zeros(layout, cache)
        for i, j in enumerate(self.order):
            layer: Any = self.layers[j]
            state = None if cache is None else cache[i]
            plan = _once(within, layer.attention.mixer, scene, state)
            if zeros is not None:
                x = x.masked_fill(zeros, 0.0)
                h = None if h is None else h.masked_fill(zeros, 0.0)
            if state is not None and state.own.sees:
                state.own.see(x if h is None else x + before(h))
            if entered is not None:
                entered.append(x if h is None else x + before(h))
            memory_plan = None
            if layer.has_cross:
                assert wide is not None, "this stack looks across: give it the other's layout"
                memory_plan = _once(outside, layer.cross.mixer, wide)
            few = None
            if front is not None and seen is None and i == len(self.order) - 1:
                plan, few = self._narrowed(layer, plan, relation, front)
            if learned is not None:
                plan = plan._replace(ahead=learned[i])
            if self.flow is not None:
                steps = layer.steps(plan, memory, memory_plan, state, relation)
                runs.append(Run(layer, steps, f"{self.path}.{i}", state is not None))
                continue
            if fused:
                seed = None if seeds is None else seeds[i]
                carried = Carried(h, before, seed)
                x, h = recomputed(
                    recompute, self.draws or beside or _draws(layer, plan, memory_plan), layer,
                    x, plan, memory, memory_plan, state, relation, carried, few,
                )  # fmt: skip
                before = layer.thinning("feed", seed)
            else:
                args = (x, plan, memory, memory_plan, state, relation, None, few)
                if listening() and i != j:
                    with speaking_as(layer, f"{self.path}.{i}"):
                        x = layer(*args)
                else:
                    x = recomputed(recompute, random, layer, *args)
            x = x if between is None or i >= len(between) else x + between[i]
            if self.norms_each:
                x, h, before = self._settle(x, h, before), None, NOTHING
            if seen is not None:
                seen.append(x if self.norms_each else self._settle(x, h, before))
        if self.flow is not None:
            x = self.flow(x, runs, random)
        if cache is not None:
            cache.advance(x.shape[1])
        if front is not None and x.shape[1] != front:
            x, h = x[:, :front], None if h is None else h[:, :front]
        if fused:
            x = self._settle(x, h, before)
        elif self.final_norm is not None:
            x = self.final_norm(x)
        return drop(tap(self, "output", x), self.config.final_dropout, self.training)

    def _narrowed(
        self, layer: Any, plan: Any, relation: Relation, front: int
    ) -> tuple[Any, int | None]:
        """How the last layer attends if the first tokens alone are wanted of it, and how many they
        are; None: it computes all. Who listens sees all."""
        plain = relation is PLAIN and self.flow is None and not layer.has_cross
        if not plain or listening() or not layer.attention.cuts:
            return plan, None
        fewer = layer.attention.mixer.narrow(plan)
        return (plan, None) if fewer is None else (fewer, front)

    @property
    def blank(self) -> bool:
        """Whether the first segment looks at a memory of zeros."""
        return self.relative is not None and self.relative.config.blank

    def _zeros(self, layout: Layout, cache: Cache | None) -> Tensor | None:
        """Padding on the left of a memory of zeros, which is as much of it, R T 1."""
        if cache is None or not self.blank or layout.keep is None or isinstance(layout, Packed):
            return None
        assert isinstance(layout.past, int)
        return leading(layout.keep)[:, layout.past :, None]

    def _from_blank(
        self, x: Tensor, layout: Layout, kernel: str, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """A first segment; its memory lies before it on a grid."""
        grid = layout
        if isinstance(layout, Packed):
            grid = Grid(layout.rows, layout.total, layout.keep)
        out: Tensor = self(
            layout.to_grid(x), grid, cache=self.new_cache(), kernel=kernel, inputs=inputs
        )
        return layout.lay(out)

    def _settle(self, x: Tensor, h: Tensor | None, before: Thinning) -> Tensor:
        """What the last layer has handed on, added; and the final norm."""
        if self.final_norm is not None:
            return norm_of_sum(x, h, self.final_norm, before)
        return x if h is None else x + before(h)

    def _between(self, x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """What is added after each layer but the last, layers T dim."""
        if self.between is None or len(self.config.blocks) < 2:
            return None
        source: Any = self.config.source
        shape = source.cut(*inputs["pixel_values"].shape[2:])
        return tap(self, "between", self.between(shape, source.placed, x))

    def _relation(self, layout: Layout, x: Tensor, position_ids: Tensor | None) -> Relation:
        if self.relative is None:
            return PLAIN
        alike = all(block.attention.mixer.distances for block in self.config.blocks)
        count = "all" if alike else "kept"  # where padding stands before a row, or as if not
        where = layout.positions(x.device, count) if position_ids is None else position_ids
        if self.source.per_token:
            where = layout.behind(where)
        relation: Relation = self.relative(where, x.dtype)
        return relation


def _check_memory(stack: config.Stack, memory: int | None) -> None:
    """Refuse more memory than all layers look back at, which would change nothing, and less than
    none."""
    if memory is not None and (type(memory) is not int or memory < 0):
        raise ConfigError(
            f"mem_len={memory!r} must be a whole number of at least 0; try 0 for no memory, or "
            f"leave it out (a cache's memory= and evaluate's --memory are the same)"
        )
    usual = 0 if stack.relative is None else stack.relative.memory
    reaches = [getattr(block.attention.mixer, "left", None) for block in stack.blocks]
    if memory is None or memory <= usual or None in reaches:
        return
    far = max(reach for reach in reaches if reach is not None)
    if memory > far + 1:
        raise ConfigError(
            f"mem_len={memory} (a cache's memory=), but no layer looks back further than "
            f"Window.left={far}; give at most {far + 1}, or a model with wider windows (of an "
            f"old directory: set mem_len in its config.json, which with same_length is its window)"
        )


def _each(mems: Tensor | Sequence[Tensor] | None, layers: int, dim: int) -> list[Any]:
    """A memory for each layer, B M dim, or none for any."""
    if mems is None:
        return [None] * layers
    if len(mems) != layers or any(x.ndim != 3 for x in mems):
        raise ConfigError(
            f"mems of {len(mems)} layers, but this model has {layers}; give a tensor of three axes "
            f"for each, as a call has returned them"
        )
    shapes = {tuple(x.shape) for x in mems}
    if len(shapes) > 1 or next(iter(shapes))[2] != dim:
        raise ConfigError(
            f"mems of the shapes {sorted(shapes)} (rows, tokens, width) must be alike and {dim} "
            f"wide; give them as a call has returned them"
        )
    return list(mems)


def _once(plans: Plans, mixer: Any, scene: Scene, state: LayerState | None = None) -> Any:
    """One plan for all layers of a stack that mix alike; the first one's state speaks for all."""
    key = (mixer.config, mixer.size, mixer.heads == mixer.groups)
    if key not in plans:
        plans[key] = mixer.plan(scene if state is None else scene._replace(state=state.own))
    return plans[key]


def _drops(block: config.Block) -> bool:
    """Whether anything is dropped out in a layer."""
    inner = block.attention.dropout or (block.cross is not None and block.cross.dropout)
    return bool(block.dropout or block.feed.dropout or block.drop_path or inner)


def _draws(layer: Any, plan: Any, memory_plan: Any) -> bool:
    """Whether a layer by fused kernels draws from torch's generator: its masks are by seeds drawn
    before, but for those inside attention that torch computes, and for paths that are dropped."""
    own = [(layer.attention.mixer, plan)]
    if layer.has_cross:
        own.append((layer.cross.mixer, memory_plan))
    inside = any(m.dropout > 0 and not m.takes_whole(p) for m, p in own)
    return layer.training and (inside or layer.drop_path > 0)
