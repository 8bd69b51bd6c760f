"""Marian (Junczys-Dowmunt et al., 2018): the checkpoint form of the original Transformer.

Scaled embeddings, sinusoids with all sines first, post-norm. A model that `allformer train` made
with `layout="halves"` can be saved as one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer.config import EncoderDecoder, LMHead, Sinusoidal
from allformer.families import fairseq, pieces
from allformer.families.fairseq import Style
from allformer.families.fairseq_map import weights
from allformer.families.family import Family, expect
from allformer.families.fields import Fields

ARCHITECTURES = {"MarianMTModel": "words", "MarianModel": "bare"}
STYLE = Style(
    "Marian", "post", lambda n: Sinusoidal(layout="halves", count="all", length=n),
    vocab=58_101, pad=58_100, bos=None, eos=0, start=58_100,
)  # fmt: skip


def marian(dim: int, layers: int, heads: int, feed: int, vocab: int) -> EncoderDecoder:
    """`marian(512, 6, 8, 2048, 58_101)` is Helsinki-NLP's opus-mt-en-de.

    The padding is the last token and starts every translation; the end is the first.
    """
    ids: dict[str, int | None] = {"pad_id": vocab - 1, "bos_id": 0, "eos_id": 0}
    return fairseq.assemble(
        STYLE, dim, (layers, layers), (heads, heads), (feed, feed), (vocab, vocab),
        act="silu", length=512, scale=True, ids=ids, start=vocab - 1,
    )  # fmt: skip


PRESETS = {"marian-base": lambda: marian(512, 6, 8, 2048, 58_101)}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderDecoder:
    """config.json → the tree."""
    share = fields.take("share_encoder_decoder_embeddings", True)
    target = fields.take("decoder_vocab_size", None)
    kind = ARCHITECTURES[architecture]
    return fairseq.read(
        STYLE, fields, kind, keys, share=share, target=None if share else target
    )  # fmt: skip


def write(model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    raw = fairseq.write(STYLE, model)
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
    "marian", PRESETS, ARCHITECTURES, read, write, weights, prefix="model.", same=fairseq.same,
    tables=pieces.TABLES, fresh=FRESH,
)  # fmt: skip
