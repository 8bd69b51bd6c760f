"""A batch for training, packed: no padding is stored, moved or computed.

Legend: N tokens, R rows (sentences), W the longest row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.core.inputs import Side
from allformer.core.layout import Layout, Packed
from allformer.core.loss import IGNORE
from allformer.core.model import EncoderDecoderModel
from allformer.data.encoded import EncodedPairs, Rows
from allformer.errors import TrainingError


class Batch(NamedTuple):
    """Source ids, what the decoder reads, and what it has to say (teacher forcing)."""

    source: Tensor  # N
    source_layout: Layout
    target: Tensor  # M, beginning with <s>
    target_layout: Layout
    labels: Tensor  # M, ending with </s>; −100 in filler
    tokens: int  # labels that count, known on the host to spare a wait for the device

    def tensors(self) -> list[Tensor]:
        """All tensors in a fixed order, for copying into another batch of the same sizes."""
        both = [*self.source_layout, *self.target_layout]
        return [self.source, self.target, self.labels, *(x for x in both if isinstance(x, Tensor))]

    def map(self, f: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with `f` applied to each tensor: moved, pinned, copied."""

        def layout(old: Layout) -> Layout:
            fields: list[Any] = [f(x) if isinstance(x, Tensor) else x for x in old]
            return type(old)(*fields)

        return Batch(
            f(self.source),
            layout(self.source_layout),
            f(self.target),
            layout(self.target_layout),
            f(self.labels),
            self.tokens,
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self.map(lambda x: x.to(device, non_blocking=True))


def batch_loss(
    model: EncoderDecoderModel, batch: Batch, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Summed loss (without smoothing) and NLL of a batch that is on the model's device."""
    return seq2seq_loss(model, *batch[:-1], dtype=dtype)


def seq2seq_loss(
    model: EncoderDecoderModel,
    source: Tensor,
    source_layout: Layout,
    target: Tensor,
    target_layout: Layout,
    labels: Tensor,
    *,
    smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss and NLL of ids in layouts, packed or not."""
    sides = {
        "encoder": Side(source_layout, {"input_ids": source}),
        "decoder": Side(target_layout, {"input_ids": target}),
    }
    hidden = model.hidden(sides, dtype=dtype)["decoder"]
    return model.vocab_head.score(hidden.flatten(0, -2), labels.flatten(), smoothing)


@dataclass(frozen=True)
class Frame:
    """One size for every batch, so that a compiled step never meets a new shape.

    `sentences` and `tokens` bound what a batch may hold; what is missing is filled with rows of
    padding that nothing looks at and no loss counts.
    """

    tokens: int
    sentences: int
    width: int

    @property
    def rows(self) -> int:
        """Sentences and the rows that filler may need."""
        return self.sentences + -(-self.tokens // self.width)


def collate(
    pairs: EncodedPairs, index: np.ndarray[Any, Any], bos: int, eos: int, frame: Frame | None = None
) -> Batch:
    """The pairs numbered `index` as one batch; with a `frame`, filled up to its size."""
    source, source_layout, _ = _side(pairs.sources, index, eos, frame)
    labels, target_layout, real = _side(pairs.targets, index, eos, frame)
    target = np.empty_like(labels)
    starts = target_layout[2][:-1]
    target[1:] = labels[:-1]  # the decoder reads one place behind what it says
    target[starts[starts < len(target)]] = bos
    labels = np.where(np.arange(len(labels)) < real, labels, IGNORE)
    return Batch(
        torch.from_numpy(source),
        Packed(*map(torch.from_numpy, source_layout)),
        torch.from_numpy(target),
        Packed(*map(torch.from_numpy, target_layout)),
        torch.from_numpy(labels),
        real,
    )


Array = np.ndarray[Any, Any]


def _side(
    rows: Rows, index: Array, eos: int, frame: Frame | None
) -> tuple[Array, tuple[Array, Array, Array, Array], int]:
    """Ids with </s> after each row, the layout's four arrays, and how many tokens are no filler."""
    begin = rows.starts[index].astype(np.int64)
    lengths = rows.lengths[index].astype(np.int64) + 1  # and </s>
    real = int(lengths.sum())
    if frame is not None:
        if real > frame.tokens or len(lengths) > frame.sentences or lengths.max() > frame.width:
            raise TrainingError(
                f"a batch of {len(lengths)} sentences, {real} tokens, the longest {lengths.max()}, "
                f"does not fit {frame}; cut batches with the frame's own bounds"
            )
        filler = frame.tokens - real
        full, rest = divmod(filler, frame.width)
        extra = [frame.width] * full + [rest] * (rest > 0)
        extra += [0] * (frame.rows - len(lengths) - len(extra))
        lengths = np.concatenate([lengths, np.array(extra, dtype=np.int64)])
    width = int(lengths.max()) if frame is None else frame.width
    starts = np.concatenate([[0], lengths.cumsum()])
    row = np.repeat(np.arange(len(lengths)), lengths)  # N
    place = np.arange(starts[-1]) - starts[row]  # N
    ids = np.full(starts[-1], eos, dtype=np.int64)
    inner = place[:real] < lengths[row[:real]] - 1
    ids[:real][inner] = rows.ids[(begin[row[:real]] + place[:real])[inner]]
    keep = np.arange(width) < lengths[:, None]
    return ids, (keep, row * width + place, starts.astype(np.int32), place), real
