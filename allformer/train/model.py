"""The config tree that a recipe's model section asks for."""

from __future__ import annotations

from dataclasses import asdict

from allformer.config import EncoderDecoder
from allformer.families.original import transformer
from allformer.train.recipe import ModelRecipe


def model_config(model: ModelRecipe, vocab: int) -> EncoderDecoder:
    """`model_config(recipe.model, tokenizer.vocab_size)`; sines before cosines, as Marian has."""
    return transformer(**asdict(model), vocab=vocab, layout="halves")
