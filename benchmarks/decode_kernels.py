"""The kernels of a decoding step on a GPU: each against its plain form, and how fast it reads.

    python benchmarks/decode_kernels.py [--only row,int8,int4,few,many,attention,step] [--minutes 1]
    python benchmarks/decode_kernels.py --only row --tiles        # several tiles of each, not one

The shapes are LLaMA-2-7B's, in bf16. A kernel is timed in a CUDA graph of launches one after the
other, over copies of its weights that no cache holds together. The read limit is measured in the
same run; a share of it is what counts. An error is relative to the whole, against the plain form in
fp32: bf16 itself is good for some 0.003. What fails says why, and the next case follows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl
from side_by_side import table
from torch import Tensor
from turns import attempt

import allformer as af
from allformer.core.few_rows import FewRows
from allformer.core.fused import one_query as attention
from allformer.core.fused import times as products
from allformer.core.fused.gpu import one_query as gpu_attention
from allformer.core.fused.gpu import times as gpu
from allformer.core.fused.gpu.one_query import Cut
from allformer.core.fused.gpu.times import Tile
from allformer.core.fused.matrix import Gain, Matrix
from allformer.core.fused.turns import Turns
from allformer.core.graph import Captured, on_side_stream
from allformer.core.quantised import pack
from allformer.core.states import Static

BF16, DEVICE = torch.bfloat16, "cuda"
SHAPES: dict[str, tuple[int, int, dict[str, bool]]] = {  # outputs, inputs, what stands around
    "qkv": (12_288, 4096, {"norm": True}),
    "out": (4096, 4096, {"more": True}),
    "gate·up": (11_008, 4096, {"norm": True, "gate": True}),
    "down": (4096, 11_008, {"more": True}),
    "words": (32_000, 4096, {"norm": True}),
}
ROW = [Tile(4, 512), Tile(4, 1024), Tile(8, 512), Tile(16, 512), Tile(8, 1024), Tile(16, 256),
       Tile(8, 512, 2), Tile(16, 512, 8), Tile(8, 1024, 8), Tile(4, 2048, 8), Tile(16, 64, 4, 4, 4),
       Tile(16, 128, 4, 4, 4, 1)]  # fmt: skip
ROWS = [Tile(16, 64, 4, 4, 3), Tile(16, 128, 4, 4, 3), Tile(16, 128, 4, 4, 5),
        Tile(32, 64, 4, 4, 4), Tile(32, 128, 4, 4, 4), Tile(16, 128, 8, 8, 3),
        Tile(64, 64, 4, 1, 4)]  # fmt: skip
BYTES = [Tile(8, 1024), Tile(4, 2048), Tile(8, 2048, 8), Tile(16, 1024, 8), Tile(16, 256, 2),
         Tile(32, 256), Tile(32, 512, 8), Tile(4, 4096, 8), Tile(8, 512, 2),
         Tile(16, 128, 4, 4, 6, 1), Tile(32, 128, 4, 4, 4), Tile(32, 256, 4, 4, 4),
         Tile(16, 256, 4, 4, 4, 1)]  # fmt: skip
HALVES = [Tile(16, 128, 4, 4, 4), Tile(16, 128, 4, 4, 6), Tile(32, 128, 4, 4, 4),
          Tile(32, 128, 4, 4, 6), Tile(64, 128, 4, 4, 4), Tile(16, 128, 8, 8, 4),
          Tile(32, 128, 8, 8, 4), Tile(32, 128, 8, 8, 3), Tile(16, 128, 4, 4, 6, 1),
          Tile(64, 128, 8, 8, 3), Tile(32, 128, 2, 2, 6), Tile(64, 128, 4, 2, 5)]  # fmt: skip
CUTS = [Cut(1, 64, 4, 3), Cut(1, 64, 4, 2), Cut(1, 32, 4, 3), Cut(1, 32, 2, 3), Cut(2, 64, 4, 3),
        Cut(4, 64, 4, 3), Cut(4, 32, 4, 3), Cut(8, 32, 2, 3), Cut(16, 64, 4, 3)]  # fmt: skip
Row = dict[str, Any]


def timed(calls: list[Callable[[], Any]], replays: int = 7) -> float:
    """Seconds of one call, when all of them stand in a graph one behind the other."""

    def run() -> None:
        for call in calls:
            call()

    on_side_stream(calls[0])  # compiled
    graph = Captured(run)
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    spans = [a.elapsed_time(b) for a, b in pairwise(marks)]
    return statistics.median(spans) / 1000 / len(calls)


@triton.jit
def _read(x, out, steps, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * steps * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.int32)
    for i in range(steps):
        acc += tl.load(x + at + i * BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(acc))


def read_limit() -> float:
    """Bytes a second at which two gigabytes are read, by the fastest of several ways."""
    x = torch.ones(1 << 29, dtype=torch.int32, device=DEVICE)
    out = torch.empty(1 << 18, dtype=torch.int32, device=DEVICE)
    ways: list[Callable[[], Any]] = [
        lambda: x.view(torch.float32).sum(),
        lambda: x.view(torch.float32).view(4096, -1).sum(1),
    ]
    for steps in (2, 8, 32):
        programs = x.numel() // (2048 * steps)
        ways.append(lambda n=programs, s=steps: _read[(n,)](x, out, s, BLOCK=2048, num_warps=4))  # type: ignore[misc]
    return x.nbytes / min(timed([way] * 4) for way in ways)


def weights(outputs: int, inputs: int, bits: int | None, group: int, seed: int) -> Matrix:
    made = torch.Generator(DEVICE).manual_seed(seed)
    if bits is None:
        w = torch.randn(outputs, inputs, device=DEVICE, generator=made) * inputs**-0.5
        return Matrix(w.to(BF16))
    least, most = (-127, 128) if bits == 8 else (-8, 8)
    q = torch.randint(least, most, (outputs, inputs), device=DEVICE, generator=made)
    scale = torch.rand(outputs, inputs // group, device=DEVICE, generator=made) / (
        most * inputs**0.5
    )
    return Matrix(pack(q, bits), None, bits, scale)


def copies(of: Matrix) -> list[Matrix]:
    """As many as no cache holds, half a gigabyte of them."""
    count = max(2, (1 << 29) // of.bytes)
    again = [Matrix(*(x.clone() if isinstance(x, Tensor) else x for x in of)) for _ in range(count)]
    return again[: max(2, count)]


def error(mine: Tensor, hers: Tensor) -> float:
    return float((mine.double() - hers.double()).norm() / hers.double().norm())


def product(
    name: str, rows: int, bits: int | None, group: int, tile: Tile | None, limit: float
) -> Row:
    """One kind of product by a kernel, or (`tile` of no outputs) by cuBLAS."""
    outputs, inputs, around = SHAPES[name]
    group = group or inputs
    matrix = weights(outputs, inputs, bits, group, 0)
    gate = weights(outputs, inputs, bits, group, 1) if "gate" in around else None
    x = torch.randn(rows, inputs, device=DEVICE).to(BF16)
    has: dict[str, Any] = {"gate": gate, "act": "silu" if gate else None}
    norm = Gain(1 + 0.1 * torch.randn(inputs, device=DEVICE).to(BF16), None, 1e-5)
    has["norm"] = norm if "norm" in around and rows == 1 else None
    has["more"] = torch.randn(rows, outputs, device=DEVICE).to(BF16) if "more" in around else None
    wide = {k: v.float() if isinstance(v, Tensor) else v for k, v in has.items()}
    exact = products.plain_times(x.float(), matrix, **wide)
    how: Any = gpu.times_row if products.kernel_of(matrix, rows, BF16) == "row" else gpu.times_rows
    if tile is not None and tile.outputs == 0:
        how, tile = None, None
    if tile is not None and rows == 1 and bits != 4:  # both kernels serve
        how = gpu.times_rows if tile.lanes > 1 else gpu.times_row
    parts = list(zip(copies(matrix), copies(gate) if gate else [None] * 99, strict=False))

    def run(w: Matrix, g: Matrix | None) -> Tensor:
        if how is None:
            return products.plain_times(x, w, **{**has, "gate": g})
        out: Tensor = how(x, w, has["norm"], g, has["act"], has["more"], tile)
        return out

    wrong = error(run(matrix, gate), exact)
    seconds = timed([lambda w=w, g=g: run(w, g) for w, g in parts])  # type: ignore[misc]
    read = matrix.bytes + (gate.bytes if gate else 0)
    told = "usual" if tile is None else "×".join(map(str, tile))
    return {"case": name, "rows": rows, "bits": bits or 16, "tile": told if how else "cuBLAS",
            "µs": seconds * 1e6, "GB/s": read / seconds / 1e9, "of limit": read / seconds / limit,
            "error": wrong}  # fmt: skip


def attend(rows: int, groups: int, count: int, cut: Cut | None, limit: float) -> Row:
    heads, size, room = 32, 128, count + 64
    fused = torch.randn(rows, (heads + 2 * groups) * size, device=DEVICE).to(BF16)
    memory = [torch.randn(rows, groups, room, size, device=DEVICE).to(BF16) for _ in range(2)]
    many = max(2, min(64, (1 << 29) // (2 * memory[0].nbytes)))
    layers = [[x.clone() for x in memory] for _ in range(many)]
    angles = torch.randn(room, size // 2, device=DEVICE)
    turn = Turns(angles.cos().to(BF16), angles.sin().to(BF16))
    past = torch.tensor(count, device=DEVICE)
    ticks = torch.zeros(1024, dtype=torch.int32, device=DEVICE)
    wide = tuple(x.float() for x in memory)
    exact_turn = Turns(turn.cos.float(), turn.sin.float())
    exact = attention.plain_one_query(
        fused.float(), wide, past, None, exact_turn, heads, size**-0.5
    )

    def run(k: Tensor, v: Tensor) -> Tensor:
        return gpu_attention.one_query(fused, k, v, past, None, turn, heads, size**-0.5, ticks, cut)

    wrong = error(run(*memory), exact)
    seconds = timed([lambda k=k, v=v: run(k, v) for k, v in layers])  # type: ignore[misc]
    read = 2 * rows * groups * count * size * 2
    return {"case": f"attention, {groups} of 32 heads", "rows": rows, "keys": count,
            "tile": "×".join(map(str, cut or gpu_attention.cut_of(rows, memory[0]))),
            "µs": seconds * 1e6, "GB/s": read / seconds / 1e9, "of limit": read / seconds / limit,
            "error": wrong, "ticks left": int(ticks.sum())}  # fmt: skip


def chained_by(judge: Any) -> None:
    """Who says whether kernels begin before the one in front of them has ended."""
    gpu.chained = gpu_attention.chained = judge


def step(rows: int, chain: bool, limit: float, layers: int = 8) -> Row:
    """Whole steps of a shallow 7B by `FewRows`, and the model's own step beside them."""
    tree = af.preset("llama-2-7b")
    stack = replace(tree.decoder, blocks=tree.decoder.blocks[:layers])
    model: Any = af.build(replace(tree, decoder=stack), device=DEVICE, seed=0).to(BF16).eval()
    usual = gpu.chained
    chained_by(usual if chain else (lambda device: False))
    ids = torch.randint(32_000, (rows, 128), device=DEVICE)
    caches = [Static.cache(layers, 512, DEVICE) for _ in range(2)]
    with torch.inference_mode():
        for cache in caches:
            model.step(ids, cache)
        few, token = FewRows(model), ids[:, :1].clone()
        mine, hers = few.step(token, caches[0]), model.step(token, caches[1])
        wrong, alike = error(mine, hers), float((mine.argmax(-1) == hers.argmax(-1)).float().mean())
        seconds = timed([lambda: few.step(token, caches[0])] * 2)
    chained_by(usual)
    each = [p for name, p in model.named_parameters() if "source" not in name]
    read = sum(p.numel() * p.element_size() for p in each)
    # what a whole 7B would take: its layers' time scales, its vocabulary's does not
    words = 32_000 * 4096 * 2 / limit
    whole = (seconds - words) * 32 / layers + words
    return {"case": f"step, {layers} layers", "rows": rows, "chained": chain, "µs": seconds * 1e6,
            "of limit": read / seconds / limit, "tok/s of 32 layers": rows / whole,
            "error": wrong, "alike": alike}  # fmt: skip


