"""Attention by softmax(Q Kᵀ) V, over all keys or those within reach.

Legend: B batch, T queries, S keys, N packed tokens, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allformer import config
from allformer.core.attend import attention_scores, attention_weights, mix
from allformer.core.fused import in_graph
from allformer.core.fused.norm import NOTHING, Thinning
from allformer.core.kernels import Case, Plan, choose
from allformer.core.kernels.banded import Banded, band_of
from allformer.core.kernels.flex import Flex, window_blocks
from allformer.core.kernels.paged import PagedKernel, paged_serves
from allformer.core.kernels.ragged import RaggedFlash
from allformer.core.kernels.sdpa import SDPA
from allformer.core.kernels.short import rows_of, short_rows, usual_length
from allformer.core.layout import Packed, compact
from allformer.core.look import Look, blind_rows, make_look
from allformer.core.mixers.mixer import Mixer, Scene
from allformer.core.places import mask_of
from allformer.core.registry import implements
from allformer.core.relatives.relative import Extra, Relation
from allformer.core.resumed import Resumed
from allformer.core.states import Paths, State
from allformer.core.states.pages import Pages
from allformer.core.taps import listening_exactly, tap


@implements(config.Full)
class Full(Mixer):
    """Every query looks at every key that the masks allow."""

    reach: tuple[int, int] | None = None  # places before and after the query
    dilation: int = 1  # of those, every so-manieth
    fixed = True
    shown = "scores", "weights"  # their taps: of every pair of tokens

    def plan(self, scene: Scene) -> Plan:
        every = self.reach is None and not scene.relation.adds
        full = every and scene.ahead is None
        length = usual_length(scene)
        case = Case(
            scene.kernel, scene.device, scene.dtype, self.size, scene.query.packed, full,
            length, self.heads != self.groups, drops=self.training and self.dropout > 0,
        )  # fmt: skip
        query, key = scene.query, scene.key
        if isinstance(query, Resumed):
            return self._resumed(scene, query, case)
        kernel = choose(self._windowed(case, scene))
        if kernel.whole:
            return Plan(kernel, causal=scene.causal, rows=rows_of(scene), length=length)
        if isinstance(kernel, Flex):
            assert self.reach is not None
            look = None if query.packed else Look()
            return Plan(kernel, look, blocks=window_blocks(scene, self.reach, self.dilation))
        if isinstance(kernel, Banded):
            assert self.reach is not None
            band = band_of(scene, self.reach, self.dilation)
            side = query if isinstance(query, Packed) else None
            look = Look() if band.rows is None else None
            return Plan(kernel, look, query=side, key=side, band=band)
        if not isinstance(query, Packed) or not isinstance(key, Packed):
            return self._grids(scene, Plan(kernel))
        if kernel.ragged:
            return Plan(kernel, None, None, query, key, scene.causal)
        if every and scene.device.type == "cpu" and not torch.compiler.is_compiling():
            near = compact(
                query
            )  # its width depends on the lengths: elsewhere that would be a wait
            query, key = near, near if key is query else compact(key)
        plan = Plan(kernel, query=query, key=key)
        return self._grids(scene._replace(query=query, key=key), plan)

    def _resumed(self, scene: Scene, query: Resumed, case: Case) -> Plan:
        """Rows that go on from places of their own, on grids; by one token each, keys in pages are
        read where they lie; by more, rows lie end to end where flash attention serves. What is
        looked at across is a grid already."""
        state = scene.state
        each = query.keep.shape[1] == 1 and not scene.relation.adds and self.dilation == 1
        if isinstance(state, Pages) and each and paged_serves(case):
            frame, reach = state.frame, None if self.reach is None else self.reach[0]
            kernel = PagedKernel(frame.table, frame.lengths, frame.size, reach)
            return Plan(kernel, Look(), query=query)
        whole = state.frame.whole if isinstance(state, Pages) and scene.causal else None
        if whole is not None and not listening_exactly():
            flash = RaggedFlash()
            if flash.fits(case._replace(packed=True)) and (whole is query or flash.resumes(case)):
                return Plan(flash, None, None, query, whole, True)
        return self._grids(scene, Plan(choose(case), query=query))

    def _windowed(self, case: Case, scene: Scene) -> Case:
        """With the window, where queries are the last of the keys, in order: kernels that leave out
        what nobody sees need no mask over all pairs then."""
        query, relation = scene.query, scene.relation
        asks = relation.adds and type(relation).scores is not Relation.scores  # for every pair
        if self.reach is None or scene.key is not query or asks or listening_exactly():
            return case
        if scene.ahead is not None:
            return case
        left, right = self.reach
        window = left + 1 + (0 if scene.causal else right)
        case = case._replace(window=window, dilation=self.dilation, biased=relation.adds)
        if isinstance(query, Packed):
            return case._replace(width=query.cells.shape[0], row=query.total)
        if query.room is not None or not isinstance(query.past, int):
            return case._replace(window=0)
        return case._replace(width=query.width, row=query.width, past=query.past > 0)

    def _grids(self, scene: Scene, plan: Plan) -> Plan:
        """Masks and biases over the grids, from everybody's places."""
        places = scene.places()
        bias = scene.relation.bias(places)
        if scene.causal and places.triangle and self.reach is None and bias is None:
            look = Look(causal=places.query.shape[1] > 1)
        else:
            mask = mask_of(places, scene.causal, self.reach, self.dilation)
            blind = None if mask is None or places.real is None else blind_rows(mask)
            look = make_look(mask, blind=blind, bias=bias)
        if in_graph():
            look = look.summed(scene.dtype)
        return plan._replace(look=look, places=places)

    def narrow(self, plan: Plan) -> Plan | None:
        """Where every query looks at every key, the first ones do so too."""
        if plan.causal or plan.blocks is not None or plan.band is not None:
            return None
        if plan.rows is not None:  # a kernel of whole rows: only another one can leave queries out
            return Plan(SDPA(), Look())
        look = plan.look
        return plan if look is not None and look.merged is None and not look.causal else None

    def takes_whole(self, plan: Plan) -> bool:
        return plan.rows is not None

    def whole(self, x: Tensor, memory: Tensor | None, plan: Plan, seed: Tensor | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        site = 0 if memory is None else 2
        thinning = Thinning(dropout, seed, site) if dropout else NOTHING
        return short_rows(x, memory, plan, (self.heads, self.size, self.scale), thinning)

    def put(self, x: Tensor, plan: Plan, key: bool) -> Tensor:
        """Packed rows on their grid, unless the kernel takes them as they are."""
        side = plan.key if key else plan.query
        return x if side is None or plan.look is None else side.to_grid(x)

    def forward(
        self, parts: dict[str, Tensor], plan: Plan, state: State | None, extra: Extra | None
    ) -> Tensor:
        q = self._split(parts["q"], self.heads, plan)  # B H T D
        k, v = (self._split(parts[name], self.groups, plan) for name in "kv")  # B G S D
        if state is not None:
            k, v = state.update(k, v, plan.places)
            if len(k) < len(q):  # beams share a store: more queries of one row
                q = Paths.beside(q, len(k))
        if plan.ahead is not None:
            first = (x.to(k.dtype).expand(len(k), -1, -1, -1) for x in plan.ahead)
            k, v = (torch.cat(pair, 2) for pair in zip(first, (k, v), strict=True))
        q, k, v = tap(self, "q", q), tap(self, "k", k), tap(self, "v", v)
        if extra is not None:
            assert plan.look is not None
            assert plan.places is not None
            plan = plan._replace(look=plan.look.biased(extra(q, plan.places)))
            q = extra.query(q)
        return self._merge(self._attend(q, k, v, plan), plan)  # B T H·D

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if listening_exactly() and plan.look is not None:
            # Shown beside the run, not instead of it: the fast kernel still makes the output,
            # unless the listener puts other scores or weights there.
            scores = attention_scores(q, k, scale=self.scale, bias=plan.look.bias)
            patched_scores = tap(self, self.shown[0], scores)
            weights = attention_weights(patched_scores, plan.look)
            patched = tap(self, self.shown[1], weights)
            if patched_scores is not scores or patched is not weights:
                return mix(patched, v)
        return plan.kernel(q, k, v, plan, self.scale, dropout)

    def _split(self, x: Tensor, heads: int, plan: Plan) -> Tensor:
        x = x.view(*x.shape[:-1], heads, self.size)
        return x if plan.look is None else x.transpose(1, 2)  # N H D or B H T D

    @staticmethod
    def _merge(x: Tensor, plan: Plan) -> Tensor:
        if plan.look is None:
            return x.flatten(-2)
        # transpose back *before* flattening: B H T D → B T H D → B T H·D
        x = x.transpose(1, 2).flatten(-2)
        return x if plan.query is None else plan.query.lay(x)
