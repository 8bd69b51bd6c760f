"""What a tokeniser is beside its pipeline: the names of its special tokens, sides, limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# transformers' names and order: special tokens that the vocabulary lacks get their ids in it.
SPECIAL_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

FAST = "PreTrainedTokenizerFast"  # the class of transformers that opens any tokenizer.json as it is


@dataclass(frozen=True)
class Settings:
    """`Settings(names={"pad": "<pad>"}).padding_side`; what `tokenizer_config.json` holds."""

    names: dict[str, str] = field(default_factory=dict)  # "pad" → "<pad>"
    model_max_length: int | None = None
    padding_side: str = "right"
    truncation_side: str = "right"
    token_types: bool = False  # whether the model takes token_type_ids
    clean_up: bool = False  # take out the space before punctuation when decoding
    split_special_tokens: bool = False  # "<s>" typed by a user is text, not a command
    language_at: str = ""  # "before" or "after" the text there is a language's code (mBART)
    target_language: str | None = None
    chat_template: str | dict[str, str] | None = None
    tokenizer_class: str = FAST  # transformers' name
    config: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json as it was read

    def to_config(self) -> dict[str, Any]:
        """The `tokenizer_config.json` to write beside a `tokenizer.json`."""
        config = {key: value for key, value in self.config.items() if key not in _ELSEWHERE}
        config |= {f"{name}_token": token for name, token in self.names.items()}
        config["tokenizer_class"] = self.tokenizer_class
        config.setdefault("padding_side", self.padding_side)
        config.setdefault("clean_up_tokenization_spaces", self.clean_up)
        if self.model_max_length is not None:
            config["model_max_length"] = self.model_max_length
        if self.split_special_tokens or "split_special_tokens" in config:
            config["split_special_tokens"] = self.split_special_tokens
        return config


# In tokenizer.json or chat_template.jinja, or of the machine where it was written.
_ELSEWHERE = {"added_tokens_decoder", "auto_map", "chat_template", "name_or_path"} | {
    f"{kind}_file" for kind in ("tokenizer", "vocab", "merges", "special_tokens_map")
}
