"""Parameters, operations and memory of a config, by formula: nothing is built.

    table = count(preset("original-base"))
    table.parameters                     # 63,082,496
    table.flops_per_token                # forward, at table.length tokens
    print(table)

The formulas stand beside what they count, in `allformer.config`; here they are summed and shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from allformer import config
from allformer.config.counting import Part
from allformer.config.remix import mixes_fully, remix
from allformer.errors import ConfigError

__all__ = ["Count", "Part", "count", "with_full_attention"]


@dataclass(frozen=True)
class Count:
    """The whole count at one length; see `count`."""

    parts: tuple[Part, ...]
    length: int
    cache_bytes_per_token: int
    activation_bytes: int
    dtype_bytes: int = field(default=2)
    state_bytes: int = 0  # what generating remembers of `length` tokens

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
            "state_bytes": self.state_bytes,
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
    stacks = model.stacks.values()
    cache = sum(b.attention.cached(s.dim) for s in stacks if s.causal for b in s.blocks)
    state = sum(stack.state(length) for stack in stacks if stack.causal)
    kept = sum(stack.kept * min(length, stack.segment or length) for stack in stacks)
    parts = tuple(model.lines(length))
    cache, kept, state = (size * dtype_bytes for size in (cache, kept, state))
    return Count(parts, length, cache, kept, dtype_bytes, state)


def with_full_attention(model: config.Model) -> config.Model | None:
    """The same tree with full attention in each layer, to compare with; None: it has it, or cannot.

    `count(with_full_attention(preset("mistral-7b")), 65_536)`. What is read in segments is read
    whole instead.
    """
    if mixes_fully(model) and not any(stack.segment for stack in model.stacks.values()):
        return None
    found: dict[str, Any] = {}
    for name, stack in model.stacks.items():
        if isinstance(stack.relative, config.XLRelative):
            relative = replace(stack.relative, memory=0, blank=False)
            found[name] = replace(stack, relative=relative)
    try:
        return remix(replace(model, **found), config.Full())
    except ConfigError:  # its projections are another mixer's
        return None
