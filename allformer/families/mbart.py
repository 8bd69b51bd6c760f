"""mBART (Liu et al., 2020): BART in pre-norm, with final norms and scaled embeddings.

A text ends with its language's code, and the decoder begins with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderDecoder, Learned
from allformer.families import layer_map
from allformer.families.bart import check_tables
from allformer.families.fairseq import USUAL, Style, sizes
from allformer.families.fairseq_config import read_fairseq, same, write_fairseq
from allformer.families.fairseq_map import weights
from allformer.families.family import Family, architectures, expect
from allformer.families.fields import Fields
from allformer.families.prompts import Prompts

ARCHITECTURES = architectures(
    "MBart", "ForConditionalGeneration", "Model", "ForSequenceClassification",
    "ForQuestionAnswering",
)  # fmt: skip
STYLE = Style(
    "mBART", "pre", lambda n: Learned(n, offset=2, count="all"), source_norm=True, final_norm=True,
    start_last=True,
)  # fmt: skip
_LARGE = sizes(1024, 12, 16, 4096, scale_embedding=True)
PRESETS = {
    "mbart-large": {**_LARGE, "vocab_size": 250_027},  # mbart-large-cc25 and mbart-large-en-ro
    "mbart-large-50": {**_LARGE, "vocab_size": 250_054},
}

# Of mbart-large-50; mbart-large-cc25 has the first half of them.
LANGUAGES = {
    "ar": "Arabic", "cs": "Czech", "de": "German", "en": "English", "es": "Spanish",
    "et": "Estonian", "fi": "Finnish", "fr": "French", "gu": "Gujarati", "hi": "Hindi",
    "it": "Italian", "ja": "Japanese", "kk": "Kazakh", "ko": "Korean", "lt": "Lithuanian",
    "lv": "Latvian", "my": "Burmese", "ne": "Nepali", "nl": "Dutch", "ro": "Romanian",
    "ru": "Russian", "si": "Sinhala", "tr": "Turkish", "vi": "Vietnamese", "zh": "Chinese",
    "af": "Afrikaans", "az": "Azerbaijani", "bn": "Bengali", "fa": "Persian", "he": "Hebrew",
    "hr": "Croatian", "id": "Indonesian", "ka": "Georgian", "km": "Khmer", "mk": "Macedonian",
    "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi", "pl": "Polish", "ps": "Pashto",
    "pt": "Portuguese", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "te": "Telugu",
    "th": "Thai", "tl": "Tagalog", "uk": "Ukrainian", "ur": "Urdu", "xh": "Xhosa", "gl": "Galician",
    "sl": "Slovene",
}  # fmt: skip


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderDecoder:
    """config.json → the tree."""
    return read_fairseq(STYLE, fields, ARCHITECTURES[architecture], keys)


def write(model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    raw = write_fairseq(STYLE, model)
    expect(model.start_last, "begins with one token, and mBART with the last one of the labels")
    check_tables(model)
    return raw


FAMILY = Family(
    "mbart", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="model.",
    same=same, tables=layer_map.TABLES, fresh={"forced_eos_token_id": None},
    prompts=Prompts(languages=LANGUAGES),
)  # fmt: skip
