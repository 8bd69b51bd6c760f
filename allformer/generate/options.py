"""How to generate: transformers' options by their names, from and to `generation_config.json`.

    GenerationConfig(num_beams=4, length_penalty=0.6, max_new_tokens=50)
    GenerationConfig.load("path/to/checkpoint")

A field that is None is not set: `generate` takes the model's own setting for it, and after that
transformers' default. What transformers has and Allformer has not is refused by its name, unless it
stands at the value that changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from allformer.errors import CheckpointError, ConfigError
from allformer.generate.checks import check_fields
from allformer.generate.refused import INERT, REFUSED

FILE = "generation_config.json"

# What transformers 5 fills in where nobody has said anything; top_k=50 is no mistake.
DEFAULTS: dict[str, Any] = {
    "min_length": 0, "do_sample": False, "use_cache": True, "early_stopping": False,
    "num_beams": 1, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0,
    "repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "num_return_sequences": 1, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "encoder_repetition_penalty": 1.0, "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.4,
}  # fmt: skip


@dataclass(frozen=True)
class GenerationConfig:
    """Every option that `generate` takes, as in transformers; lists are kept as tuples."""

    # how long
    max_new_tokens: int | None = None
    max_length: int | None = None  # prompt and padding included
    min_new_tokens: int | None = None
    min_length: int | None = None
    max_time: float | None = None  # seconds
    stop_strings: str | tuple[str, ...] | None = None
    # how to search
    num_beams: int | None = None
    num_return_sequences: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None  # True, False or "never"
    use_cache: bool | None = None
    # how to draw
    do_sample: bool | None = None
    temperature: float | None = None
    top_h: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    # what to say and what not
    repetition_penalty: float | None = None
    encoder_repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    sequence_bias: Any = None  # {(id, …): bias} or [[[id, …], bias], …]
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    forced_bos_token_id: int | None = None
    forced_decoder_ids: tuple[tuple[int, int | None], ...] | None = None  # (length so far, id), …
    forced_eos_token_id: int | tuple[int, ...] | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    remove_invalid_values: bool | None = None
    renormalize_logits: bool | None = None
    # how to guess ahead
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int | None = None
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | None = None  # constant, heuristic or heuristic_transient
    assistant_confidence_threshold: float | None = None
    # special tokens
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    decoder_start_token_id: int | tuple[int, ...] | None = None
    # what comes back
    return_dict_in_generate: bool | None = None
    output_scores: bool | None = None
    output_logits: bool | None = None
    # what else stood in the file: kept, so that it can be written back
    other: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name != "other":
                object.__setattr__(self, each.name, _frozen(getattr(self, each.name)))
        check_fields(self)

    def set(self) -> dict[str, Any]:
        """The fields that are set: `GenerationConfig(num_beams=4).set()` → `{"num_beams": 4}`."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {k: v for k, v in named.items() if k != "other" and v is not None}

    def to_dict(self) -> dict[str, Any]:
        """What goes into the file: what is set, and what else stood in the one that was read."""
        said = {name: _thawed(value) for name, value in self.set().items()}
        return dict(sorted({**self.other, **said}.items()))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GenerationConfig:
        """The inverse of `to_dict`.

        A checkpoint may ask for what Allformer cannot do: it is kept, and `generate` refuses it.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"{FILE} holds {data!r}; it must be an object of options")
        known = names()
        given = {k: v for k, v in data.items() if k in known}
        return cls(**given, other={k: v for k, v in data.items() if k not in known})

    @classmethod
    def from_model_config(cls, data: Mapping[str, Any]) -> GenerationConfig:
        """From `config.json` (as a dict), where older checkpoints keep their options."""
        parts = [data[k] for k in ("decoder", "generator", "text_config") if data.get(k)]
        # What comes back is the caller's choice, not the checkpoint's.
        relevant = {k for k in names() | set(REFUSED) if not k.startswith(("output_", "return_"))}
        given = {
            k: v
            for layer in (*parts[:1], data)
            for k, v in (layer.items() if isinstance(layer, Mapping) else ())
            if k in relevant and v is not None
        }
        if data.get("force_bos_token_to_be_generated"):  # BART's older name for it
            given["forced_bos_token_id"] = data.get("bos_token_id")
        return cls.from_dict(given)

    @classmethod
    def load(cls, directory: str | Path) -> GenerationConfig:
        """From a checkpoint's `generation_config.json`, or else from its `config.json`."""
        for name, read in ((FILE, cls.from_dict), ("config.json", cls.from_model_config)):
            file = Path(directory) / name
            if file.is_file():
                try:
                    return read(json.loads(file.read_text(encoding="utf-8")))
                except (json.JSONDecodeError, UnicodeDecodeError) as error:
                    raise CheckpointError(f"{file} is not JSON: {error}; check the file") from None
                except ConfigError as error:
                    raise ConfigError(f"{file}: {error}") from None
        return cls()

    def save(self, directory: str | Path) -> Path:
        """Write `generation_config.json`, which transformers reads."""
        file = Path(directory) / FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
        return file


def names() -> set[str]:
    """The options there are."""
    return {each.name for each in fields(GenerationConfig)} - {"other"}


def settle(*layers: GenerationConfig | None, options: Mapping[str, Any]) -> GenerationConfig:
    """One config of several: later layers win, options win over all, even where they are None."""
    values, other = dict(DEFAULTS), dict[str, Any]()
    for layer in layers:
        if layer is not None:
            values |= layer.set()
            other |= layer.other
    known = names()
    for name, value in options.items():
        if name in known:
            values[name] = value
        elif name in REFUSED or name in INERT:
            other[name] = value
        else:
            near = get_close_matches(name, known, n=1)
            way_out = f"did you mean {near[0]}?" if near else "see GenerationConfig for what it has"
            raise ConfigError(f"generate has no option {name!r}; {way_out}")
    for name, value in other.items():
        if name in REFUSED and not REFUSED[name].neutral(value):
            raise ConfigError(f"{name}={_short(value)} is not supported; {REFUSED[name].way_out}")
    return GenerationConfig(**values, other=other)


def _frozen(value: Any) -> Any:
    """Lists as tuples, all the way down, so that a config stays as it was checked."""
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    if isinstance(value, Mapping):  # sequence_bias
        return tuple((_frozen(ids), bias) for ids, bias in value.items())
    return tuple(_frozen(each) for each in value) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    return [_thawed(each) for each in value] if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
