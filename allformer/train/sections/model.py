"""A recipe's model section, and the config tree that it asks for.

    model: {dim: 256, heads: 4, layers: 3}                        # plain sizes; perhaps a mixer
    model: {patch: 4, dim: 192, heads: 3, layers: 9}              # the same, of one that sees
    model: {vision: {patch: 4, …}, text: {dim: 128, …}}           # two towers (towers.py)
    model: {preset: t5-small, change: {encoder.blocks.times: 2}}  # a preset with changes
    model: {is: EncoderDecoder, encoder: …}                       # a whole config tree
    model: {checkpoint: runs/mine, head: {kind: classes}}         # trained weights, a fresh head

Of a fresh model the vocabulary and the special tokens come from the tokeniser, whatever the tree
says.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.load import read_config_of
from allformer.codecs import codec_preset, codec_presets
from allformer.config import ACTIVATIONS, EncoderDecoder, from_dict, to_dict
from allformer.core.quantise import KINDS
from allformer.errors import ConfigError, did_you_mean
from allformer.families import preset, presets
from allformer.train.sections.head import HeadRecipe
from allformer.train.sections.section import (
    Count,
    Section,
    Whole,
    as_mapping,
    one_of,
    read_section,
    share,
)
from allformer.train.sections.sizes import SHAPES, image_encoder
from allformer.train.sections.vocabulary import Vocabulary


@dataclass(frozen=True)
class AnyModelRecipe(Section, section="model"):
    """What all forms answer."""

    def tree(self, shape: str = "encoder-decoder", length: int = 512) -> Any:
        """The config tree; `shape` and `length` are for who says sizes alone."""
        raise NotImplementedError

    def fitted(self, shape: str, length: int, vocabulary: Vocabulary | None) -> Any:
        """The tree for a tokeniser's ids; without a tokeniser as it is."""
        tree = self.tree(shape, length)
        return tree if vocabulary is None else with_vocabulary(tree, vocabulary)


@dataclass(frozen=True)
class ModelRecipe(AnyModelRecipe):
    """Sizes: the original Transformer's for an encoder-decoder, GPT-2's form for a decoder, BERT's
    for an encoder. `act` and `norm_at` left out are as those have them."""

    dim: Count = 256
    heads: Count = 4
    feed: Count = 1024
    layers: Count = 3
    decoder_layers: Count | None = None
    dropout: Annotated[float, share("0.1")] = 0.1
    attention_dropout: Annotated[float, share("0.1")] = 0.0
    feed_dropout: Annotated[float, share("0.1")] = 0.0
    act: Annotated[str | None, one_of(*ACTIVATIONS)] = None
    norm_at: Annotated[str | None, one_of("pre", "post")] = None
    # {is: Window, left: 256, right: 256}: who looks at whom, in all layers; None: full attention
    mixer: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % 2:
            self.refuse("dim", "must be even", f"try {self.dim + 1}")
        if self.dim % self.heads:
            fits = [str(n) for n in range(1, 65) if self.dim % n == 0]
            self.refuse("heads", f"must divide model.dim={self.dim}", f"try {', '.join(fits)}")

    def tree(self, shape: str = "encoder-decoder", length: int = 512) -> Any:
        if self.decoder_layers is not None and shape not in ("encoder-decoder", "recogniser"):
            self.refuse("decoder_layers", f"belongs to an encoder-decoder, not {shape}", "leave it")
        sizes = asdict(self)
        mixer = sizes.pop("mixer")
        tree = SHAPES[shape](length=length, **sizes)
        if mixer is None:
            return tree
        raw = copy.deepcopy(to_dict(tree))
        for name in tree.stacks:
            _put(raw, [name, "blocks", "attention", "mixer"], mixer, "model.mixer")
        return from_dict(raw, "model")


@dataclass(frozen=True)
class PatchRecipe(AnyModelRecipe):
    """Sizes of a ViT: squares of `patch` pixels are its tokens. Without `cls` the mean of the
    patches speaks for the image."""

    patch: Count
    dim: Count = 192
    heads: Count = 3
    feed: Count = 768
    layers: Count = 9
    dropout: Annotated[float, share("0.1")] = 0.0
    attention_dropout: Annotated[float, share("0.1")] = 0.0
    feed_dropout: Annotated[float, share("0.1")] = 0.0
    drop_path: Annotated[float, share("0.1")] = 0.0  # of the last layer; the first has none
    cls: bool = True
    registers: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            fits = [str(n) for n in range(1, 65) if self.dim % n == 0]
            self.refuse("heads", f"must divide model.dim={self.dim}", f"try {', '.join(fits)}")

    def tree(self, shape: str = "image-encoder", length: int = 512) -> Any:
        if shape != "image-encoder":
            self.refuse("patch", f"is of images, but this objective wants {shape}", "leave it out")
        return image_encoder(**asdict(self))


