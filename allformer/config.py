"""The config tree: a choice is *which dataclass sits in a slot*.

    from allformer.config import *
    block = Block(Attention(heads=8), Feed(2048, act="relu"), norm_at="post", dropout=0.1)
    stack = Stack(dim=512, source=Tokens(37_000), position=Sinusoidal(), blocks=repeat(block, 6))

Everything here is frozen, hashable, says what it refuses, and goes to JSON and back. Runtime
matters (device, dtype, kernel, cache) are never config: they are arguments of the call.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import cycle as _cycle
from itertools import groupby, islice
from typing import Any, Literal

from allformer.errors import ConfigError

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
_LARGEST = sys.float_info.max  # a whole number can be larger and would not be finite as a float


def refuse(owner: object, field: str, must: str, way_out: str) -> None:
    """Raise the one form of error this file has: field, value, what must hold, a way out."""
    name = type(owner).__name__
    raise ConfigError(f"{name}.{field}={getattr(owner, field)!r} {must}; {way_out}")


def _one_of(owner: object, field: str, choices: Sequence[object]) -> None:
    value = getattr(owner, field)
    if value not in choices:
        refuse(owner, field, "is not a choice", "try " + ", ".join(map(repr, choices)))


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            refuse(owner, name, "must be a whole number of at least 1", "try 1 or more")


def _probability(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            refuse(owner, name, "must be a probability, 0 <= p < 1", "try 0.1")


def _is_a(owner: object, field: str, *kinds: type) -> None:
    value = getattr(owner, field)
    if not isinstance(value, kinds):
        names = ", ".join("None" if k is type(None) else k.__name__ for k in kinds)
        refuse(owner, field, "does not fit this slot", f"it takes {names}")


NoneType = type(None)


def _plain(hint: Any) -> set[type]:
    """The plain types that a hint allows; empty where a dataclass or a choice belongs."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = {t for t in allowed if t in (int, float, bool, str, NoneType)}
    return plain if len(plain) == len(allowed) else set()


class Config:
    """What every node of the tree can do: check the types of its plain fields, go to JSON."""

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            value = getattr(self, name)
            plain = _plain(hint)
            if plain and type(value) not in plain and not (float in plain and type(value) is int):
                names = " or ".join(sorted("None" if t is NoneType else t.__name__ for t in plain))
                refuse(self, name, f"must be {names}", "correct its type")
            if float in plain and value is not None and not abs(value) <= _LARGEST:
                refuse(self, name, "must be a finite number", "correct its value")

    def to_json(self, indent: int | None = 2) -> str:
        """`preset("original-base").to_json()`: text that `config_from_json` reads back."""
        return json.dumps(to_dict(self), indent=indent, ensure_ascii=False)


@dataclass(frozen=True)
class Norm(Config):
    """LayerNorm (`"layer"`, mean and variance) or RMSNorm (`"rms"`, root mean square only)."""

    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self, "kind", ("layer", "rms"))
        if not isinstance(self.eps, float) or not 0 < self.eps < 1:
            refuse(self, "eps", "must be a small positive number", "try 1e-5")


