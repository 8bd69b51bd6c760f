"""Muon: momentum, made orthogonal, for the matrices of layers; AdamW for all else.

Written here though torch has `torch.optim.Muon`: that one takes each tensor for one matrix, and our
q, k and v lie in one (`core/linear.py`, Fused); it reads the rate from the device, which no CUDA
graph can hold; and it works on one matrix at a time. Where it can be asked the steps agree, tested.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allformer.config.base import Probability
from allformer.core.block import Block
from allformer.core.linear import Fused, Linear
from allformer.core.starts import decay_groups
from allformer.errors import ConfigError
from allformer.train.optim.settings import Betas, Optim, Small
from allformer.train.optim.together import Together
from allformer.train.sections.section import NotNegative

# Keller Jordan's: p(x) = ax + bx³ + cx⁵, steepest at 0; five rounds bring singular values of
# 0.01 … 1 into about 0.7 … 1.2, which serves as well as 1.
A, B, C = 3.4445, -4.7750, 2.0315
ROUNDS = 5
EPS = 1e-7


@dataclass(frozen=True)
class Muon(Optim, named="muon"):
    """One rate for both: an orthogonal update is scaled to the size of AdamW's usual one.

    The scale is 0.2 · √(the longer side), so that AdamW's rate and decay fit (Liu et al., 2025).
    `momentum` is Muon's, with Nesterov's look ahead; `betas` and `eps` are of the AdamW beside it.
    """

    captures: ClassVar[bool] = True
    clips_inside: ClassVar[bool] = True

    weight_decay: NotNegative = 0.1
    momentum: Probability = 0.95
    betas: Betas = (0.9, 0.95)
    eps: Small = 1e-8

    def make(self, model: nn.Module, lr: Tensor | float, capturable: bool) -> torch.optim.Optimizer:
        found = hidden_matrices(model)
        if not found:
            raise ConfigError(
                "optim.name=muon is for the matrices of layers (Linear inside a Block), and this "
                "model has none that are trained; try adamw"
            )
        matrices, rest = [], []
        for group in decay_groups(model, self.weight_decay):
            ours = [p for p in group["params"] if p in found]
            others = [p for p in group["params"] if p not in found]
            if ours:  # torch's distributed checkpoints know no groups of nothing
                matrices.append({**group, "params": ours, "rows": [found[p] for p in ours]})
            if others:
                rest.append({**group, "params": others})
        beta1, beta2 = self.betas
        beside = torch.optim.AdamW(
            rest, lr=lr, betas=(beta1, beta2), eps=self.eps, fused=True, capturable=capturable
        )
        return Together([Orthogonal(matrices, lr=lr, momentum=self.momentum), beside])


def hidden_matrices(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """The matrices inside of layers that are trained, each with the rows of its parts:
    `{qkv.weight: (64, 8, 8)}`.

    Embeddings, positions, heads and output matrices are none, nor is what one of them shares.
    """
    inside: dict[Tensor, tuple[int, ...]] = {}
    linears = {
        id(part): part
        for block in model.modules()
        if isinstance(block, Block)
        for part in block.modules()
        if isinstance(part, Linear)
    }
    for linear in (x for x in linears.values() if x.weight.requires_grad):
        rows = linear.parts.values() if isinstance(linear, Fused) else (linear.out_features,)
        if linear.weight.requires_grad:
            inside[linear.weight] = tuple(rows)
    for module in model.modules():
        if id(module) not in linears:
            for parameter in module.parameters(recurse=False):
                inside.pop(parameter, None)
    return inside


class Orthogonal(torch.optim.Optimizer):
    """Muon's update of matrices: `Orthogonal([{"params": [w], "rows": [(64, 64, 64)]}], lr=1e-3)`.

    `rows` cuts each tensor into the matrices that lie in it, one below the other.
    """

    grad_scale: Tensor | None = None  # gradients are divided by it
    found_inf: Tensor | None = None  # where it is 1, nothing changes

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: Tensor | float, momentum: float = 0.95
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all matrices that have a gradient."""
        for group in self.param_groups:
            there = [
                (p, rows)
                for p, rows in zip(group["params"], group["rows"], strict=True)
                if p.grad is not None
            ]
            if there:
                self._step(group, [p for p, _ in there], [rows for _, rows in there])

    def _step(
        self, group: dict[str, Any], tensors: list[Tensor], rows: list[Sequence[int]]
    ) -> None:
        rate, momentum = group["lr"], group["momentum"]
        buffers = [self._buffer(p) for p in tensors]
        grads = self._gradients(tensors, buffers)
        if self.found_inf is not None:
            rate = rate * (1 - self.found_inf.to(tensors[0].dtype))
        torch._foreach_lerp_(buffers, grads, 1 - momentum)
        ahead = torch._foreach_lerp(grads, buffers, momentum)
        if group["weight_decay"]:
            torch._foreach_mul_(tensors, 1 - rate * group["weight_decay"])
        parts = [
            part for p, n in zip(tensors, rows, strict=True) for part in torch.split(p, list(n))
        ]
        moves = [part for m, n in zip(ahead, rows, strict=True) for part in torch.split(m, list(n))]
        for part, move in zip(parts, orthogonal(moves), strict=True):
            part.sub_(move.to(part.dtype) * (rate * 0.2 * math.sqrt(max(part.shape))))

    def _gradients(self, tensors: list[Tensor], buffers: list[Tensor]) -> list[Tensor]:
        """Scaled; in a step that is not finite the momentum itself, which then stays as it is."""
        grads = [p.grad for p in tensors if p.grad is not None]
        if self.grad_scale is not None:
            grads = [g / self.grad_scale.to(g.dtype) for g in grads]
        if self.found_inf is not None:
            lost = self.found_inf > 0
            grads = [torch.where(lost, b, g) for b, g in zip(buffers, grads, strict=True)]
        return grads

    def _buffer(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def orthogonal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Each matrix with its singular values brought near 1; those of one shape in one product.

    >>> orthogonal([torch.randn(64, 64), torch.randn(8, 64)])
    """
    shapes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, matrix in enumerate(matrices):
        shapes[tuple(matrix.shape)].append(i)
    done: list[Tensor] = [*matrices]
    for places in shapes.values():
        found = newton_schulz(torch.stack([matrices[i] for i in places]))
        for i, matrix in zip(places, found, strict=True):
            done[i] = matrix
    return done


def newton_schulz(x: Tensor) -> Tensor:
    """n R C → the same, each X ← aX + (bXXᵀ + c(XXᵀ)²)X five times; in bf16, but fp64 stays."""
    if x.dtype != torch.float64:
        x = x.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(EPS)  # all singular values at most 1
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x
