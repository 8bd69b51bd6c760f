"""What transformers' `generate` takes and this one does not: each name with its way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Refused(NamedTuple):
    """`neutral(value)`: this value would change nothing, so it may stand."""

    way_out: str
    neutral: Callable[[Any], bool]


def _unless(way_out: str, *neutral: Any) -> Refused:
    return Refused(way_out, lambda value: value is None or value in neutral)


def _never(way_out: str) -> Refused:
    return Refused(way_out, lambda value: value is None)


_ONE_MODEL = "use assistant_model with the same tokeniser, or prompt_lookup_num_tokens"
_BEAMS = "use num_beams alone, or do_sample=True with num_return_sequences for variety"
_FORCED = "leave it out, or favour the words with sequence_bias"
_OURS = "give processors=[lambda ids, scores, rows: yours(ids, scores)]"
_CACHES = {
    "dynamic", "dynamic_full", "offloaded", "static", "offloaded_static", "sliding_window",
    "hybrid", "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked",
}  # fmt: skip
_IDS = "give input_ids"

REFUSED: dict[str, Refused] = {
    "num_beam_groups": _unless(_BEAMS, 0, 1),
    "diversity_penalty": _unless(_BEAMS, 0),
    "penalty_alpha": _unless("leave it out, or use do_sample=True with top_k or top_p", 0),
    "dola_layers": _never("leave it out"),
    "constraints": _never(_FORCED),
    "force_words_ids": _never(_FORCED),
    "guidance_scale": _unless("leave it out, or set it to 1", 1),
    "watermarking_config": _never("leave it out"),
    "token_healing": _unless("leave it out, or cut the last token off the prompt", False),
    "cache_implementation": Refused(
        'leave it out, or use cache="int8", which is of another make than "quantized"',
        lambda value: value is None or value in _CACHES,
    ),
    "assistant_tokenizer": _never(_ONE_MODEL),
    "assistant_early_exit": _never(_ONE_MODEL),
    "assistant_ensemble_weight": _never("leave it out: it would change what is drawn"),
    "use_mtp": _unless(_ONE_MODEL, False),
    "is_assistant": _unless(_ONE_MODEL, False),
    "logits_processor": Refused(_OURS, lambda value: not value),
    "stopping_criteria": Refused(
        "use stop_strings or max_time, or end what an Engine says: reply.cancel()",
        lambda value: not value,
    ),
    "prefix_allowed_tokens_fn": _never("say it by structured=, or as one of processors="),
    "negative_prompt_ids": _never("leave it out"),
    "negative_prompt_attention_mask": _never("leave it out"),
    "custom_generate": _never("leave it out: no code is taken from a checkpoint"),
    "trust_remote_code": _unless("leave it out: no code is taken from a checkpoint", False),
    "output_attentions": _unless("use allformer.trace for the values inside", False),
    "output_hidden_states": _unless("use allformer.trace for the values inside", False),
    "inputs": _never(_IDS),
    "inputs_embeds": _never(_IDS),
    "encoder_outputs": _never(_IDS),
    "past_key_values": _never("give the whole text as input_ids"),
    "position_ids": _never("give attention_mask: positions are counted over what it keeps"),
    "token_type_ids": _never("leave it out"),
    "decoder_attention_mask": _never("give decoder_input_ids without padding, one length a call"),
}

# Names that change where or how fast the work is done, or nothing at all.
INERT = frozenset({
    "cache_config", "max_cache_len", "low_memory", "compile_config", "disable_compile",
    "continuous_batching_config", "prefill_chunk_size", "synced_gpus", "assistant_lookbehind",
    "target_lookbehind", "speculation_type", "transformers_version", "_from_model_config",
    "_commit_hash", "return_dict",
})  # fmt: skip
