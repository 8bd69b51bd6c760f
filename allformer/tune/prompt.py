"""Prompt-tuning (Lester et al., 2021): learned vectors are read before the tokens of each row.

They enter where vectors of tokens do (`inputs_embeds`), so that positions, types and norms are
added to them as to those: the first token of a text has the number P. An encoder before a decoder
has them, and the decoder looks at them too. The states of learned tokens are not given to heads,
but where one reads a row's first token: as in PEFT, that is the first of them.

They start as the vectors of tokens that are drawn from the vocabulary, or of given ones.

Legend: R rows, T tokens of a row, N packed tokens, P learned ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.core.inputs import Side
from allformer.core.layout import Layout, Packed, pack
from allformer.core.precision import cast
from allformer.core.sources.tokens import Tokens
from allformer.errors import ConfigError
from allformer.tune.deltas import wide_dtype
from allformer.tune.method import Method, register
from allformer.tune.slot import Names, Slot
from allformer.tune.tuning import Tuning


@register("prompt")
@dataclass(frozen=True)
class Prompt(Method):
    """`Prompt(20)`: so many vectors; `Prompt(20, ids=(5, 7))` start as those of tokens 5, 7, 5, …

    `Prompt.of("Is this review kind?", tokenizer)` starts with a text.
    """

    tokens: int = 20
    ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, int) or self.tokens < 1:
            raise ConfigError(
                f"Prompt.tokens={self.tokens!r} must be a whole number, 1 at least; try 20"
            )
        if self.ids is not None and not self.ids:
            raise ConfigError("Prompt.ids=() is empty; give ids of tokens, or None")

    @classmethod
    def of(cls, text: str, tokenizer: Any, tokens: int | None = None, **settings: Any) -> Prompt:
        """A prompt that starts as a text, cut or repeated to `tokens` (None: as long as it is).

        As in PEFT the text is what the tokenizer makes of it, ends included.
        """
        ids = tuple(int(i) for i in tokenizer.encode(text))
        if not ids:
            raise ConfigError(f"text={text!r} has no tokens; give some words")
        return cls(tokens or len(ids), ids, **settings)

    def ahead(self, tree: Any) -> dict[str, int]:
        """Of the first stack, as tokens are."""
        return {next(iter(tree.stacks)): self.tokens}

    def put(self, model: Any, tuning: Tuning, adapter: str, generator: torch.Generator) -> None:
        """Vectors for the first stack, which reads what the caller gives."""
        name = next(iter(model.config.stacks))
        source = model.stack(name).source
        if type(source) is not Tokens:
            raise ConfigError(
                f"Prompt puts vectors before those of tokens, but the {name} reads "
                f"{source.takes[0]} ({type(source).__name__}); try Prefix(), Lora() or Bottleneck()"
            )
        longest, vocab = source.stack.longest, source.config.vocab
        if longest is not None and self.tokens >= longest:
            raise ConfigError(
                f"Prompt.tokens={self.tokens}, but the {name} has {longest} positions, of which "
                f"they take as many; try 20"
            )
        odd = next((i for i in self.ids or () if not 0 <= i < vocab), None)
        if odd is not None:
            raise ConfigError(
                f"Prompt.ids has {odd}, but there are 0 … {vocab - 1}; use this model's tokeniser"
            )
        vectors = PromptVectors(self._first(source, generator))
        slot = tuning.slot(model, f"{name}.source", "delta", Vectors)
        slot.add(adapter, self.name, vectors)

    @torch.no_grad()
    def _first(self, source: Tokens, generator: torch.Generator) -> Tensor:
        vocab = source.config.vocab
        if self.ids is None:
            ids = torch.randint(vocab, (self.tokens,), generator=generator)
        else:
            ids = torch.tensor([self.ids[i % len(self.ids)] for i in range(self.tokens)])
        found: Tensor = (
            source.embedding(ids.to(source.embedding.weight.device), None) * source.scale
        )
        return found.to(wide_dtype(source.embedding))


class PromptVectors(nn.Module):
    """`table` P dim."""

    def __init__(self, first: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(first.detach().clone())

    @property
    def count(self) -> int:
        """P"""
        return len(self.table)


class Vectors(Slot):
    """The learned vectors of a source, by adapter; those of several stand one behind the other, and
    rows of a batch may have their own, as many each."""

    @property
    def count(self) -> int:
        """How many stand before each row."""
        rows = self.selection.rows
        counts = set(map(self._count, (self.selection.names,) if rows is None else rows))
        if len(counts) > 1:
            told = " and ".join(map(str, sorted(counts)))
            raise ConfigError(
                f"rows of one batch have {told} learned tokens; give them prompts of one length, "
                f"or batches of their own"
            )
        return counts.pop()

    def _count(self, names: Names) -> int:
        return sum(module.count for module in self.of(names))  # type: ignore[misc]

    def vectors(self, rows: int, dtype: torch.dtype) -> Tensor:
        """R P dim."""
        if self.selection.rows is None:
            return self._joined(self.selection.names, dtype).expand(rows, -1, -1)
        device = next(self.parameters()).device
        groups = self.selection.groups(rows, device)
        own = [self._joined(names, dtype).expand(len(mine), -1, -1) for names, mine in groups]
        order = torch.cat([mine for _, mine in groups])
        return torch.cat(own).index_select(0, order.argsort())

    def _joined(self, names: Names, dtype: torch.dtype) -> Tensor:
        tables: list[Any] = [module.table for module in self.of(names)]
        return cast(torch.cat(tables), dtype)

    def lengthen(self, source: Tokens, side: Side) -> Side:
        """The same side with learned tokens in front of each row."""
        layout, count = side.layout, self.count
        x = side.inputs.get("inputs_embeds")
        if x is None:
            x = source.embedding(side.inputs["input_ids"], source.fixed) * source.scale
        first = self.vectors(layout.rows, x.dtype)
        longer = _longer(layout, count)
        inputs = {"inputs_embeds": longer.lay(torch.cat([first, layout.to_grid(x)], 1))}
        for name in side.inputs.keys() - {"input_ids", "inputs_embeds"}:
            ahead = torch.zeros(count, dtype=torch.long, device=x.device)
            given = side.inputs[name]
            if name == "position_ids":  # these ones' own: from the first number on
                start = getattr(source.position, "first", 0)
                ahead, given = torch.arange(start, start + count, device=x.device), given + count
            inputs[name] = _after(given, ahead, layout, longer)
        bound = None if side.bound is None else side.bound + count
        return Side(longer, inputs, None, bound, count)


def _longer(layout: Layout, count: int) -> Layout:
    """The layout of rows that have so many real tokens more in front."""
    if isinstance(layout, Packed):
        return pack(F.pad(layout.keep, (count, 0), value=True))._replace(ahead=layout.ahead)
    keep = None if layout.keep is None else F.pad(layout.keep, (count, 0), value=True)
    return layout._replace(width=layout.width + count, keep=keep)


def _after(given: Tensor, ahead: Tensor, layout: Layout, longer: Layout) -> Tensor:
    """A number for each token, with those of the learned ones (P) in front of each row."""
    if isinstance(layout, Packed):
        grid = layout.to_grid(given)
    else:
        grid = given.expand(layout.rows, layout.width)
    first = ahead.to(grid.dtype).expand(layout.rows, -1)
    return longer.lay(torch.cat([first, grid], 1))
