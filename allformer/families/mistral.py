"""Mistral (Jiang et al., 2023): LLaMA's shape, and a window: 4,096 tokens, of which the last is the
query's own. Versions 0.2 and later have none (`sliding_window: null`)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from allformer.config import DecoderOnly, Full, Mixer, Window
from allformer.families import llama
from allformer.families.family import Family, architectures, expect, fit, named, one
from allformer.families.fields import Fields
from allformer.families.kinds import SIZE
from allformer.families.weights import WeightMap

ARCHITECTURES = architectures(
    "Mistral", "ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification",
    "ForQuestionAnswering",
)  # fmt: skip
USUAL = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000,
    "intermediate_size": 14336, "attention_dropout": 0.0, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
GROUPS, WINDOW, LENGTH = 8, 4096, 131_072  # where config.json says nothing
sizes = partial(named, "vocab_size max_position_embeddings rope_theta sliding_window rms_norm_eps")
PRESETS = {
    "mistral-7b": sizes(32000, 32768, 10_000.0, 4096, 1e-5),
    "mistral-7b-v0.2": sizes(32000, 32768, 1e6, None, 1e-5),
    "mistral-7b-v0.3": sizes(32768, 32768, 1e6, None, 1e-5),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> DecoderOnly:
    """config.json → the tree."""
    heads = fields.take("num_attention_heads")
    groups = _take(fields, "num_key_value_heads", GROUPS)
    window = _take(fields, "sliding_window", WINDOW)
    return llama.read_like(
        fields,
        ARCHITECTURES[architecture],
        heads if groups is None else groups,
        mixer=Full() if window is None else Window(window - 1),
        length=LENGTH,
    )


def _take(fields: Fields, name: str, absent: int) -> int | None:
    """A field of which null means something else than its absence."""
    value: int | None = fields.take(name, None if name in fields.raw else absent, kind=SIZE)
    return value


def write(model: DecoderOnly) -> dict[str, Any]:
    """The tree → config.json, as transformers 5 writes it."""
    raw = llama.write(model)
    for name in ("attention_bias", "mlp_bias"):
        expect(not raw.pop(name), f"has a bias ({name}), which a Mistral has not")
    mixer: Mixer = one([block.attention.mixer for block in model.decoder.blocks], "mixer")
    if mixer == Full():
        return {**raw, "sliding_window": None}
    window = fit(mixer, Window, "has neither full attention nor a window")
    return {**raw, "sliding_window": window.left + 1}


def weights(model: DecoderOnly, architecture: str) -> WeightMap:
    """The map of a Mistral file: LLaMA's, but for the name of the body below a head for answers."""
    return llama.weights(model, architecture, answers="model.")


FAMILY = Family("mistral", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="model.")
