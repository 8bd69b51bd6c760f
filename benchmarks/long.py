"""Long sequences: how time and memory grow with the length, and the speed against peers, in a run.

    python benchmarks/long.py                            # n, 2n, 4n …: each mechanism, and full
    python benchmarks/long.py --device cpu               # to 16,384 tokens
    python benchmarks/long.py --peers --out long.json    # and against flash and transformers
    python benchmarks/long.py --only window --only generate

Each case is a process of its own, so that one that fails takes no other with it; several compile at
once and are timed in turn (`--jobs 1`: one after the other). Times are medians. Memory is what a
call holds at most beyond the weights, in tensors: on a GPU by torch's allocator, on a CPU by its
record of all allocations. The exponent is that of the power law through the last three lengths:
1 is linear, 2 is the square.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from long_growth import GROWTH, grow
from long_peers import PEERS

from allformer.bench.measure import exponent

Found = dict[str, Any]


def run_case(name: str, args: Any, folder: Path, end: float) -> Found:
    """One case in its own process: what it wrote, or why it did not."""
    out = folder / f"{name}.json"
    command = [sys.executable, __file__, "--case", name, "--out", str(out)]
    command += ["--device", args.device, "--turns", str(folder / "turns")]
    command += ["--dropout", str(args.dropout), "--longest", str(args.longest)]
    begin = time.perf_counter()
    try:
        left = max(1.0, end - time.monotonic())
        done = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
        said = (done.stderr or done.stdout).strip().splitlines()
    except subprocess.TimeoutExpired:
        return {"case": name, "failed": f"not done when --limit {args.limit} s were over"}
    took = time.perf_counter() - begin
    if done.returncode or not out.exists():
        return {"case": name, "failed": said[-1] if said else "no word", "said": said[-30:]}
    found: Found = json.loads(out.read_text())
    print(f"{name}: {took:.0f} s", file=sys.stderr, flush=True)
    return {"case": name, "seconds": took, **found}


def child(args: Any) -> None:
    """What the process of one case does."""
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # a graph for each length, with and without gradients
    device = torch.device(args.device)
    make = PEERS.get(args.case, grow)
    found = make(args.case, device, args)
    Path(args.out).write_text(json.dumps(found))


# --- tables --------------------------------------------------------------------------------------


def show_growth(cases: list[Found]) -> None:
    """Time and memory at each length, how many times full attention's, and the exponents."""
    full = next((c for c in cases if c["case"] == "full" and "rows" in c), None)
    for work in ("forward", "both"):
        title = "forward" if work == "forward" else "forward and backward"
        print(f"\n{title:28}{'tokens':>9}{'ms':>11}{'full ÷ it':>11}{'MiB':>10}{'full ÷ it':>11}")
        for case in cases:
            rows = _rows(case, work)
            for row in rows:
                peer = _same(full, row)
                print(
                    f"{case['case']:28}{row['tokens']:9,}{row['ms']:11.2f}"
                    f"{_ratio(peer, row, 'ms'):>11}{row['mib']:10.1f}{_ratio(peer, row, 'mib'):>11}"
                )
            if len(rows) > 1:
                b = exponents(rows)
                print(f"{'':16}{'exponent':>21}{b['ms']:11.2f}{'':11}{b['mib']:10.2f}")


def exponents(rows: list[Found]) -> dict[str, float]:
    """Of the last three lengths."""
    last = rows[-3:]
    lengths = [row["tokens"] for row in last]
    return {key: exponent(lengths, [row[key] for row in last]) for key in ("ms", "mib")}


def _rows(case: Found, work: str) -> list[Found]:
    return [row for row in case.get("rows", ()) if row["work"] == work and "ms" in row]


def _same(full: Found | None, row: Found) -> Found | None:
    rows = [] if full is None else _rows(full, row["work"])
    return next((each for each in rows if each["tokens"] == row["tokens"]), None)


def _ratio(peer: Found | None, row: Found, key: str) -> str:
    return "" if peer is None else f"{peer[key] / max(row[key], 1e-9):.2f}"


def show_peers(cases: list[Found]) -> None:
    """Each peer beside us: time, memory, and how many times ours."""
    print(f"\n{'':66}{'ms':>10}{'ours ×':>8}{'MiB':>10}{'of peer':>8}{'max diff':>11}")
    for case in cases:
        for row in (row for row in case.get("rows", ()) if "sides" in row):
            ours, name = row["sides"].get("allformer"), f"{case['case']}: {row['what']}"
            for side, figures in row["sides"].items():
                speed = size = ""
                if ours is not None and side != "allformer":
                    speed = f"{figures['ms'] / ours['ms']:.2f}"
                    size = f"{ours['mib'] / max(figures['mib'], 1e-9):.2f}"
                apart = f"{row['apart']:.1e}" if "apart" in row and side == "allformer" else ""
                print(
                    f"{name:44}{side:22}{figures['ms']:10.3f}{speed:>8}{figures['mib']:10.1f}"
                    f"{size:>8}{apart:>11}"
                )
                name = ""


def parse() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", action="store_true", help="also against flash and transformers")
    names = [*GROWTH, *PEERS]
    parser.add_argument("--only", action="append", choices=names, help="may be repeated")
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--jobs", type=int, default=4 if gpu else 1, help="cases at once")
    parser.add_argument("--limit", type=float, default=345.0, help="seconds for all")
    parser.add_argument("--longest", type=int, default=0, help="no more tokens than that")
    parser.add_argument("--dropout", type=float, default=0.0, help="of both sides, in training")
    parser.add_argument("--out", help="a JSON file with everything")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.case:
        child(args)
        return
    names = args.only or [*GROWTH, *(PEERS if args.peers else ())]
    end = time.monotonic() + args.limit
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        cases = [*pool.map(lambda name: run_case(name, args, Path(folder), end), names)]
    machine = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    growth = [case for case in cases if case["case"] in GROWTH]
    for case in growth:
        for work in ("forward", "both"):
            rows = _rows(case, work)
            if len(rows) > 1:
                case.setdefault("exponents", {})[work] = exponents(rows)
    if growth:
        show_growth(growth)
    if len(growth) < len(cases):
        show_peers([case for case in cases if case["case"] in PEERS])
    for case in cases:
        if "failed" in case:
            print(f"{case['case']} FAILED: {case['failed']}")
        for row in case.get("rows", ()):
            if "failed" in row:
                print(f"{case['case']}, {row['what']} FAILED: {row['failed']}")
    if args.out:
        Path(args.out).write_text(
            json.dumps({"device": machine, "torch": torch.__version__, "cases": cases}, indent=1)
        )


if __name__ == "__main__":
    main()
