"""A story-teller's whole road: instructions, then DPO, PPO and GRPO for one reward, side by side.

    python benchmarks/story_rewards.py stories15M --sentiment runs/sentiment:positive --out road
    python benchmarks/story_rewards.py stories260K --quick --device cpu          # whether it runs

The model of llama2.c's family tells stories for instructions (`story_instructions.py`), is tuned on
them, tells four stories for each of some instructions, and learns from the best and the worst (DPO)
or from rewards for stories of its own (PPO, GRPO), each by its recipe, with the same rewards: the
share of the asked words in a story, and how sure a classifier is that it is a happy one. Then each
tells one story for each of the instructions that nothing was trained on, by the same draws. KL is
from the model that was tuned on instructions, in nats for each token; `wins` are stories with a
higher reward than that model's, ties half. What is there in `--out` is not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from story_instructions import instructions, stories, write_records
from story_pairs import TOKENS, USED, Teller, Told, instructions_of, judged, open_rewards, pairs

from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.load import load
from allformer.text.load import load_tokenizer
from allformer.train.batch import moved
from allformer.train.loop import train
from allformer.train.policy.rewards import Rewards
from allformer.train.preferences.reference import divergence, has_base, without_adapters
from allformer.train.preferences.said import lay_said
from allformer.train.recipe import read_recipe

RECIPES = Path(__file__).parents[1] / "recipes"
ROADS = ("dpo", "ppo", "grpo")
LONG = 512  # positions of a model whose stories have many tokens
SHOWN = 2  # instructions whose stories are printed
_OWN = ["data.hold_out=2", "data.max_length=128", "objective.sampling={length: 100}"]
QUICK = {
    "instruct": ["train.epochs=1", "data.hold_out=4", f"data.max_length={LONG}"],
    "dpo": ["train.epochs=1", "data.hold_out=2", f"data.max_length={LONG}"],
    "ppo": [*_OWN, "train.steps=4", "objective.prompts=4", "train.validate_every=2"],
    "grpo": [*_OWN, "train.steps=2", "objective.prompts=2", "objective.group=2"],
}


class Row(NamedTuple):
    """What a model's stories are like, and what its training took."""

    name: str
    scores: torch.Tensor  # R K
    reward: torch.Tensor  # R
    kl: float
    tokens: float
    ended: float
    seconds: float


