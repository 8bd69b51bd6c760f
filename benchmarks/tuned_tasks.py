"""Entities and answers on a small encoder: `allformer tune` beside transformers' own fine-tuning.

    python benchmarks/tuned_tasks.py --model all-MiniLM-L6-v2 --wnut wnut17 --xquad xquad.en.json.gz
    python benchmarks/tuned_tasks.py … --case entities --rate 1e-4 --seeds 3 --together 6
    python benchmarks/tuned_tasks.py … --quick            # a few steps of each: whether it runs

Both sides have the same body, the same tokens in the same batches and order, the same rate, epochs,
optimiser and clipping; transformers computes its own model and its own loss, on padded rows, as its
users write it. The head and dropout are drawn by each side, so that one seed says little. Nothing
is chosen by the held-out data: all epochs are run, and the last weights are scored once, by the
same scorer. "lora" is ours with an adapter instead of all weights.

- entities: WNUT-17, wnut17train.conll(.gz) and emerging.dev.conll(.gz) in one directory; F1 of
  entities as seqeval has it, on dev.
- answers: XQuAD, every fourth article for testing, the others for training; SQuAD's F1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from side_by_side import add_arguments, side_by_side, table, trained, write_result
from torch import Tensor

from allformer.core.loss import IGNORE
from allformer.text.load import load_tokenizer
from allformer.train.objectives.answering import Answering
from allformer.train.objectives.tagging import Tagging
from allformer.train.stream import batches_of
from allformer.train.supervised.packed import Texts
from allformer.train.tune_recipe import tune_recipe

CASES = {"entities": "tag", "answers": "answer"}
SIDES = ("ours", "transformers", "lora")
# All steps are taken, and what comes of the last one is the result.
UNSEEN = (
    "train.best=null", "train.patience=null", "train.validate_every=0.5", "train.save_every=0.5",
)  # fmt: skip
QUICK = ("train.epochs=null", "train.steps=3", "train.batch_rows=4", "train.batch_tokens=1024")
TESTED = 4  # every so many articles of XQuAD


def main() -> None:
    """Every case, side and seed as a process of its own; then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a directory of transformers'")
    parser.add_argument("--wnut", type=Path, help="a directory")
    parser.add_argument("--xquad", type=Path, help="a file")
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"))
    parser.add_argument("--case", action="append", choices=[*CASES], help="may be repeated")
    parser.add_argument("--side", action="append", choices=SIDES, help="may be repeated")
    parser.add_argument("--rate", type=float, help="of all weights, of both; else as tune has")
    parser.add_argument("--epochs", type=float, help="else as tune has")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--together", type=int, default=1, help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=60, help="for all of them")
    parser.add_argument("--quick", action="store_true")
    add_arguments(parser)
    args = parser.parse_args()
    if args.one:
        case, side, seed = args.one.split("-")
        write_result(args.result, measured(case, side, int(seed), args))
        return
    given = {"entities": args.wnut, "answers": args.xquad}
    cases = [case for case in args.case or CASES if given[case] is not None]
    each = [(case, side) for case in cases for side in args.side or SIDES]
    for case in cases:
        prepared(case, args)
    again = [sys.executable, __file__, *sys.argv[1:]]
    names = [f"{case}-{side}-{seed}" for seed in range(args.seeds) for case, side in each]
    commands = {name: [*again, "--one", name] for name in names}
    found = side_by_side(commands, args.out, args.minutes, args.together)
    for name, result in found.items():
        if "error" in result:
            print(f"{name}: {result['error']}")
    rows = {
        (case, side): [
            x for i in range(args.seeds) if "error" not in (x := found[f"{case}-{side}-{i}"])
        ]
        for case, side in each
    }
    print(told(rows))
    print(f"{args.seeds} seed(s), {args.together} training(s) at a time, {device(args)}")
    write_result(args.result, {"-".join(name): some for name, some in rows.items()})


# --- data ---------------------------------------------------------------------------------------


