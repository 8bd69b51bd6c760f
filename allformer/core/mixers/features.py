"""Attention by features: φ(q)·Σ φ(k) v in place of softmax(q·k) v.

    elu:    φ(x) = elu(x) + 1                                        (Katharopoulos et al., eq. 7)
    favor:  φ(x) = exp(w·x − |x|²/2) for random w, E[φ(q)·φ(k)] = exp(q·k)   (Choromanski et al.)

Of "favor", queries and keys are each multiplied by √scale, and each query's and each key's highest
feature is divided out: a query's cancels, a key's logarithm goes along (`top`).

Legend: B batch, T tokens, H heads, G key/value heads, D head size, F features.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.fused.linear_attention import (
    Sums,
    attention_weights,
    causal_attention,
    fused_elu,
    fused_serves,
    whole_attention,
)
from allformer.core.layout import Layout
from allformer.core.mixers.mixer import Mixer, Scene
from allformer.core.precision import widen
from allformer.core.registry import implements
from allformer.core.relatives.relative import Extra
from allformer.core.states import Recurrent, State
from allformer.core.taps import listening, listening_exactly, tap
from allformer.errors import ConfigError


class Plan(NamedTuple):
    """`pairs`: by the formula, for each pair (kernel="eager"). `fused`: by the kernel that reads
    the projections where they lie."""

    layout: Layout
    causal: bool
    pairs: bool = False
    fused: bool = False


@implements(config.Features)
class Features(Mixer):
    """The sums of keys and values, read by each query."""

    fixed = True
    draws: Tensor  # F D, of "favor"

    def __init__(self, attention: config.Attention, dim: int, path: str) -> None:
        super().__init__(attention, dim, path)
        self.favor = self.config.kind == "favor"
        if self.favor:  # saved with the model: another draw is another model
            self.register_buffer("draws", torch.empty(self.config.count, self.size))

    def reset_parameters(self) -> None:
        """The draw that the config's seed says."""
        self.redraw(self.config.seed)

    def redraw(self, seed: int) -> None:
        """The draw of this seed, another one in each layer."""
        if self.favor:
            own = crc32(f"{seed} {self.path}".encode())
            drawn = orthogonal(self.config.count, self.size, torch.Generator().manual_seed(own))
            self.draws.copy_(drawn)

    def plan(self, scene: Scene) -> Plan:
        if scene.relation.adds:
            raise ConfigError(
                f"Features({self.config.kind!r}) has no scores that a relative position could be "
                f"added to; try relative=Rotary()"
            )
        if scene.state is not None and not isinstance(scene.state, Recurrent):
            raise ConfigError(
                f"Features({self.config.kind!r}) remembers sums, not keys: its rows cannot be cut "
                f"among processes; train with data or pipeline parallelism"
            )
        pairs = scene.kernel == "eager" and not scene.cached
        plain = scene.causal and not (self.favor or scene.cached or pairs or listening())
        fused = plain and fused_serves(scene.device, scene.dtype, self.size)
        return Plan(scene.query, scene.causal, pairs, fused)

    def new_state(self, causal: bool) -> State:
        return Recurrent()

    def takes_whole(self, plan: Plan) -> bool:
        return plan.fused

    def whole(self, x: Tensor, memory: Tensor | None, plan: Plan, seed: Tensor | None) -> Tensor:
        grid, shape = plan.layout.to_grid(x), (self.heads, self.groups, self.size)
        return plan.layout.lay(fused_elu(grid, plan.layout.keep, *shape))

    def put(self, x: Tensor, plan: Plan, key: bool) -> Tensor:
        """Packed rows on their grid."""
        return plan.layout.to_grid(x)

    def forward(
        self, parts: dict[str, Tensor], plan: Plan, state: State | None, extra: Extra | None
    ) -> Tensor:
        q, k, v = (self._split(parts[name]) for name in "qkv")
        q, k, v = tap(self, "q", q), tap(self, "k", k), tap(self, "v", v)  # B H|G T D
        keep = plan.layout.keep
        if keep is not None:  # of cached tokens too: the new ones are the last
            keep = keep[:, None, -k.shape[2] :]  # B 1 T
        features = self.features(widen(q), widen(k), keep)
        context = self._read(*features, widen(v), plan, state)
        return plan.layout.lay(context.to(v.dtype).transpose(1, 2).flatten(-2))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)

    def _read(
        self, q: Tensor, k: Tensor, top: Tensor | None, v: Tensor, plan: Plan, state: State | None
    ) -> Tensor:
        if plan.pairs or (listening_exactly() and state is None):
            weights = attention_weights(q, k, top, plan.causal)  # B H T S
            patched = tap(self, "weights", weights)
            if plan.pairs or patched is not weights:
                return patched @ v.repeat_interleave(self.heads // self.groups, 1)
        if not plan.causal:
            return whole_attention(q, k, v, top)
        if state is None:
            return causal_attention(q, k, v, top)[0]
        assert isinstance(state, Recurrent)
        before = Sums(**state.values) if state.values else None
        context, sums = causal_attention(q, k, v, top, before)
        state.values = {name: x for name, x in sums._asdict().items() if x is not None}
        return context

    def features(
        self, q: Tensor, k: Tensor, keep: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """φ(q) B H T F, φ(k) B G T F (zeros where `keep`, B 1 T, is False), and log of what φ(k)
        was divided by, B G T."""
        if not self.favor:
            q, k = elu(q), elu(k)
            return q, k if keep is None else k * keep[..., None], None
        draws = self.draws.to(q.dtype).T * self.scale**0.5  # D F
        q, norm = q @ draws, k.square().sum(-1, keepdim=True) * (self.scale / 2)
        k = k @ draws - norm
        # |q|²/2 and 1/√F are alike above and below, as is what is divided out: no gradient
        q = (q - q.amax(-1, keepdim=True).detach()).exp()
        top = k.amax(-1).detach()
        k = (k - top[..., None]).exp()
        if keep is not None:
            k, top = k * keep[..., None], top.masked_fill(~keep, float("-inf"))
        return q, k, top


def elu(x: Tensor) -> Tensor:
    """elu(x) + 1: x + 1 above zero, exp(x) below. Not by `F.elu`, whose gradient torch 2.13 lays
    out otherwise in a compiled graph than it is told."""
    return x.relu() + x.clamp_max(0).exp()


def orthogonal(count: int, size: int, generator: torch.Generator) -> Tensor:
    """`count` Gaussian vectors of which each `size` in a row are orthogonal to one another: each
    alone is as an independent one, together they err less (Choromanski et al., section 3.2)."""
    blocks = -(-count // size)
    noise = torch.randn(blocks, size, size, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(noise)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # else not every direction is alike
    lengths: Tensor = torch.randn(count, size, generator=generator, dtype=torch.float64).norm(
        dim=-1
    )
    rows: Tensor = q.transpose(-1, -2).flatten(0, 1)[:count]
    return rows * lengths[:, None]


def redraw(model: nn.Module, seed: int) -> int:
    """New random features for every layer that has some: `redraw(model, seed=step)`.

    The same seed gives the same draw on every machine; returns how many layers drew. The paper
    draws anew every so many steps of training, so that no layer leans on one draw.
    """
    found = [module for module in model.modules() if isinstance(module, Features)]
    drawing = [module for module in found if module.favor]
    with torch.no_grad():
        for module in drawing:
            module.redraw(seed)
    return len(drawing)
