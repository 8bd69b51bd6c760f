"""Images on a GPU: ViT-B/16 against transformers and timm, CLIP from files; peers in the same run.

    python benchmarks/vision.py                          # all cases: processes that warm up at once
    python benchmarks/vision.py --case train --profile   # one alone, and where its time goes
    python benchmarks/vision.py --tiny --device cpu      # that it runs: small, nothing compiled

infer      ViT-B/16, 224 × 224, 256 images in bf16: logits. Peers compiled; ours by
           `model.compile()`, and by torch's compiler for comparison.
train      A step on 256 images in bf16 over fp32 weights, fused AdamW. Peers compiled; ours is the
           step that `allformer train` runs (it clips gradients as well).
clip       CLIP ViT-B/32 encodes JPEGs of 224 to 500 pixels from the disk, as `embed-image` does.
attention  Of torch's kernels for this shape, which is faster.

The three ViTs have the same weights, and their answers are compared before anything is timed. Runs
of the sides alternate in blocks; medians. "limit" is the share of a large bf16 matrix product's
speed, measured in the same run: of the operations that a side's answer needs, and (whole) of all
that the model has; where [CLS] alone is asked for, our last layer computes no other token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from side_by_side import side_by_side, table, write_result
from torch import Tensor, nn
from turns import turn
from vision_sides import BASE, TINY, Sides, installed

from allformer.core.layout import Grid
from allformer.train.objectives.image_classification import ImageBatch, ImageClassification
from allformer.train.optim import AdamW
from allformer.train.step import Stepper, StepSettings

BLOCK = 0.4  # seconds that a block shall last
NEAR = 0.05  # logits in bf16, of the largest
BETAS, DECAY, RATE = (0.9, 0.95), 0.1, 1e-4
Run = Callable[[], Tensor]


# --- timing ---------------------------------------------------------------------------------------


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def matmul_limit(device: str) -> float:
    """TFLOP/s of a bf16 product of 8192³ on random numbers."""
    if device == "cpu":
        return float("nan")
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    wait()
    begin = time.perf_counter()
    for _ in range(20):
        a @ b
    wait()
    return 20 * 2 * 8192**3 / (time.perf_counter() - begin) / 1e12


def block(run: Run, before: list[float]) -> float:
    """Seconds a run: one, and again until the block is long enough."""
    again = max(1, round(BLOCK / before[0])) if before else 3
    wait()
    begin = time.perf_counter()
    for _ in range(again):
        run()
    wait()
    return (time.perf_counter() - begin) / again


def in_turn(runs: Mapping[str, Run], args: Any) -> dict[str, dict[str, float]]:
    """Median and spread of each side's blocks, in ms; and the limit."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    with turn(args.turns, args.of):
        limit = matmul_limit(args.device)
        for _ in range(args.blocks + 1):
            for name, run in runs.items():
                times[name].append(block(run, times[name]))
    found = {name: [1000 * x for x in each[1:]] for name, each in times.items()}
    return {
        name: {"ms": statistics.median(x), "least": min(x), "most": max(x), "product": limit}
        for name, x in found.items()
    }


