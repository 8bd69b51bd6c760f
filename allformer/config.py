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

ACTIVATIONS = (
    "relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh", "sigmoid", "mish", "relu2", "relu6",
    "leaky_relu", "identity",
)  # fmt: skip
COUNTS = ("kept", "all", "ids")
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
    of the first position; `count` as in `Learned`; `length` is told, not enforced, as in `Rotary`.
    """

    layout: Literal["interleaved", "halves"] = "interleaved"
    base: float = 10_000.0
    start: int = 0
    count: Literal["kept", "all"] = "kept"
    length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self, "layout", ("interleaved", "halves"))
        _one_of(self, "count", COUNTS[:2])
        _positive(self, "length")
        if not self.base > 1:
            refuse(self, "base", "must be greater than 1", "the paper has 10000.0")
        if isinstance(self.start, bool) or not isinstance(self.start, int) or self.start < 0:
            refuse(self, "start", "must be a whole number of at least 0", "try 0")


@dataclass(frozen=True)
class Learned(Config):
    """A learned vector for each of `length` positions; longer input is refused, never cut.

    The table has `offset` more rows in front: position 0 is row `offset` (BART 2, RoBERTa pad + 1).
    `count` says which tokens have a number: `"kept"` those that the attention mask keeps, so that
    padding on the left changes nothing; `"all"`, padding too (BERT, BART); `"ids"` those whose id
    is not the padding's, whatever the mask says (RoBERTa; a caller's position_ids are then rows).
    """

    length: int
    offset: int = 0
    count: Literal["kept", "all", "ids"] = "kept"

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "length")
        _one_of(self, "count", COUNTS)
        if self.offset < 0:
            refuse(self, "offset", "must be at least 0", "try 0")
        if self.count == "ids" and not self.offset:
            must = 'must be at least 1 with count="ids": padding has the row before the first'
            refuse(self, "offset", must, "RoBERTa has 2")


Position = Sinusoidal | Learned


@dataclass(frozen=True)
class LinearScaling(Config):
    """Rotary positions divided by `factor`: a longer text is squeezed into the trained range."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.factor > 0:
            refuse(self, "factor", "must be positive", "try 2.0")


@dataclass(frozen=True)
class Llama3Scaling(Config):
    """LLaMA 3.1: slow frequencies are divided by `factor`, fast ones kept, a ramp between.

    Fast: more than `high` turns within the `length` of pre-training; slow: fewer than `low`.
    """

    factor: float
    low: float = 1.0
    high: float = 4.0
    length: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "length")
        if not self.factor > 0:
            refuse(self, "factor", "must be positive", "LLaMA 3.1 has 8.0")
        if not 0 < self.low < self.high:
            refuse(self, "low", f"must be between 0 and high={self.high}", "LLaMA 3.1 has 1.0")


@dataclass(frozen=True)
class Rotary(Config):
    """Queries and keys turned by an angle that grows with the position (halves of a head paired).

    `length` is what the model was trained for; it is told, not enforced.
    """

    theta: float = 10_000.0
    scaling: LinearScaling | Llama3Scaling | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "scaling", LinearScaling, Llama3Scaling, NoneType)
        _positive(self, "length")
        if not self.theta > 1:
            refuse(self, "theta", "must be greater than 1", "LLaMA has 10000.0")


@dataclass(frozen=True)
class BucketBias(Config):
    """T5's relative positions: a learned bias for each head and bucket of distances.

    Half of the buckets count single steps, the others widen up to `max_distance`. A causal stack
    looks back only and has all the buckets for that side. All layers share one table.
    """

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "buckets", "max_distance")
        if self.buckets < 4 or self.buckets % 2:
            refuse(self, "buckets", "must be even and at least 4", "T5 has 32")
        if self.max_distance <= self.buckets // 2:
            must = f"must be greater than half of buckets={self.buckets}"
            refuse(self, "max_distance", must, "T5 has 128")


Relative = Rotary | BucketBias


@dataclass(frozen=True)
class Full(Config):
    """Every query may look at every key (that the masks allow)."""


