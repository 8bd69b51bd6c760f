"""Whisper (Radford et al., 2022): log-mel frames of up to 30 seconds in, text out.

Pre-norm on both sides, keys without a bias; the encoder's sinusoids are stored, the decoder's
positions learned. `scale_embedding` is a field that transformers reads nowhere.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from allformer.config import (
    Attention,
    Block,
    EncoderDecoder,
    EncoderOnly,
    Feed,
    Learned,
    LMHead,
    Model,
    Norm,
    Sound,
    SoundClassHead,
    Spans,
    Stack,
    StoredSinusoids,
    repeat,
)
from allformer.families import activation, layer_map
from allformer.families.fairseq import sizes
from allformer.families.family import Family, as_told, expect, fit, one
from allformer.families.fields import Fields
from allformer.families.kinds import FLAG, LAYERS, LIST, NUMBER, SIZE, WHOLE
from allformer.families.tokens import read_tokens, write_tokens
from allformer.families.whisper_map import OUTPUT, weights

ARCHITECTURES = {
    "WhisperForConditionalGeneration": "words", "WhisperModel": "bare",
    "WhisperForAudioClassification": "SoundClassHead",
}  # fmt: skip
BIAS = ("q", "v", "out")
USUAL = {
    "vocab_size": 51_865, "num_mel_bins": 80, "d_model": 384, "encoder_layers": 4,
    "decoder_layers": 4, "encoder_attention_heads": 6, "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "activation_function": "gelu",
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
    "max_source_positions": 1500, "max_target_positions": 448, "pad_token_id": 50_256,
    "bos_token_id": 50_256, "eos_token_id": 50_256, "decoder_start_token_id": 50_257,
    "use_weighted_layer_sum": False, "classifier_proj_size": 256, "apply_spec_augment": False,
    "mask_time_prob": 0.05, "mask_time_length": 10, "mask_time_min_masks": 2,
    "mask_feature_prob": 0.0, "mask_feature_length": 10, "mask_feature_min_masks": 0,
}  # fmt: skip
MASKS = {"hide_frames": "mask_time", "hide_mels": "mask_feature"}


def tokens_of(vocab: int) -> dict[str, int | None]:
    """The ids that a published vocabulary of this size begins, ends and is filled with: of English
    alone below 51,865, else of many languages, whose tokens follow <|startoftranscript|>. One that
    is too small for them has none: its tokens are somebody's own."""
    end = 50_257 if vocab >= USUAL["vocab_size"] else 50_256  # type: ignore[operator]
    ids = {"pad": end, "bos": 50_257, "eos": end, "decoder_start": end + 1}
    known: dict[str, int | None] = {f"{name}_token_id": i for name, i in ids.items()}
    if vocab <= end + 1:  # transformers wants a number to start with, and no others than there are
        known |= {f"{name}_token_id": None for name in ("pad", "bos", "eos")}
    return {"vocab_size": vocab, **known}


