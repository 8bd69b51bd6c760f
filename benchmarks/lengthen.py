"""A masked language model of 512 tokens, lengthened to 4,096: what the longer context is worth.

    python benchmarks/lengthen.py --data wikitext-2
    python benchmarks/lengthen.py --data wikitext-2 --steps 20 --more 5 --device cpu \\
        --set model.dim=32 --set model.layers=1 --set train.batch_tokens=4096
    python benchmarks/lengthen.py --data wikitext-2 --model all-MiniLM-L6-v2 --rate 4e-4 \\
        --steps 200 --more 100 --articles 30 --draws 1 --set train.batch_tokens=8192

1. recipes/wikitext-2-masked-lm.yaml with full attention over rows of 512, --steps of them; with
   --model a trained body goes on instead of fresh weights.
2. `af.lengthen(model, 4096, mixer=Window(256, 256))`; --more steps on rows of 4,096.
3. For comparison the model of 1, as many steps more on rows of 512: the same tokens seen.
4. Perplexity of 15 % of the words of the validation articles, hidden, the same ones for all (four
   draws), when an article is cut into pieces of 512 tokens and of more.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from side_by_side import table, write_result

import allformer as af
from allformer.checkpoint.run import load_run, save_run
from allformer.config import Window
from allformer.core.kernels import flex
from allformer.evaluate.windows import token_scores
from allformer.train.loop import open_objective, train
from allformer.train.objectives.words import Marks
from allformer.train.recipe import make_recipe, read_recipe
from allformer.train.sections.vocabulary import Vocabulary

RECIPE = Path(__file__).parents[1] / "recipes" / "wikitext-2-masked-lm.yaml"
SHORT, LONG = 512, 4096
CONTEXTS = (512, 1024, 2048, 4096)
_SHARE, _DRAWS = 0.15, 4


def begun(args: Any) -> Any:
    """The recipe over rows of 512."""
    given = read_recipe(RECIPE, [f"data.path={args.data}"]).plain()
    # BERT's form: what is lengthened opens in transformers
    given["model"] = {**given["model"], "norm_at": "post"}
    if args.model:
        given["model"] = given["tokenizer"] = {"checkpoint": args.model}
    changes = [f"data.max_length={SHORT}", f"optim.rate={args.rate}", "train.batch_tokens=16384"]
    return make_recipe(given, [*changes, *_steps(args.steps), *args.set])


def goes_on(recipe: Any, checkpoint: Path, length: int, args: Any) -> Any:
    """The same, with trained weights and a lower rate."""
    given = {**recipe.plain(), "model": {"checkpoint": str(checkpoint)}}
    given["tokenizer"] = {"checkpoint": str(checkpoint)}
    changes = [f"data.max_length={length}", f"optim.rate={0.3 * args.rate}"]
    return make_recipe(given, [*changes, *_steps(args.more)])


def _steps(count: int) -> list[str]:
    names = ("steps", "save_every", "validate_every")
    found = [*(f"train.{name}={count}" for name in names), "log.tensorboard=false"]
    return [*found, f"schedule.warmup={min(500, max(1, count // 10))}"]


def articles(recipe: Any, tokenizer: Any) -> list[Any]:
    """The ids of the validation articles, in pieces of what the longest context holds."""
    objective = open_objective(recipe)
    objective.encode(tokenizer, _say)
    rows = objective.encoded.validation["ids"]
    return [piece for i in range(len(rows)) for piece in _pieces(rows[i], LONG)]


def _pieces(ids: Any, length: int) -> Iterator[Any]:
    """So many tokens at a time, without the two marks around them."""
    for begin in range(0, len(ids), length - 2):
        yield np.asarray(ids[begin : begin + length - 2], np.int64)


@torch.inference_mode()
def perplexity(model: Any, tokenizer: Any, texts: list[Any], length: int, seeds: int) -> float:
    """Of hidden words; which they are depends on the seed and the text alone."""
    marks, mask = Marks.of(Vocabulary.of(tokenizer)), tokenizer.mask_id
    model.eval()
    nll, count = 0.0, 0
    for seed in range(seeds):
        for number, text in enumerate(texts):
            hidden = np.random.default_rng([seed, number]).random(len(text)) < _SHARE
            read = np.where(hidden, mask, text)
            for part, gaps, ids in zip(
                *(_pieces(x, length) for x in (read, hidden, text)), strict=True
            ):
                row = torch.tensor([[marks.begin, *part, marks.end]], device=model.device)
                *_, states = model.states(input_ids=row).values()
                places = torch.from_numpy(np.flatnonzero(gaps) + 1)
                wanted = torch.from_numpy(ids[gaps.astype(bool)])
                found, _ = token_scores(model, states[0, places.to(model.device)], wanted)
                nll, count = nll + float(found.sum()), count + len(wanted)
    return math.exp(nll / max(1, count))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def work(args: Any) -> dict[str, Any]:
    """Train, lengthen, train on, and judge."""
    flex.SHAPES = 1  # training has a kernel of its own, articles of all lengths share one
    for name in ("short", "long", "short-on", "long-on"):
        shutil.rmtree(args.out / name, ignore_errors=True)
    recipe = begun(args)
    short = train(recipe, args.out / "short", device=args.device).run
    long = af.lengthen(load_run(short.path).model, LONG, mixer=Window(args.window, args.window))
    (args.out / "long").mkdir(parents=True)
    save_run(args.out / "long", long, short.tokenizer)
    models = {"full attention, 512": (short.model, (SHORT,))}
    models["lengthened, not yet trained"] = (long.to(args.device), CONTEXTS)
    if args.more:
        for name, length, said in (
            ("short", SHORT, "full attention, 512, trained on"),
            ("long", LONG, "lengthened, trained on"),
        ):
            asked = goes_on(recipe, args.out / name, length, args)
            run = train(asked, args.out / f"{name}-on", device=args.device, compile=False).run
            models[said] = (run.model, (SHORT,) if name == "short" else CONTEXTS)
    texts = articles(recipe, short.tokenizer)[: args.articles]
    return {
        name: {n: perplexity(model, short.tokenizer, texts, n, args.draws) for n in contexts}
        for name, (model, contexts) in models.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="a folder with WikiText-2")
    parser.add_argument("--model", help="a trained encoder to begin with: a directory, or a hub id")
    parser.add_argument("--rate", type=float, default=1e-3, help="0.3 of it after lengthening")
    parser.add_argument("--out", type=Path, default=Path("runs/lengthen-bench"))
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--more", type=int, default=600, help="steps after lengthening; 0: none")
    parser.add_argument("--window", type=int, default=256, help="on either side")
    parser.add_argument("--draws", type=int, default=_DRAWS, help="of the hidden words")
    parser.add_argument("--articles", type=int, help="only so many pieces of 4,096")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--set", action="append", default=[], help="change the recipe")
    parser.add_argument("--result", help="where the figures go, as JSON")
    args = parser.parse_args()
    args.data, args.out = args.data.absolute(), args.out.absolute()
    found = work(args)
    rows = [[name, *(f"{each[n]:.2f}" if n in each else "–" for n in CONTEXTS)]
            for name, each in found.items()]  # fmt: skip
    print(f"{args.steps} + {args.more} steps, perplexity of hidden words by context, {args.device}")
    print(table(["model", *(f"{n:,}" for n in CONTEXTS)], rows))
    write_result(args.result, {"steps": args.steps, "more": args.more, "perplexity": found})


if __name__ == "__main__":
    main()