def prepared(case: str, args: Any) -> tuple[Path, Path]:
    """Training and held-out files; with --quick, the first few records of each."""
    args.out.mkdir(parents=True, exist_ok=True)
    ends = ".conll" if case == "entities" else ".json"
    files = args.out / f"{case}-train{ends}", args.out / f"{case}-held-out{ends}"
    if not all(file.is_file() for file in files):
        texts = conll(args) if case == "entities" else articles(args)
        for file, text in zip(files, texts, strict=True):
            file.write_text(text, encoding="utf-8")
    return files


def conll(args: Any) -> Iterator[str]:
    """WNUT-17's two files; a line of blanks is an empty one."""
    for name in ("wnut17train.conll", "emerging.dev.conll"):
        lines = [line.strip() for line in read(args.wnut / name).splitlines()]
        sentences = [x.strip() for x in "\n".join(lines).split("\n\n") if x.strip()]
        few = args.quick and "dev" in name  # of the others all: they name the labels
        yield "\n\n".join(sentences[:24] if few else sentences) + "\n"


def articles(args: Any) -> Iterator[str]:
    """XQuAD's articles in two, so that no passage is in both."""
    data = json.loads(read(args.xquad))["data"]
    tested = [article for i, article in enumerate(data) if i % TESTED == 0]
    others = [article for i, article in enumerate(data) if i % TESTED]
    for some in (others, tested):
        if args.quick:
            some = [{**some[0], "paragraphs": some[0]["paragraphs"][:1]}]
        yield json.dumps({"version": "1.1", "data": some}, ensure_ascii=False)


def read(path: Path) -> str:
    """A file, packed or not."""
    packed = path if path.suffix == ".gz" else path.with_name(path.name + ".gz")
    if packed.is_file():
        return gzip.decompress(packed.read_bytes()).decode("utf-8")
    return path.read_text(encoding="utf-8")


# --- the two sides ------------------------------------------------------------------------------


def measured(case: str, side: str, seed: int, args: Any) -> dict[str, Any]:
    """One run of one side: its figures on the held-out records, and the time of its steps."""
    train, held = prepared(case, args)
    adapter = side == "lora"
    recipe = tune_recipe(
        args.model, str(train), validation=str(held), task=CASES[case],
        method="lora" if adapter else "full", rate=None if adapter else args.rate,
        epochs=args.epochs,
        overrides=(*UNSEEN, f"train.seed={seed}", *(QUICK if args.quick else ()), *args.set),
    )  # fmt: skip
    if side == "transformers":
        return theirs(case, recipe, args)
    result = trained(recipe, args.out / f"run-{case}-{side}-{seed}", args)
    last = result.rows[-1]
    names = ("precision", "recall", "f1", "em", "nll")
    figures = {name: last[f"validation_{name}"] for name in names if f"validation_{name}" in last}
    return {**figures, "seconds": result.seconds, "rate": recipe.optim.rate, "steps": result.steps}


def theirs(case: str, recipe: Any, args: Any) -> dict[str, Any]:
    """transformers' model and loss in a plain loop over our batches."""
    import transformers

    torch.manual_seed(recipe.train.seed)
    objective: Any = TheirTags(recipe) if case == "entities" else TheirAnswers(recipe)
    objective.open()
    objective.encode(load_tokenizer(args.model), lambda line: None)
    kind, sizes = transformers.AutoModelForQuestionAnswering, {}
    if case == "entities":
        kind = transformers.AutoModelForTokenClassification
        sizes = {"num_labels": len(objective.labels)}
    model = kind.from_pretrained(args.model, dtype=torch.float32, **sizes).to(args.device).train()
    model.head = Labels(objective.labels) if case == "entities" else None  # for the scorer
    optimizer, examples = adamw(model, recipe.optim), objective.examples(0)
    first = batches_of(objective, examples, recipe.train)
    epochs = recipe.train.epochs
    steps = recipe.train.steps if epochs is None else max(1, math.ceil(epochs * len(first)))
    batches = (x for epoch in count() for x in batches_of(objective, examples, recipe.train, epoch))
    begin = time.perf_counter()
    for step, index in enumerate(islice(batches, steps), 1):
        with half(args.device):
            loss = model(**padded(case, examples, index, args.device)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optim.clip)
        for group in optimizer.param_groups:
            group["lr"] = recipe.schedule.rate(step, recipe.optim.rate, steps)
        optimizer.step()
        optimizer.zero_grad()
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    figures = objective.metrics(model, objective.validation)
    return {**figures, "seconds": seconds, "rate": recipe.optim.rate, "steps": steps}


