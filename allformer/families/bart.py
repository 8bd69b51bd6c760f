"""BART (Lewis et al., 2019): post-norm with learned positions and a norm after the embedding.

Every text of the decoder begins with </s>.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderDecoder, Learned, LMHead
from allformer.families import fairseq, layer_map
from allformer.families.fairseq import Style, sizes
from allformer.families.fairseq_config import read_fairseq, same, write_fairseq
from allformer.families.fairseq_map import weights
from allformer.families.family import Family, architectures, expect
from allformer.families.fields import Fields

ARCHITECTURES = architectures(
    "Bart", "ForConditionalGeneration", "Model", "ForSequenceClassification", "ForQuestionAnswering"
)
STYLE = Style("BART", "post", lambda n: Learned(n, offset=2, count="all"), source_norm=True)
USUAL = {**fairseq.USUAL, "decoder_start_token_id": 2, "num_labels": 3}
_DROP = {"attention_dropout": 0.1, "activation_dropout": 0.1}
PRESETS = {
    "bart-base": sizes(768, 6, 12, 3072) | _DROP,
    "bart-large": sizes(1024, 12, 16, 4096) | _DROP,
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderDecoder:
    """config.json → the tree."""
    return read_fairseq(STYLE, fields, ARCHITECTURES[architecture], keys)


def write(model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    raw = write_fairseq(STYLE, model)
    check_tables(model)
    return raw


def check_tables(model: EncoderDecoder) -> None:
    """The output is tied to the shared table or to none."""
    tied = isinstance(model.head, LMHead) and model.head.tied
    expect(model.shared or not tied, "ties its output to the decoder's table alone")


FAMILY = Family(
    "bart", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="model.",
    same=same, tables=layer_map.TABLES, fresh={"forced_eos_token_id": None},
)  # fmt: skip
