"""Guessing ahead: tokens a second with n-grams of the text, with a smaller model, and without.

    python benchmarks/speculative.py [--new 200] [--rounds 5] [--json]   # LLaMA-2-7B's shape, bf16
    python benchmarks/speculative.py --model DIR --text story.txt        # a checkpoint's own words
    python benchmarks/speculative.py --tiny --device cpu                 # that it runs

Random weights say nothing that repeats. So those of the shape get a head by which each of the first
64 tokens is followed by the next, round and round, whatever the layers add, which are as dear as
ever: a text that repeats, read to the same end by every side. With `--slips P` each P-th of these
steps leads elsewhere, so that some guesses are wrong. Sides: `plain` (the model's own step, a state
that grows), `generate` (what a user calls), `n-grams` (10 tokens) and `smaller` (a model of four of
the layers, the same head; 5 tokens). All give the same tokens, which is checked; whole runs
alternate, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from side_by_side import table
from torch import Tensor

import allformer as af
from allformer.generate.decode import decode
from allformer.generate.request import Request
from allformer.generate.stepper import plain_stepper
from allformer.generate.stop import Stop

CIRCLE = 64
TINY = {"dim": 64, "heads": 4, "width": 176, "layers": 6}
QUIET = 1e-3  # what layers add, so that the head hears the token


def tree_of(tiny: bool, layers: int | None = None) -> Any:
    from allformer.families import llama

    tree = af.preset("llama-2-7b")
    if tiny:
        sizes = llama.sizes(TINY["dim"], TINY["layers"], TINY["heads"], TINY["heads"],
                            TINY["width"], 512, 512)  # fmt: skip
        tree = llama.FAMILY.make(sizes)
    if layers is None:
        return tree
    return replace(tree, decoder=replace(tree.decoder, blocks=tree.decoder.blocks[:layers]))


@torch.no_grad()
def circling(tree: Any, device: str, dtype: torch.dtype, slips: int) -> Any:
    """A model after whose token i the likeliest is i + 1, of 64; each `slips`-th goes elsewhere."""
    model: Any = af.build(tree, seed=0, device=device).to(dtype).eval()
    table, head = model.decoder.source.embedding.weight, model.vocab_head.table.weight
    generator = torch.Generator(device).manual_seed(0)
    table[:CIRCLE] = torch.randn(CIRCLE, table.shape[1], generator=generator, device=device)
    for layer in model.decoder.layers:
        layer.attention.out.weight.mul_(QUIET)
        layer.feed.down.weight.mul_(QUIET)
    head.mul_(QUIET)
    for i in range(CIRCLE):
        follows = (i + 1) % CIRCLE
        if slips and i % slips == slips - 1:
            follows = (i * 29 + 7) % CIRCLE
        head[follows] += table[i] / table.shape[1]
    return model


def sides(model: Any, small: Any, new: int) -> dict[str, Any]:
    """Each takes a prompt and gives ids, and what guessing came to."""
    stepper = plain_stepper(model)
    told = {"max_new_tokens": new, "eos_token_id": None, "return_dict_in_generate": True}

    @torch.inference_mode()
    def plain(ids: Tensor) -> Any:
        request = Request(torch.full((len(ids),), new), Stop())
        return decode(stepper, stepper.open(ids, None), ids, request)

    found = {
        "plain": plain,
        "generate": lambda ids: model.generate(ids, **told),
        "n-grams": lambda ids: model.generate(ids, prompt_lookup_num_tokens=10, **told),
    }
    if small is not None:
        more = {"assistant_model": small, "num_assistant_tokens": 5}
        more["assistant_confidence_threshold"] = 0.0
        found["smaller"] = lambda ids: model.generate(ids, **more, **told)
    return found


def timed(run: Any, ids: Tensor) -> tuple[float, Any]:
    wait = torch.cuda.synchronize if ids.is_cuda else lambda: None
    wait()
    begun = time.perf_counter()
    found = run(ids)
    wait()
    return time.perf_counter() - begun, found


def measure(runs: dict[str, Any], ids: Tensor, rounds: int) -> list[dict[str, Any]]:
    """In turn; the first round warms up and tells the tokens."""
    first = {name: timed(run, ids)[1] for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(timed(run, ids)[0])
    wanted, out = first["plain"].sequences, []
    new = wanted.shape[1] - ids.shape[1]
    for name, found in first.items():
        same = (found.sequences == wanted)[:, ids.shape[1] :].float().mean()
        row = {"side": name, "tok/s": new * len(ids) / statistics.median(times[name])}
        guessed = found.speculation
        row["accepted"] = None if guessed is None else round(guessed.rate, 3)
        row["tokens a round"] = None if guessed is None else round(new / guessed.rounds, 2)
        out.append({**row, "same tokens": round(float(same), 3)})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="bfloat16; on a CPU float32")
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slips", type=int, default=0)
    parser.add_argument("--model", help="a checkpoint's directory")
    parser.add_argument("--text", help="a file with the prompt, for --model")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype or ("float32" if args.device == "cpu" else "bfloat16"))
    if args.model:
        from allformer.text.tokenizer import load_tokenizer

        with open(args.text, encoding="utf-8") as file:
            ids = load_tokenizer(args.model).encode(file.read().strip())
        model, small = af.load(args.model, device=args.device, dtype=dtype).eval(), None
    else:
        model = circling(tree_of(args.tiny), args.device, dtype, args.slips)
        small = circling(tree_of(args.tiny, 4), args.device, dtype, args.slips)
        ids = [i % CIRCLE for i in range(128)]
    prompt = torch.tensor([ids], device=args.device)
    rows = measure(sides(model, small, args.new), prompt, args.rounds)
    if args.json:
        print(json.dumps({"new": args.new, "slips": args.slips, "rows": rows}))
        return
    plain = next(row["tok/s"] for row in rows if row["side"] == "plain")
    head = ("side", "tok/s", "× plain", "accepted", "tokens a round", "same tokens")
    cells = [[row["side"], f"{row['tok/s']:.1f}", f"{row['tok/s'] / plain:.2f}",
              *("–" if row[k] is None else row[k] for k in head[3:])] for row in rows]  # fmt: skip
    print(table(head, cells))


if __name__ == "__main__":
    main()
