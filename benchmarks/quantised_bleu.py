"""What few bits cost a translator: BLEU of the same run in fp32, in eight and in four bits.

    python benchmarks/quantised_bleu.py runs/m30k --source val.en.gz --target val.de.gz
        [--language de] [--beams 5] [--limit 200] [--calibrate train.en.gz] [--threads 2] [--json]

The run is our own (`allformer train recipes/multi30k-en-de.yaml`), or any checkpoint that
translates one way. Rows: as it is; `dtype=torch.int8`, weights and what they meet in eight bits;
`af.quantise` to int8 and int4 (a scale for each 32 inputs), and int4 by GPTQ where `--calibrate`
gives sources and `--calibrate-target` their translations; keys and values in eight bits. "same":
the share of sentences that are those of fp32. Seconds are of this machine, once: for the loss of
quality, not for speed (`decode_cpu.py`).
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from side_by_side import table

import allformer as af
from allformer.generate.evaluate import score_translations
from allformer.tasks import open_kit, translate

GROUP = 32  # inputs that share a scale in four bits: a run's layers are narrow
MOST = 512  # pairs that calibrate


def read_lines(path: Path, limit: int | None) -> list[str]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return text.split("\n")[: text.count("\n")][:limit]


def calibration(kit: Any, sources: Path, targets: Path) -> list[dict[str, torch.Tensor]]:
    """Pairs as the model reads them, some at a time."""
    pairs = list(zip(read_lines(sources, MOST), read_lines(targets, MOST), strict=True))
    found = []
    for at in range(0, len(pairs), 32):
        read, said = (kit.tokenizer(list(side)) for side in zip(*pairs[at : at + 32], strict=True))
        start = torch.full((len(read["input_ids"]), 1), kit.model.config.start)
        found.append(
            {
                "input_ids": read["input_ids"],
                "attention_mask": read["attention_mask"],
                "decoder_input_ids": torch.cat([start, said["input_ids"][:, :-1]], 1),
            }
        )
    return found


def variants(kit: Any, args: argparse.Namespace) -> dict[str, Callable[[], tuple[Any, dict]]]:
    """By name: a kit, and options of `translate`. Each is made when its turn comes."""

    def few(kind: str, **how: Any) -> tuple[Any, dict[str, Any]]:
        return replace(kit, model=af.quantise(copy.deepcopy(kit.model), kind, **how)), {}

    made: dict[str, Callable[[], tuple[Any, dict]]] = {
        "fp32": lambda: (kit, {}),
        "computed in int8": lambda: (kit, {"dtype": torch.int8}),
        "weights in int8": lambda: few("int8"),
        f"weights in int4, groups of {GROUP}": lambda: few("int4", group=GROUP),
    }
    if args.calibrate is not None:
        ids = calibration(kit, args.calibrate, args.calibrate_target)
        made["the same by GPTQ"] = lambda: few("int4", group=GROUP, calibrate=ids)
    made["keys and values in int8"] = lambda: (kit, {"cache": "int8"})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--language", default="de", help="of the targets")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--calibrate", type=Path, help="sources to calibrate by")
    parser.add_argument("--calibrate-target", type=Path, help="their translations")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if (args.calibrate is None) != (args.calibrate_target is None):
        parser.error("--calibrate and --calibrate-target belong together")
    torch.set_num_threads(args.threads)
    sources, targets = (read_lines(path, args.limit) for path in (args.source, args.target))
    kit, rows, first = open_kit(args.run, device="cpu", dtype=torch.float32), [], None
    for name, make in variants(kit, args).items():
        mine, options = make()
        begin = time.perf_counter()
        said = translate(mine, sources, num_beams=args.beams, truncate=True, **options)
        seconds = time.perf_counter() - begin
        first = said if first is None else first
        same = sum(a == b for a, b in zip(said, first, strict=True)) / len(said)
        scores = score_translations(said, targets, args.language)
        rows.append({"weights": name, **scores, "same": same, "seconds": seconds})
    if args.json:
        print(json.dumps(rows))
        return
    names = ("weights", "BLEU", "change", "chrF", "same", "seconds")
    cells = [
        [row["weights"], f"{row['bleu']:.2f}", f"{row['bleu'] - rows[0]['bleu']:+.2f}",
         f"{row['chrf']:.2f}", f"{row['same']:.0%}", f"{row['seconds']:.1f}"]
        for row in rows
    ]  # fmt: skip
    print(
        f"{args.run}, {len(sources):,} sentences, {args.beams} beams: {rows[0]['bleu_signature']}"
    )
    print(table(list(names), cells))


if __name__ == "__main__":
    main()
