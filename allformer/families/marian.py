"""Marian (Junczys-Dowmunt et al., 2018): the checkpoint form of the original Transformer.

Scaled embeddings, sinusoids with all sines first, post-norm. A model that `allformer train` made
with `layout="halves"` can be saved as one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderDecoder, LMHead, Sinusoidal
from allformer.families import fairseq, layer_map
from allformer.families.fairseq import Style, sizes
from allformer.families.fairseq_config import read_fairseq, same, write_fairseq
from allformer.families.fairseq_map import weights
from allformer.families.family import Family, architectures, expect
from allformer.families.fields import Fields
from allformer.families.kinds import SIZE

ARCHITECTURES = architectures("Marian", "MTModel", "Model")
STYLE = Style(
    "Marian", "post", lambda n: Sinusoidal(layout="halves", count="all", length=n, rounded=True)
)
USUAL = {
    **fairseq.USUAL, "vocab_size": 58_101, "pad_token_id": 58_100, "bos_token_id": None,
    "eos_token_id": 0, "decoder_start_token_id": 58_100, "share_encoder_decoder_embeddings": True,
}  # fmt: skip
# Helsinki-NLP's opus-mt-en-de. The padding is the last token and starts every translation; the end
# is the first.
_BASE = {
    "activation_function": "swish", "max_position_embeddings": 512, "scale_embedding": True,
    "bos_token_id": 0,
}  # fmt: skip
PRESETS = {"marian-base": sizes(512, 6, 8, 2048) | _BASE}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderDecoder:
    """config.json → the tree."""
    share, kind = fields.take("share_encoder_decoder_embeddings"), ARCHITECTURES[architecture]
    target = fields.take("decoder_vocab_size", None, kind=SIZE)
    return read_fairseq(STYLE, fields, kind, keys, share=share, target=None if share else target)


def write(model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    raw = write_fairseq(STYLE, model)
    position = model.encoder.position
    assert isinstance(position, Sinusoidal)
    expect(position.layout == "halves", "has sines and cosines in turn, and Marian all sines first")
    head = model.head
    expect(not (isinstance(head, LMHead) and head.bias), "has a trained bias on its output")
    raw["decoder_vocab_size"] = model.decoder.source.vocab
    raw["share_encoder_decoder_embeddings"] = model.shared
    if head is None:
        del raw["tie_word_embeddings"]  # it says nothing then
    return raw


# transformers would end every translation with token 0.
FRESH = {"forced_eos_token_id": None}
FAMILY = Family(
    "marian", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="model.",
    same=same, tables=layer_map.TABLES, fresh=FRESH,
)  # fmt: skip
