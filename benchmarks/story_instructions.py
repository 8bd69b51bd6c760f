"""Instructions for a story-teller, out of its own stories: "Write a story with the words: …".

    python benchmarks/story_instructions.py stories15M --out stories.jsonl --count 2000 --seed 1

A model of llama2.c's family tells stories and understands nothing else. It is asked for many; of
each finished one three of its own rarer words become the instruction and the story the answer. What
is learnt from them is the form, not new words: the answers are the model's own.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.load import load
from allformer.text.load import load_tokenizer

ASKED = "Write a story with the words: {}"
WORDS = 3  # of an instruction
ROWS = 32  # stories at a time
_WORD = re.compile(r"\b[a-z]{3,}\b")


def main() -> None:
    """Parse, tell, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a directory, or a hub id")
    parser.add_argument("--out", type=Path, default=Path("stories.jsonl"))
    parser.add_argument("--count", type=int, default=2000, help="stories")
    parser.add_argument("--tokens", type=int, default=200, help="of a story at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    path = find_checkpoint(asked.model)
    model, tokenizer = load(path, device=asked.device), load_tokenizer(path)
    told = list(stories(model, tokenizer, asked.count, asked.tokens, asked.seed))
    write_records(asked.out, instructions(told, asked.seed))
    print(f"{asked.out}: {asked.count:,} stories", file=sys.stderr)


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """A JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def stories(
    model: Any, tokenizer: Any, count: int, tokens: int, seed: int, rows: int = ROWS
) -> Iterator[str]:
    """Finished ones alone: a story without an end teaches none."""
    generator = torch.Generator(model.device).manual_seed(seed)
    begin = torch.full((rows, 1), tokenizer.bos_id, device=model.device)
    ends = [tokenizer.bos_id, tokenizer.eos_id]  # llama2.c's end where the next would begin
    while count > 0:
        found = model.generate(
            begin, max_new_tokens=tokens, do_sample=True, temperature=0.9, top_p=0.95,
            eos_token_id=ends, pad_token_id=tokenizer.eos_id, generator=generator,
        )  # fmt: skip
        for row in found[:, 1:].tolist():
            end = next((i for i, token in enumerate(row) if token in ends), None)
            if end and count > 0:
                count -= 1
                yield tokenizer.decode(row[:end]).strip()


def instructions(told: list[str], seed: int) -> Iterator[dict[str, str]]:
    """Each story with three of its words that few others have, in the order of chance."""
    draw, found = random.Random(seed), [sorted(set(_WORD.findall(text))) for text in told]
    common = Counter(word for words in found for word in words)
    for text, words in zip(told, found, strict=True):
        rare = sorted(words, key=lambda word: common[word])[: 4 * WORDS]
        chosen = draw.sample(rare, min(WORDS, len(rare)))
        yield {"instruction": ASKED.format(", ".join(chosen)), "input": "", "output": text}


if __name__ == "__main__":
    main()