def cases(only: list[str], tiles: bool, limit: float) -> Iterator[Callable[[], Row]]:
    """All of them, the most important first."""

    def one(*args: Any) -> Callable[[], Row]:
        return lambda: product(*args, limit)

    none: list[Tile | None] = [None]
    for name in SHAPES if "row" in only else ():
        for tile in none + (ROW if tiles else []):
            yield one(name, 1, None, 0, tile)
    if "step" in only:
        for rows, chain in ((1, True), (1, False), (4, True), (64, True)):
            yield lambda rows=rows, chain=chain: step(rows, chain, limit)  # type: ignore[misc]
    if "attention" in only:
        for rows, groups, count in ((1, 32, 228), (1, 8, 4096), (64, 32, 228), (64, 8, 2048)):
            for cut in [None, *(CUTS if tiles else [])]:
                yield lambda a=(rows, groups, count, cut): attend(*a, limit)  # type: ignore[misc]
    for kind, bits, group, more in (("int8", 8, 0, BYTES), ("int4", 4, 128, HALVES)):
        for name in SHAPES if kind in only else ():
            for tile in none + (more if tiles else []):
                yield one(name, 1, bits, group, tile)
    for kind, rows in (("few", 8), ("many", 64)):
        for name in SHAPES if kind in only else ():
            by = Tile(0, 0)
            for tile in [*none, by, *(ROWS if tiles else [])]:
                if tile is not None or rows <= products.FEW or not tiles:
                    yield one(name, rows, None, 0, tile)


