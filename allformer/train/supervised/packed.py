"""Texts end to end, with what a model reads beside their ids, and the states that it gives them.

Legend: N tokens, R rows (texts; with filler, as many as the frame says), dim model width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.config import EncoderDecoder, EncoderOnly
from allformer.core.inputs import Side
from allformer.core.layout import Packed
from allformer.data.encoded import Rows
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.text.batch import Batch
from allformer.train.batch import Array, Frame, filler


class Texts(NamedTuple):
    """Rows without padding; filler rows, where a frame wants them, come last."""

    ids: Tensor  # N
    layout: Packed
    types: Tensor | None  # N, segments where the tokeniser has them


def pack_texts(table: Table, index: Array, frame: Frame | None = None) -> Texts:
    """The rows numbered `index` of the columns `ids` and `types`; with a `frame`, filled up to its
    size."""
    ids: Rows = table["ids"].take(index)
    types: Any = table.columns.get("types")
    return lay_texts(
        ids.lengths, ids.flat(), None if types is None else types.take(index).flat(), frame
    )


def lay_texts(
    lengths: Array, ids: Array, types: Array | None = None, frame: Frame | None = None
) -> Texts:
    """Rows of these lengths, their ids end to end; with a `frame`, filled up to its size."""
    lengths = lengths.astype(np.int64)
    if frame is not None:
        lengths = np.concatenate([lengths, filler(lengths, len(ids), frame)])
    width = int(lengths.max()) if frame is None else frame.width
    starts = np.concatenate([[0], lengths.cumsum()])
    row = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(starts[-1]) - starts[row]
    keep = np.arange(width) < lengths[:, None]
    layout = (keep, row * width + place, starts.astype(np.int32), place)
    return Texts(
        _filled(ids, len(row)),
        Packed(*map(torch.from_numpy, layout)),  # type: ignore[arg-type]
        None if types is None else _filled(types, len(row)),
    )


def _filled(flat: Array, total: int) -> Tensor:
    out = np.zeros(total, np.int64)
    out[: len(flat)] = flat
    return torch.from_numpy(out)


def states(model: Any, texts: Texts, dtype: torch.dtype | None = None) -> Tensor:
    """The last states of every token, N dim; a decoder behind an encoder reads the text again, one
    place later (BART)."""
    tree, layout = model.config, texts.layout
    inputs = {"input_ids": texts.ids}
    if texts.types is not None and isinstance(tree, EncoderOnly) and tree.reader.source.types:
        inputs["token_type_ids"] = texts.types
    first, *others = tree.stacks
    sides = {first: Side(layout, inputs)}
    for name in others:
        sides[name] = Side(layout, {"input_ids": _later(tree, texts)})
    return model.hidden(sides, dtype=dtype)[list(sides)[-1]]  # type: ignore[no-any-return]


def _later(tree: EncoderDecoder, texts: Texts) -> Tensor:
    """What the decoder reads: the start token, then all but the last."""
    ids, layout = texts.ids, texts.layout
    first: Any = tree.start
    if tree.start_last:  # mBART: the language that ends the text
        first = ids[last_places(layout)][layout.cells // layout.total]
    elif first is None:
        raise ConfigError("the decoder's Tokens.bos_id is None, so that nothing starts it; set it")
    return torch.where(layout.numbers == 0, first, ids.roll(1))


def last_places(layout: Packed) -> Tensor:
    """Where each row's last token stands among the N; some token for a row of none."""
    return (layout.starts[1:].long() - 1).clamp_min(0)


def first_places(layout: Packed) -> Tensor:
    """Where each row's first token stands among the N; some token for a row of none."""
    return layout.starts[:-1].long().clamp_max(layout.cells.shape[0] - 1)


def places_of(layout: Packed, found: Tensor) -> Tensor:
    """The last place of each row where `found` (N) is true; −1 where it never is."""
    numbers = torch.arange(1, found.shape[0] + 1, device=found.device)
    return layout.to_grid(numbers * found).amax(1) - 1


def rows_of(batch: Batch, name: str = "input_ids") -> list[list[int]]:
    """The rows of a batch without their padding, which is on the right."""
    lengths = batch["attention_mask"].sum(1).tolist()
    return [row[:n] for row, n in zip(batch[name].tolist(), lengths, strict=True)]
