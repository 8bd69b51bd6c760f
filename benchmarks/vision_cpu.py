"""ViT-B/16 on a CPU, fp32: Allformer against onnxruntime and transformers, the same weights.

    python benchmarks/vision_cpu.py --threads 2 --batch 8 --cache DIR

transformers' model is exported to ONNX once (kept in --cache) and run with all of onnxruntime's
graph optimisations. All sides give logits; they are compared first. Single runs of the sides
alternate; "least" is the best of them, which on a machine that others use too says most, and the
median and the quarters say how far they spread. "busy" is the least time of the processors: with
one thread it says most where others compute as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from side_by_side import table
from torch import Tensor
from vision_sides import BASE, TINY, Sides, installed

Run = Callable[[Tensor], Tensor]


class Logits(torch.nn.Module):
    """What the exporter is shown."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        out: Tensor = self.model(pixel_values=pixel_values).logits
        return out


def onnx_run(model: Any, x: Tensor, path: Path, threads: int) -> Run:
    import onnxruntime

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        names = {"input_names": ["pixel_values"], "dynamo": True}
        torch.onnx.export(Logits(model).eval(), (x,), str(path), **names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"pixel_values": x.numpy()})[0])


def sides_of(args: Any, folder: Path, x: Tensor) -> dict[str, Run]:
    sides = Sides(TINY if args.tiny else BASE, folder / f"vit-{args.tiny}")
    ours, theirs = sides.allformer("cpu").eval(), sides.transformers().eval()
    runs: dict[str, Run] = {
        "allformer": lambda x: ours(pixel_values=x, states=False).logits,
        "allformer, all states": lambda x: ours(pixel_values=x).logits,
        "transformers": lambda x: theirs(pixel_values=x).logits,
    }
    if installed("onnxruntime"):
        path = folder / f"vit-{args.tiny}-{len(x)}.onnx"
        runs["onnxruntime"] = onnx_run(theirs, x, path, args.threads)
    return runs


def measure(runs: dict[str, Run], x: Tensor, rounds: int) -> list[dict[str, Any]]:
    """Compared, then timed one after the other, so often."""
    answers = {name: run(x).clone() for name, run in runs.items()}
    ours = answers["allformer"]
    apart = {n: float((y - ours).abs().max() / ours.abs().max()) for n, y in answers.items()}
    if max(apart.values()) > 1e-4:
        raise SystemExit(f"the sides do not give the same logits: {apart}")
    times: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, float] = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            begin, before = time.perf_counter(), time.process_time()
            run(x)
            busy[name] = min(busy[name], 1000 * (time.process_time() - before))
            times[name].append(1000 * (time.perf_counter() - begin))
    rows = []
    for name, each in times.items():
        low, middle, high = statistics.quantiles(each, n=4)
        rows.append({"side": name, "least ms": min(each), "quarter": low, "median": middle})
        rows[-1] |= {"three quarters": high, "busy": busy[name], "apart": apart[name]}
        rows[-1]["ours × (least)"] = min(each) / min(times["allformer"])
        rows[-1]["ours × (median)"] = middle / statistics.median(times["allformer"])
        rows[-1]["ours × (busy)"] = busy[name] / busy["allformer"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tiny", action="store_true", help="a tiny model: that it runs")
    parser.add_argument("--cache", type=Path, help="where models are kept; else nowhere")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    size = TINY if args.tiny else BASE
    shape = (args.batch, 3, size.image, size.image)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        runs = sides_of(args, args.cache or Path(folder), x)
        rows = measure(runs, x, args.rounds)
    if args.json:
        print(json.dumps({"batch": args.batch, "threads": args.threads, "rows": rows}))
    head = list(rows[0])
    cells = [[f"{v:.4g}" if isinstance(v, float) else v for v in row.values()] for row in rows]
    print(table(head, cells))


if __name__ == "__main__":
    main()
