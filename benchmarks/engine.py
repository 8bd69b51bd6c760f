"""Requests of mixed length that come as they like: an engine beside one static batch after another.

    python benchmarks/engine.py                          # a GPU: LLaMA-2 7B's shape, bf16
    python benchmarks/engine.py --device cpu             # a small model, fp32: that it runs
    python benchmarks/engine.py --only engine --rate 40 --json

`requests` prompts, lengths and lengths of answers drawn log-uniformly, arrive as a Poisson process
of `rate` a second (0: all at once). Both sides serve the same requests by the same clock, greedily
and with the same weights (random: no token ends a text). The static side takes those that have
come, at most `batch`, waits until the longest of them is done (`generate` with `limits`), and takes
the next. Tokens a second are those asked for over the time from the first arrival to the last
answer. The engine is warmed up, and each side has a run before that is not timed (of `warm`
requests, else all): it compiles and captures. Prompts have other ids in each run, so that no run
finds what another has computed.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from side_by_side import table
from turns import attempt

import allformer as af
from allformer.core.model import DecoderOnlyModel
from allformer.families import llama
from allformer.generate.engine import Engine
from allformer.generate.generate import generate

NEVER = 1 << 30  # an end that no text has: rows at their limit may leave the batch
SMALL = llama.sizes(256, 4, 4, 4, 688, 2000, 2048)


class Asked(NamedTuple):
    """A request: when it comes, in seconds, its prompt, and how many tokens it wants."""

    at: float
    ids: list[int]
    new: int


class Told(NamedTuple):
    """When its first token was there, and its last; and the tokens."""

    first: float
    last: float
    tokens: list[int]


Serve = Callable[[list[Asked]], dict[int, Told]]


def draw(args: argparse.Namespace, vocab: int) -> list[Asked]:
    """The same requests for all sides."""
    dice, at, out = random.Random(args.seed), 0.0, []

    def between(low: int, high: int) -> int:
        return round(math.exp(dice.uniform(math.log(low), math.log(high))))

    for _ in range(args.requests):
        ids = [dice.randrange(10, vocab) for _ in range(between(*args.prompt))]
        out.append(Asked(at, ids, between(*args.new)))
        at += dice.expovariate(args.rate) if args.rate else 0.0
    return out


def by_engine(engine: Engine) -> Serve:
    def serve(asked: list[Asked]) -> dict[int, Told]:
        begin, done, came = time.perf_counter(), {}, 0
        first: dict[int, float] = {}
        number: dict[Any, int] = {}
        while len(done) < len(asked):
            now = time.perf_counter() - begin
            while came < len(asked) and asked[came].at <= now:
                one = asked[came]
                number[engine.add(one.ids, max_new_tokens=one.new, eos_token_id=None)] = came
                came += 1
            if engine.idle:
                time.sleep(max(0.0, asked[came].at - now))
                continue
            made = engine.step()
            now = time.perf_counter() - begin
            for reply, _ in made:
                first.setdefault(number[reply], now)
                if reply.done:
                    done[number[reply]] = Told(first[number[reply]], now, reply.new)
        return done

    return serve


def by_batches(model: DecoderOnlyModel, batch: int) -> Serve:
    def serve(asked: list[Asked]) -> dict[int, Told]:
        begin, done = time.perf_counter(), {}
        while len(done) < len(asked):
            now = time.perf_counter() - begin
            left = range(len(done), min(len(asked), len(done) + batch))
            mine = [i for i in left if asked[i].at <= now]
            if not mine:
                time.sleep(max(0.0, asked[len(done)].at - now))
                continue
            rows = [asked[i] for i in mine]
            width = max(len(x.ids) for x in rows)
            ids = torch.tensor([[0] * (width - len(x.ids)) + x.ids for x in rows])
            mask = torch.tensor([[0] * (width - len(x.ids)) + [1] * len(x.ids) for x in rows])
            limits = [x.new for x in rows]
            most = {"max_new_tokens": max(limits), "eos_token_id": NEVER, "pad_token_id": 0}
            said = generate(model, ids, mask, limits=limits, **most)[:, width:].tolist()
            now = time.perf_counter() - begin
            for i, row in zip(mine, said, strict=True):
                done[i] = Told(now, now, row[: asked[i].new])  # nothing is told before the end
        return done

    return serve


def other(asked: list[Asked], vocab: int, run: int) -> list[Asked]:
    """The same requests in other words."""
    return [x._replace(ids=[10 + (i + 7 * run) % (vocab - 10) for i in x.ids]) for x in asked]


def measure(
    serve: Serve, asked: list[Asked], vocab: int, args: argparse.Namespace
) -> tuple[dict[str, Any], dict[int, Told]]:
    """Medians of the runs, and the answers of the last."""
    serve([one._replace(at=0.0) for one in asked[: args.warm]])
    runs = []
    for run in range(1, args.rounds + 1):
        done = serve(other(asked, vocab, run))
        took = max(x.last for x in done.values())
        first = sorted(done[i].first - one.at for i, one in enumerate(asked))
        last = sorted(done[i].last - one.at for i, one in enumerate(asked))
        row = {"tokens/s": sum(one.new for one in asked) / took, "seconds": took}
        for name, times in (("first token", first), ("whole answer", last)):
            row[f"{name} p50"] = times[len(times) // 2]
            row[f"{name} p99"] = times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]
        runs.append(row)
    return {name: statistics.median(row[name] for row in runs) for name in runs[0]}, done


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument(
        "--rate", type=float, default=64.0, help="requests a second; 0: all at once"
    )
    parser.add_argument("--prompt", type=int, nargs=2, default=(32, 512))
    parser.add_argument("--new", type=int, nargs=2, default=(16, 512))
    parser.add_argument("--rows", type=int, default=256, help="at most so many side by side")
    parser.add_argument("--chunk", type=int, default=1024, help="tokens of prompts in a step")
    parser.add_argument("--memory", type=float, default=40.0, help="GB for keys and values")
    parser.add_argument("--batch", type=int, default=64, help="of the static side")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warm", type=int, help="requests of the run that is not timed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("engine", "static"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device == "cpu":  # what two cores can do in a minute
        usual = {"requests": 32, "rate": 20.0, "prompt": (8, 64), "new": (4, 64), "memory": 0.5}
        usual |= {"batch": 8, "rows": 32, "chunk": 128}
        parser.set_defaults(**usual)
        args = parser.parse_args()
    return args


def main() -> None:
    args = arguments()
    gpu = args.device != "cpu"
    fields = {**llama.PRESETS["llama-2-7b"], **({} if gpu else SMALL)}
    built: Any = af.build(llama.FAMILY.make(fields), device=args.device, seed=0)
    model: DecoderOnlyModel = built.to(torch.bfloat16 if gpu else torch.float32).eval()
    vocab = fields["vocab_size"]
    asked = draw(args, vocab)
    rows: dict[str, dict[str, Any]] = {}
    answers: dict[str, dict[int, Told]] = {}
    facts: dict[str, Any] = {}

    def measured(name: str, serve: Serve) -> None:
        def case() -> dict[str, Any]:
            row, answers[name] = measure(serve, asked, vocab, args)
            return row

        rows[name] = attempt(name, case)
        print(name, rows[name], file=sys.stderr, flush=True)

    if args.only in (None, "engine"):
        engine = Engine(model, memory=int(args.memory * 1e9), rows=args.rows, chunk=args.chunk)
        begin = time.perf_counter()
        engine.warm_up()
        warm = time.perf_counter() - begin
        measured("engine", by_engine(engine))
        facts = {"preempted": engine.preempted, "tokens reused": engine.reused}
        facts["graphs refused"], facts["warm-up, s"] = _refused(engine), round(warm, 1)
        del engine  # each side has the memory for itself
        gc.collect()
        if gpu:
            torch.cuda.empty_cache()
    if args.only in (None, "static"):
        measured("static", by_batches(model, args.batch))
    facts |= _agreed(answers)
    if len(answers) == 2:
        facts["engine / static"] = rows["engine"]["tokens/s"] / rows["static"]["tokens/s"]
    name = torch.cuda.get_device_name() if gpu else "cpu"
    if args.json:
        print(json.dumps({"device": name, "asked": vars(args), "rows": rows, "facts": facts}))
        return
    total = f"{sum(len(x.ids) for x in asked)} tokens of prompts, {sum(x.new for x in asked)} asked"
    print(f"{name}, {args.requests} requests at {args.rate}/s, {total}; seconds")
    for name, row in rows.items():
        cells = {k: f"{x:.3f}" if isinstance(x, float) else x for k, x in row.items()}
        print(table([name, *cells], [["", *cells.values()]]))
    print(facts)


def _refused(engine: Engine) -> str | None:
    steps = engine.reader.steps
    return "steps are not captured here" if steps is None else steps.refused


def _agreed(answers: dict[str, dict[int, Told]]) -> dict[str, Any]:
    """In bf16 near ties fall either way, and what follows is another text."""
    if len(answers) < 2:
        return {}
    one, other = answers.values()
    same = sum(one[i].tokens == other[i].tokens for i in one)
    return {"same answers": f"{same} of {len(one)}"}


if __name__ == "__main__":
    main()
