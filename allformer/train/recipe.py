"""A recipe: everything that a training run is, as YAML.

    recipe = read_recipe("recipes/multi30k-en-de.yaml", ["train.steps=500"])

Sections are dataclasses; an unknown key or a wrong type is refused by name with what there is.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from allformer.errors import ConfigError
from allformer.text.tokenizer import KINDS
from allformer.train.schedule import SCHEDULES

PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class DataRecipe:
    """Where pairs come from: a corpus by name (built in or public), or files of the user's own."""

    source: str = "en"
    target: str = "de"
    corpus: str | None = None
    path: str | None = None  # a directory, A.en,A.de or a .tsv; wins over `corpus`
    max_length: int = 256
    hold_out: int = 1000  # validation sentences taken from train when there is no split of its own
    swap: bool = False  # a TSV whose first column is the target

    @property
    def columns(self) -> tuple[int, int]:
        """Where a TSV has the source and the target."""
        return (1, 0) if self.swap else (0, 1)


@dataclass(frozen=True)
class TokenizerRecipe:
    """One joint tokeniser for both languages."""

    kind: str = "bpe"
    vocab: int = 8000
    lowercase: bool = False
    dropout: float = 0.0  # BPE-dropout: train lines are cut anew, at random, each epoch


@dataclass(frozen=True)
class ModelRecipe:
    """Arguments of `families.original.transformer`; the vocabulary comes from the tokeniser."""

    dim: int = 256
    heads: int = 4
    feed: int = 1024
    layers: int = 3
    decoder_layers: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    feed_dropout: float = 0.0
    act: str = "relu"
    norm_at: str = "post"


@dataclass(frozen=True)
class TrainRecipe:
    """The optimiser and the loop."""

    steps: int = 10_000
    batch_tokens: int = 4096  # of each side, in a micro-batch
    accumulate: int = 1
    pool: int = 50  # batches whose sentences are sorted by length together; 0: random batches
    rate: float = 1e-3  # the peak, reached at `warmup`
    warmup: int = 1000
    schedule: str = "inverse-sqrt"
    smoothing: float = 0.1
    clip: float = 1.0
    weight_decay: float = 0.0
    precision: str = "auto"
    validate_every: int = 500
    save_every: int = 500
    average: int = 5  # the final weights are the mean of the last so many checkpoints
    log_every: int = 50
    seed: int = 0


@dataclass(frozen=True)
class DecodeRecipe:
    """How `translate` searches unless told otherwise."""

    beams: int = 4
    length_penalty: float = 1.0


@dataclass(frozen=True)
class Recipe:
    """The whole: one section each."""

    name: str = "run"
    data: DataRecipe = field(default_factory=DataRecipe)
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    model: ModelRecipe = field(default_factory=ModelRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)
    decode: DecodeRecipe = field(default_factory=DecodeRecipe)

    def __post_init__(self) -> None:
        t = self.train
        _choice("tokenizer.kind", self.tokenizer.kind, KINDS)
        _choice("train.schedule", t.schedule, SCHEDULES)
        _choice("train.precision", t.precision, PRECISIONS)
        at_least_one = {
            f"train.{name}": getattr(t, name)
            for name in ("steps", "batch_tokens", "accumulate", "warmup", "validate_every",
                         "save_every", "average", "log_every")
        }  # fmt: skip
        at_least_one["data.max_length"] = self.data.max_length
        at_least_one["decode.beams"] = self.decode.beams
        for name, value in at_least_one.items():
            if value < 1:
                raise ConfigError(f"{name}={value} must be at least 1; try 1 or more")
        for name, number in (("train.rate", t.rate), ("train.clip", t.clip)):
            if not number > 0:
                raise ConfigError(f"{name}={number} must be positive; try 1e-3 or 1.0")
        if not 0 <= t.smoothing < 1:
            raise ConfigError(f"train.smoothing={t.smoothing} must be in 0 … 1; try 0.1")

    def to_yaml(self) -> str:
        """Text that `read_recipe` reads back."""
        import yaml

        text: str = yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)
        return text


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a YAML recipe; `overrides` are `section.key=value` and win."""
    import yaml

    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"recipe {path} cannot be read: {error.strerror}; check it") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path} is not YAML: {error}") from None
    return make_recipe(data, overrides, str(path))


def make_recipe(data: Any, overrides: Iterable[str] = (), where: str = "recipe") -> Recipe:
    """A recipe from plain dicts and overrides."""
    import yaml

    data = _section(data, where)
    for override in overrides:
        key, equals, text = override.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(f"--set {override!r} is not section.key=value; try train.steps=500")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {override!r}: {text!r} is not YAML; try quotes") from None
        data[section] = {**_section(data.get(section, {}), f"{where}.{section}"), name: value}
    return typing.cast(Recipe, _read(Recipe, data, where))


def _section(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {data!r}; it must be a section of `key: value` lines")
    return dict(data)


def _read(cls: type, data: Any, where: str) -> Any:
    data = _section(data, where)
    known = {f.name: f for f in fields(cls)}
    unknown = sorted(set(map(str, data)) - set(known))
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]} is not known; there is {', '.join(known)}")
    hints = typing.get_type_hints(cls)
    return cls(**{key: _value(hints[key], value, f"{where}.{key}") for key, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(typing.cast(type, hint), value, where)
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if float in allowed and not isinstance(value, bool):
        if isinstance(value, int):
            return float(value)
        if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
            try:
                return float(value)
            except ValueError:
                pass
    if type(value) not in allowed:
        names = " or ".join("nothing" if t is type(None) else t.__name__ for t in allowed)
        raise ConfigError(f"{where}={value!r} must be {names}; correct its type")
    return value


def _choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not a choice; try {', '.join(choices)}")
