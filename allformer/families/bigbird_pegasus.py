"""BigBird-Pegasus (Zaheer et al., 2020): an encoder that looks at blocks, a decoder that writes.

Pre-norm, with BART's names but for the encoder's attention; what its files call
layernorm_embedding stands behind the last layer. The encoder's feed-forward layers drop nothing
out inside, whatever activation_dropout says.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import Block, EncoderDecoder, Learned
from allformer.families import bart, blocks, fairseq, fairseq_map, layer_map
from allformer.families.blocks import read_blocks, without_blocks
from allformer.families.fairseq import Style, sizes
from allformer.families.fairseq_config import read_fairseq, same, write_fairseq
from allformer.families.family import Family, architectures, fit
from allformer.families.fields import Fields
from allformer.families.weights import Op, Same, Stacked, WeightMap

ARCHITECTURES = architectures(
    "BigBirdPegasus", "ForConditionalGeneration", "Model", "ForSequenceClassification",
    "ForQuestionAnswering",
)  # fmt: skip
STYLE = Style("BigBird-Pegasus", "pre", lambda n: Learned(n, count="all"), final_norm=True)
USUAL = {
    **fairseq.USUAL, **sizes(1024, 16, 16, 4096), "vocab_size": 96_103,
    "activation_function": "gelu_new", "max_position_embeddings": 4096, "scale_embedding": True,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 2,
    "use_bias": False, **blocks.USUAL,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {"bigbird-pegasus-large": {}}
_ENCODER = {
    "self_attn.q_proj": "self_attn.self.query",
    "self_attn.k_proj": "self_attn.self.key",
    "self_attn.v_proj": "self_attn.self.value",
    "self_attn.out_proj": "self_attn.output",
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> EncoderDecoder:
    """config.json → the tree."""
    model = read_fairseq(STYLE, fields, ARCHITECTURES[architecture], keys)
    encoder, decoder = read_blocks(fields, model.encoder), model.decoder
    bias = fields.flag("use_bias", False)
    quiet = [replace(block, feed=replace(block.feed, dropout=0.0)) for block in encoder.blocks]
    return replace(
        model,
        encoder=replace(encoder, blocks=tuple(_biased(block, bias) for block in quiet)),
        decoder=replace(decoder, blocks=tuple(_biased(block, bias) for block in decoder.blocks)),
    )


def _biased(block: Block, bias: bool) -> Block:
    cross = None if block.cross is None else replace(block.cross, bias=bias)
    return replace(block, attention=replace(block.attention, bias=bias), cross=cross)


def write(model: EncoderDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    model = fit(model, EncoderDecoder, "is not an encoder-decoder")
    encoder, said = without_blocks(model.encoder)
    out = write_fairseq(STYLE, replace(model, encoder=encoder)) | said
    bart.check_tables(model)
    last = model.decoder.blocks[0]
    return {
        **out,
        "activation_dropout": last.feed.dropout,
        "use_bias": last.attention.biased("q"),
    }


def weights(model: EncoderDecoder, architecture: str) -> WeightMap:
    """The map of a BigBird-Pegasus file."""
    return [_renamed(op) for op in fairseq_map.weights(model, architecture)]


def _renamed(op: Op) -> Op:
    if isinstance(op, Same):
        return replace(op, theirs=_name(op.theirs))
    return replace(op, theirs=tuple(map(_name, op.theirs))) if isinstance(op, Stacked) else op


def _name(name: Any) -> str:
    """What these files call what BART's call `name`."""
    of, _, part = str(name).rpartition("coder.")
    if part.startswith("layer_norm."):
        return f"{of}coder.layernorm_embedding.{part.removeprefix('layer_norm.')}"
    for bart_name, own in _ENCODER.items() if of.endswith("en") else ():
        part = part.replace(bart_name, own)
    return f"{of}coder.{part}" if of else str(name)


FAMILY = Family(
    "bigbird_pegasus", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="model.",
    same=same, tables=layer_map.TABLES, fresh={"forced_eos_token_id": None},
)  # fmt: skip
