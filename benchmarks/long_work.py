"""All long-sequence work at once on one GPU: ListOps, duplicated sequences, enwik8, lengthening.

    python benchmarks/long_work.py --enwik8 enwik8 --wikitext wikitext-2 --out runs/long --minutes 8
    python benchmarks/long_work.py --wikitext wikitext-2 --only listops,duplicates,lengthen
    python benchmarks/listops.py --data runs/long/listops-data --alone       # the timing by itself

Every training is a process of its own, all side by side, which is fair to accuracies and not to
times; when they have ended, ListOps' mechanisms are timed alone. What comes of each part lies in
OUT as JSON (listops.json, duplicates.json, enwik8.json, lengthen.json, all.json), what it said in
.log files, its runs below OUT; the tables are printed. What is not done after --minutes is stopped,
and says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import duplicates
import enwik8
import listops
import torch
from side_by_side import side_by_side, write_result

HERE = Path(__file__).parent


def commands(args: Any, late: float) -> dict[str, list[str]]:
    """By name, each with the sizes that were asked for."""

    def command(name: str, *more: Any) -> list[str]:
        out = ("--out", args.out / name, "--device", args.device)
        return [sys.executable, str(HERE / f"{name}.py"), *map(str, (*out, *more))]

    changes = {name: [f"--set={x}" for x in getattr(args, f"set_{name}")] for name in PARTS}
    stop = max(0.1, late - 0.6)  # a part stops its own before it is stopped
    found = {
        "listops": command(
            "listops", "--data", args.listops or args.out / "listops-data", "--trees", args.trees,
            "--steps", args.listops_steps, "--trained-only", "--late", stop,
            "--only", args.mechanisms, *changes["listops"],
        ),
        "duplicates": command(
            "duplicates", "--steps", args.duplicates_steps, "--length", args.length,
            "--chunk", args.chunk, "--minutes", stop, *changes["duplicates"],
        ),
    }  # fmt: skip
    if args.enwik8:
        steps = ["--steps", args.enwik8_steps]
        found["enwik8"] = command(
            "enwik8", "--data", args.enwik8, "--bytes", args.bytes, "--minutes", stop, *steps,
            *(["--compile"] if args.device == "cuda" else []), *changes["enwik8"],
        )  # fmt: skip
    if args.wikitext:
        found["lengthen"] = command(
            "lengthen", "--data", args.wikitext, "--steps", args.lengthen_steps,
            "--more", args.more, *changes["lengthen"],
        )  # fmt: skip
    return {name: each for name, each in found.items() if name in args.only.split(",")}


PARTS = ("listops", "duplicates", "enwik8", "lengthen")


def timed_alone(args: Any) -> dict[str, Any]:
    """ListOps' mechanisms, when nothing else runs."""
    data = args.listops or args.out / "listops-data"
    sets = [f"--set={x}" for x in args.set_listops]
    given = ("--alone", "--data", data, "--out", args.out / "listops", "--device", args.device,
             "--only", args.mechanisms)  # fmt: skip
    command = [sys.executable, str(HERE / "listops.py"), *map(str, given), *sets]
    return side_by_side({"listops-alone": command}, args.out, 3)["listops-alone"]


def told(results: dict[str, Any], times: dict[str, Any]) -> None:
    """All tables."""
    for name, found in results.items():
        print(f"\n## {name}")
        if "error" in found:
            print(found["error"])
        elif name == "listops":
            print(f"{found['steps']} steps")
            print(listops.shown(times, found["trained"]))
        elif name == "duplicates":
            print(f"w of {found['length']}, {found['steps']} steps")
            print(duplicates.shown(found["trained"]))
        elif name == "enwik8":
            print(enwik8.shown(found["trained"]))
        else:
            for model, row in found["perplexity"].items():
                print(f"{model}: " + ", ".join(f"{n} {x:.2f}" for n, x in row.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/long-work"))
    parser.add_argument("--minutes", type=float, default=8, help="of the trainings, all together")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--listops", type=Path, help="a folder with trees; else they are drawn")
    parser.add_argument("--enwik8", type=Path, help="a folder with enwik8, or train and valid.txt")
    parser.add_argument("--wikitext", type=Path, help="a folder with WikiText-2")
    parser.add_argument("--mechanisms", default=",".join(listops.MECHANISMS), help="of ListOps")
    parser.add_argument("--skip-alone", action="store_true", help="no timing of ListOps' steps")
    parser.add_argument("--trees", type=int, default=24_000)
    parser.add_argument("--listops-steps", type=int, default=1500)
    parser.add_argument("--duplicates-steps", type=int, default=2000)
    parser.add_argument("--length", type=int, default=511, help="of w")
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--enwik8-steps", type=int, default=2500)
    parser.add_argument("--bytes", type=int, default=1_000_000)
    parser.add_argument("--lengthen-steps", type=int, default=4000)
    parser.add_argument("--more", type=int, default=600)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in PARTS:
        parser.add_argument(f"--set-{name}", action="append", default=[], help="change its recipe")
    args = parser.parse_args()
    args.out = args.out.absolute()
    begin = time.monotonic()
    results = side_by_side(commands(args, args.minutes), args.out, args.minutes)
    found = {"minutes": (time.monotonic() - begin) / 60, "device": args.device, "results": results}
    write_result(str(args.out / "all.json"), found)
    times: dict[str, Any] = {}
    if "listops" in results and not args.skip_alone:
        times = timed_alone(args)
        write_result(str(args.out / "all.json"), {**found, "alone": times})
    if "error" in times:
        print(f"listops alone: {times['error']}")
        times = {}
    told(results, times)
    minutes = (time.monotonic() - begin) / 60
    print(f"\n{minutes:.1f} minutes; {args.out / 'all.json'}")


if __name__ == "__main__":
    main()
