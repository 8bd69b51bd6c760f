"""Training speed on a GPU: Allformer against its peers, in one run.

    python benchmarks/train.py                                     # all cases that need no file
    python benchmarks/train.py --case gpt2 --nanogpt model.py      # nanoGPT's model file, by path
    python benchmarks/train.py --case ragged --data DIR            # parallel text, as it comes
    python benchmarks/train.py --case llama --recompute selective

Steps of all sides alternate in blocks; medians of the blocks are compared. "limit" is the share of
a large bf16 matrix product's speed, measured in the same run, of the operations that the model
needs (half of the square for causal attention; what is computed twice counts once).
Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cases import CASES, Case
from sides import Step
from turns import turn

BLOCK = 0.4  # seconds that a block shall last


def matmul_limit() -> float:
    """TFLOP/s of a bf16 product of 8192³ on random numbers."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        a @ b
    end.record()
    torch.cuda.synchronize()
    return 20 * 2 * 8192**3 / begin.elapsed_time(end) / 1e9


def warm(make: Callable[[], Step], batches: Sequence[Any], name: str) -> tuple[Step, float]:
    """A side's step after all its batches were seen once, and its peak memory in GiB."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    step = make()
    first = step(batches[0]).item()
    started = time.perf_counter() - begin
    for batch in [*batches, *batches[:8]]:
        loss = step(batch).item()
    seconds = time.perf_counter() - begin
    peak = (torch.cuda.max_memory_allocated() - held) / 2**30
    print(
        f"  {name}: first step after {started:.0f} s, warm after {seconds:.0f} s, "
        f"loss {first:.3f} → {loss:.3f}",
        flush=True,
    )
    return step, peak


def measure(case: Case, args: Any) -> tuple[dict[str, dict[str, float]], float]:
    """Warm each side up on all its batches, then time them block by block in turn; and the speed of
    a large product, in TFLOP/s."""
    makers = {"allformer": case.step, **case.peers}
    wanted = args.side or [*makers]
    makers = {name: make for name, make in makers.items() if name in wanted}
    batches = {name: case.ours if name == "allformer" else case.theirs for name in makers}
    steps: dict[str, Step] = {}
    peaks: dict[str, float] = {}
    for name, make in makers.items():
        steps[name], peaks[name] = warm(make, batches[name], name)
    compiled = graphs_compiled()
    times: dict[str, list[float]] = {name: [] for name in steps}
    with turn(args.turns, args.of):
        limit = matmul_limit()
        for _ in range(args.blocks):
            for name, step in steps.items():
                times[name].append(block(step, batches[name], times[name]))
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    if breaks:
        print(f"  {breaks} breaks in graphs")
    if graphs_compiled() != compiled:
        print(f"  {graphs_compiled() - compiled} graphs compiled after the warm-up")
    if args.profile:
        print(f"  ms a step by kernel:\n{kernels(steps['allformer'], case.ours)}")
    rows = {
        name: {"ms": 1000 * statistics.median(times[name]), "gib": peaks[name]} for name in steps
    }
    return rows, limit


def block(step: Step, batches: Sequence[Any], before: list[float]) -> float:
    """Seconds a step: all batches once, and again until the block is long enough."""
    again = 1 if not before else max(1, round(BLOCK / (before[0] * len(batches))))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(again):
        for batch in batches:
            step(batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / (again * len(batches))


def graphs_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def kernels(step: Step, batches: Sequence[Any], top: int = 40) -> str:
    """Where the GPU's time goes: the kernels of a step, longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for batch in batches[:4]:
            step(batch)
        torch.cuda.synchronize()
    count = len(batches[:4])
    found = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    lines = [f"{sum(e.self_device_time_total for e in found) / count / 1000:9.3f}  in all"]
    for event in found[:top]:
        ms, calls = event.self_device_time_total / count / 1000, event.count / count
        lines.append(f"{ms:9.3f} {calls:6.0f} ×  {event.key[:100]}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=[*CASES], action="append", help="may be repeated")
    parser.add_argument("--nanogpt", help="nanoGPT's model.py: a peer of gpt2")
    parser.add_argument("--data", help="parallel text, for ragged")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--recompute", default="selective", help="of llama: layers or selective")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--side", action="append", help="allformer or a peer; else all")
    parser.add_argument("--profile", action="store_true", help="also the kernels of our step")
    parser.add_argument(
        "--turns", help="a file: processes that name it warm up at once, are timed in turn"
    )
    parser.add_argument("--of", type=int, default=1, help="how many name it; the first waits")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; benchmarks/train_cpu.py does not")
    torch.set_float32_matmul_precision("high")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows = []
    for name in args.case or [n for n in CASES if n != "ragged" or args.data]:
        torch._dynamo.reset()
        case = CASES[name](args)
        print(f"{name}: {CASES[name].__doc__.split(chr(10))[0]}", flush=True)
        table, limit = measure(case, args)
        print(f"  a large product: {limit:.0f} TFLOP/s")
        for side, row in table.items():
            tokens, share = case.tokens / row["ms"] * 1000, case.flops / row["ms"] / 1e9 / limit
            ratio = row["ms"] / table.get("allformer", row)["ms"]
            rows.append({"case": name, "side": side, **row, "tokens_per_second": tokens})
            rows[-1] |= {"limit": share, "product": limit, "allformer_is_faster": ratio}
    print(f"{'':9}{'':22}{'ms/step':>9}{'k tok/s':>9}{'limit':>7}{'GiB':>7}{'ours ×':>8}")
    for row in rows:
        print(
            f"{row['case']:9}{row['side']:22}{row['ms']:9.2f}{row['tokens_per_second'] / 1e3:9.0f}"
            f"{row['limit']:7.0%}{row['gib']:7.2f}{row['allformer_is_faster']:8.2f}"
        )
    if args.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}))


if __name__ == "__main__":
    main()
