"""T5 (Raffel et al., 2020) and T5 v1.1: RMSNorm, no biases, unscaled scores, bucketed distances."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from allformer.families.family import Family, architectures, named
from allformer.families.layer_map import TABLES
from allformer.families.prompts import Prompts
from allformer.families.t5_config import Style, kind_of, read_t5, same, write_t5
from allformer.families.t5_map import weights

CLASSES = (
    "ForConditionalGeneration", "Model", "EncoderModel", "ForSequenceClassification",
    "ForTokenClassification", "ForQuestionAnswering",
    "WithLMHeadModel",  # the first published files
)  # fmt: skip
USUAL = {
    "vocab_size": 32_128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
    "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
    "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu",
    "tie_word_embeddings": True, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
_sizes = partial(named, "d_model num_layers num_heads d_ff d_kv decoder_start_token_id")
# Of v1.1, and of mT5: gated, with an output table of their own.
_OWN = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
GATED = {
    "small": _sizes(512, 8, 6, 1024, 64, 0) | _OWN,
    "base": _sizes(768, 12, 12, 2048, 64, 0) | _OWN,
    "large": _sizes(1024, 24, 16, 2816, 64, 0) | _OWN,
    "xl": _sizes(2048, 24, 32, 5120, 64, 0) | _OWN,
    "xxl": _sizes(4096, 24, 64, 10_240, 64, 0) | _OWN,
}
PRESETS = {
    "t5-small": _sizes(512, 6, 8, 2048, 64, 0),
    "t5-base": _sizes(768, 12, 12, 3072, 64, 0),
    "t5-large": _sizes(1024, 24, 16, 4096, 64, 0),
    "t5-3b": _sizes(1024, 24, 32, 16_384, 128, 0),
    "t5-11b": _sizes(1024, 24, 128, 65_536, 128, 0),
    **{f"t5-v1.1-{size}": raw for size, raw in GATED.items()},
}


# What the first T5 was taught (Raffel et al., 2020, appendix D); v1.1 and mT5 were taught no task.
PROMPTS = Prompts(
    summarise="summarize: ",
    translate="translate {source} to {target}: ",
    languages={"en": "English", "de": "German", "fr": "French", "ro": "Romanian"},
)


def family(
    style: Style, usual: Mapping[str, Any], presets: Mapping[str, Mapping[str, Any]],
    prompts: Prompts | None = None,
) -> Family:  # fmt: skip
    """T5 or a family of its shape."""
    return Family(
        style.name.lower(), architectures(style.name, *CLASSES), usual, presets,
        partial(read_t5, style), partial(write_t5, style), weights, prefix="transformer.",
        same=same, kind=kind_of, tables=TABLES, prompts=prompts or Prompts(),
    )  # fmt: skip


FAMILY = family(Style("T5"), USUAL, PRESETS, PROMPTS)
