"""The run's tokeniser: trained on its texts, a checkpoint's, or that of the run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.load import read_config_of
from allformer.checkpoint.older_run import own_tokenizer
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import Tokenizer, train_tokenizer
from allformer.train.objectives.objective import Objective, Say
from allformer.train.sections.common import CheckpointTokenizer, TokenizerRecipe
from allformer.train.sections.vocabulary import Vocabulary


def make_tokenizer(objective: Objective[Any, Any], say: Say) -> Tokenizer:
    """As the recipe says: `make_tokenizer(objective, print)`."""
    asked = objective.recipe.tokenizer
    if isinstance(asked, CheckpointTokenizer):
        tokenizer = objective.tokenizer(load_tokenizer(find_checkpoint(asked.checkpoint)))
        say(f"tokeniser: {asked.checkpoint}'s, {tokenizer.vocab_size:,} pieces")
        return tokenizer
    assert isinstance(asked, TokenizerRecipe)
    trained = train_tokenizer(
        objective.texts(),
        asked.kind,
        asked.vocab,
        lowercase=asked.lowercase,
        specials=objective.specials,
    )
    tokenizer = objective.tokenizer(trained)
    say(f"tokeniser: {asked.kind}, {tokenizer.vocab_size:,} pieces")
    return tokenizer


def run_tokenizer(
    objective: Objective[Any, Any], run: Path, resume: bool, say: Say
) -> Tokenizer | None:
    """That of a new run, or of one which goes on; None where the objective has no words."""
    if not objective.words:
        return None
    if resume:
        return own_tokenizer(run, read_config_of(run / "config.json"))
    return make_tokenizer(objective, say)


def vocabulary_of(tokenizer: Tokenizer | None) -> Vocabulary | None:
    """What a config tree has to know of it."""
    return None if tokenizer is None else Vocabulary.of(tokenizer)


def expected(objective: Objective[Any, Any]) -> Vocabulary | None:
    """A vocabulary to check the model with, before there is a tokeniser."""
    if not objective.words:
        return None
    asked = objective.recipe.tokenizer
    if isinstance(asked, CheckpointTokenizer):
        return Vocabulary.of(load_tokenizer(find_checkpoint(asked.checkpoint)))
    return Vocabulary(asked.room)
