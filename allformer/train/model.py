"""A recipe's model section, and the config tree that it asks for.

    model: {dim: 256, heads: 4, layers: 3}                        # the original Transformer's sizes
    model: {preset: t5-small, change: {encoder.blocks.times: 2}}  # a preset with changes
    model: {is: EncoderDecoder, encoder: …}                       # a whole config tree

The vocabulary and the special tokens come from the tokeniser, whatever the tree says.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from allformer.config import ACTIVATIONS, EncoderDecoder, from_dict, to_dict
from allformer.errors import ConfigError, did_you_mean
from allformer.families import preset, presets
from allformer.families.original import BOS, EOS, PAD, transformer


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

    def plain(self) -> dict[str, Any]:
        """As it stands in a recipe."""
        return asdict(self)

    def tree(self) -> Any:
        """Sines before cosines, as Marian has them; errors name the recipe's keys."""
        for name in ("dim", "heads", "feed", "layers", "decoder_layers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"model.{name}={value} must be at least 1; try 1 or more")
        for name in ("dropout", "attention_dropout", "feed_dropout"):
            if not 0 <= getattr(self, name) < 1:
                value = getattr(self, name)
                raise ConfigError(f"model.{name}={value} must be in 0 … 1, without 1; try 0.1")
        if self.dim % 2:
            raise ConfigError(f"model.dim={self.dim} must be even; try {self.dim + 1}")
        if self.dim % self.heads:
            fits = [str(n) for n in range(1, 65) if self.dim % n == 0]
            raise ConfigError(
                f"model.heads={self.heads} must divide model.dim={self.dim}; try {', '.join(fits)}"
            )
        for name, known in (("act", ACTIVATIONS), ("norm_at", ("pre", "post"))):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise ConfigError(f"model.{name}={value!r} is not a choice; try {', '.join(known)}")
        return transformer(**asdict(self), vocab=_ROOM, layout="halves")


@dataclass(frozen=True)
class PresetRecipe:
    """A preset by name, and values to put at dotted paths of its tree."""

    preset: str
    change: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As it stands in a recipe."""
        return {"preset": self.preset, "change": dict(self.change)}

    def tree(self) -> Any:
        """The preset's tree, changed; errors name the path as `model.change.encoder.dim`."""
        if self.preset not in presets():
            hint = did_you_mean(self.preset, presets())
            raise ConfigError(
                f"model.preset={self.preset!r} is not known; {hint}there is {', '.join(presets())}"
            )
        raw = copy.deepcopy(to_dict(preset(self.preset)))
        for path, value in self.change.items():
            _put(raw, str(path).split("."), value, f"model.change.{path}")
        try:
            return from_dict(raw, "model")
        except ConfigError as error:
            raise ConfigError(f"{self._blame(str(error))}: {error}") from None

    def _blame(self, said: str) -> str:
        """The changes that an error is about: those whose field it names, or all."""
        named = [p for p in self.change if f"{p.rsplit('.', 1)[-1]}=" in said] or self.change
        return ", ".join(f"model.change.{path}={self.change[path]!r}" for path in named)


@dataclass(frozen=True)
class TreeRecipe:
    """A whole config tree, as config.json has it."""

    raw: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """As it stands in a recipe."""
        return copy.deepcopy(dict(self.raw))

    def tree(self) -> Any:
        """Errors name the path as `model.encoder.blocks[0].feed`."""
        return from_dict(copy.deepcopy(dict(self.raw)), "model")


AnyModelRecipe = ModelRecipe | PresetRecipe | TreeRecipe
_ROOM = 1 << 10  # a vocabulary to check with, before the tokeniser says how large it is


def model_config(model: AnyModelRecipe, vocab: int) -> Any:
    """`model_config(recipe.model, tokenizer.vocab_size)`: the tree for our own tokeniser."""
    tree = model.tree()
    changes: dict[str, Any] = {}
    for name in ("encoder", "decoder"):
        stack = getattr(tree, name, None)
        if stack is not None:
            ids = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
            changes[name] = replace(stack, source=replace(stack.source, vocab=vocab, **ids))
    if isinstance(tree, EncoderDecoder):
        changes |= {"start_id": None, "start_last": False}
    return replace(tree, **changes)


def _put(node: Any, path: list[str], value: Any, where: str) -> None:
    """Set a field of a tree of dicts. In a list (blocks), a name is meant of every entry."""
    key, *rest = path
    if isinstance(node, list):
        for entry in [node[int(key)]] if key.isdigit() and int(key) < len(node) else node:
            _put(entry, rest if key.isdigit() else path, value, where)
        return
    if not isinstance(node, dict):
        raise ConfigError(f"{where} leads into {node!r}, which has no parts; shorten the path")
    if key not in node or key == "is":
        known = [name for name in node if name != "is"]
        hint = did_you_mean(key, known)
        raise ConfigError(f"{where}: there is no {key!r}; {hint}there is {', '.join(known)}")
    if rest:
        _put(node[key], rest, value, where)
    else:
        node[key] = value
