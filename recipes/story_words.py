"""A reward for stories: the share of the asked words that a story uses.

objective: {is: grpo, rewards: [recipes/story_words.py:used]}
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"[a-z']+")


def used(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """`used(["Write a story with the words: cat, rain"], ["A cat sat."])` → [0.5]."""
    return [_share(asked, story) for asked, story in zip(prompts, completions, strict=True)]


def _share(asked: str, story: str) -> float:
    """As they stand: a plural is another word."""
    words = _WORD.findall(asked.rpartition(":")[2].lower())
    there = set(_WORD.findall(story.lower()))
    return sum(word in there for word in words) / max(1, len(words))
