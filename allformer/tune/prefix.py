"""Prefix-tuning (Li and Liang, 2021; P-tuning v2, Liu et al., 2022): in every layer learned keys
and values stand before those of the tokens.

    softmax(Q [P_k; K]ᵀ · scale) [P_v; V]

All tokens may look at them, and are numbered as if they came behind as many others: as PEFT has
it, who puts them into the cache. They are given to the mixer as they are, past projections and
rotations. Where an encoder reads and a decoder writes, the decoder has them, in its
self-attention.

With `hidden` they are not learned themselves, but made of smaller vectors by a network with one
hidden layer, which Li and Liang found steadier to train: tanh(E W₁ᵀ + b₁) W₂ᵀ + b₂.

Legend: P learned keys, G key/value heads, D head size, R rows, W numbers of all layers' keys and
values of one place: of each layer first G·D of keys, then as many of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.layout import Ahead
from allformer.core.mixers.full import Full
from allformer.core.mixers.window import Window
from allformer.core.precision import cast
from allformer.core.stack import Stack
from allformer.errors import ConfigError, did_you_mean
from allformer.tune.deltas import device_of, wide_dtype
from allformer.tune.method import Method, register
from allformer.tune.slot import Names, Slot
from allformer.tune.tuning import Tuning

Pair = tuple[Tensor, Tensor]  # keys and values, (R or 1) G P D


@register("prefix")
@dataclass(frozen=True)
class Prefix(Method):
    """`Prefix(20)`: so many keys and values in every layer; `Prefix(20, hidden=512)`: made by a
    network of vectors as wide as the keys of a layer."""

    tokens: int = 20
    hidden: int | None = None
    stacks: tuple[str, ...] | None = None  # None: the decoder behind an encoder, else every stack

    def __post_init__(self) -> None:
        sizes = {"tokens": self.tokens, "hidden": 1 if self.hidden is None else self.hidden}
        for name, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise ConfigError(
                    f"Prefix.{name}={size!r} must be a whole number, 1 at least; try 20"
                )

    def put(self, model: Any, tuning: Tuning, adapter: str, generator: torch.Generator) -> None:
        """Keys and values drawn as PEFT draws them, or the network that makes them."""
        for name in self._stacks(model.config):
            stack = model.stack(name)
            _check(stack, name)
            _check_room(stack, name, self.tokens)
            prefix = PrefixKeys(self, stack)
            prefix.start(generator, device_of(stack.layers[0].feed))
            tuning.slot(model, name, "delta", Keys).add(adapter, self.name, prefix)

    def ahead(self, tree: Any) -> dict[str, int]:
        """They are counted as if they came before."""
        return dict.fromkeys(self._stacks(tree), self.tokens)

    def _stacks(self, tree: Any) -> tuple[str, ...]:
        there = tuple(tree.stacks)
        if self.stacks is None:
            return ("decoder",) if isinstance(tree, config.EncoderDecoder) else there
        odd = next((name for name in self.stacks if name not in there), None)
        if odd is not None or not self.stacks:
            raise ConfigError(
                f"Prefix.stacks={self.stacks!r}: this model has {', '.join(there)}; "
                f"{did_you_mean(odd or '', there)}name some of these, or None"
            )
        return self.stacks


def _check(stack: Stack, name: str) -> None:
    """Keys that no token has can stand before those of softmax attention alone."""
    mixers: list[Any] = [layer.attention.mixer for layer in stack.layers]  # type: ignore[union-attr]
    odd = next((mixer for mixer in mixers if type(mixer) not in (Full, Window)), None)
    kind = None if odd is None else type(odd).__name__
    if isinstance(stack.config.relative, config.XLRelative):
        kind = "XLRelative"
    if kind is not None:
        raise ConfigError(
            f"Prefix puts keys before those of the tokens, which {kind} in the {name} has no place "
            f"for; try Prompt(), Lora() or Bottleneck()"
        )


def _check_room(stack: Stack, name: str, tokens: int) -> None:
    longest = stack.config.longest if stack.source.per_token else None
    if longest is not None and tokens >= longest:
        raise ConfigError(
            f"Prefix.tokens={tokens}, but the {name} has {longest} positions, of which they take "
            f"as many; try 20"
        )


class PrefixKeys(nn.Module):
    """The keys and values of a stack's layers: `table` P W, or what they are made of."""

    decays = ("into", "out")

    def __init__(self, prefix: Prefix, stack: Stack) -> None:
        super().__init__()
        layers: Any = stack.layers
        mixers = [layers[j].attention.mixer for j in stack.order]
        self.shapes = [(mixer.groups, mixer.size) for mixer in mixers]
        self.count = prefix.tokens
        wide = sum(2 * groups * size for groups, size in self.shapes)
        how: Any = {"dtype": wide_dtype(layers[0].feed)}
        dim = wide if prefix.hidden is None else math.prod(self.shapes[0])
        self.table = nn.Parameter(torch.empty(self.count, dim, **how))
        self.made = prefix.hidden is not None
        if prefix.hidden is not None:
            self.into = nn.Parameter(torch.empty(prefix.hidden, dim, **how))
            self.into_bias = nn.Parameter(torch.empty(prefix.hidden, **how))
            self.out = nn.Parameter(torch.empty(wide, prefix.hidden, **how))
            self.out_bias = nn.Parameter(torch.empty(wide, **how))

    @torch.no_grad()
    def start(self, generator: torch.Generator, device: torch.device) -> None:
        """As torch's tables and linear layers do, drawn on the CPU so that a seed means the same
        everywhere."""
        self.table.normal_(generator=generator)
        if self.made:
            for weight, bias in ((self.into, self.into_bias), (self.out, self.out_bias)):
                bound = 1 / math.sqrt(weight.shape[1])
                weight.uniform_(-bound, bound, generator=generator)
                bias.uniform_(-bound, bound, generator=generator)
        self.to(device)

    def flat(self) -> Tensor:
        """Keys and values of all layers side by side, P W: what PEFT's files have."""
        if not self.made:
            return self.table
        inner = F.linear(self.table, self.into, self.into_bias).tanh()
        return F.linear(inner, self.out, self.out_bias)

    def forward(self, dtype: torch.dtype) -> list[Pair]:
        """For each layer that runs its keys and values, 1 G P D."""
        flat = cast(self.flat(), dtype)
        parts = iter(torch.split(flat, [g * d for g, d in self.shapes for _ in "kv"], 1))
        out = []
        for groups, size in self.shapes:
            k, v = (next(parts).view(1, self.count, groups, size).transpose(1, 2) for _ in "kv")
            out.append((k, v))
        return out


