"""Whisper's weights under the names that OpenAI gave them.

A file has its sizes beside the weights (`dims`); what its tokens mean, the size of the vocabulary
tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allformer.config import EncoderDecoder, Stack
from allformer.errors import CheckpointError
from allformer.families import layer_map
from allformer.families.kinds import SIZE, check_kind
from allformer.families.weights import Op, Same, WeightMap
from allformer.families.whisper import tokens_of

DIMS, STATE = "dims", "model_state_dict"  # what is in a file
LAYER: layer_map.Names = {
    "attention.qkv": ("attn.query", "attn.key", "attn.value"),
    "attention.out": "attn.out",
    "attention_norm": "attn_ln",
    "cross.query": "cross_attn.query",
    "cross.memory": ("cross_attn.key", "cross_attn.value"),
    "cross.out": "cross_attn.out",
    "cross_norm": "cross_attn_ln",
    "feed.up": "mlp.0",
    "feed.down": "mlp.2",
    "feed_norm": "mlp_ln",
}
_FIELDS = {
    "n_mels": "num_mel_bins", "n_audio_ctx": "max_source_positions", "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads", "n_audio_layer": "encoder_layers",
    "n_text_ctx": "max_target_positions", "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}  # fmt: skip


def weights(model: EncoderDecoder) -> WeightMap:
    """The map of OpenAI's files; the output matrix is the decoder's table."""
    return [
        *layer_map.dense("encoder.source.first", "encoder.conv1"),
        *layer_map.dense("encoder.source.second", "encoder.conv2"),
        *_stack(model.encoder, "encoder", "ln_post"),
        Same("decoder.source.embedding.weight", "decoder.token_embedding.weight"),
        *_stack(model.decoder, "decoder", "ln"),
    ]


def _stack(stack: Stack, side: str, norm: str) -> list[Op]:
    return [
        Same(f"{side}.source.position.weight", f"{side}.positional_embedding"),
        *layer_map.layers(stack, side, f"{side}.blocks", LAYER),
        *layer_map.dense(f"{side}.final_norm", f"{side}.{norm}"),
    ]


def fields_of(dims: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' config.json of a file by its sizes: `fields_of({"n_mels": 80, …})`."""
    for name in (*_FIELDS, "n_vocab", "n_text_state"):
        if dims.get(name) is None:
            raise CheckpointError(f"{DIMS} has no {name}, which Whisper's sizes need; add it")
        check_kind(name, dims[name], SIZE, DIMS)
    wide, text = dims["n_audio_state"], dims["n_text_state"]
    if wide != text:
        raise CheckpointError(
            f"{DIMS} has n_audio_state={wide} and n_text_state={text}, which must be the same: "
            f"the decoder looks at the encoder's states"
        )
    feed = {f"{side}_ffn_dim": 4 * wide for side in ("encoder", "decoder")}
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        **{theirs: dims[name] for name, theirs in _FIELDS.items()},
        **feed,
        **tokens_of(dims["n_vocab"]),
    }