@dataclass(frozen=True)
class Window(Config):
    """A query looks at no more than `left` keys before it and `right` after it, and at itself."""

    left: int
    right: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("left", "right"):
            if getattr(self, name) < 0:
                refuse(self, name, "must be at least 0", "try 128")


Mixer = Full | Window


@dataclass(frozen=True)
class Attention(Config):
    """Multi-head attention: `heads` queries over `kv_heads` keys and values of `head_dim` each.

    `kv_heads=None` means one for each head; `head_dim=None` means dim / heads; `scale=None` means
    1/√head_dim. `mixer` says who looks at whom. `dropout` acts on the attention weights (the paper
    has none there).
    """

    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    bias: bool = True
    scale: float | None = None
    mixer: Mixer = Full()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "heads", "kv_heads", "head_dim")
        _is_a(self, "mixer", Full, Window)
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
    act: str = "relu"
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
        if self.cross is not None and self.cross.mixer != Full():
            refuse(self, "cross", "cannot have a window", "give it mixer=Full()")
        _is_a(self, "norm", Norm)
        _one_of(self, "norm_at", ("pre", "post"))
        _probability(self, "dropout")


@dataclass(frozen=True)
class Tokens(Config):
    """A token embedding; `scale` multiplies it by √dim, as in the paper, section 3.4.

    `types` rows of segment vectors are added (BERT's sentence A and B). With `width`, tables,
    positions and source norm are that narrow, and a matrix takes them to the stack's dim (ALBERT).
    With `pad_fixed`, the padding's own vector is not trained by what is read.
    """

    vocab: int
    width: int | None = None
    scale: bool = False
    types: int = 0
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    pad_fixed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "vocab", "width")
        if self.types < 0:
            refuse(self, "types", "must be at least 0", "BERT has 2")
        for name in ("pad_id", "bos_id", "eos_id"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < self.vocab:
                way_out = "give an id of the vocabulary, or None"
                refuse(self, name, f"must be in 0 … {self.vocab - 1} (vocab={self.vocab})", way_out)


@dataclass(frozen=True)
class Stack(Config):
    """A source of vectors, a position, and a tuple of blocks: an encoder or a decoder.

    `blocks` comes from `repeat(block, n)` or `cycle((a, b), n)`: variation by layer is data.
    `relative` is the position inside the attention. `share` names for each block the set of
    weights that it uses: `share=(0, 0, 1, 1)` is four layers deep and holds two (ALBERT).
    `dropout` acts on the embedded input, `final_dropout` on the output (T5).
    """

    dim: int
    source: Tokens
    position: Position | None
    blocks: tuple[Block, ...]
    causal: bool = False
    source_norm: Norm | None = None
    final_norm: Norm | None = None
    relative: Relative | None = None
    share: tuple[int, ...] | None = None
    dropout: float = 0.1
    final_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "dim")
        _is_a(self, "source", Tokens)
        _is_a(self, "position", Sinusoidal, Learned, NoneType)
        _is_a(self, "source_norm", Norm, NoneType)
        _is_a(self, "final_norm", Norm, NoneType)
        _is_a(self, "relative", Rotary, BucketBias, NoneType)
        _probability(self, "dropout", "final_dropout")
        if isinstance(self.position, Sinusoidal) and self.width % 2:
            refuse(self, "dim", "must be even for Sinusoidal positions", f"try {self.dim + 1}")
        counted = isinstance(self.position, Learned) and self.position.count == "ids"
        if counted and self.source.pad_id is None:
            refuse(self, "position", "counts ids that are not padding", "give Tokens.pad_id")
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
        self._check_relative()
        self._check_share()

    @property
    def width(self) -> int:
        """The width of the embedded tokens, before ALBERT's up-projection."""
        return self.source.width or self.dim

    def _check_relative(self) -> None:
        shapes = {(b.attention.heads, b.attention.size(self.dim)) for b in self.blocks}
        if isinstance(self.relative, Rotary) and any(size % 2 for _, size in shapes):
            refuse(self, "relative", "turns pairs: head_dim must be even", "try head_dim=64")
        if isinstance(self.relative, Rotary) and len({size for _, size in shapes}) > 1:
            refuse(self, "relative", "needs one head_dim in all blocks", "give head_dim")
        if isinstance(self.relative, BucketBias) and len({heads for heads, _ in shapes}) > 1:
            refuse(self, "relative", "needs one number of heads in all blocks", "make them equal")

    def _check_share(self) -> None:
        if self.share is None:
            return
        whole = isinstance(self.share, tuple) and all(type(i) is int for i in self.share)
        if not whole or len(self.share) != len(self.blocks):
            must = f"must name a set of weights for each of the {len(self.blocks)} blocks"
            refuse(self, "share", must, f"try {(0,) * len(self.blocks)}")
        if sorted(set(self.share)) != list(range(len(set(self.share)))):
            refuse(self, "share", "must number the sets from 0 without gaps", "renumber them")
        first: dict[int, Block] = {}
        for i, block in zip(self.share, self.blocks, strict=True):
            if first.setdefault(i, block) != block:
                refuse(self, "share", f"gives set {i} to unequal blocks", "make them equal")


