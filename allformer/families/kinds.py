"""What a field of config.json may be: every field's type is checked, whether it is used or not.

The types are those of transformers' configuration classes, and what older files have written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allformer.errors import AllformerError, CheckpointError

MOST_LAYERS = 10_000
MOST_LABELS = 1_000_000
_LARGEST = 2**31  # of any size


@dataclass(frozen=True)
class Kind:
    """`Kind("a text", lambda x: isinstance(x, str))`; null always counts as absent."""

    must_be: str
    holds: Callable[[Any], bool]


def _whole(x: Any) -> bool:
    return type(x) is int and abs(x) < 2**63


def _number(x: Any) -> bool:
    return _whole(x) or (type(x) is float and math.isfinite(x))


def _even(x: Any) -> bool:
    return _whole(x) and 0 < x <= _LARGEST and x % 2 == 0


def _list(x: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(x, list) and all(map(of, x))


FLAG = Kind("true or false", lambda x: type(x) is bool)
WHOLE = Kind("a whole number", _whole)
SIZE = Kind(f"a whole number from 1 to {_LARGEST:,}", lambda x: _whole(x) and 0 < x <= _LARGEST)
AREA = Kind(
    "a size or a list of two",
    lambda x: SIZE.holds(x) or (_list(x, SIZE.holds) and len(x) == 2),
)
LAYERS = Kind(
    f"a number of layers from 1 to {MOST_LAYERS:,}", lambda x: _whole(x) and 0 < x <= MOST_LAYERS
)
LABELS = Kind(
    f"a number of classes from 1 to {MOST_LABELS:,}", lambda x: _whole(x) and 0 < x <= MOST_LABELS
)
WINDOWS = Kind(
    "an even whole number from 2 on, or a list of them", lambda x: _even(x) or _list(x, _even)
)
NUMBER = Kind("a number", _number)
NUMBERS = Kind("a list of numbers", lambda x: _list(x, _number))
TEXT = Kind("a text", lambda x: isinstance(x, str))
TEXTS = Kind("a list of texts", lambda x: _list(x, lambda y: isinstance(y, str)))
WORDS = Kind("a text or a list of texts", lambda x: TEXT.holds(x) or TEXTS.holds(x))
IDS = Kind("a token's id or a list of them", lambda x: _whole(x) or _list(x, _whole))
LIST = Kind("a list", lambda x: isinstance(x, list))
OBJECT = Kind("an object", lambda x: isinstance(x, dict))
CHOICE = Kind("true, false or a text", lambda x: FLAG.holds(x) or TEXT.holds(x))

_BY_TYPE = {bool: FLAG, int: SIZE, float: NUMBER, str: TEXT, dict: OBJECT}


def kind_of(value: Any) -> Kind:
    """The kind of a field whose usual value this is."""
    return _BY_TYPE[type(value)]


def check_kind(
    name: str,
    value: Any,
    kind: Kind,
    file: str = "config.json",
    error: type[AllformerError] = CheckpointError,
) -> None:
    """Refuse a value of another kind: `check_kind("use_cache", "yes", FLAG)`."""
    if value is not None and not kind.holds(value):
        raise error(f"{file} has {name}={short(value)}, which must be {kind.must_be}; correct it")


def short(value: Any) -> str:
    """A value as an error shows it."""
    if type(value) is int and value.bit_length() > 400:
        return f"a number of {value.bit_length()} bits"  # Python refuses to print long ones
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


# What transformers writes for every model and what changes no number of the model itself:
# bookkeeping, initialisation, and defaults of generation (`generate.options` reads those).
_INERT: dict[Kind, str] = {
    FLAG: """
        use_cache return_dict output_hidden_states output_attentions output_past torchscript
        use_bfloat16 tf_legacy_loss gradient_checkpointing do_sample output_scores
        return_dict_in_generate remove_invalid_values _attn_implementation_autoset
        tie_word_embeddings force_bos_token_to_be_generated static_position_embeddings
        """,
    CHOICE: "early_stopping",
    WHOLE: """
        chunk_size_feed_forward max_length min_length num_beams num_beam_groups top_k
        no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences
        """,
    LABELS: "num_labels _num_labels",
    NUMBER: """
        initializer_range initializer_factor init_std diversity_penalty temperature top_p typical_p
        repetition_penalty length_penalty classifier_dropout hidden_dropout
        """,
    TEXT: """
        model_type transformers_version torch_dtype dtype _name_or_path _commit_hash tokenizer_class
        prefix problem_type attn_implementation
        """,
    TEXTS: "architectures",
    WORDS: "finetuning_task",
    IDS: """
        bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id
        forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens
        """,
    LIST: "bad_words_ids exponential_decay_length_penalty",
    OBJECT: "task_specific_params label2id id2label gradient_checkpointing_kwargs",
}
# What programs beside transformers leave there, for themselves: for browsers, adapters, faster
# training; and lengths and tokens of the tokeniser, which has files of its own.
_OTHERS: dict[Kind, str] = {
    FLAG: "is_llama_config unsloth_fixed _flash_attn_2_enabled",
    WHOLE: "max_sequence_length max_seq_length model_max_length max_new_tokens min_new_tokens",
    NUMBER: "neftune_noise_alpha",
    TEXT: "unsloth_version model_name _attn_implementation cache_implementation",
    IDS: "mask_token_id cls_token_id unk_token_id",
    OBJECT: "transformers.js_config sentence_transformers adapters",
}
INERT = {
    name: kind
    for table in (_INERT, _OTHERS)
    for kind, names in table.items()
    for name in names.split()
}
