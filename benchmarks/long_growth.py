"""How each mechanism of `long.py` grows: a small stack of it, at n, 2n, 4n … tokens."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from turns import attempt, turn

import allformer as af
from allformer import config
from allformer.bench.measure import in_turn, peak_bytes
from allformer.bench.reading import learn, read
from allformer.config import Attention, Block, DecoderOnly, EncoderOnly, Feed, Stack, Tokens, repeat

SEGMENT = 512  # of Transformer-XL


class Shape(NamedTuple):
    """What is measured on a device: the stack, and up to how many tokens."""

    dim: int
    heads: int
    layers: int
    forward: tuple[int, ...]
    both: tuple[int, ...]


SHAPES = {
    "cuda": Shape(1024, 16, 2, *[tuple(2**i for i in range(12, 17))] * 2),  # 4k … 64k
    "cpu": Shape(256, 4, 1, tuple(2**i for i in range(10, 15)), (1024, 2048, 4096)),
}

# The mixer at n tokens, and whether its stack is causal.
GROWTH: dict[str, tuple[Callable[[int], config.Mixer], bool]] = {
    "full": (lambda n: config.Full(), False),
    "window": (lambda n: config.Window(256, 256), False),
    "longformer": (lambda n: config.GlobalWindow(256, 256), False),
    "bigbird": (lambda n: config.BlockSparse(64, 3, always=True), False),
    "reformer": (lambda n: config.LSH(64, hashes=4, seed=0), False),
    "linformer": (lambda n: config.LowRank(256, n), False),
    "performer": (lambda n: config.Features("favor", 256), True),
    "linear": (lambda n: config.Features("elu"), True),
    "xl": (lambda n: config.Full(), True),
}


def tree(
    mixer: config.Mixer, causal: bool, shape: Shape, relative: config.Relative | None = None
) -> config.Model:
    """Layers with a narrow feed-forward, so that attention is what is seen."""
    attention = Attention(shape.heads, mixer=mixer)
    block = Block(attention, Feed(shape.dim, act="gelu"), norm_at="pre", dropout=0.0)
    stack = Stack(
        shape.dim, Tokens(256), None, repeat(block, shape.layers), causal=causal, dropout=0.0,
        relative=relative,
    )  # fmt: skip
    return DecoderOnly(stack) if causal else EncoderOnly(stack)


def grow(name: str, device: torch.device, args: Any) -> dict[str, Any]:
    """Forward, and forward and backward, at each length."""
    shape = SHAPES[device.type]
    rows = []
    for work in ("forward", "both"):
        for n in getattr(shape, work):
            if args.longest and n > args.longest:
                continue
            found = attempt(
                f"{work} at {n:,}", partial(measure, name, n, shape, device, work, args)
            )
            rows.append({"work": work, "tokens": n, **found})
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return {"rows": rows}


def measure(
    name: str, n: int, shape: Shape, device: torch.device, work: str, args: Any
) -> dict[str, float]:
    """One case at one length: milliseconds, MiB."""
    mixer, causal = GROWTH[name]
    relative = config.XLRelative(memory=SEGMENT) if name == "xl" else None
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model: Any = af.build(tree(mixer(n), causal, shape, relative), device=device, seed=0).to(dtype)
    ids = torch.randint(256, (1, n), device=device)
    inputs = {"input_ids": ids}
    if name == "longformer":
        marks = torch.zeros_like(ids)
        marks[:, 0] = 1
        inputs["global_attention_mask"] = marks
    segment = SEGMENT if name == "xl" else None
    model.eval()

    def call() -> None:
        (learn if work == "both" else read)(model, inputs, segment)

    call()
    with turn(args.turns):
        took = in_turn({name: call}, device, budget=0.4 if device.type == "cuda" else 1.5)[name]
        peak = peak_bytes(call, device)
    return {"ms": 1000 * took, "mib": peak / 2**20}
