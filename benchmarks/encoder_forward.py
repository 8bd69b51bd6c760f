"""Forward speed of BERT-base: Allformer against transformers (and onnxruntime), the same weights.

    python benchmarks/encoder_forward.py                    # CPU, fp32: 16 × 128 tokens
    python benchmarks/encoder_forward.py --cuda             # GPU, bf16, compiled

Twice: every token real, and half of them padding. All sides get the same `attention_mask`. Runs of
the sides alternate in blocks; medians are compared, and results too (3e-6 of the largest in fp32).
onnxruntime takes part on the CPU where it is installed.
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
from torch import Tensor

import allformer as af

Run = Callable[[Tensor, Tensor], Tensor]


def inputs(rows: int, width: int, half: bool, device: str) -> tuple[Tensor, Tensor]:
    """Ids and mask; with `half`, lengths from a quarter to three quarters of the width."""
    make = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 30_000, (rows, width), generator=make)
    lengths = torch.full((rows,), width)
    if half:
        lengths = torch.linspace(width // 4, width - width // 4, rows).long()
    keep = torch.arange(width) < lengths[:, None]
    return ids.masked_fill(~keep, 0).to(device), keep.long().to(device)


def their_model(layers: int) -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(BertConfig(num_hidden_layers=layers)).eval()


def onnx_run(model: Any, folder: Path, threads: int) -> Run | None:
    """transformers' model in onnxruntime with all its graph optimisations, if it is installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    path = folder / "bert.onnx"
    ids, mask = inputs(2, 16, True, "cpu")

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            out: Tensor = self.model(
                input_ids=input_ids, attention_mask=attention_mask
            ).last_hidden_state
            return out

    rows, width = torch.export.Dim("rows"), torch.export.Dim("width")
    torch.onnx.export(
        States().eval(),
        (ids, mask),
        str(path),
        input_names=["input_ids", "attention_mask"],
        dynamic_shapes={"input_ids": {0: rows, 1: width}, "attention_mask": {0: rows, 1: width}},
        dynamo=True,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(ids: Tensor, mask: Tensor) -> Tensor:
        feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        return torch.from_numpy(session.run(None, feed)[0])

    return run


def sides(args: argparse.Namespace, folder: Path) -> dict[str, Run]:
    theirs = their_model(args.layers)
    theirs.save_pretrained(folder / "bert")
    dtype = torch.bfloat16 if args.cuda else torch.float32
    device = "cuda" if args.cuda else "cpu"
    ours = af.load(folder / "bert", device=device, dtype=dtype)
    theirs = theirs.to(device, dtype)
    found: dict[str, Run] = {}
    if args.cuda:
        ours.compile()
        peers = {"transformers, compiled": torch.compile(theirs)}
        if args.graphs:
            graphed = torch.compile(theirs, mode="reduce-overhead")
            peers["transformers, compiled, CUDA graphs"] = graphed
        for name, model in peers.items():
            found[name] = lambda ids, mask, model=model: (
                model(input_ids=ids, attention_mask=mask).last_hidden_state
            )
    else:
        found["transformers"] = lambda ids, mask: (
            theirs(input_ids=ids, attention_mask=mask).last_hidden_state
        )
        onnx = onnx_run(theirs, folder, args.threads)
        if onnx is not None:
            found["onnxruntime"] = onnx
    found["allformer"] = lambda ids, mask: (
        ours(input_ids=ids, attention_mask=mask).last_hidden_state
    )
    return found


def measure(runs: dict[str, Run], data: tuple[Tensor, Tensor], blocks: int, each: int) -> Any:
    cuda = data[0].is_cuda

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    outs = {}
    for name, run in runs.items():
        for _ in range(4):
            outs[name] = run(*data).float().clone()
    wait()
    keep = data[1].bool()
    mine = outs["allformer"][keep]
    differs = {
        name: ((out[keep] - mine).abs().max() / mine.abs().max()).item()
        for name, out in outs.items()
    }
    del outs, mine  # memory that is held changes where the others' lies, by 3 % of their time
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(blocks):
        for name, run in runs.items():
            wait()
            begin = time.perf_counter()
            for _ in range(each):
                run(*data)
            wait()
            times[name].append((time.perf_counter() - begin) / each)
    return {
        name: {"ms": 1000 * statistics.median(times[name]), "differs": differs[name]}
        for name in runs
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cuda", action="store_true", help="bf16, compiled, on a GPU")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--each", type=int, default=0, help="runs in a block; default 1 or 50")
    parser.add_argument("--half", action="store_true", help="only with half of it padding")
    parser.add_argument("--graphs", action="store_true", help="also the peer with CUDA graphs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {"rows": args.rows, "width": args.width, "layers": args.layers}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        runs = sides(args, Path(folder))
        for half in (True,) if args.half else (False, True):
            device = "cuda" if args.cuda else "cpu"
            data = inputs(args.rows, args.width, half, device)
            table = measure(runs, data, args.blocks, args.each or (50 if args.cuda else 1))
            ours = table["allformer"]["ms"]
            share = data[1].float().mean().item()
            print(f"{args.rows} × {args.width}, {share:.0%} of it text")
            for name, row in table.items():
                row["ratio"] = row["ms"] / ours
                print(
                    f"  {name:38}{row['ms']:10.3f} ms   allformer is {row['ratio']:.2f} ×"
                    f"   apart {row['differs']:.1e}"
                )
            result["half" if half else "full"] = table
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
