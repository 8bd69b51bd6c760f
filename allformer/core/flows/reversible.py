"""Reversible layers (Gomez et al., 2017; Kitaev et al., 2020, section 3): two streams.

    y₁ = x₁ + attention(norm(x₂))          x₂ = y₂ − feed(norm(y₁))
    y₂ = x₂ + feed(norm(y₁))               x₁ = y₁ − attention(norm(x₂))

A sub-layer takes the streams (a, b) to (b, a + f(b)), and (b, c) back to (c − f(b), b). So the
backward pass computes what each one read from what it gave, and its gradients beside: one
sub-layer's activations are alive at a time, however many layers there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from allformer import config
from allformer.core.block import Block, Step
from allformer.core.dropout import drop
from allformer.core.flows.flow import Flow, Run
from allformer.core.once import Tape
from allformer.core.precision import widen
from allformer.core.registry import implements
from allformer.core.taps import listening, speaking_as, tap

Streams = tuple[Tensor, Tensor]


@implements(config.Reversible)
class Reversible(Flow):
    """Both streams begin as what the source gave, and are given side by side, … 2·dim.

    To be trained they are held in at least fp32: what is subtracted must be what was added.
    """

    def forward(self, x: Tensor, runs: list[Run], draws: bool) -> Tensor:
        wide = widen(x) if torch.is_grad_enabled() else x
        streams = wide, wide
        again = not listening() and not any(run.keeps for run in runs)
        if torch.is_grad_enabled() and again and not torch.compiler.is_compiling():
            streams = _reversed(*streams, runs, x.dtype, draws, *_weights(runs))
        else:
            streams = self.plain(streams, runs, x.dtype)
        return torch.cat(streams, dim=-1).to(x.dtype)

    def plain(self, streams: Streams, runs: list[Run], dtype: torch.dtype) -> Streams:
        """The formula as it stands: everything is kept for a backward pass."""
        for run in runs:
            moved = listening() and run.path != run.layer.path
            with speaking_as(run.layer, run.path) if moved else nullcontext():
                for step in run.steps:
                    a, b = streams
                    c = a + _branch(b, step, run.layer, dtype)
                    streams = b, tap(run.layer, f"{step.name}_added", c)
        return streams


def _branch(x: Tensor, step: Step, layer: Block, dtype: torch.dtype) -> Tensor:
    """What a sub-layer makes of one stream, as it is added to the other."""
    h = step.work(tap(layer, f"{step.name}_norm", step.norm(x).to(dtype)))
    return drop(h, layer.dropout, layer.training).to(x.dtype)


class Past:
    """How to run a sub-layer again: the generators' states before it, and its choices."""

    def __init__(self, x: Tensor, draws: bool) -> None:
        self.tape = Tape()
        self.cpu = torch.get_rng_state() if draws else None
        self.gpu = torch.cuda.get_rng_state(x.device) if draws and x.is_cuda else None

    @contextmanager
    def again(self, x: Tensor) -> Iterator[None]:
        """As it was then; afterwards the generators are as they are now."""
        devices = [x.device] if x.is_cuda else []
        with (
            torch.random.fork_rng(devices, enabled=self.cpu is not None),
            self.tape.running(again=True),
        ):
            if self.cpu is not None:
                torch.set_rng_state(self.cpu)
            if self.gpu is not None:
                torch.cuda.set_rng_state(self.gpu, x.device)
            yield


class _Reversed(torch.autograd.Function):
    """All layers as one node, which keeps the last streams alone. Weights are its inputs, so that
    their gradients leave it as any others do."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, runs: list[Run], dtype: torch.dtype, draws: bool,
        *weights: nn.Parameter,
    ) -> Streams:  # fmt: skip
        ctx.dtype, ctx.weights, ctx.done = dtype, weights, []
        for run in runs:
            for step in run.steps:
                past = Past(b, draws)
                with past.tape.running(again=False):
                    a, b = b, a + _branch(b, step, run.layer, dtype)
                ctx.done.append((step, run.layer, past))
        ctx.save_for_backward(a, b)
        return a, b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        b, c = ctx.saved_tensors
        db, dc = grads
        found: dict[int, Tensor] = {}
        for step, layer, past in reversed(ctx.done):
            weights = [w for w in layer.parameters() if w.requires_grad]
            with torch.enable_grad(), past.again(b):
                read = b.detach().requires_grad_()
                h = _branch(read, step, layer, ctx.dtype)
                dread, *own = torch.autograd.grad(h, (read, *weights), dc, allow_unused=True)
            for weight, grad in zip(weights, own, strict=True):
                if grad is not None:  # a layer may run more than once
                    before = found.get(id(weight))
                    found[id(weight)] = grad if before is None else before + grad
            b, c = c - h.detach(), b
            db, dc = dc, db + dread
        return db, dc, None, None, None, *(found.get(id(w)) for w in ctx.weights)


_reversed: Any = _Reversed.apply


def _weights(runs: list[Run]) -> list[nn.Parameter]:
    """Every weight of the layers that is trained, once."""
    layers = {id(run.layer): run.layer for run in runs}.values()
    every = chain.from_iterable(layer.parameters() for layer in layers)
    return list({id(w): w for w in every if w.requires_grad}.values())