PROBLEMS = (
    None, "regression", "single_label_classification", "multi_label_classification",
)  # fmt: skip


@dataclass(frozen=True)
class Transform(Config):
    """What BERT does before its output matrix: norm(act(x W + b)), to the embedding's width."""

    act: str = "gelu"
    norm: Norm = Norm()

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self, "act", ACTIVATIONS)
        _is_a(self, "norm", Norm)


@dataclass(frozen=True)
class LMHead(Config):
    """Scores over the vocabulary; `tied` uses the (target) embedding as its matrix.

    `transform` is a dense layer before it (BERT); `scale` multiplies its input (T5: dim^-½);
    `offset` adds stored numbers that are not trained (BART's final_logits_bias).
    """

    tied: bool = True
    bias: bool = False
    transform: Transform | None = None
    scale: float | None = None
    offset: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "transform", Transform, NoneType)


@dataclass(frozen=True)
class Pool(Config):
    """The first token's state through a dense layer: BERT's `pooler_output`."""

    act: str = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self, "act", ACTIVATIONS)


@dataclass(frozen=True)
class ClassHead(Config):
    """Scores over `labels`: for each token (`at="token"`), or for the sequence from one state.

    `at`: `"pool"` the pooler's output (BERT), `"first"` token (RoBERTa), the `"last"` one that is
    not padding (GPT), the last `"eos"` (BART). `dense` is the activation of a layer in between.
    `problem=None` is told by the labels: one label is regression, whole numbers are classes,
    fractions are several classes at once.
    """

    labels: tuple[str, ...]
    at: Literal["token", "pool", "first", "last", "eos"] = "pool"
    dense: str | None = None
    bias: bool = True
    dropout: float = 0.0
    problem: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of(self, "at", ("token", "pool", "first", "last", "eos"))
        _one_of(self, "problem", PROBLEMS)
        _probability(self, "dropout")
        if self.dense is not None:
            _one_of(self, "dense", ACTIVATIONS)
        texts = isinstance(self.labels, tuple) and all(type(x) is str for x in self.labels)
        if not texts or not self.labels:
            refuse(self, "labels", "must be a tuple of at least one name", 'try ("no", "yes")')


@dataclass(frozen=True)
class SpanHead(Config):
    """Where an answer begins and ends in the text: two scores for each token (SQuAD)."""

    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _probability(self, "dropout")


@dataclass(frozen=True)
class PretrainHead(Config):
    """BERT's pair: masked words and whether the second sentence follows the first."""

    words: LMHead
    pair: ClassHead

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "words", LMHead)
        _is_a(self, "pair", ClassHead)


Head = LMHead | ClassHead | SpanHead | PretrainHead


