"""What the values of a recipe may be; all of it is checked before any work is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from allformer.errors import ConfigError
from allformer.text.tokenizer import KINDS, SPECIALS
from allformer.train.model import model_config
from allformer.train.schedule import SCHEDULES

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
CHOICES: dict[str, Sequence[str]] = {
    "tokenizer.kind": KINDS, "train.schedule": SCHEDULES, "train.precision": PRECISIONS,
}  # fmt: skip
LEAST = {
    "data.max_length": 2, "data.hold_out": 1, "tokenizer.vocab": len(SPECIALS) + 2,
    "train.steps": 1, "train.batch_tokens": 1, "train.accumulate": 1, "train.pool": 0,
    "train.warmup": 1, "train.validate_every": 1, "train.save_every": 1, "train.average": 1,
    "train.log_every": 1, "train.seed": 0, "train.weight_decay": 0.0, "decode.beams": 1,
}  # fmt: skip
MOST = {"train.seed": 2**63 - 1, "decode.beams": 1000}
POSITIVE = ("train.rate", "train.clip")
FINITE = (*POSITIVE, "train.weight_decay", "decode.length_penalty")


def check_recipe(recipe: Any) -> None:
    """Refuse the first value that cannot work, by its name in the recipe."""
    for name, choices in CHOICES.items():
        if get(recipe, name) not in choices:
            value = get(recipe, name)
            raise ConfigError(f"{name}={value!r} is not a choice; try {', '.join(choices)}")
    for name in FINITE:
        if not math.isfinite(get(recipe, name)):
            raise ConfigError(f"{name}={get(recipe, name)} must be a finite number; try 1.0")
    for name, least in LEAST.items():
        value = get(recipe, name)
        if value is not None and value < least:
            raise ConfigError(f"{name}={value} must be at least {least}; try {least} or more")
    for name, most in MOST.items():
        if get(recipe, name) > most:
            raise ConfigError(f"{name}={get(recipe, name)} must be at most {most}; try less")
    for name in POSITIVE:
        if not get(recipe, name) > 0:
            raise ConfigError(f"{name}={get(recipe, name)} must be positive; try 1e-3 or 1.0")
    if not 0 <= recipe.train.smoothing < 1:
        raise ConfigError(f"train.smoothing={recipe.train.smoothing} must be in 0 … 1; try 0.1")
    _check_dropout(recipe.tokenizer)
    model_config(recipe.model, recipe.tokenizer.vocab)


def get(recipe: Any, name: str) -> Any:
    """`get(recipe, "train.steps")`."""
    section, key = name.split(".")
    return getattr(getattr(recipe, section), key)


def _check_dropout(tokenizer: Any) -> None:
    if not 0 <= tokenizer.dropout <= 1:
        raise ConfigError(f"tokenizer.dropout={tokenizer.dropout} must be in 0 … 1; 0.1 is usual")
    if tokenizer.dropout and tokenizer.kind != "bpe":
        raise ConfigError(
            f"tokenizer.dropout={tokenizer.dropout} needs tokenizer.kind=bpe, not "
            f"{tokenizer.kind}; set it to 0"
        )
