"""One matrix product on a CPU in fp32: torch's own choice (`F.linear`) against `core.product`.

    python benchmarks/matmul.py [--threads 2] [--train]

Both get the same matrices; runs alternate in blocks and the best of each counts. --train: forward
and backward, three products.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.matmul import matmul

SIZES = ((512, 512), (512, 2048), (768, 768), (768, 2304), (768, 3072), (3072, 768), (768, 30_522))
ROWS = (1, 16, 64, 256, 2048)


def best(run: Callable[[], None], seconds: float) -> float:
    run()
    least, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - begin)
    return least


def run(way: Callable[..., Tensor], given: list[Tensor], push: Tensor) -> None:
    """The product, and its gradients where they are wanted."""
    out = way(*given)
    if out.requires_grad:
        torch.autograd.grad(out, given, push)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block")
    parser.add_argument("--train", action="store_true", help="with the gradients of all three")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{'inputs × outputs':>18}{'rows':>7}{'F.linear':>12}{'product':>12}")
    with torch.enable_grad() if args.train else torch.inference_mode():
        for inputs, outputs in SIZES:
            weight, bias = torch.randn(outputs, inputs) / inputs**0.5, torch.randn(outputs)
            for rows in ROWS:
                x, push = torch.randn(rows, inputs), torch.randn(rows, outputs)
                given = [y.requires_grad_(args.train) for y in (x, weight, bias)]
                runs = [partial(run, way, given, push) for way in (F.linear, matmul)]
                theirs, ours = (
                    min(times)
                    for times in zip(
                        *([best(run, args.seconds) for run in runs] for _ in range(3)), strict=True
                    )
                )
                size = f"{inputs} × {outputs}"
                took = f"{1e3 * theirs:9.3f} ms{1e3 * ours:9.3f} ms   {theirs / ours:.2f} ×"
                print(f"{size:>18}{rows:7}{took}")


if __name__ == "__main__":
    main()