@dataclass(frozen=True)
class EncoderOnly(Config):
    """Every token sees every token (BERT's shape); `head=None` gives hidden states."""

    encoder: Stack
    head: Head | None = None
    pool: Pool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "encoder", Stack)
        _is_a(self, "head", LMHead, ClassHead, SpanHead, PretrainHead, NoneType)
        _is_a(self, "pool", Pool, NoneType)
        _no_cross(self, "encoder")
        _head_fits(self, self.encoder)
        pair = self.head.pair if isinstance(self.head, PretrainHead) else self.head
        if isinstance(pair, ClassHead) and pair.at == "pool" and self.pool is None:
            refuse(self, "pool", 'is what the head with at="pool" reads', "give pool=Pool()")
        if self.encoder.causal:
            raise ConfigError(
                "EncoderOnly.encoder has causal=True; use DecoderOnly, or causal=False"
            )


@dataclass(frozen=True)
class DecoderOnly(Config):
    """Each token sees the ones before it (GPT's shape)."""

    decoder: Stack
    head: LMHead | ClassHead | SpanHead | None = LMHead()

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "decoder", Stack)
        _is_a(self, "head", LMHead, ClassHead, SpanHead, NoneType)
        _no_cross(self, "decoder")
        _is_causal(self)
        _head_fits(self, self.decoder)
        _no_pool(self)


@dataclass(frozen=True)
class EncoderDecoder(Config):
    """The original shape: a decoder that looks back at itself and across at the encoder.

    `shared=True`: one embedding table serves encoder and decoder (and, with a tied head, the
    output: the paper's section 3.4). The decoder's first token is `start_id`, by default its
    `Tokens.bos_id`; with `start_last` it is the last token of the labels (mBART's language).
    """

    encoder: Stack
    decoder: Stack
    head: LMHead | ClassHead | SpanHead | None = LMHead()
    shared: bool = True
    start_id: int | None = None
    start_last: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _is_a(self, "encoder", Stack)
        _is_a(self, "decoder", Stack)
        _is_a(self, "head", LMHead, ClassHead, SpanHead, NoneType)
        _head_fits(self, self.decoder)
        _no_pool(self)
        vocab = self.decoder.source.vocab
        if self.start_id is not None and not 0 <= self.start_id < vocab:
            refuse(self, "start_id", f"must be in 0 … {vocab - 1}", "give an id of the vocabulary")
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
        if self.shared and self.encoder.source.width != self.decoder.source.width:
            raise ConfigError("EncoderDecoder.shared=True needs one Tokens.width; make them equal")

    @property
    def start(self) -> int | None:
        """The token that the decoder begins with."""
        return self.decoder.source.bos_id if self.start_id is None else self.start_id


Model = EncoderOnly | DecoderOnly | EncoderDecoder


def _no_cross(owner: Any, slot: str) -> None:
    if any(block.cross is not None for block in getattr(owner, slot).blocks):
        raise ConfigError(
            f"{type(owner).__name__}.{slot} has a Block with cross-attention but nothing to look "
            f"across at; set cross=None, or use EncoderDecoder"
        )


def _head_fits(owner: Any, stack: Stack) -> None:
    head = owner.head.words if isinstance(owner.head, PretrainHead) else owner.head
    if isinstance(head, LMHead) and head.tied and stack.width != stack.dim and not head.transform:
        must = f"is tied to an embedding of width {stack.width}, but states have {stack.dim}"
        refuse(owner, "head", must, "give it transform=Transform(), or tied=False")
    if isinstance(head, ClassHead) and head.at == "eos" and stack.source.eos_id is None:
        refuse(owner, "head", 'with at="eos" looks for Tokens.eos_id', "set it")


def _no_pool(owner: Any) -> None:
    if isinstance(owner.head, ClassHead) and owner.head.at == "pool":
        refuse(owner, "head", 'has at="pool", but only EncoderOnly has a pool', 'try at="last"')


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
        Norm, Sinusoidal, Learned, LinearScaling, Llama3Scaling, Rotary, BucketBias, Full, Window,
        Attention, Feed, Block, Tokens, Stack, Transform, LMHead, Pool, ClassHead, SpanHead,
        PretrainHead, EncoderOnly, DecoderOnly, EncoderDecoder,
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
    if isinstance(value, list) and not _plain(hint):
        return tuple(value)  # names of labels, shared sets of weights
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
