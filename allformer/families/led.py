"""LED (Beltagy et al., 2020): BART whose encoder looks through windows, with global tokens.

Positions begin at row 0, and encoder and decoder have tables of unequal length.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import EncoderDecoder, Learned
from allformer.families import bart, fairseq, fairseq_map, layer_map
from allformer.families.fairseq import Style, sizes
from allformer.families.fairseq_config import read_fairseq, same, write_fairseq
from allformer.families.family import Family, architectures, fit
from allformer.families.fields import Fields
from allformer.families.weights import WeightMap
from allformer.families.windows import read_windows, without_windows

ARCHITECTURES = architectures("LED", "ForConditionalGeneration", "Model", "ForQuestionAnswering")
STYLE = Style(
    "LED", "post", lambda n: Learned(n, count="all"), source_norm=True,
    length="max_{side}_position_embeddings",
)  # fmt: skip
_OWN = {
    "max_encoder_position_embeddings": 16_384, "max_decoder_position_embeddings": 1024,
    "attention_window": 512, "decoder_start_token_id": 2,
}  # fmt: skip
USUAL = {k: v for k, v in fairseq.USUAL.items() if k != "max_position_embeddings"} | _OWN
_WIDE = {"attention_window": 1024}
PRESETS = {
    "led-base-16384": sizes(768, 6, 12, 3072) | _WIDE,
    "led-large-16384": sizes(1024, 12, 16, 4096) | _WIDE,
}
_SELF = "self_attn.longformer_self_attn"
_PROJECTIONS = ("query", "key", "value", "query_global", "key_global", "value_global")
LAYER: layer_map.Names = {
    **fairseq_map.LAYER,
    "attention.qkv": tuple(f"{_SELF}.{name}" for name in _PROJECTIONS),
    "attention.out": "self_attn.output",
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderDecoder:
    """config.json → the tree."""
    fields.must("scale_embedding", False)
    model = read_fairseq(STYLE, fields, ARCHITECTURES[architecture], keys)
    return replace(model, encoder=read_windows(fields, model.encoder))


def write(model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    model = fit(model, EncoderDecoder, "is not an encoder-decoder")
    stack, windows = without_windows(model.encoder)
    raw = write_fairseq(STYLE, replace(model, encoder=stack))
    bart.check_tables(model)
    del raw["scale_embedding"]
    return {**raw, **windows}


def weights(model: EncoderDecoder, architecture: str) -> WeightMap:
    """The map of a LED file."""
    return fairseq_map.weights(model, architecture, "led.", LAYER)


FAMILY = Family(
    "led", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="led.",
    same=same, tables=layer_map.TABLES, fresh={"forced_eos_token_id": None},
)  # fmt: skip