@dataclass(frozen=True)
class Sinusoidal(Config):
    """Sines and cosines added to the embedding; no parameters and no longest length.

    `layout="interleaved"` is the paper's formula (sine in even, cosine in odd features);
    `"halves"` has all sines first, as tensor2tensor and Marian compute it. `start` is the number
    of the first position.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"
    base: float = 10_000.0
    start: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self, "layout", ("interleaved", "halves"))
        if not self.base > 1:
            refuse(self, "base", "must be greater than 1", "the paper has 10000.0")
        if isinstance(self.start, bool) or not isinstance(self.start, int) or self.start < 0:
            refuse(self, "start", "must be a whole number of at least 0", "try 0")


@dataclass(frozen=True)
class Learned(Config):
    """A learned vector for each of `length` positions; longer input is refused, never cut."""

    length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "length")


Position = Sinusoidal | Learned


@dataclass(frozen=True)
class Attention(Config):
    """Multi-head attention: `heads` queries over `kv_heads` keys and values of `head_dim` each.

    `kv_heads=None` means one for each head; `head_dim=None` means dim / heads; `scale=None` means
    1/√head_dim. `dropout` acts on the attention weights (the paper has none there).
    """

    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    bias: bool = True
    scale: float | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "heads", "kv_heads", "head_dim")
        _probability(self, "dropout")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            fits = [str(n) for n in range(1, self.heads + 1) if self.heads % n == 0]
            way_out = "try " + " or ".join([", ".join(fits[:-1]), fits[-1]] if fits[1:] else fits)
            refuse(self, "kv_heads", f"must divide heads={self.heads}", way_out)
        if self.scale is not None and not self.scale > 0:
            refuse(self, "scale", "must be positive", "leave it out for 1/√head_dim")

    @property
    def groups(self) -> int:
        """Key/value heads after the default is filled in."""
        return self.kv_heads or self.heads

    def size(self, dim: int) -> int:
        """The width of one head in a model of width `dim`."""
        return self.head_dim or dim // self.heads


@dataclass(frozen=True)
class Feed(Config):
    """The feed-forward layer: act(x W₁ + b₁) W₂ + b₂; gated: (act(x W_g) ⊙ x W₁) W₂."""

    width: int
    act: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "width")
        _one_of(self, "act", ACTIVATIONS)
        _probability(self, "dropout")


@dataclass(frozen=True)
class Block(Config):
    """One layer: self-attention, cross-attention when `cross` is set, feed-forward.

    `norm_at="post"`: norm(x + f(x)), as in the paper. `"pre"`: x + f(norm(x)).
    `dropout` acts on each sub-layer's output before it is added.
    """

    attention: Attention
    feed: Feed
    cross: Attention | None = None
    norm: Norm = Norm()
    norm_at: Literal["pre", "post"] = "post"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "attention", Attention)
        _is_a(self, "feed", Feed)
        _is_a(self, "cross", Attention, NoneType)
        _is_a(self, "norm", Norm)
        _one_of(self, "norm_at", ("pre", "post"))
        _probability(self, "dropout")


@dataclass(frozen=True)
class Tokens(Config):
    """A token embedding; `scale` multiplies it by √dim, as in the paper, section 3.4."""

    vocab: int
    scale: bool = False
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "vocab")
        for name in ("pad_id", "bos_id", "eos_id"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < self.vocab:
                way_out = "give an id of the vocabulary, or None"
                refuse(self, name, f"must be in 0 … {self.vocab - 1} (vocab={self.vocab})", way_out)


@dataclass(frozen=True)
class Stack(Config):
    """A source of vectors, a position, and a tuple of blocks: an encoder or a decoder.

    `blocks` comes from `repeat(block, n)` or `cycle((a, b), n)`: variation by layer is data.
    """

    dim: int
    source: Tokens
    position: Position | None
    blocks: tuple[Block, ...]
    causal: bool = False
    source_norm: Norm | None = None
    final_norm: Norm | None = None
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "dim")
        _is_a(self, "source", Tokens)
        _is_a(self, "position", Sinusoidal, Learned, NoneType)
        _is_a(self, "source_norm", Norm, NoneType)
        _is_a(self, "final_norm", Norm, NoneType)
        _probability(self, "dropout")
        if isinstance(self.position, Sinusoidal) and self.dim % 2:
            refuse(self, "dim", "must be even for Sinusoidal positions", f"try {self.dim + 1}")
        if not isinstance(self.blocks, tuple) or not self.blocks:
            refuse(self, "blocks", "must be a tuple of at least one Block", "try repeat(block, 6)")
        for i, block in enumerate(self.blocks):
            if not isinstance(block, Block):
                raise ConfigError(
                    f"Stack.blocks[{i}]={block!r} is not a Block; try repeat(block, 6)"
                )
            for part in (block.attention, block.cross):
                if part is not None and part.head_dim is None and self.dim % part.heads:
                    fits = [n for n in range(1, self.dim + 1) if self.dim % n == 0]
                    near = sorted(sorted(fits, key=lambda n: abs(n - part.heads))[:3])
                    raise ConfigError(
                        f"Stack.blocks[{i}] has Attention.heads={part.heads}, which must divide "
                        f"Stack.dim={self.dim}; try heads of {', '.join(map(str, near))}, "
                        f"or give head_dim"
                    )


@dataclass(frozen=True)
class LMHead(Config):
    """Scores over the vocabulary; `tied` uses the (target) embedding as its matrix."""

    tied: bool = True
    bias: bool = False


@dataclass(frozen=True)
class EncoderOnly(Config):
    """Every token sees every token (BERT's shape); `head=None` gives hidden states."""

    encoder: Stack
    head: LMHead | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "encoder", Stack)
        _is_a(self, "head", LMHead, NoneType)
        _no_cross(self, "encoder")
        if self.encoder.causal:
            raise ConfigError(
                "EncoderOnly.encoder has causal=True; use DecoderOnly, or causal=False"
            )


@dataclass(frozen=True)
class DecoderOnly(Config):
    """Each token sees the ones before it (GPT's shape)."""

    decoder: Stack
    head: LMHead | None = LMHead()

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "decoder", Stack)
        _is_a(self, "head", LMHead, NoneType)
        _no_cross(self, "decoder")
        _is_causal(self)


