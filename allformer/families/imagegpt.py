"""ImageGPT (Chen et al., 2020): GPT-2 over the pixels of an image, each the number of a colour.

Its norms have no mean and no bias, it reads one token more than it says (the one that an image
begins with), and its classifier reads the mean of all states.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from allformer.config import ColourHead, DecoderOnly, Head, LMHead
from allformer.families import gpt2, layer_map
from allformer.families.family import Family, architectures, expect, fit, head_kind, named
from allformer.families.fields import Fields
from allformer.families.heads import class_head, head_weights
from allformer.families.weights import Same, WeightMap

ARCHITECTURES = architectures(
    "ImageGPT", "ForCausalImageModeling", "Model", "ForImageClassification"
)
USUAL = {
    **gpt2.USUAL, "vocab_size": 513, "n_positions": 1024, "n_embd": 512, "n_layer": 24,
    "n_head": 8, "activation_function": "quick_gelu", "bos_token_id": None, "eos_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
_sizes = partial(named, "n_embd n_layer n_head")
PRESETS = {
    "imagegpt-small": _sizes(512, 24, 8),
    "imagegpt-medium": _sizes(1024, 36, 8),
    "imagegpt-large": _sizes(1536, 48, 16),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> DecoderOnly:
    """config.json → the tree."""
    stack = gpt2.read_stack(fields, "rms", "all")
    tied = fields.take("tie_word_embeddings")
    head: Head | None = None
    match ARCHITECTURES[architecture]:
        case "words":  # tied, transformers has a score for the first token of an image too
            head = LMHead() if tied else ColourHead()
        case "class":
            head = class_head(fields, "mean", bias=False)
    return DecoderOnly(stack, head)


def write(model: DecoderOnly) -> dict[str, Any]:
    """The tree → config.json."""
    stack = fit(model, DecoderOnly, "is not a decoder").decoder
    expect(stack.blocks[0].norm.kind == "rms", "has norms with a mean")
    said = gpt2.write_stack(stack)
    tied = isinstance(model.head, LMHead) and model.head.tied
    return {**said, "tie_word_embeddings": tied} if kind(model) == "words" else said


def kind(model: Any) -> str:
    """A head over colours says words, as one over all tokens does."""
    return "words" if isinstance(model.head, ColourHead) else head_kind(model)


def weights(model: DecoderOnly, architecture: str) -> WeightMap:
    """The map of an ImageGPT file."""
    base = "" if model.head is None else "transformer."
    return [
        Same("decoder.source.embedding.weight", f"{base}wte.weight"),
        Same("decoder.source.position.weight", f"{base}wpe.weight"),
        *layer_map.layers(model.decoder, "decoder", f"{base}h", gpt2.LAYER, transposed=True),
        Same("decoder.final_norm.weight", f"{base}ln_f.weight"),
        *head_weights(model.head, f"{base}wte.weight", "score"),
    ]


FAMILY = Family(
    "imagegpt", ARCHITECTURES, USUAL, PRESETS, read, write, weights, "transformer.", kind=kind
)
