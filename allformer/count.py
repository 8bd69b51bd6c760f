"""Parameters, operations and memory of a config, by formula: nothing is built.

    table = count(preset("original-base"))
    table.parameters                     # 63,082,496
    table.flops_per_token                # forward, at table.length tokens
    print(table)

Legend: d model width, H heads, G key/value heads, D head size, f feed width, V vocabulary,
n length (of source and of target alike).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from allformer import config


@dataclass(frozen=True)
class Part:
    """One line of the table: a name, its formula, how many parameters, forward FLOPs per token."""

    name: str
    formula: str
    parameters: int
    flops: int = 0  # per token of its own side
    quadratic: int = 0  # the share of `flops` that grows with the length: attention itself


@dataclass(frozen=True)
class Count:
    """The whole count at one length; see `count`."""

    parts: tuple[Part, ...]
    length: int
    cache_bytes_per_token: int
    activation_bytes: int
    dtype_bytes: int = field(default=2)

    @property
    def parameters(self) -> int:
        """Exactly what `build(config)` holds; shared tables count once."""
        return sum(part.parameters for part in self.parts)

    @property
    def flops_per_token(self) -> int:
        """Forward floating-point operations for one target token (and one source token with it).

        A multiply-add is two operations. A training step does about three times as many.
        """
        return sum(part.flops for part in self.parts)

    @property
    def attention_share(self) -> float:
        """The fraction of the operations that is quadratic in the length: scores and mixing."""
        return sum(part.quadratic for part in self.parts) / max(1, self.flops_per_token)

    @property
    def cost_split(self) -> dict[str, float]:
        """Fractions of the operations: attention itself, the feed-forward layers, all the rest."""
        total = max(1, self.flops_per_token)
        feed = sum(part.flops for part in self.parts if part.name.endswith("feed-forward")) / total
        attention = self.attention_share
        rest = 1 - attention - feed
        return {"attention": attention, "feed-forward": feed, "projections": rest}

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "parameters": self.parameters,
            "length": self.length,
            "flops_per_token": self.flops_per_token,
            "cost_split": {name: round(x, 6) for name, x in self.cost_split.items()},
            "cache_bytes_per_token": self.cache_bytes_per_token,
            "activation_bytes_per_sequence": self.activation_bytes,
            "parameter_bytes": self.parameters * self.dtype_bytes,
            "parts": [vars(part) for part in self.parts],
        }

    def __str__(self) -> str:
        width = max(len(part.name) for part in self.parts)
        lines = [f"{p.name:<{width}}  {p.parameters:>14,}  {p.formula}" for p in self.parts]
        lines.append(f"{'total':<{width}}  {self.parameters:>14,}")
        return "\n".join(lines)


def count(model: config.Model, length: int = 512, dtype_bytes: int = 2) -> Count:
    """Count a config at a sequence length: `count(preset("original-big"), length=2048)`.

    `dtype_bytes` is the size of a number in memory (2 for bf16 and fp16, 4 for fp32).
    """
    parts = tuple(_parts(model, length))
    stacks = _stacks(model)
    cache = sum(2 * kv for stack, _ in stacks if stack.causal for kv in _cached(stack))
    activations = sum(_activations(stack, length) for stack, _ in stacks)
    return Count(parts, length, cache * dtype_bytes, activations * dtype_bytes, dtype_bytes)


def _stacks(model: config.Model) -> list[tuple[config.Stack, str]]:
    if isinstance(model, config.EncoderDecoder):
        return [(model.encoder, "encoder"), (model.decoder, "decoder")]
    if isinstance(model, config.EncoderOnly):
        return [(model.encoder, "encoder")]
    return [(model.decoder, "decoder")]


def _parts(model: config.Model, n: int) -> Iterator[Part]:
    stacks = _stacks(model)
    for stack, name in stacks:
        if name == "decoder" and isinstance(model, config.EncoderDecoder) and model.shared:
            yield Part(f"{name} embedding", "shared with the encoder", 0)
        else:
            tokens = stack.source.vocab * stack.width
            yield Part(f"{name} embedding", f"V·d = {stack.source.vocab:,}·{stack.width}", tokens)
        yield from _source(stack, name)
        yield from _blocks(stack, name, n)
        if stack.final_norm is not None:
            norm = stack.final_norm
            yield Part(f"{name} final norm", _norm_formula(norm), _norm(norm, stack.dim))
    stack = stacks[-1][0]
    if isinstance(model, config.EncoderOnly) and model.pool is not None:
        yield Part("pooler", "d² + d", _dense(stack.dim, stack.dim))
    yield from _head(model.head, stack, "head")


def _dense(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _head(head: config.Head | None, stack: config.Stack, name: str) -> Iterator[Part]:
    d = stack.dim
    if isinstance(head, config.LMHead):
        yield from _words(head, stack, name)
    elif isinstance(head, config.PretrainHead):
        yield from _words(head.words, stack, f"{name}: words")
        yield from _head(head.pair, stack, f"{name}: pair")
    elif isinstance(head, config.ClassHead):
        classes = len(head.labels)
        text = ("d² + d + " if head.dense else "") + f"d·{classes}"
        weights = (_dense(d, d) if head.dense else 0) + _dense(d, classes, head.bias)
        flops = 2 * d * classes if head.at == "token" else 0  # once a sequence: no matter
        yield Part(name, text + (f" + {classes}" if head.bias else ""), weights, flops)
    elif isinstance(head, config.SpanHead):
        text = "d·2" + (" + 2" if head.bias else "")
        yield Part(name, text, _dense(d, 2, head.bias), 4 * d)


def _words(head: config.LMHead, stack: config.Stack, name: str) -> Iterator[Part]:
    vocab, dim, transform = stack.source.vocab, stack.dim, head.transform
    if transform is not None:
        parameters = _dense(dim, stack.width) + _norm(transform.norm, stack.width)
        text = f"d·{stack.width} + {stack.width} + norm"
        yield Part(f"{name} transform", text, parameters, flops=2 * dim * stack.width)
        dim = stack.width
    matrix, bias = (0 if head.tied else vocab * dim), (vocab if head.bias else 0)
    text = "tied to the embedding" if head.tied else f"V·d = {vocab:,}·{dim}"
    yield Part(name, text + (" + V" if bias else ""), matrix + bias, flops=2 * vocab * dim)


def _source(stack: config.Stack, name: str) -> Iterator[Part]:
    """Segments, positions, the norm after them, and the way up to the model's width."""
    width = stack.width
    if stack.source.types:
        kinds = stack.source.types
        yield Part(f"{name} token types", f"{kinds}·d = {kinds}·{width}", kinds * width)
    if isinstance(stack.position, config.Learned):
        rows = stack.position.offset + stack.position.length
        yield Part(f"{name} positions", f"P·d = {rows:,}·{width}", rows * width)
    elif isinstance(stack.relative, config.BucketBias):
        heads, buckets = stack.blocks[0].attention.heads, stack.relative.buckets
        yield Part(f"{name} positions", f"buckets·H = {buckets}·{heads}", buckets * heads)
    elif stack.position is not None or stack.relative is not None:
        yield Part(f"{name} positions", "computed, not learned", 0)
    if stack.source_norm is not None:
        norm = stack.source_norm
        yield Part(f"{name} source norm", _norm_formula(norm), _norm(norm, width))
    if stack.source.width is not None:
        text = f"{width}·d + d = {width}·{stack.dim} + {stack.dim}"
        flops = 2 * width * stack.dim
        yield Part(f"{name} up-projection", text, _dense(width, stack.dim), flops)