@dataclass(frozen=True)
class EncoderDecoder(Config):
    """The original shape: a decoder that looks back at itself and across at the encoder.

    `shared=True`: one embedding table serves encoder and decoder (and, with a tied head, the
    output: the paper's section 3.4).
    """

    encoder: Stack
    decoder: Stack
    head: LMHead | None = LMHead()
    shared: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "encoder", Stack)
        _is_a(self, "decoder", Stack)
        _is_a(self, "head", LMHead, NoneType)
        _no_cross(self, "encoder")
        _is_causal(self)
        if self.encoder.causal:
            raise ConfigError(
                "EncoderDecoder.encoder has causal=True; an encoder sees everything: set False"
            )
        if any(block.cross is None for block in self.decoder.blocks):
            raise ConfigError(
                "EncoderDecoder.decoder has a Block with cross=None; "
                "give cross=Attention(...), or use DecoderOnly"
            )
        if self.encoder.dim != self.decoder.dim:
            raise ConfigError(
                f"EncoderDecoder.encoder.dim={self.encoder.dim} differs from "
                f"decoder.dim={self.decoder.dim}; give both the same dim"
            )
        if self.shared and self.encoder.source.vocab != self.decoder.source.vocab:
            raise ConfigError(
                f"EncoderDecoder.shared=True needs one vocabulary, but the encoder has "
                f"{self.encoder.source.vocab} tokens and the decoder {self.decoder.source.vocab}; "
                f"set shared=False, or train one joint tokenizer"
            )


Model = EncoderOnly | DecoderOnly | EncoderDecoder


def _no_cross(owner: Any, slot: str) -> None:
    if any(block.cross is not None for block in getattr(owner, slot).blocks):
        raise ConfigError(
            f"{type(owner).__name__}.{slot} has a Block with cross-attention but nothing to look "
            f"across at; set cross=None, or use EncoderDecoder"
        )


def _is_causal(owner: Any) -> None:
    if not owner.decoder.causal:
        raise ConfigError(
            f"{type(owner).__name__}.decoder has causal=False, so it would see the token it has to "
            f"predict; set causal=True"
        )


def repeat(block: Block, times: int) -> tuple[Block, ...]:
    """`repeat(block, 6)`: six layers of one shape."""
    return (block,) * times


def cycle(blocks: Iterable[Block], times: int) -> tuple[Block, ...]:
    """`cycle((local, full), 12)`: twelve layers that alternate."""
    return tuple(islice(_cycle(tuple(blocks)), times))


# --- JSON -----------------------------------------------------------------------------------------

_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Norm, Sinusoidal, Learned, Attention, Feed, Block, Tokens, Stack, LMHead,
        EncoderOnly, DecoderOnly, EncoderDecoder,
    )
}  # fmt: skip


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain dicts; each names its class under `"is"`, equal blocks are counted."""
    out: dict[str, Any] = {"is": type(config).__name__}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "blocks":
            runs = ((block, len(list(run))) for block, run in groupby(value))
            out[field.name] = [{"times": n, **to_dict(block)} for block, n in runs]
        else:
            out[field.name] = to_dict(value) if is_dataclass(value) else value
    return out


def from_dict(data: Any, where: str = "config") -> Any:
    """The inverse of `to_dict`; unknown classes and fields are refused by name."""
    if not isinstance(data, dict) or "is" not in data:
        raise ConfigError(f'{where} is {data!r}; it must be an object with its class under "is"')
    data = dict(data)
    name = data.pop("is")
    cls = _CLASSES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ConfigError(f"{where}.is={name!r} is not known; try {', '.join(_CLASSES)}")
    known = {field.name: field for field in fields(cls)}
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ConfigError(f"{where} has no field {unknown[0]!r}; {name} has {', '.join(known)}")
    missing = [
        f.name for f in known.values() if f.default is dataclasses.MISSING and f.name not in data
    ]
    if missing:
        raise ConfigError(f"{where} lacks {name}.{missing[0]}; give it a value")
    hints = typing.get_type_hints(cls)
    values = {key: _read_field(value, hints[key], f"{where}.{key}") for key, value in data.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _read_field(value: Any, hint: Any, where: str) -> Any:
    if where.endswith(".blocks"):
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {value!r}; it must be a list of blocks")
        blocks: list[Block] = []
        for i, item in enumerate(value):
            item = dict(item) if isinstance(item, dict) else item
            times = item.pop("times", 1) if isinstance(item, dict) else 1
            if type(times) is not int or times < 1:
                raise ConfigError(
                    f"{where}[{i}].times={times!r} must be a whole number of at least 1; "
                    f"try 1 or more"
                )
            blocks += [from_dict(item, f"{where}[{i}]")] * times
        return tuple(blocks)
    if isinstance(value, dict):
        return from_dict(value, where)
    if float in _plain(hint) and type(value) is int and abs(value) <= _LARGEST:
        return float(value)
    return value  # the class checks its type and names the choices


def config_from_json(text: str) -> Any:
    """`config_from_json(config.to_json()) == config`."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"config is not JSON (line {error.lineno}: {error.msg}); check the file"
        ) from None
    return from_dict(data)
