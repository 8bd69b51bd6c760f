"""Weight maps: how our tensors lie in another library's files, as a list of plain operations.

    ops = [
        Same("decoder.source.embedding.weight", "model.embed_tokens.weight"),
        Stacked("decoder.layers.0.attention.qkv.weight", (q, k, v), (4096, 1024, 1024)),
        Alias("lm_head.weight", "model.embed_tokens.weight"),
    ]

An operation says which views of our tensor hold, element for element in order, the tensors of the
file. Loading copies the file into the views, saving copies the views into a file: one definition
for both directions, so that each is the inverse of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """`view` of our tensor, read in order, is the file's tensor `theirs` of `shape`."""

    theirs: str
    view: Tensor
    shape: Shape


@dataclass(frozen=True)
class Interleaved:
    """Rows of q or k in Meta's order: each rotated pair side by side, not half a head apart.

    Stands for a name: `Stacked(ours, (Interleaved("wq", 32), Interleaved("wk", 8), "wv"), sizes)`.
    """

    theirs: str
    heads: int

    def part(self, ours: Tensor) -> Part:
        halves = ours.view(self.heads, 2, -1, *ours.shape[1:])  # H 2 D/2 …
        return Part(self.theirs, halves.transpose(1, 2), tuple(ours.shape))  # H D/2 2 …


Name = str | Interleaved


def _part(theirs: Name, ours: Tensor) -> Part:
    if isinstance(theirs, Interleaved):
        return theirs.part(ours)
    return Part(theirs, ours, tuple(ours.shape))


@dataclass(frozen=True)
class Same:
    """Another name for the same tensor: `Same("decoder.norm.weight", "model.norm.weight")`.

    `missing` is the value that ours has throughout where a file leaves theirs out (BART's
    final_logits_bias); None: the file must have it.
    """

    ours: str
    theirs: Name
    missing: float | None = None

    def parts(self, ours: Tensor) -> list[Part]:
        return [_part(self.theirs, ours)]


@dataclass(frozen=True)
class Stacked:
    """Ours is theirs one below the other: q, k, v of `sizes` rows as one matrix (or bias)."""

    ours: str
    theirs: tuple[Name, ...]
    sizes: tuple[int, ...]
    missing: None = None

    def parts(self, ours: Tensor) -> list[Part]:
        rows = torch.split(ours, list(self.sizes))
        return [_part(name, part) for name, part in zip(self.theirs, rows, strict=True)]


@dataclass(frozen=True)
class Transposed:
    """Stored as inputs × outputs, as GPT-2's Conv1D has it."""

    ours: str
    theirs: str
    missing: None = None

    def parts(self, ours: Tensor) -> list[Part]:
        return [_part(self.theirs, ours.T)]


@dataclass(frozen=True)
class Reshaped:
    """The same elements in another shape: final_logits_bias is (1, V), ours is (V,)."""

    ours: str
    theirs: str
    shape: Shape
    missing: float | None = None

    def parts(self, ours: Tensor) -> list[Part]:
        return [_part(self.theirs, ours.view(self.shape))]


@dataclass(frozen=True)
class Alias:
    """A second name of a tied tensor; where a file has both they must be equal. Not written."""

    theirs: str
    of: str


@dataclass(frozen=True)
class Unused:
    """A tensor that transformers holds beside `of`, of its shape, and never reads.

    Kept aside when it is loaded and written as it was; a model that has none of it writes zeros.
    Where a file has it and not `of`, it is that one: older versions had one tensor of two names.
    Not so with `apart`: it never was that one (the pooler of a model that reads none).
    `shape` is its own, where it is not that of `of`. With `kept` it is written where it was loaded
    alone: not every version of transformers holds it.
    """

    theirs: str
    of: str
    apart: bool = False
    shape: Shape | None = None
    kept: bool = False


@dataclass(frozen=True)
class Derived:
    """A constant that some files store (position_ids, sinusoids, masks): `make()` is what it is.

    Checked where it is there: exactly for integers, else to `tolerance` of the largest value (None:
    a few roundings of the stored dtype). Written only with `write`, where transformers writes it.
    """

    theirs: str
    make: Callable[[], Tensor]
    write: bool = False
    tolerance: float | None = None
    shape: tuple[int, ...] | None = None  # where it may be large: checked before it is made


@dataclass(frozen=True)
class Ignored:
    """Keys that no model needs, by a regular expression for the whole name, and `why`; with `dims`
    those of so many dimensions alone."""

    pattern: str
    why: str
    dims: int | None = None


@dataclass(frozen=True)
class Renamed:
    """What older files call it: `Renamed(r"LayerNorm\\.gamma$", "LayerNorm.weight")`.

    Applied to the file's names before all else (`re.sub`), in the order of the list. Not written;
    with `kept`, what was loaded under such a name is written under it again.
    """

    pattern: str
    to: str
    kept: bool = False


@dataclass(frozen=True)
class Joined:
    """Theirs is several tensors one below the other, of `sizes` rows each, that we hold apart.

    `Joined("mlp.weights_in.weight", ("mlp.gate.weight", "mlp.up.weight"), (64, 64))`: the other
    operations know the `parts` by their names, as if the file had them.
    """

    theirs: str
    parts: tuple[str, ...]
    sizes: tuple[int, ...]


Weight = Same | Stacked | Transposed | Reshaped
Op = Weight | Alias | Unused | Derived | Ignored | Renamed | Joined
WeightMap = Sequence[Op]


def names_of(op: Weight) -> list[str]:
    """The names in a file that an operation covers."""
    theirs = op.theirs if isinstance(op.theirs, tuple) else (op.theirs,)
    return [name.theirs if isinstance(name, Interleaved) else name for name in theirs]


def load_tensor(op: Weight, read: Callable[[str], Tensor], shape: Shape) -> Tensor:
    """Our tensor from theirs: `load_tensor(op, file.__getitem__, (512, 512))`."""
    found = {name: read(name) for name in names_of(op)}
    first = next(iter(found.values()))
    ours = torch.empty(shape, dtype=first.dtype, device=first.device)
    for part in op.parts(ours):
        part.view.copy_(found[part.theirs].reshape(part.view.shape))
    return ours


def save_tensor(op: Weight, ours: Tensor) -> dict[str, Tensor]:
    """Their tensors from ours, each contiguous: `save_tensor(op, model.norm.weight)`."""
    return {part.theirs: part.view.contiguous().view(part.shape) for part in op.parts(ours)}
