"""BigBird (Zaheer et al., 2020): BERT whose long rows are looked at in blocks.

Rows of at most (5 + 2·num_random_blocks)·block_size tokens are looked at in full, as transformers
does. In its eval mode the random blocks are all the first one, in training they are drawn by the
layer's number: see `config.BlockSparse`. With rescale_embeddings vectors that a caller gives
(inputs_embeds) are taken as they are; transformers multiplies them too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import (
    ChoiceHead,
    ClassHead,
    DecoderOnly,
    EncoderOnly,
    Full,
    Head,
    Model,
    PretrainHead,
    ReadingHead,
    Stack,
)  # fmt: skip
from allformer.errors import CheckpointError
from allformer.families import bert, blocks, encoder, encoder_map, layer_map
from allformer.families.blocks import read_blocks, with_attention, without_blocks
from allformer.families.family import Family, architectures
from allformer.families.fields import Fields
from allformer.families.heads import small_head
from allformer.families.kinds import WHOLE
from allformer.families.weights import Op, Unused, WeightMap

CAUSAL = "BigBirdForCausalLM"
ARCHITECTURES = {
    **architectures(
        "BigBird", "Model", "ForMaskedLM", "ForPreTraining", "ForSequenceClassification",
        "ForTokenClassification", "ForQuestionAnswering",
        "ForMultipleChoice",
    ),
    CAUSAL: "causal",
}  # fmt: skip
USUAL = {
    **bert.USUAL, "vocab_size": 50_358, "hidden_act": "gelu_new", "max_position_embeddings": 4096,
    "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 66, "use_bias": True,
    "rescale_embeddings": False, **blocks.USUAL,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "bigbird-roberta-base": {},
    "bigbird-roberta-large": bert.LARGE,
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderOnly | DecoderOnly:
    """config.json → the tree."""
    stack, kind = _read_stack(fields), ARCHITECTURES[architecture]
    if kind == "causal":
        return _read_causal(fields, stack)
    head: Head | None
    act = stack.blocks[0].feed.act
    if kind == "words":
        head = encoder.words_head(fields, stack)
    elif kind == "pretrain":
        pair = ClassHead(("LABEL_0", "LABEL_1"))
        head = PretrainHead(encoder.words_head(fields, stack), pair)
    elif kind == "span":
        first, sep = stack.blocks[0], fields.take("sep_token_id", kind=WHOLE)
        head = ReadingHead(dropout=stack.dropout, feed=first.feed, norm=first.norm, sep_id=sep)
    elif kind == "choice":  # which classifier_dropout does not reach
        head = ChoiceHead(stack.dropout)
    else:
        head = small_head(fields, kind, "first", dense=act, usual=stack.dropout)
    return encoder.with_head(stack, head, keys, NAMES.pooler)


def _read_stack(fields: Fields) -> Stack:
    stack = read_blocks(fields, encoder.read_stack(fields))
    if not fields.flag("use_bias", True):
        own = tuple(with_attention(block, bias=("out",)) for block in stack.blocks)
        stack = replace(stack, blocks=own)
    source = replace(stack.tokens, scale=fields.flag("rescale_embeddings", False))
    return replace(stack, source=source, dropout_at="summed")


def _read_causal(fields: Fields, stack: Stack) -> DecoderOnly:
    """transformers looks ahead where a decoder is sparse."""
    full = tuple(with_attention(block, mixer=Full()) for block in stack.blocks)
    model = encoder.decoder(fields, replace(stack, blocks=full), CAUSAL)
    if full != stack.blocks:
        raise CheckpointError(
            f"config.json has attention_type='block_sparse', with which a {CAUSAL} looks ahead in "
            f"long rows; set it to 'original_full'"
        )
    return model


def write(model: Model) -> dict[str, Any]:
    """The tree → config.json."""
    stack, said = without_blocks(model.reader)
    out = encoder.write_either(model, stack) | said
    out["use_bias"] = stack.blocks[0].attention.biased("q")
    out["rescale_embeddings"] = stack.source.scale
    if isinstance(model.head, ReadingHead):
        out["sep_token_id"] = model.head.sep_id
    return out


def kind(model: Model) -> str:
    """As BERT has it; the head for answers is its own."""
    return "span" if isinstance(model.head, ReadingHead) else encoder.kind(model)


NAMES = encoder_map.Names(
    "pooler", "cls.predictions", "transform.dense", "transform.LayerNorm",
    pair=("cls.seq_relationship", "the next-sentence head"),
)  # fmt: skip


def weights(model: EncoderOnly | DecoderOnly, architecture: str) -> WeightMap:
    """The map of a BigBird file."""
    (name, stack), head = next(iter(model.stacks.items())), model.head
    base = "" if head is None else "bert."
    layers = layer_map.layers(stack, name, f"{base}encoder.layer", bert.LAYER)
    if isinstance(head, ReadingHead):
        return encoder_map.weights(replace(model, head=None), base, NAMES) + layers + _reading()
    ops = encoder_map.weights(model, base, NAMES) + layers
    # transformers has a pooler in every model but the one for answers, and reads it in two.
    return ops if head is None or model.pool is not None else ops + _spare_pooler()


def _spare_pooler() -> list[Op]:
    alike = "bert.encoder.layer.0.attention.output.dense"
    return [
        Unused(f"bert.pooler.{part}", f"{alike}.{part}", apart=True) for part in ("weight", "bias")
    ]


def _reading() -> list[Op]:
    names = {
        "head.feed.up": "intermediate.dense",
        "head.feed.down": "output.dense",
        "head.norm": "output.LayerNorm",
        "head.out": "qa_outputs",
    }
    return [
        op for ours, part in names.items() for op in layer_map.dense(ours, f"qa_classifier.{part}")
    ]


FAMILY = Family(
    "big_bird", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="bert.", kind=kind
)