def _blocks(stack: config.Stack, name: str, n: int) -> Iterator[Part]:
    sums: dict[str, list[int]] = {}
    formula: dict[str, str] = {}
    share = stack.share or tuple(range(len(stack.blocks)))
    for i, block in enumerate(stack.blocks):
        own = share.index(share[i]) == i  # shared weights count once, their work each time
        for key, (text, parameters, flops, quadratic) in _block(block, stack, n).items():
            line = sums.setdefault(key, [0, 0, 0])
            line[0] += parameters if own else 0
            line[1] += flops
            line[2] += quadratic
            formula[key] = text
    for key, (parameters, flops, quadratic) in sums.items():
        label = f"{len(set(share))} × ({formula[key]})"
        yield Part(f"{name} {key}", label, parameters, flops, quadratic)


def _block(
    block: config.Block, stack: config.Stack, n: int
) -> dict[str, tuple[str, int, int, int]]:
    out = {"self-attention": _attention(block.attention, stack.dim, n, stack.causal)}
    if block.cross is not None:
        out["cross-attention"] = _attention(block.cross, stack.dim, n, causal=False)
    feed, d = block.feed, stack.dim
    matrices = 3 if feed.gated else 2
    weights = matrices * d * feed.width
    biases = ((matrices - 1) * feed.width + d) if feed.bias else 0
    text = f"{matrices}·d·f" + (f" + {'2f' if feed.gated else 'f'} + d" if feed.bias else "")
    out["feed-forward"] = (text, weights + biases, 2 * weights, 0)
    norms = 3 if block.cross is not None else 2
    out["norms"] = (
        f"{norms}·{_norm_formula(block.norm)}",
        norms * _norm(block.norm, d),
        0,
        0,
    )
    return out


