"""Pairs for DPO, out of a story-teller's own stories: of several drawn for an instruction, the one
with the highest reward and the one with the lowest.

    python benchmarks/story_pairs.py runs/stories-instruct --data stories.jsonl --out pairs.jsonl \
        --reward recipes/story_words.py:used --reward runs/sentiment:positive
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from story_instructions import write_records

from allformer.checkpoint.load import load
from allformer.data.prompts import read_prompt
from allformer.text.answers import Answers
from allformer.text.chat_default import with_chat
from allformer.text.load import load_tokenizer
from allformer.train.policy.rewards import Answered, Rewards, read_rewards
from allformer.train.policy.rollout import Sampling, draw_answers

TOKENS = 200  # of a story at most: with its instruction it has 256 positions
PROMPTS = 64  # at a time
USED = Path(__file__).parents[1] / "recipes" / "story_words.py"


class Told(NamedTuple):
    """Stories for one instruction: texts, ids, and whether they came to an end."""

    prompt: str
    ids: list[int]  # of the prompt, in the template
    stories: list[str]
    answers: list[list[int]]
    ended: list[bool]


class Teller:
    """`Teller("runs/stories-instruct", "cuda").tell(prompts, copies=4, seed=1)`."""

    def __init__(self, path: str | Path, device: str) -> None:
        self.model: Any = load(path, device=device).eval()
        self.tokenizer = with_chat(load_tokenizer(path))
        self.answers = Answers(self.tokenizer)
        self.ends = [self.tokenizer.special_ids["eos"]]

    def tell(
        self, prompts: Sequence[str], *, copies: int = 1, seed: int = 0, length: int = TOKENS
    ) -> Iterator[Told]:
        """Stories as a rollout draws them."""
        for begin in range(0, len(prompts), PROMPTS):
            some = prompts[begin : begin + PROMPTS]
            asked = [self.answers.ask([{"role": "user", "content": prompt}]) for prompt in some]
            ids = [each.ids for each in self.answers.encode(asked)]
            drawn = draw_answers(
                self.model, [np.array(row) for row in ids], Sampling(length=length),
                ends=self.ends, copies=copies, seed=seed + begin,
            )  # fmt: skip
            texts = self.tokenizer.decode_batch([row.tolist() for row in drawn.answers])
            for number, prompt in enumerate(some):
                own = slice(number * copies, (number + 1) * copies)
                rows = [row.tolist() for row in drawn.answers[own]]
                yield Told(prompt, ids[number], texts[own], rows, drawn.ended[own])


def instructions_of(path: Path) -> list[str]:
    """What is asked in a file of records, each once."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(read_prompt(json.loads(line)).question for line in lines))


def open_rewards(given: Sequence[Any], device: str) -> Rewards:
    """Ready to judge."""
    rewards = Rewards(read_rewards(given))
    rewards.check()
    rewards.open(torch.device(device))
    return rewards


def judged(rewards: Rewards, told: Sequence[Told]) -> torch.Tensor:
    """What each reward makes of every story, in their order: R K."""
    return rewards([Answered(each.prompt, text) for each in told for text in each.stories])


def pairs(told: Sequence[Told], rewards: Rewards) -> Iterator[dict[str, str]]:
    """The best and the worst of each, where they differ."""
    scores = rewards.total(judged(rewards, told)).split([len(each.stories) for each in told])
    for each, score in zip(told, scores, strict=True):
        best, worst = int(score.argmax()), int(score.argmin())
        if score[best] > score[worst]:
            yield {
                "prompt": each.prompt,
                "chosen": each.stories[best].strip(),
                "rejected": each.stories[worst].strip(),
            }


def main() -> None:
    """Parse, tell, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a run that follows instructions")
    parser.add_argument("--data", type=Path, required=True, help="instructions, as JSONL")
    parser.add_argument("--reward", action="append", help="default: the words used alone")
    parser.add_argument("--out", type=Path, default=Path("pairs.jsonl"))
    parser.add_argument("--count", type=int, default=800, help="instructions")
    parser.add_argument("--copies", type=int, default=4, help="stories for each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    teller = Teller(asked.model, asked.device)
    prompts = instructions_of(asked.data)[: asked.count]
    told = list(teller.tell(prompts, copies=asked.copies, seed=asked.seed))
    found = list(pairs(told, open_rewards(asked.reward or [f"{USED}:used"], asked.device)))
    write_records(asked.out, found)
    print(f"{asked.out}: {len(found):,} pairs of {len(prompts):,} instructions", file=sys.stderr)


if __name__ == "__main__":
    main()
