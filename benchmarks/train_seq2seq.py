"""Training speed of the base Transformer: Allformer against torch.nn.Transformer, in one run.

    python benchmarks/train_seq2seq.py                                # fixed, 256 × (64, 64)
    python benchmarks/train_seq2seq.py --data DIR --source en --target de     # real ragged batches

Both sides train d512, 6+6 layers, a tied vocabulary of 37,000, dropout 0.1 in the same places,
label smoothing 0.1, bf16, compiled, fused AdamW, on the same batches. Allformer's step clips
gradients as well. Steps of the two alternate in blocks; medians of the blocks are compared.
Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sides import EVERYWHERE, Step, TorchTransformer, our_step, peer_step, to_padded

from allformer.core.layout import Grid
from allformer.families.original import transformer
from allformer.train.batch import Frame, moved
from allformer.train.objectives.seq2seq import PairBatch, Seq2Seq

VOCAB = 37_000


def measure(
    runs: dict[str, tuple[Callable[[], Step], Sequence[Any]]], blocks: int, profiled: bool
) -> dict[str, dict[str, float]]:
    """Warm each one up on all its batches, then time them block by block in turn."""
    steps, peaks, times = {}, {}, {name: [] for name in runs}
    for name, (make, batches) in runs.items():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        steps[name] = make()
        for batch in batches:
            loss = steps[name](batch)
        for batch in batches[:8]:
            loss = steps[name](batch)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        peaks[name] = (torch.cuda.max_memory_allocated() - held) / 2**30
        print(f"{name}: warm after {seconds:.0f} s, loss {loss.item():.3f}", flush=True)
    compiled = graphs_compiled()
    for _ in range(blocks):
        for name, (_, batches) in runs.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for batch in batches:
                steps[name](batch)
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begin) / len(batches))
    print(f"graphs compiled after the warm-up: {graphs_compiled() - compiled}")
    if profiled:
        for name, (_, batches) in runs.items():
            print(f"{name}, ms a step by kernel:\n{kernels(steps[name], batches)}")
    return {
        name: {"ms": 1000 * statistics.median(times[name]), "gib": peaks[name]} for name in runs
    }


def graphs_compiled() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def kernels(step: Step, batches: Sequence[Any], top: int = 40) -> str:
    """Where the GPU's time goes: the kernels of a step, longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for batch in batches[:4]:
            step(batch)
        torch.cuda.synchronize()
    count = len(batches[:4])
    found = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    lines = [f"{sum(e.self_device_time_total for e in found) / count / 1000:9.3f}  in all"]
    for event in found[:top]:
        ms, calls = event.self_device_time_total / count / 1000, event.count / count
        lines.append(f"{ms:9.3f} {calls:6.0f} ×  {event.key[:110]}")
    return "\n".join(lines)


def fixed_batches() -> tuple[list[Any], list[PairBatch], float]:
    ids = [[torch.randint(4, VOCAB, (256, 64), device="cuda") for _ in range(3)] for _ in range(8)]
    grid = Grid(256, 64)
    ours = [PairBatch(s, grid, t, grid, y, y.numel()) for s, t, y in ids]
    return [tuple(x) for x in ids], ours, 2 * 256 * 64


def ragged_batches(
    data: str, source: str, target: str, rows: int
) -> tuple[list[Any], list[PairBatch], float]:
    """Batches of `rows` sentences in random order: as they come, with all their lengths.

    The peer's are padded to a multiple of 8, as collators do for the kernels' sake; else its
    compiled graphs (50 s each) would be one for each remainder.
    """
    from allformer.data.encoded import EncodedPairs
    from allformer.data.parallel import open_corpus
    from allformer.text.tokenizer import train_tokenizer

    corpus = open_corpus(data, source, target)
    tokenizer = train_tokenizer((text for pair in corpus.train for text in pair), "bpe", 10_000)
    pairs = EncodedPairs.from_pairs(corpus.train, tokenizer, max_length=126)
    order = np.random.default_rng(0).permutation(len(pairs))
    batches = [order[i * rows : (i + 1) * rows] for i in range(40)]
    most = max(
        int(lengths[index].sum()) + rows
        for index in batches
        for lengths in (pairs.source_lengths, pairs.target_lengths)
    )
    frame = Frame(-(-most // 64) * 64, rows, 128)
    ours, theirs, tokens, cells = [], [], 0, 0
    for index in batches:
        ours.append(moved(Seq2Seq().collate(pairs, index, frame), "cuda"))
        plain = Seq2Seq().collate(pairs, index)
        tokens += len(plain.source) + len(plain.target)
        theirs.append(tuple(x.cuda() for x in to_padded(plain, multiple=8)))
        cells += theirs[-1][0].numel() + theirs[-1][1].numel()
    # torch.compile takes sizes that are equal at first for one size: begin with unequal ones.
    theirs.sort(key=lambda batch: batch[0].shape[1] == batch[1].shape[1])
    for batch in theirs:
        for ids in batch:
            torch._dynamo.mark_dynamic(ids, 1)
    print(
        f"{tokens / cells:.0%} of the padded batches is text, {frame.tokens} tokens a side packed"
    )
    return theirs, ours, tokens / len(batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="parallel text: real ragged batches instead of fixed ones")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--rows", type=int, default=512, help="sentences in a ragged batch")
    parser.add_argument("--paper", action="store_true", help="also dropout only as in the paper")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="also the kernels of a step")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; benchmarks/train_cpu.py does not")
    torch.set_float32_matmul_precision("high")
    if args.data:
        theirs, ours, tokens = ragged_batches(args.data, args.source, args.target, args.rows)
    else:
        theirs, ours, tokens = fixed_batches()
    padded = args.data is not None
    paper = transformer(512, 8, 2048, 6, vocab=VOCAB)
    same = transformer(512, 8, 2048, 6, vocab=VOCAB, **EVERYWHERE)

    def peer() -> Step:
        torch.manual_seed(0)
        return peer_step(TorchTransformer(same).cuda(), padded, compiled=True, bf16=True)

    runs: dict[str, tuple[Callable[[], Step], Sequence[Any]]] = {
        "torch.nn.Transformer": (peer, theirs),
        "allformer": (lambda: our_step(same, "cuda", "bf16", True), ours),
    }
    if args.paper:
        runs["allformer, the paper's dropout"] = (
            lambda: our_step(paper, "cuda", "bf16", True),
            ours,
        )
    table = measure(runs, args.blocks, args.profile)
    peer = table["torch.nn.Transformer"]["ms"]
    print(f"{'':34}{'ms/step':>9}{'M tok/s':>9}{'ratio':>7}{'GiB':>7}")
    for name, row in table.items():
        row["tokens_per_second"] = tokens / row["ms"] * 1000
        row["ratio"] = peer / row["ms"]
        rate = row["tokens_per_second"] / 1e6
        print(f"{name:34}{row['ms']:9.2f}{rate:9.3f}{row['ratio']:7.2f}{row['gib']:7.2f}")
    if args.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "tokens": tokens, **table}))


if __name__ == "__main__":
    main()
