"""One layer on a CPU: plain in fp32 and bf16, quantised in eight and four bits.

    python benchmarks/quantised_cpu.py [--threads 2] [--json]

All hold the same random matrix; runs alternate in rounds and medians count. Beside the times: how
far the quantised product is from the same numbers multiplied plainly, in parts of its largest.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.linear import Linear
from allformer.core.quantise import rounded

SIZES = ((768, 2304), (768, 3072), (3072, 768), (2048, 2048), (4096, 4096))
ROWS = (1, 4, 8, 32, 128)


def measure(inputs: int, outputs: int, rows: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of each way, and the errors of the quantised ones."""
    wide, x = Linear(inputs, outputs, bias=False), torch.randn(rows, inputs)
    half, narrow = wide.weight.bfloat16(), x.bfloat16()
    eight, four = rounded(wide, 8), rounded(wide, 4)
    ways: dict[str, Callable[[], Tensor]] = {
        "fp32": lambda: wide(x),
        "bf16": lambda: F.linear(narrow, half),
        "int8": lambda: eight(x),
        "int4": lambda: four(x),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):  # the first warms up
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    off = {}
    for name, layer in (("int8", eight), ("int4", four)):
        plain = layer.plain(x)
        off[name] = ((layer(x) - plain).abs().max() / plain.abs().max()).item()
    return {
        "inputs": inputs, "outputs": outputs, "rows": rows, "off": off,
        "ms": {name: median(each[1:]) for name, each in times.items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    found = []
    if not args.json:
        print(f"{'inputs × outputs':>18}{'rows':>6}  fp32 ms  bf16 ×  int8 ×  int4 ×   off by")
    with torch.inference_mode():
        for inputs, outputs in SIZES:
            for rows in ROWS:
                row = measure(inputs, outputs, rows, args.rounds)
                found.append(row)
                ms, off = row["ms"], row["off"]
                gains = "".join(
                    f"{ms['fp32'] / ms[name]:8.2f}" for name in ("bf16", "int8", "int4")
                )
                if not args.json:
                    print(
                        f"{f'{inputs} × {outputs}':>18}{rows:6}{ms['fp32']:9.3f}{gains}"
                        f"   {off['int8']:.1e}, {off['int4']:.1e}",
                        flush=True,
                    )
    if args.json:
        print(json.dumps({"threads": args.threads, "rows": found}))


if __name__ == "__main__":
    main()
