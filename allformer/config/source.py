"""Sources: where the vectors of a stack come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from allformer.config.base import Config, Natural, Positive, Probability
from allformer.config.check import refuse
from allformer.config.counting import Part, Widths, plain_line


class Source(Config, slot=True):
    """What makes the vectors that a stack begins with. One that reads no tokens has none of what
    stands here; one with tensors of its own must say `parameters`, or `af.count` disagrees with
    what is built."""

    vocab: int = 0
    width: int | None = None  # None: the stack's
    types: int = 0
    scale: bool = False
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    pad_fixed: bool = False

    @property
    def tokens_each(self) -> int | None:
        """How many tokens it gives each time, where that is told."""
        return None

    def parameters(self, stack: Widths) -> int:
        """Of its own."""
        return 0

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        """Its lines in the count; `shared`: the table of tokens is another stack's."""
        yield plain_line(f"{name} source", self.parameters(stack))


@dataclass(frozen=True)
class Tokens(Source):
    """A token embedding; `scale` multiplies it by √dim, as in the paper, section 3.4.

    `types` rows of segment vectors are added (BERT's sentence A and B). With `width`, tables,
    positions and source norm are that narrow, and a matrix takes them to the stack's dim (ALBERT).
    With `pad_fixed`, the padding's own vector is not trained by what is read. `dropout` acts on the
    tokens' vectors alone, before positions are added (Reformer).
    """

    vocab: Positive = field()  # no default, though the slot has a value
    width: Positive | None = None
    scale: bool = False
    types: Natural = 0
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    pad_fixed: bool = False
    dropout: Probability = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pad_id", "bos_id", "eos_id"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < self.vocab:
                way_out = "give an id of the vocabulary, or None"
                refuse(self, name, f"must be in 0 … {self.vocab - 1} (vocab={self.vocab})", way_out)

    def parameters(self, stack: Widths) -> int:
        return (self.vocab + self.types) * stack.width

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        width, text = stack.width, f"V·d = {self.vocab:,}·{stack.width}"
        if shared:
            yield Part(f"{name} embedding", "shared with the encoder", 0)
        else:
            yield Part(f"{name} embedding", text, self.vocab * width)
        if self.types:
            text = f"{self.types}·d = {self.types}·{width}"
            yield Part(f"{name} token types", text, self.types * width)