def kernels(run: Run, top: int = 25) -> list[str]:
    """Where the GPU's time goes: ms a run and calls of each kernel, longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            run()
        wait()
    found = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in found)
    rows = [("in all", total, 0)]
    rows += [(e.key[:90], e.self_device_time_total, e.count) for e in found[:top]]
    return [f"{ms / 3000:9.3f} {count / 3:5.0f} ×  {name}" for name, ms, count in rows]


def rows_of(times: dict[str, dict[str, float]], args: Any, work: Mapping[str, float]) -> list[Any]:
    """A row for each side; `work` are the operations of its answer."""
    ours = times["allformer"]["ms"]
    whole, rows = max(work.values()), []
    for name, row in times.items():
        speed = row["ms"] * row["product"] * 1e9  # operations at the limit
        rows.append({"side": name, **row, "images_per_second": args.batch / row["ms"] * 1000})
        rows[-1] |= {"limit": work.get(name, whole) / speed, "limit_whole": whole / speed}
        rows[-1] |= {"allformer_is_faster": row["ms"] / ours}
    return rows


def warmed(runs: Mapping[str, Run]) -> dict[str, Tensor]:
    """What each side gives, after it has compiled."""
    found: dict[str, Tensor] = {}
    for name, run in runs.items():
        begin = time.perf_counter()
        for _ in range(5):
            found[name] = run().float().clone()
        wait()
        print(f"{name}: warm after {time.perf_counter() - begin:.0f} s", flush=True)
    return found


def compiled(model: nn.Module, args: Any) -> Any:
    return torch.compile(model) if args.device == "cuda" else model


# --- ViT-B/16 -------------------------------------------------------------------------------------


def infer(args: Any, folder: Path) -> dict[str, Any]:
    """Logits of a batch; ours also beside all hidden states."""
    size = TINY if args.tiny else BASE
    sides = Sides(size, folder / "vit")
    dtype = torch.bfloat16
    shape = (args.batch, 3, size.image, size.image)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(args.device, dtype)
    ours = sides.allformer(args.device, dtype).eval()
    theirs = sides.transformers().to(args.device, dtype).eval()
    call = compiled(theirs, args)
    runs: dict[str, Run] = {
        "allformer": lambda: ours(pixel_values=x, states=False).logits,
        "allformer, all states": lambda: ours(pixel_values=x).logits,
        "transformers": lambda: call(pixel_values=x).logits,
    }
    if args.device == "cuda":
        ours.compile()
        other = sides.allformer(args.device, dtype).eval()
        other.compile(dynamic=False)
        runs["allformer, torch.compile"] = lambda: other(pixel_values=x, states=False).logits
    if installed("timm"):
        timm = compiled(sides.timm().to(args.device, dtype).eval(), args)
        runs["timm"] = lambda: timm(x)
    if args.autotune:
        tuned = sides.allformer(args.device, dtype).eval()
        tuned.compile(mode=args.autotune)
        runs[f"allformer, {args.autotune}"] = lambda: tuned(pixel_values=x, states=False).logits
    with torch.inference_mode():
        answers = warmed(runs)
        apart = {name: _apart(y, answers["allformer"]) for name, y in answers.items()}
        if max(apart.values()) > NEAR:
            raise SystemExit(f"the sides do not give the same logits: {apart}")
        times = in_turn(runs, args)
        seen = kernels(runs["allformer"]) if args.profile else []
    whole, alone = (args.batch * size.flops(first) for first in (False, True))
    ours_alone = [name for name in runs if "allformer" in name and "all states" not in name]
    work = {name: alone if name in ours_alone else whole for name in runs}
    return {"rows": rows_of(times, args, work), "apart": apart, "kernels": seen}


def _apart(mine: Tensor, hers: Tensor) -> float:
    return float((mine - hers).abs().max() / hers.abs().max())


def train(args: Any, folder: Path) -> dict[str, Any]:
    """A step; the first losses of all sides agree."""
    size = TINY if args.tiny else BASE
    sides = Sides(size, folder / "vit")
    make = torch.Generator().manual_seed(0)
    x = torch.randn((args.batch, 3, size.image, size.image), generator=make).to(args.device)
    y = torch.randint(size.classes, (args.batch,), generator=make).to(args.device)
    runs = {"allformer": _our_step(sides, x, y, args)}
    theirs = sides.transformers()
    runs["transformers"] = _peer_step(theirs, args, lambda m: m(pixel_values=x, labels=y).loss)
    if installed("timm"):
        runs["timm"] = _peer_step(sides.timm(), args, lambda m: F.cross_entropy(m(x), y))
    first = {name: run().item() for name, run in runs.items()}
    if max(first.values()) - min(first.values()) > 0.01 * max(first.values()):
        raise SystemExit(f"the sides do not begin with the same loss: {first}")
    later = {name: loss.item() for name, loss in warmed(runs).items()}
    times = in_turn(runs, args)
    whole, alone = (3 * args.batch * size.flops(first_alone) for first_alone in (False, True))
    work = {name: alone if name == "allformer" else whole for name in runs}
    seen = kernels(runs["allformer"]) if args.profile else []
    losses = {name: [first[name], later[name]] for name in runs}
    return {"rows": rows_of(times, args, work), "losses": losses, "kernels": seen}


def _our_step(sides: Sides, x: Tensor, y: Tensor, args: Any) -> Run:
    model = sides.allformer(args.device, torch.float32).train()
    optim = AdamW(betas=BETAS, eps=1e-8, weight_decay=DECAY, clip=1.0)
    how = StepSettings(optim, smoothing=0.0, precision="bf16", compile=args.device == "cuda")
    stepper = Stepper(model, ImageClassification(), how)
    shares = F.one_hot(y, sides.size.classes).float()
    batch = ImageBatch(x, shares, Grid(len(x), sides.size.tokens), len(x))
    return lambda: stepper([batch], RATE).loss


def _peer_step(model: Any, args: Any, loss_of: Callable[[Any], Tensor]) -> Run:
    """Forward, backward, fused AdamW: the plain loop."""
    model = model.to(args.device).train()
    call = compiled(model, args)
    decay = {"betas": BETAS, "weight_decay": DECAY}
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True, **decay)

    def step() -> Tensor:
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = loss_of(call)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def attention(args: Any, folder: Path) -> dict[str, Any]:
    """Forward, and forward and backward, from q, k and v that lie in one product."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    size = TINY if args.tiny else BASE
    shape = (args.batch, size.tokens, 3, size.heads, size.dim // size.heads)
    qkv = torch.randn(shape, device=args.device, dtype=torch.bfloat16).requires_grad_()
    kinds = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    runs: dict[str, Run] = {}
    for name, kind in kinds.items() if args.device == "cuda" else {"math": SDPBackend.MATH}.items():

        def forward(kind: Any = kind) -> Tensor:
            q, k, v = qkv.permute(2, 0, 3, 1, 4)  # B H T D each
            with sdpa_kernel(kind):
                return F.scaled_dot_product_attention(q, k, v)

        def alone(forward: Any = forward) -> Tensor:
            with torch.no_grad():
                return forward()

        def both(forward: Any = forward) -> Tensor:
            (grad,) = torch.autograd.grad(forward().sum(), qkv)
            return grad

        runs |= {f"{name}, forward": alone, f"{name}, both": both}
    warmed(runs)
    times = in_turn(runs, args)
    return {"rows": [{"side": name, **row} for name, row in times.items()]}


# --- CLIP from files ------------------------------------------------------------------------------


def clip(args: Any, folder: Path) -> dict[str, Any]:
    """Images a second: reading alone, the model alone, both; and how long the GPU waits."""
    from clip_files import encode_speeds, make_pictures

    paths = make_pictures(folder / "pictures", args.files)
    with turn(args.turns, args.of):
        return encode_speeds(paths, args)


CASES = {"infer": infer, "train": train, "clip": clip, "attention": attention}


# --- the run --------------------------------------------------------------------------------------


def show(name: str, found: dict[str, Any]) -> None:
    """A table of one case, and what else it told."""
    print(f"\n{name}: {(CASES[name].__doc__ or '').split(chr(10))[0]}")
    rows = found.pop("rows", [])
    if rows:
        head = list(rows[0])
        cells = [[_cell(row.get(key)) for key in head] for row in rows]
        print(table(head, cells))
    for line in found.pop("kernels", []):
        print(line)
    for key, value in found.items():
        print(f"{key}: {value}")


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 100 else _rounded(value)


def _rounded(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, float) else str(value)


def every_case(args: Any, folder: Path) -> dict[str, Any]:
    """Each in a process of its own; none is timed before all have compiled."""
    words = [x for x in sys.argv[1:] if x != "--json"]
    share = ["--turns", str(folder / "turns"), "--of", str(len(CASES))]
    commands = {
        name: [sys.executable, str(Path(__file__).resolve()), *words, "--case", name, *share]
        for name in CASES
    }
    return side_by_side(commands, folder, args.minutes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", choices=[*CASES], help="one alone, in this process")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tiny", action="store_true", help="a tiny model: that it runs")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--files", type=int, default=4096, help="of clip")
    parser.add_argument("--workers", type=int, help="of clip: threads; else one a core")
    parser.add_argument("--autotune", nargs="?", const="max-autotune-no-cudagraphs", help="infer")
    parser.add_argument("--profile", action="store_true", help="also the kernels of our runs")
    parser.add_argument("--minutes", type=float, default=6.0, help="for all cases")
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--result", help="where the figures go, as JSON")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; benchmarks/vision_cpu.py does not")
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.case is None:
            found = every_case(args, folder)
            write_result(args.result, found)
        else:
            found = {args.case: CASES[args.case](args, folder)}
            write_result(args.result, found[args.case])
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    if args.json:
        print(json.dumps({"device": gpu, "torch": torch.__version__, **found}))
    print(f"{gpu}, torch {torch.__version__}, {args.batch} images")
    for name, each in found.items():
        show(name, each)


if __name__ == "__main__":
    main()