class Keys(Slot):
    """The learned keys and values of a stack, by adapter; those of several stand one behind the
    other, and rows of a batch may have their own."""

    @property
    def count(self) -> int:
        """How many stand before a row, at most."""
        rows = self.selection.rows
        return max(map(self._count, (self.selection.names,) if rows is None else rows))

    def _count(self, names: Names) -> int:
        return sum(module.count for module in self.of(names))  # type: ignore[misc]

    def ahead(self, rows: int) -> Ahead:
        """What a layout of so many rows is told."""
        if self.selection.rows is None:
            return Ahead(self.count)
        device = next(self.parameters()).device
        each = torch.zeros(rows, dtype=torch.long, device=device)
        for names, mine in self.selection.groups(rows, device):
            each.index_fill_(0, mine, self._count(names))
        return Ahead(self.count, each)

    def pairs(self, rows: int, dtype: torch.dtype) -> list[Pair]:
        """For each layer that runs its keys and values, (R or 1) G P D; in front of fewer zeros."""
        if self.selection.rows is None:
            return self._joined(self.selection.names, dtype)
        most, found = self.count, list[Pair]()
        device = next(self.parameters()).device
        for names, mine in self.selection.groups(rows, device):
            if not self._count(names):
                continue
            own = self._joined(names, dtype)
            if not found:
                found = [(_zeros(k, rows, most), _zeros(v, rows, most)) for k, v in own]
            gap = most - self._count(names)
            found = [
                (_placed(all_k, k, mine, gap), _placed(all_v, v, mine, gap))
                for (all_k, all_v), (k, v) in zip(found, own, strict=True)
            ]
        return found

    def _joined(self, names: Names, dtype: torch.dtype) -> list[Pair]:
        each = [module(dtype) for module in self.of(names)]
        if len(each) == 1:
            alone: list[Pair] = each[0]
            return alone
        return [
            (torch.cat([k for k, _ in layer], 2), torch.cat([v for _, v in layer], 2))
            for layer in zip(*each, strict=True)
        ]


def _zeros(x: Tensor, rows: int, most: int) -> Tensor:
    return x.new_zeros(rows, x.shape[1], most, x.shape[3])


def _placed(every: Tensor, x: Tensor, rows: Tensor, gap: int) -> Tensor:
    """x 1 G P D as the last of each of these rows, every R G (gap + P) D."""
    wide = F.pad(x, (0, 0, gap, 0)).expand(len(rows), -1, -1, -1)
    return every.index_copy(0, rows, wide)
