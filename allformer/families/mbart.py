"""mBART (Liu et al., 2020): BART in pre-norm, with final norms and scaled embeddings.

A text ends with its language's code, and the decoder begins with it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderDecoder, Learned
from allformer.families import fairseq, pieces
from allformer.families.bart import check_tables
from allformer.families.fairseq import Style
from allformer.families.fairseq_map import weights
from allformer.families.family import Family, expect
from allformer.families.fields import Fields

ARCHITECTURES = {
    "MBartForConditionalGeneration": "words",
    "MBartModel": "bare",
    "MBartForSequenceClassification": "class",
    "MBartForQuestionAnswering": "span",
}
STYLE = Style(
    "mBART", "pre", lambda n: Learned(n, offset=2, count="all"), source_norm=True, final_norm=True,
    start_last=True, start=None,
)  # fmt: skip


def mbart(vocab: int) -> EncoderDecoder:
    """`mbart(250_027)`: 25 languages; `mbart(250_054)`: 50."""
    return fairseq.assemble(
        STYLE, 1024, (12, 12), (16, 16), (4096, 4096), (vocab, vocab), scale=True,
        ids={"pad_id": 1, "bos_id": 0, "eos_id": 2},
    )  # fmt: skip


PRESETS = {
    "mbart-large": lambda: mbart(250_027),  # mbart-large-cc25 and mbart-large-en-ro
    "mbart-large-50": lambda: mbart(250_054),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderDecoder:
    """config.json → the tree."""
    return fairseq.read(STYLE, fields, ARCHITECTURES[architecture], keys)


def write(model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    raw = fairseq.write(STYLE, model)
    expect(model.start_last, "begins with one token, and mBART with the last one of the labels")
    check_tables(model)
    return raw


FAMILY = Family(
    "mbart", PRESETS, ARCHITECTURES, read, write, weights, prefix="model.", same=fairseq.same,
    tables=pieces.TABLES, fresh={"forced_eos_token_id": None},
)  # fmt: skip