def shown(x: Any) -> str:
    if not isinstance(x, float):
        return str(x)
    return f"{x:.2e}" if 0 < abs(x) < 0.01 else f"{x:.3f}" if abs(x) < 10 else f"{x:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    every = "row,step,attention,int8,int4,few,many"
    parser.add_argument("--only", default=every, help=f"of {every}")
    parser.add_argument("--tiles", action="store_true", help="several tiles of each kernel")
    parser.add_argument("--unchained", action="store_true", help="each kernel after the other")
    parser.add_argument("--minutes", type=float, default=1.0, help="no case begins later")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.unchained:
        chained_by(lambda device: False)
    begin = time.perf_counter()
    limit = read_limit()
    name, chain = torch.cuda.get_device_name(), gpu.chained(torch.device("cuda", 0))
    told = f"read limit {limit / 1e9:.0f} GB/s, chained: {chain}"
    print(f"{name}, torch {torch.__version__}, {told}", flush=True)
    rows: list[Row] = []
    for case in cases(args.only.split(","), args.tiles, limit):
        if time.perf_counter() - begin > 60 * args.minutes:
            print("no more time: the rest is left out")
            break
        row = attempt("", case)
        rows.append(row)
        print("  ".join(f"{name} {shown(x)}" for name, x in row.items()), flush=True)
    if args.json:
        print(json.dumps({"limit": limit, "rows": rows}))
        return
    done = [row for row in rows if "µs" in row]
    best: dict[tuple[Any, ...], Row] = {}
    for row in done:
        key = tuple(row.get(x) for x in ("case", "rows", "bits", "keys", "chained"))
        if key not in best or row["µs"] < best[key]["µs"]:
            best[key] = row
    names = ["case", "rows", "bits", "tile", "keys", "chained", "µs", "of limit", "error"]
    print("\nthe fastest of each")
    print(table(names, [[shown(row.get(x, "")) for x in names] for row in best.values()]))


if __name__ == "__main__":
    main()
