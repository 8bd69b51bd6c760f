"""Attention: how many heads, of what size, mixed by what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from allformer.config.base import Config, Positive, Probability
from allformer.config.check import above, refuse
from allformer.config.counting import Part
from allformer.config.mixer import Full, Mixer


@dataclass(frozen=True)
class Attention(Config):
    """Multi-head attention: `heads` queries over `kv_heads` keys and values of `head_dim` each.

    `kv_heads=None` means one for each head; `head_dim=None` means dim / heads; `scale=None` means
    1/√head_dim. `mixer` says who looks at whom. `dropout` acts on the attention weights (the paper
    has none there). `bias` may name the projections that have one: `("q", "v", "out")` (Whisper);
    all of them are True and none is False, so that equal trees are equal.
    """

    heads: Positive
    kv_heads: Positive | None = None
    head_dim: Positive | None = None
    bias: bool | tuple[str, ...] = True
    scale: Annotated[float, above(0, "leave it out for 1/√head_dim")] | None = None
    mixer: Mixer = Full()
    dropout: Probability = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kv_heads is not None and self.heads % self.kv_heads:
            fits = [str(n) for n in divisors(self.heads)]
            way_out = "try " + " or ".join([", ".join(fits[:-1]), fits[-1]] if fits[1:] else fits)
            refuse(self, "kv_heads", f"must divide heads={self.heads}", way_out)
        if isinstance(self.bias, tuple):
            parts = (*self.mixer.projections(self, self.heads), "out")
            if not set(self.bias) <= set(parts):
                names = ", ".join(map(repr, parts))
                refuse(self, "bias", "names a projection that is not there", f"there are {names}")
            own = tuple(part for part in parts if part in self.bias)
            whole = own == parts
            object.__setattr__(self, "bias", whole if whole or not own else own)

    @property
    def groups(self) -> int:
        """Key/value heads after the default is filled in."""
        return self.kv_heads or self.heads

    def size(self, dim: int) -> int:
        """The width of one head in a model of width `dim`."""
        return self.head_dim or dim // self.heads

    def biased(self, part: str) -> bool:
        """Whether a projection has a bias: `attention.biased("k")`."""
        return self.bias if isinstance(self.bias, bool) else part in self.bias

    def cached(self, dim: int) -> int:
        """Numbers of one token that decoding keeps."""
        return self.mixer.cached(self, dim)

    def state(self, dim: int, n: int) -> int:
        """Numbers that decoding remembers after n tokens."""
        return self.mixer.state(self, dim, n)

    def line(self, name: str, dim: int, n: int, causal: bool) -> Part:
        """Its line in the count, at n tokens."""
        rows, inner = self.mixer.projections(self, dim), self.heads * self.size(dim)
        weights = dim * (sum(rows.values()) + inner)
        biases = sum(r for part, r in {**rows, "out": dim}.items() if self.biased(part))
        own = self.mixer.parameters(self, dim)
        quadratic = self.mixer.flops(self, dim, n, causal)
        text = self._formula(rows, dim) + (f" + {own:,}" if own else "")
        return Part(name, text, weights + biases + own, 2 * weights + quadratic, quadratic)

    def _formula(self, rows: dict[str, int], dim: int) -> str:
        inner = self.heads * self.size(dim)
        if list(rows) != ["q", "k", "v"]:
            biases = sum(r for part, r in {**rows, "out": dim}.items() if self.biased(part))
            return f"d·{sum(rows.values())} + {inner}·d" + (f" + {biases:,}" if biases else "")
        has = {part: self.biased(part) for part in (*rows, "out")}
        if {inner, *rows.values()} == {dim}:
            return "4d²" + _term(sum(has.values()), "d")
        terms = _term(has["q"], "HD") + _term(has["k"] + has["v"], "GD") + _term(has["out"], "d")
        return "2·d·HD + 2·d·GD" + terms


def _term(times: int, letter: str) -> str:
    return f" + {times if times > 1 else ''}{letter}" if times else ""


def divisors(n: int) -> list[int]:
    """`divisors(12)`: 1, 2, 3, 4, 6, 12."""
    small = [i for i in range(1, int(n**0.5) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})