def main() -> None:
    """Parse, walk, tell, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a directory, or a hub id")
    parser.add_argument("--sentiment", help="a classifier's run and its good label: DIR:positive")
    parser.add_argument("--out", type=Path, default=Path("road"))
    parser.add_argument("--count", type=int, default=2000, help="instructions")
    parser.add_argument("--held", type=int, default=128, help="of them nothing is trained on")
    parser.add_argument("--pairs", type=int, default=600, help="instructions for DPO's pairs")
    parser.add_argument("--only", choices=ROADS, action="append", help="default: all three")
    parser.add_argument("--set", action="append", default=[], help="grpo:optim.rate=1e-3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small, to see whether it runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    if asked.quick:
        asked.count, asked.held, asked.pairs = 24, 4, 12
    given = [f"{USED}:used", *([asked.sentiment] if asked.sentiment else [])]
    walk = Walk(asked, given)
    begun = walk.instruct()
    rows = [walk.row("instructions", begun, walk.took(begun))]
    for name in asked.only or ROADS:
        run = walk.tune(name, begun)
        rows.append(walk.row(name, run, walk.took(run)))
    print_table(rows, walk.rewards)
    walk.print_stories()


class Walk:
    """The road in one directory."""

    def __init__(self, asked: Any, rewards: Sequence[str]) -> None:
        self.asked, self.given = asked, list(rewards)
        self.out: Path = asked.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.rewards = open_rewards(self.given, asked.device)
        self.length = 100 if asked.quick else TOKENS
        self.told: dict[str, list[Told]] = {}
        self.data, self.held = self._instructions()

    def _instructions(self) -> tuple[Path, list[str]]:
        """Those to train on, and those that are held out; told by the model itself."""
        data, held = self.out / "stories.jsonl", self.out / "held.jsonl"
        if not held.is_file():
            path, asked = find_checkpoint(self.asked.model), self.asked
            model, tokenizer = load(path, device=asked.device), load_tokenizer(path)
            count, rows = asked.count + asked.held, 16 if asked.quick else 256
            longest = model.config.decoder.longest or LONG
            tokens = TOKENS if longest < LONG else LONG - 32  # small vocabularies: many tokens
            told = list(stories(model, tokenizer, count, tokens, asked.seed, rows))
            records = list(instructions(told, asked.seed))
            write_records(data, records[: asked.count])
            write_records(held, records[asked.count :])
        return data, instructions_of(held)

    def _train(self, name: str, overrides: Sequence[str]) -> Path:
        run = self.out / name
        if (run / "predictions.json").is_file():
            return run
        more = [x.partition(":")[2] for x in self.asked.set if x.startswith(f"{name}:")]
        quick = QUICK[name] if self.asked.quick else []
        file = RECIPES / f"stories-{name}.yaml"
        recipe = read_recipe(file, [*overrides, *quick, *more])
        begin = time.perf_counter()
        train(recipe, run, device=self.asked.device, compile=False)
        (run / "took.json").write_text(json.dumps(time.perf_counter() - begin))
        return run

    def took(self, run: Path) -> float:
        """Seconds of its training."""
        return float(json.loads((run / "took.json").read_text()))

    def instruct(self) -> Path:
        """Tune on instructions."""
        base = find_checkpoint(self.asked.model).resolve()
        return self._train("instruct", [f"data.path={self.data}", f"model.checkpoint={base}"])

    def tune(self, name: str, begun: Path) -> Path:
        """One of the three, from there."""
        overrides = [f"model.checkpoint={begun.resolve()}"]
        if name == "dpo":
            return self._train(name, [*overrides, f"data.path={self._pairs(begun)}"])
        told = f"objective.rewards={json.dumps(self.given)}"
        return self._train(name, [*overrides, f"data.path={self.data}", told])

    def _pairs(self, begun: Path) -> Path:
        path = self.out / "pairs.jsonl"
        if not path.is_file():
            prompts = instructions_of(self.data)[: self.asked.pairs]
            teller = Teller(begun, self.asked.device)
            told = list(teller.tell(prompts, copies=4, seed=self.asked.seed, length=self.length))
            found = list(pairs(told, self.rewards))
            if not found:
                raise SystemExit("no two stories of an instruction differ in reward: raise --pairs")
            write_records(path, found)
        return path

    def row(self, name: str, run: Path, seconds: float) -> Row:
        """One story for each held-out instruction, judged."""
        teller = Teller(run, self.asked.device)
        told = list(teller.tell(self.held, seed=self.asked.seed + 1000, length=self.length))
        self.told[name] = told
        scores = judged(self.rewards, told)
        return Row(
            name, scores, self.rewards.total(scores), _divergence(teller.model, told),
            float(np.mean([len(each.answers[0]) for each in told])),
            float(np.mean([each.ended[0] for each in told])), seconds,
        )  # fmt: skip

    def print_stories(self) -> None:
        """The same instructions, by all of them."""
        for number in range(min(SHOWN, len(self.held))):
            print(f"\n{self.held[number]}")
            for name, told in self.told.items():
                print(f"  {name}: {' '.join(told[number].stories[0].split())}")


@torch.no_grad()
def _divergence(model: Any, told: Sequence[Told]) -> float:
    """KL from the model without its adapters, the mean over tokens and stories."""
    if not has_base(model):
        return 0.0
    found = []
    for begin in range(0, len(told), 32):
        rows = [
            (
                np.array(each.ids + each.answers[0]),
                np.repeat([0, 1], [len(each.ids), len(each.answers[0])]),
            )
            for each in told[begin : begin + 32]
        ]
        said = moved(lay_said(rows), model.device)  # type: ignore[type-var]
        found.append(divergence(model, lambda: without_adapters(model), said).cpu())
    return float(torch.cat(found).mean())


def print_table(rows: Sequence[Row], rewards: Rewards) -> None:
    """A line for each model."""
    names = list(rewards.names)
    heads = ["", "reward", *names, "KL/token", "wins", "tokens", "ended", "training s"]
    lines = [heads]
    for row in rows:
        gap = row.reward - rows[0].reward
        won = ((gap > 0).double() + (gap == 0).double() / 2).mean().item()
        parts = [f"{x:.3f}" for x in (row.reward.mean().item(), *row.scores.mean(0).tolist())]
        lines.append(
            [row.name, *parts, f"{row.kl:.4f}", "–" if row is rows[0] else f"{won:.0%}",
             f"{row.tokens:.0f}", f"{row.ended:.0%}", f"{row.seconds:.0f}"]
        )  # fmt: skip
    wide = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    print(f"\nstories for {len(rows[0].reward)} held-out instructions")
    for line in lines:
        print("  ".join(x.ljust(w) if not i else x.rjust(w) for i, (x, w) in
                        enumerate(zip(line, wide, strict=True))))  # fmt: skip


if __name__ == "__main__":
    main()