@dataclass(frozen=True)
class _Changed(AnyModelRecipe):
    """A tree from elsewhere, values to put at its dotted paths, and perhaps another head."""

    def _changed(self, tree: Any, change: Mapping[str, Any], head: HeadRecipe | None) -> Any:
        raw = copy.deepcopy(to_dict(tree))
        for path, value in change.items():
            _put(raw, str(path).split("."), value, f"model.change.{path}")
        try:
            tree = from_dict(raw, "model")
        except ConfigError as error:
            raise ConfigError(f"{_blame(change, str(error))}: {error}") from None
        return tree if head is None else head.put(tree)


@dataclass(frozen=True)
class PresetRecipe(_Changed):
    """A preset by name."""

    preset: str
    change: Mapping[str, Any] = field(default_factory=dict)
    head: HeadRecipe | None = None

    def tree(self, shape: str = "encoder-decoder", length: int = 512) -> Any:
        known = [*presets(), *codec_presets()]
        if self.preset not in known:
            hint = did_you_mean(self.preset, known)
            raise ConfigError(
                f"model.preset={self.preset!r} is not known; {hint}there is {', '.join(known)}"
            )
        find = codec_preset if self.preset in codec_presets() else preset
        return self._changed(find(self.preset), self.change, self.head)


@dataclass(frozen=True)
class CheckpointModel(_Changed):
    """Trained weights: a directory or a hub id. Changes must leave the body's shapes alone."""

    checkpoint: str
    change: Mapping[str, Any] = field(default_factory=dict)
    head: HeadRecipe | None = None
    quantise: Annotated[str | None, one_of(*KINDS)] = None  # int8, int4: what stays frozen

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return find_checkpoint(self.checkpoint)

    def tree(self, shape: str = "encoder-decoder", length: int = 512) -> Any:
        return self._changed(read_config_of(self.directory / "config.json"), self.change, self.head)

    def fitted(self, shape: str, length: int, vocabulary: Vocabulary | None) -> Any:
        """The checkpoint has its vocabulary already: the tokeniser must fit into it."""
        tree = self.tree(shape, length)
        if vocabulary is None:
            return tree
        sizes = (stack.source.vocab for stack in tree.stacks.values())
        room = min((size for size in sizes if size), default=0)
        if vocabulary.size > room:
            raise ConfigError(
                f"the tokeniser has {vocabulary.size:,} ids, but model.checkpoint="
                f"{self.checkpoint!r} has {room:,}; use its own: tokenizer: {{checkpoint: "
                f"{self.checkpoint}}}"
            )
        return tree


@dataclass(frozen=True)
class TreeRecipe(AnyModelRecipe):
    """A whole config tree, as config.json has it."""

    raw: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """As it stands in a recipe."""
        return copy.deepcopy(dict(self.raw))

    def tree(self, shape: str = "encoder-decoder", length: int = 512) -> Any:
        """Errors name the path as `model.encoder.blocks[0].feed`."""
        return from_dict(copy.deepcopy(dict(self.raw)), "model")


# By the key that tells each; others add their own (towers.py).
FORMS: dict[str, type[AnyModelRecipe]] = {
    "preset": PresetRecipe, "checkpoint": CheckpointModel, "patch": PatchRecipe,
}  # fmt: skip


def read_model(data: Any, where: str) -> AnyModelRecipe:
    """Which of the forms it is, by its keys."""
    given = as_mapping(data, where)
    if "is" in given:
        return TreeRecipe(given)
    key = next((key for key in FORMS if key in given), None)
    if key is None:
        return read_section(ModelRecipe, given, where)
    own = {f.name for f in fields(FORMS[key])}
    sizes = {f.name for f in fields(ModelRecipe)}
    if odd := next((name for name in given if name in sizes - own), None):
        change = f", or say what changes of it by its path: {where}.change" * ("change" in own)
        raise ConfigError(
            f"{where}.{odd} is of plain sizes, and {where}.{key} says the whole model; leave one "
            f"of them out{change}"
        )
    found: AnyModelRecipe = read_section(FORMS[key], given, where)
    return found


def with_vocabulary(tree: Any, vocabulary: Vocabulary) -> Any:
    """A fresh tree for a tokeniser: so many ids, and its special ones."""
    size, pad, bos, eos = vocabulary
    changes: dict[str, Any] = {
        name: replace(
            stack, source=replace(stack.source, vocab=size, pad_id=pad, bos_id=bos, eos_id=eos)
        )
        for name, stack in tree.stacks.items()
        if stack.source.vocab
    }
    if isinstance(tree, EncoderDecoder):
        changes |= {"start_id": None, "start_last": False}
    return replace(tree, **changes)


def _blame(change: Mapping[str, Any], said: str) -> str:
    """The changes that an error is about: those whose field it names, or all."""
    named = [p for p in change if f"{p.rsplit('.', 1)[-1]}=" in said] or change
    return ", ".join(f"model.change.{path}={change[path]!r}" for path in named)


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
