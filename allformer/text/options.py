"""What the settings of tokenizer_config.json may be: each is checked before anything uses it."""

from __future__ import annotations

import math
from typing import Any

from allformer.errors import DataError
from allformer.families.kinds import FLAG, LIST, OBJECT, TEXT, TEXTS, Kind, check_kind

MOST_SENTINELS = 10_000

_LIMIT = Kind("a number", lambda x: type(x) in (int, float) and not math.isnan(x))  # 1e30: none
_COUNT = Kind(
    f"a whole number from 0 to {MOST_SENTINELS:,}",
    lambda x: type(x) is int and 0 <= x <= MOST_SENTINELS,
)


def _is_token(x: Any) -> bool:
    return isinstance(x, str) or (isinstance(x, dict) and isinstance(x.get("content"), str))


def _is_named(x: Any) -> bool:
    return isinstance(x, dict) and all(isinstance(x.get(k), str) for k in ("name", "template"))


_TOKENS = Kind(
    "a list of tokens, or tokens by name",
    lambda x: (
        all(map(_is_token, x if isinstance(x, list) else x.values()))
        if isinstance(x, list | dict)
        else False
    ),
)
_TEMPLATE = Kind(
    "a text, or a list of named ones",
    lambda x: (
        TEXT.holds(x)
        or (LIST.holds(x) and all(map(_is_named, x)))
        or (OBJECT.holds(x) and all(map(TEXT.holds, x.values())))
    ),
)
_KINDS: dict[Kind, str] = {
    TEXT: "tokenizer_class padding_side truncation_side src_lang tgt_lang",
    FLAG: """
        add_bos_token add_eos_token clean_up_tokenization_spaces do_lower_case strip_accents
        tokenize_chinese_chars add_prefix_space trim_offsets legacy split_special_tokens
        separate_vocabs keep_accents
        """,
    _LIMIT: "model_max_length max_len",
    _COUNT: "extra_ids",
    TEXTS: "model_input_names",
    _TOKENS: "additional_special_tokens extra_special_tokens",
    OBJECT: "added_tokens_decoder",
    _TEMPLATE: "chat_template",
}
KINDS = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def check_options(config: dict[str, Any], file: str) -> None:
    """Refuse a setting of another type: `check_options({"legacy": "no"}, "config.json")`."""
    for name, kind in KINDS.items():
        check_kind(name, config.get(name), kind, file, DataError)