_SIZES = {
    "tiny": (384, 4, 6), "base": (512, 6, 8), "small": (768, 12, 12), "medium": (1024, 24, 16),
    "large": (1280, 32, 20),
}  # fmt: skip
_SHAPES = {name: sizes(*shape, 4 * shape[0]) for name, shape in _SIZES.items()}
_MANY, _ENGLISH = tokens_of(51_865), tokens_of(51_864)
# The third version heard Cantonese too, in finer frames; turbo is its encoder with fewer layers.
_THIRD = {**_SHAPES["large"], **tokens_of(51_866), "num_mel_bins": 128, "pad_token_id": 50_256}
PRESETS: dict[str, dict[str, Any]] = {
    **{f"whisper-{name}": {**shape, **_MANY} for name, shape in _SHAPES.items()},
    **{f"whisper-{x}.en": {**y, **_ENGLISH} for x, y in _SHAPES.items() if x != "large"},
    "whisper-large-v2": {**_SHAPES["large"], **_MANY},
    "whisper-large-v3": _THIRD,
    "whisper-large-v3-turbo": {**_THIRD, "decoder_layers": 4},
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> Model:
    """config.json → the tree."""
    kind = ARCHITECTURES[architecture]
    _others(fields)
    if kind == "SoundClassHead":
        return _classifier(fields)
    fields.inert(SIZE, "classifier_proj_size")
    fields.inert(FLAG, "use_weighted_layer_sum")
    augment = fields.take("apply_spec_augment")
    masks = {ours: _spans(fields, theirs, augment) for ours, theirs in MASKS.items()}
    position = Learned(fields.take("max_target_positions"), count="all")
    decoder = _stack(
        fields, "decoder", source=read_tokens(fields, pad_fixed=True), position=position,
        causal=True,
    )  # fmt: skip
    start = fields.token("decoder_start_token_id", decoder.source.vocab)
    tied = fields.take("tie_word_embeddings", True) and not layer_map.has(keys, OUTPUT)
    head = LMHead(tied) if kind == "words" else None
    return EncoderDecoder(_encoder(fields, **masks), decoder, head, shared=False, start_id=start)


def _others(fields: Fields) -> None:
    """Fields of generation, and those that nothing reads."""
    fields.must("is_encoder_decoder", True)
    fields.inert(NUMBER, "encoder_layerdrop", "decoder_layerdrop")  # of training: see train.weights
    fields.inert(FLAG, "scale_embedding")
    fields.inert(WHOLE, "median_filter_width")
    fields.inert(LIST, "forced_decoder_ids")
    fields.inert(LAYERS, "num_hidden_layers")


def _classifier(fields: Fields) -> EncoderOnly:
    """An encoder alone, which hides nothing: what is said of the decoder and of masks stays."""
    fields.inert(LAYERS, "decoder_layers")
    fields.inert(SIZE, "decoder_attention_heads", "decoder_ffn_dim", "max_target_positions")
    fields.inert(SIZE, "vocab_size")
    fields.inert(FLAG, "apply_spec_augment")
    for name in MASKS.values():
        _spans(fields, name, augment=False)
    wide, weighted = fields.take("classifier_proj_size"), fields.take("use_weighted_layer_sum")
    return EncoderOnly(_encoder(fields), SoundClassHead(fields.labels, wide, weighted))


def _encoder(fields: Fields, **masks: Spans | None) -> Stack:
    source = Sound(fields.take("num_mel_bins"), **masks)
    position = StoredSinusoids(fields.take("max_source_positions"))
    return _stack(fields, "encoder", source=source, position=position)


def _spans(fields: Fields, name: str, augment: bool) -> Spans | None:
    """What is hidden in training; where nothing is, the fields stay as they are."""
    share, length, least = f"{name}_prob", f"{name}_length", f"{name}_min_masks"
    fields.inert(NUMBER, share)
    fields.inert(WHOLE, length, least)
    if not augment or not fields.raw.get(share, fields.usual[share]):
        return None
    return Spans(
        float(fields.take(share, kind=NUMBER)), fields.take(length), fields.take(least, kind=WHOLE)
    )


def _stack(fields: Fields, side: str, **more: Any) -> Stack:
    dropout = fields.take("dropout", kind=NUMBER)
    attention = Attention(
        fields.take(f"{side}_attention_heads"), bias=BIAS,
        dropout=fields.take("attention_dropout", kind=NUMBER),
    )  # fmt: skip
    feed = Feed(
        fields.take(f"{side}_ffn_dim"), fields.choice("activation_function", activation.READ),
        dropout=fields.take("activation_dropout", kind=NUMBER),
    )  # fmt: skip
    cross = attention if side == "decoder" else None
    block = Block(attention, feed, cross, norm_at="pre", dropout=dropout)
    blocks = repeat(block, fields.take(f"{side}_layers", kind=LAYERS))
    dim = fields.take("d_model")
    return Stack(dim, blocks=blocks, final_norm=Norm(), dropout=dropout, **more)


def write(model: Model) -> dict[str, Any]:
    """The tree → config.json."""
    encoder = model.reader
    source = fit(encoder.source, Sound, "hears no sound")
    position = fit(encoder.position, StoredSinusoids, "has no stored sinusoids")
    out = {
        "is_encoder_decoder": True,
        "num_mel_bins": source.mels,
        "max_source_positions": position.length,
        **_write_stack("encoder", encoder),
    }
    if isinstance(model, EncoderOnly):
        head = fit(model.head, SoundClassHead, "has another head")
        extra = {"classifier_proj_size": head.width, "use_weighted_layer_sum": head.weighted}
        return {**out, **extra}
    tree = fit(model, EncoderDecoder, "is no encoder-decoder")
    place = fit(tree.decoder.position, Learned, "has no learned positions")
    return {
        **out,
        **_write_masks(source),
        **write_tokens(tree.decoder.source),
        **_write_stack("decoder", tree.decoder),
        "max_target_positions": place.length,
        "decoder_start_token_id": tree.start,
        "tie_word_embeddings": not isinstance(tree.head, LMHead) or tree.head.tied,
    }


def _write_masks(source: Sound) -> dict[str, Any]:
    spans = {theirs: getattr(source, ours) for ours, theirs in MASKS.items()}
    out: dict[str, Any] = {"apply_spec_augment": any(spans.values())}
    for name, each in spans.items() if any(spans.values()) else ():
        each = each or Spans(0.0)
        out |= {f"{name}_prob": each.share, f"{name}_length": each.length}
        out |= {f"{name}_min_masks": each.least}
    return out


def _write_stack(side: str, stack: Stack) -> dict[str, Any]:
    block = one(stack.blocks, "shape")
    expect(block.feed.act in activation.WRITE, f"has the activation {block.feed.act}")
    return {
        "d_model": stack.dim,
        f"{side}_layers": len(stack.blocks),
        f"{side}_attention_heads": block.attention.heads,
        f"{side}_ffn_dim": block.feed.width,
        "activation_function": activation.WRITE[block.feed.act],
        "dropout": block.dropout,
        "attention_dropout": block.attention.dropout,
        "activation_dropout": block.feed.dropout,
    }


def _told(stack: Stack) -> Stack:
    """Without what no file can say: the padding's vector is not trained by what is read."""
    if not stack.source.vocab:
        return stack
    position: Any = stack.position
    if isinstance(position, Learned) and position.count == "kept":
        position = replace(position, count="all")
    return replace(stack, source=replace(stack.tokens, pad_fixed=True), position=position)


FAMILY = Family(
    "whisper", ARCHITECTURES, USUAL, PRESETS, read, write, weights, prefix="model.",
    same=partial(as_told, _told), tables=("decoder.embed_tokens.weight", OUTPUT),
)  # fmt: skip
