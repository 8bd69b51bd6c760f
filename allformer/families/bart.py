"""BART (Lewis et al., 2019): post-norm with learned positions and a norm after the embedding."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderDecoder, Learned, LMHead
from allformer.families import fairseq, pieces
from allformer.families.fairseq import Style
from allformer.families.fairseq_map import weights
from allformer.families.family import Family, expect
from allformer.families.fields import Fields

ARCHITECTURES = {
    "BartForConditionalGeneration": "words",
    "BartModel": "bare",
    "BartForSequenceClassification": "class",
    "BartForQuestionAnswering": "span",
}
STYLE = Style(
    "BART", "post", lambda n: Learned(n, offset=2, count="all"), source_norm=True, labels=3
)


def bart(dim: int, layers: int, heads: int, feed: int) -> EncoderDecoder:
    """`bart(768, 6, 12, 3072)` is bart-base; every text of the decoder begins with </s>."""
    return fairseq.assemble(
        STYLE, dim, (layers, layers), (heads, heads), (feed, feed), (50_265, 50_265),
        attention_dropout=0.1, feed_dropout=0.1, ids={"pad_id": 1, "bos_id": 0, "eos_id": 2},
        start=2,
    )  # fmt: skip


PRESETS = {
    "bart-base": lambda: bart(768, 6, 12, 3072),
    "bart-large": lambda: bart(1024, 12, 16, 4096),
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderDecoder:
    """config.json → the tree."""
    return fairseq.read(STYLE, fields, ARCHITECTURES[architecture], keys)


def write(model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    raw = fairseq.write(STYLE, model)
    check_tables(model)
    return raw


def check_tables(model: EncoderDecoder) -> None:
    """The output is tied to the shared table or to none."""
    tied = isinstance(model.head, LMHead) and model.head.tied
    expect(model.shared or not tied, "ties its output to the decoder's table alone")


FAMILY = Family(
    "bart", PRESETS, ARCHITECTURES, read, write, weights, prefix="model.", same=fairseq.same,
    tables=pieces.TABLES, fresh={"forced_eos_token_id": None},
)  # fmt: skip