def adamw(model: Any, optim: Any) -> torch.optim.Optimizer:
    """As transformers' Trainer groups them: biases and norms do not decay."""
    groups: dict[bool, list[Any]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups["bias" not in name and "LayerNorm" not in name].append(parameter)
    each = [{"params": p, "weight_decay": optim.weight_decay * d} for d, p in groups.items()]
    return torch.optim.AdamW(each, lr=optim.rate, betas=optim.betas, eps=optim.eps, fused=True)


def half(device: str) -> Any:
    """bf16 products on a GPU, where ours have them too."""
    return torch.autocast("cuda", torch.bfloat16) if device.startswith("cuda") else nullcontext()


def padded(case: str, examples: Any, index: Any, device: str) -> dict[str, Tensor]:
    """Rows of our table as transformers takes them: as wide as the longest."""

    def grid(name: str, fill: int) -> Tensor:
        rows = [examples[name][i] for i in index]
        out = np.full((len(rows), max(map(len, rows))), fill, np.int64)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
        return torch.from_numpy(out).to(device)

    ids, lengths = grid("ids", 0), torch.from_numpy(examples["ids"].lengths[index].astype(np.int64))
    keep = (torch.arange(ids.shape[1]) < lengths[:, None]).long().to(device)
    inputs = {"input_ids": ids, "attention_mask": keep, "token_type_ids": grid("types", 0)}
    if case == "entities":
        return {**inputs, "labels": grid("labels", IGNORE)}
    ends = {"start_positions": examples["start"][index], "end_positions": examples["end"][index]}
    return inputs | {
        k: torch.as_tensor(v, dtype=torch.long, device=device) for k, v in ends.items()
    }


class Labels:
    """What the scorer asks a head for."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self.config, self.labels = self, labels


def their_output(model: Any, texts: Texts) -> Any:
    """transformers' model on rows that we hold end to end."""
    grid = texts.layout.to_grid
    return model(
        input_ids=grid(texts.ids), attention_mask=texts.layout.keep.long(),
        token_type_ids=grid(texts.types),
    )  # fmt: skip


class TheirTags(Tagging):
    """Our scorer of tags, of transformers' scores."""

    def scores(self, model: Any, texts: Texts, dtype: torch.dtype | None = None) -> Tensor:
        return texts.layout.lay(their_output(model, texts).logits.float())


class TheirAnswers(Answering):
    """Our scorer of answers, of transformers' scores."""

    def scores(
        self, model: Any, texts: Texts, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        found, gone = their_output(model, texts), ~texts.layout.keep
        low = torch.finfo(torch.float32).min
        first, last = found.start_logits.float(), found.end_logits.float()
        return first.masked_fill(gone, low), last.masked_fill(gone, low)


# --- the table ----------------------------------------------------------------------------------


def told(rows: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """A line for each case and side; how far from transformers' it is."""
    lines = []
    for (case, side), found in rows.items():
        if not found:
            lines.append([case, side, *["–"] * 6])
            continue
        peer = [100 * x["f1"] for x in rows.get((case, "transformers"), [])]
        f1 = [100 * x["f1"] for x in found]
        spread = f" ± {statistics.stdev(f1):.2f}" if len(f1) > 1 else ""
        names = ("em",) if "em" in found[0] else ("precision", "recall")
        means = [100 * statistics.mean(x[name] for x in found) for name in names]
        more = ", ".join(f"{name} {mean:.1f}" for name, mean in zip(names, means, strict=True))
        apart = f"{statistics.mean(f1) - statistics.mean(peer):+.2f}" if peer else "–"
        lines.append([
            case, side, f"{found[0]['rate']:.0e}", found[0]["steps"],
            f"{statistics.mean(f1):.2f}{spread}", apart, more,
            f"{statistics.median(x['seconds'] for x in found):.1f}",
        ])  # fmt: skip
    head = ("case", "side", "rate", "steps", "F1", "to transformers", "also", "seconds")
    return table(head, lines)


def device(args: Any) -> str:
    """The machine, in words."""
    return torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device


if __name__ == "__main__":
    main()
