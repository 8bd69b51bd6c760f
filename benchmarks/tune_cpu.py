"""LoRA on a CPU: Allformer against transformers + PEFT, on the same sentences, in one run.

    python benchmarks/tune_cpu.py MINILM --data sst2/train.tsv                # 2 threads, 32 rows
    python benchmarks/tune_cpu.py MINILM --data sst2/train.tsv --rows 8 --rank 16 --steps 40

A BERT of transformers' layout tells sentences apart: LoRA on all linear layers, a new head, AdamW,
fp32, dropout as the checkpoint has it. A batch is rows drawn at random, not sorted by length; the
peer pads them to the longest, as its collator does, and we pack them. One step of each in turn,
medians; before that both must have the same loss, in evaluation mode and with the same head. On
one thread it is the process's own time that is measured, which others on the machine do not change.
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

import numpy as np
import torch

from allformer.train.loop import Job, open_objective
from allformer.train.supervised.supervised import judging
from allformer.train.tune_recipe import tune_recipe

Step = Callable[[int], float]


def ours(args: Any, folder: Path) -> Job:
    """A run of `allformer tune --task classify`, ready to take its first step."""
    recipe = tune_recipe(
        args.model, args.data, task="classify", settings={"rank": args.rank},
        columns={"text": "0", "label": "1"}, overrides=["log.tensorboard=false"],
    )  # fmt: skip
    return Job(open_objective(recipe), folder, torch.device("cpu"), False, False, False)


def theirs(args: Any, job: Job) -> tuple[Any, Any]:
    """PEFT's model with our head's numbers, and its tokeniser."""
    import peft
    import transformers

    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=len(job.objective.labels), dtype=torch.float32
    )
    asked = peft.LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="SEQ_CLS"
    )
    model = peft.get_peft_model(model, asked)
    head = model.base_model.model.classifier.modules_to_save.default
    with torch.no_grad():
        head.weight.copy_(job.model.head.out.weight)
        head.bias.copy_(job.model.head.out.bias)
    return model, transformers.AutoTokenizer.from_pretrained(args.model)


def sides(args: Any, job: Job) -> tuple[dict[str, Step], list[Any]]:
    """A step of either on batch number i, and the peer's batches."""
    model, tokenizer = theirs(args, job)
    examples: Any = job.objective.examples(0)
    draw = np.random.default_rng(0)
    picks = [draw.choice(len(examples), args.rows, replace=False) for _ in range(args.batches)]
    mine = [job.objective.onto(job.objective.collate(examples, p), job.device) for p in picks]
    padded = []
    for pick in picks:
        texts = [str(examples["text"][i]) for i in pick.tolist()]
        batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        padded.append({**batch, "labels": torch.from_numpy(np.asarray(examples["label"])[pick])})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.rate, weight_decay=0.0, fused=True)

    def peer(i: int) -> float:
        loss = model(**padded[i]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    with judging(job.model):
        own = float(job.objective.loss(job.model, mine[0])[0]) / args.rows
        other = float(model.eval()(**padded[0]).loss)
    print(f"loss of the first batch: {own:.6f} here, {other:.6f} there")
    assert abs(own - other) < 1e-4, "the two sides do not compute the same"
    model.train()
    found = {
        "transformers + PEFT": peer,
        "allformer": lambda i: float(job.stepper([mine[i]], args.rate).loss),
    }
    return found, padded


def measure(steps: dict[str, Step], count: int, batches: int) -> dict[str, list[float]]:
    """Seconds of each step, one side after the other, in turn who begins."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for i in range(3):
            step(i % batches)
    for n in range(count):
        for name in list(steps) if n % 2 else list(reversed(steps)):
            begin = clock()
            steps[name](n % batches)
            taken[name].append(clock() - begin)
    return taken


def main() -> None:
    """Print a table, and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a BERT in transformers' layout")
    parser.add_argument("--data", required=True, help="sentences and labels, with a tab between")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batches", type=int, default=8, help="different ones")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        job = ours(args, Path(folder))
        steps, padded = sides(args, job)
        taken = measure(steps, args.steps, args.batches)
        job.metrics.close()
        job.watch.close()
    real = sum(int(x["attention_mask"].sum()) for x in padded)
    cells = sum(x["input_ids"].numel() for x in padded)
    each = {name: statistics.median(seconds) for name, seconds in taken.items()}
    slow = each["transformers + PEFT"]
    print(f"{args.rows} rows, {real / len(padded):.0f} tokens in {cells / len(padded):.0f} cells, "
          f"rank {args.rank}, {args.threads} threads")  # fmt: skip
    for name, seconds in each.items():
        speed = real / len(padded) / seconds
        print(f"{name:22} {1e3 * seconds:8.1f} ms {speed:9,.0f} tokens/s {slow / seconds:5.2f} ×")
    print(json.dumps({"seconds": each, "ratio": slow / each["allformer"],
                      "padding": 1 - real / cells}))  # fmt: skip


if __name__ == "__main__":
    main()