def _attention(a: config.Attention, d: int, n: int, causal: bool) -> tuple[str, int, int, int]:
    size = a.size(d)
    q, kv = a.heads * size, a.groups * size
    weights = 2 * d * q + 2 * d * kv
    biases = q + 2 * kv + d if a.bias else 0
    # Each query meets n keys (half of them, on average, when causal): Q Kᵀ and weights·V.
    left = right = n
    if isinstance(a.mixer, config.Window):
        left, right = a.mixer.left, a.mixer.right
    keys = 1 + _side(left, n) + (0 if causal else _side(right, n))
    quadratic = int(2 * 2 * keys * q)
    if q == kv == d:
        text = "4d²" + (" + 4d" if a.bias else "")
    else:
        text = "2·d·HD + 2·d·GD" + (" + HD + 2GD + d" if a.bias else "")
    return text, weights + biases, 2 * weights + quadratic, quadratic


def _side(reach: int, n: int) -> float:
    """Keys on one side of a query that looks `reach` far, on average over n places."""
    reach = min(reach, n - 1)
    return (reach * (reach + 1) / 2 + (n - 1 - reach) * reach) / n


def _norm(norm: config.Norm, d: int) -> int:
    return 2 * d if norm.kind == "layer" else d


def _norm_formula(norm: config.Norm) -> str:
    return "2d" if norm.kind == "layer" else "d"


def _cached(stack: config.Stack) -> list[int]:
    """Numbers in a key (or a value) of one token, layer by layer."""
    return [block.attention.groups * block.attention.size(stack.dim) for block in stack.blocks]


def _activations(stack: config.Stack, n: int) -> int:
    """Numbers kept for the backward pass of one sequence of n tokens, with fused attention.

    Each layer keeps what its matrix products and norms need again: inputs, q, k, v, context, the
    feed-forward's inner values. With attention by the formula, H·n² weights come on top.
    """
    total = n * stack.dim
    for block in stack.blocks:
        size = block.attention.size(stack.dim)
        attention = 2 * block.attention.heads * size + 2 * block.attention.groups * size
        layers = 2 if block.cross is not None else 1
        per_token = layers * (attention + 2 * stack.dim) + 2 * stack.dim
        per_token += (3 if block.feed.gated else 2) * block.feed.width
        total += n * per_token
    return total
