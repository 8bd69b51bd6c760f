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

from allformer.errors import ConfigError, did_you_mean
from allformer.train.model import AnyModelRecipe, ModelRecipe, PresetRecipe, TreeRecipe
from allformer.train.plain_yaml import read_yaml
from allformer.train.recipe_checks import check_recipe


@dataclass(frozen=True)
class DataRecipe:
    """Where pairs come from: a corpus by name (built in or public), or files of the user's own."""

    source: str = "en"
    target: str = "de"
    corpus: str | None = None
    path: str | None = None  # a directory, A.en,A.de or a .tsv; wins over `corpus`
    max_length: int = 256
    # sentences for validation taken from train where it has no split; None: 5 %, at most 1,000
    hold_out: int | None = None
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
    objective: str = "seq2seq"
    data: DataRecipe = field(default_factory=DataRecipe)
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    model: AnyModelRecipe = field(default_factory=ModelRecipe)
    train: TrainRecipe = field(default_factory=TrainRecipe)
    decode: DecodeRecipe = field(default_factory=DecodeRecipe)

    def __post_init__(self) -> None:
        check_recipe(self)

    def to_yaml(self) -> str:
        """Text that `read_recipe` reads back."""
        import yaml

        plain = {**dataclasses.asdict(self), "model": self.model.plain()}
        text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        return text


def read_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a YAML recipe; `overrides` are `section.key=value` and win."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"recipe {path} cannot be read: {error.strerror}; check it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe {path} is not YAML: {error}") from None
    return make_recipe(read_yaml(text, f"recipe {path}") or {}, overrides, str(path))


def make_recipe(data: Any, overrides: Iterable[str] = (), where: str = "recipe") -> Recipe:
    """A recipe from plain dicts and overrides."""
    data = _section(data, where)
    for override in overrides:
        section, name, value = read_override(override)
        before = _section(data.get(section, {}), f"{where}.{section}")
        if name.startswith("change."):  # model.change.encoder.dim: a path of the tree
            name, value = "change", {**(before.get("change") or {}), name[7:]: value}
        data[section] = {**before, name: value}
    return typing.cast(Recipe, _read(Recipe, data, where))


def read_override(override: str) -> tuple[str, str, Any]:
    """`read_override("train.steps=500")` → `("train", "steps", 500)`."""
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot:
        raise ConfigError(f"--set {override!r} is not section.key=value; try train.steps=500")
    try:
        return section, name, read_yaml(text, text)
    except ConfigError:
        raise ConfigError(f"--set {override!r}: {text!r} is not YAML; try quotes") from None


def _section(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {data!r}; it must be a section of `key: value` lines")
    return dict(data)


def _read(cls: type, data: Any, where: str) -> Any:
    data = _section(data, where)
    known = {f.name: f for f in fields(cls)}
    unknown = sorted(set(map(str, data)) - set(known))
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ConfigError(f"{where}.{unknown[0]} is not known; {hint}there is {', '.join(known)}")
    hints = typing.get_type_hints(cls)
    return cls(**{key: _value(hints[key], value, f"{where}.{key}") for key, value in data.items()})


def _model(data: Any, where: str) -> AnyModelRecipe:
    """Which of the three forms it is, by its keys."""
    data = _section(data, where)
    if "is" in data:
        return TreeRecipe(data)
    if "preset" not in data:
        return typing.cast(ModelRecipe, _read(ModelRecipe, data, where))
    found = typing.cast(PresetRecipe, _read(PresetRecipe, data, where))
    return found


def _value(hint: Any, value: Any, where: str) -> Any:
    if hint == AnyModelRecipe:
        return _model(value, where)
    if hint == Mapping[str, Any]:
        return _section(value, where)
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
