"""Training speed on a CPU: Allformer, torch.nn.Transformer and transformers, in one run.

    python benchmarks/train_cpu.py                # d256, 3+3, V 8,000, 32 × (32, 32), no padding
    python benchmarks/train_cpu.py --phrasebook   # the demo's model on its own ragged batches
    python benchmarks/train_cpu.py --decoder      # GPT-2's form, d256, 4 layers, 8 × 128, V 8,000
    python benchmarks/train_cpu.py --encoder      # BERT's, d256, 4 layers, 32 × 64, half padding,
                                                  # 15 % of the words to be said

fp32, dropout 0.1 in the same places, label smoothing 0.1 (of pairs), fused AdamW, the same texts.
One step of each in turn, many times; medians are compared, since a CPU is noisy. The processor's
time is what all threads worked: on a machine that others use too, it says more than the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch
from cases import Mean, WordLoss, Words, bert_tree, masked_batch
from sides import EVERYWHERE, Marian, TorchTransformer, our_step, peer_step, to_padded

import allformer as af
from allformer.core.layout import Grid
from allformer.families import bert, gpt2
from allformer.families.original import transformer
from allformer.train.objectives.seq2seq import PairBatch, Seq2Seq
from allformer.train.step import Stepper, StepSettings


def fixed() -> tuple[Any, list[PairBatch]]:
    config = transformer(256, 4, 1024, 3, vocab=8000, **EVERYWHERE)
    grid = Grid(32, 32)
    ids = [[torch.randint(4, 8000, (32, 32)) for _ in range(3)] for _ in range(4)]
    return config, [PairBatch(s, grid, t, grid, y, y.numel()) for s, t, y in ids]


def phrasebook(budget: int, pool: int) -> tuple[Any, list[PairBatch]]:
    from allformer.data.batches import token_batches
    from allformer.data.encoded import EncodedPairs
    from allformer.data.phrasebook import phrasebook as make
    from allformer.text.tokenizer import train_tokenizer

    pairs = make(pairs=20_000).train
    tokenizer = train_tokenizer((text for pair in pairs for text in pair), "bpe", 1000)
    encoded = EncodedPairs.from_pairs(pairs, tokenizer)
    lengths = encoded.source_lengths + 1, encoded.target_lengths + 1
    batches = token_batches(*lengths, budget, seed=0, epoch=0, pool=pool)[:16]
    config = transformer(192, 4, 768, 2, vocab=tokenizer.vocab_size, **EVERYWHERE)
    return config, [Seq2Seq().collate(encoded, index) for index in batches]


def pairs(args: Any) -> tuple[dict[str, Any], float, float]:
    """The sides, the tokens of a step, and the cells of the padded grid."""
    config, ours = phrasebook(args.budget, args.pool) if args.phrasebook else fixed()
    padded = args.phrasebook
    theirs = [to_padded(b) if padded else (b.source, b.target, b.labels) for b in ours]
    real = sum(b.source.numel() + b.target.numel() for b in ours) / len(ours)
    cells = sum(b[0].numel() + b[1].numel() for b in theirs) / len(ours)
    sides = {
        "torch.nn.Transformer": (peer_step(TorchTransformer(config), padded), theirs),
        "transformers Marian": (peer_step(Marian(config), padded), theirs),
        "allformer": (our_step(config, "cpu", "fp32", False), ours),
    }
    return sides, real, cells


def words_step(tree: Any, stack: str) -> Any:
    """Ours, on words of one stack."""
    torch.manual_seed(0)
    stepper = Stepper(af.build(tree).train(), WordLoss(stack), StepSettings(smoothing=0.0))
    return lambda batch: stepper([batch], 1e-4).loss


def decoder(args: Any) -> tuple[dict[str, Any], float, float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    fields = {**gpt2.PRESETS["gpt2"], "vocab_size": 8000, "n_embd": 256, "n_head": 4}
    fields |= {"n_layer": 4, "n_positions": 128, "bos_token_id": None, "eos_token_id": None}
    ids = [torch.randint(8000, (8, 129)) for _ in range(4)]
    grid = Grid(8, 128)
    ours = [Words(x[:, :-1].contiguous(), grid, x[:, 1:].contiguous(), None, 1024) for x in ids]
    theirs = [(x[:, :-1], x[:, :-1], None) for x in ids]
    hers = Mean(GPT2LMHeadModel(GPT2Config(**fields, use_cache=False)))
    sides = {
        "transformers GPT-2": (peer_step(hers, False), theirs),
        "allformer": (words_step(gpt2.FAMILY.make(fields), "decoder"), ours),
    }
    return sides, 1024.0, 1024.0


def encoder(args: Any) -> tuple[dict[str, Any], float, float]:
    from transformers import BertConfig, BertForMaskedLM

    fields = {**bert.PRESETS["bert-base"], "hidden_size": 256, "num_hidden_layers": 4}
    fields |= {"num_attention_heads": 4, "intermediate_size": 1024}
    random = np.random.default_rng(0)
    lengths = [random.integers(16, 49, 32) for _ in range(4)]
    both = [masked_batch(row, None, random, width=64) for row in lengths]
    sides = {
        "transformers BERT": (
            peer_step(Mean(BertForMaskedLM(BertConfig(**fields))), True),
            [hers for _, hers in both],
        ),
        "allformer": (words_step(bert_tree(fields), "encoder"), [mine for mine, _ in both]),
    }
    return sides, sum(int(row.sum()) for row in lengths) / len(lengths), 32.0 * 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--phrasebook", action="store_true", help="ragged batches of the demo")
    parser.add_argument("--decoder", action="store_true", help="the next word, full rows")
    parser.add_argument("--encoder", action="store_true", help="hidden words, half padding")
    parser.add_argument("--budget", type=int, default=1024, help="tokens a side in a ragged batch")
    parser.add_argument("--pool", type=int, default=50, help="batches sorted together by length")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    case = decoder if args.decoder else encoder if args.encoder else pairs
    sides, real, cells = case(args)
    times: dict[str, list[float]] = {name: [] for name in sides}
    worked: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(-3, args.repeats):
        for name, (step, batches) in sides.items():
            begin, busy = time.perf_counter(), time.process_time()
            step(batches[repeat % len(batches)])
            if repeat >= 0:
                times[name].append(time.perf_counter() - begin)
                worked[name].append(time.process_time() - busy)
    median = {name: 1000 * statistics.median(row) for name, row in times.items()}
    work = {name: 1000 * statistics.median(row) for name, row in worked.items()}
    print(f"{torch.get_num_threads()} threads; {real / cells:.0%} of the padded cells are text")
    print(f"{'':24}{'ms/step':>9}{'tok/s':>10}{'our ratio':>11}{'ms worked':>11}{'our ratio':>11}")
    for name, ms in median.items():
        ratio, share = ms / median["allformer"], work[name] / work["allformer"]
        clock = f"{ms:9.1f}{real / ms * 1000:10,.0f}{ratio:11.2f}"
        print(f"{name:24}{clock}{work[name]:11.1f}{share:11.2f}")
    if args.json:
        told = {"tokens": real, "filled": real / cells, "ms": median, "worked_ms": work}
        print(json.dumps(told))


if __name__ == "__main__":
    main()
