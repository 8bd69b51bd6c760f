"""Texts as a model takes them: padded tensors, and for each id the place in its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Encoding(Protocol):
    """One encoded text or pair; `tokenizers.Encoding` is one."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def type_ids(self) -> list[int]: ...
    @property
    def tokens(self) -> list[str]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...
    @property
    def word_ids(self) -> list[int | None]: ...
    @property
    def sequence_ids(self) -> list[int | None]: ...


class Batch(dict[str, torch.Tensor]):
    """`input_ids`, `attention_mask` and, where the family has them, `token_type_ids`.

    >>> batch = tokenizer(["Who wrote it?", "Where?"], ["Goethe wrote Faust.", "In Weimar."])
    >>> out = model(**batch)
    >>> batch.offsets(0)[5], batch.sequence_ids(0)[5]   # which characters, of which text
    ((0, 6), 1)

    Lists by row are as long as the row, padding included: there and at special tokens a place is
    `(0, 0)`, a word and a sequence are None.
    """

    texts: list[int]  # of each row, which text it holds: several rows where windows were asked for
    cut: list[int]  # the rows whose text was cut short

    def __init__(
        self,
        encodings: Sequence[Encoding],
        *,
        pad_id: int,
        padding_side: str,
        token_types: bool,
        texts: Sequence[int],
        cut: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self._encodings = list(encodings)
        self._left = padding_side == "left"
        self.texts = list(texts)
        self.cut = list(cut)
        self.width = max((len(encoding.ids) for encoding in encodings), default=0)
        self["input_ids"] = self._tensor([encoding.ids for encoding in encodings], pad_id)
        if token_types:
            self["token_type_ids"] = self._tensor([one.type_ids for one in encodings], 0)
        self["attention_mask"] = self._tensor([[1] * len(one.ids) for one in encodings], 0)

    def tokens(self, row: int) -> list[str]:
        """The pieces of a row; "" where it is padded."""
        return self._row(self._encodings[row].tokens, "")

    def offsets(self, row: int) -> list[tuple[int, int]]:
        """Of each id, the first character in its text and the one after its last."""
        return self._row(self._encodings[row].offsets, (0, 0))

    def word_ids(self, row: int) -> list[int | None]:
        """Of each id, which word of its text it belongs to."""
        return self._row(self._encodings[row].word_ids, None)

    def sequence_ids(self, row: int) -> list[int | None]:
        """Of each id, 0 for the text and 1 for its pair."""
        return self._row(self._encodings[row].sequence_ids, None)

    def to(self, device: torch.device | str) -> Batch:
        """Move the tensors, in place: `model(**batch.to(model.device))`."""
        for name, tensor in self.items():
            self[name] = tensor.to(device)
        return self

    def _tensor(self, rows: list[list[int]], fill: int) -> torch.Tensor:
        values = [self._row(row, fill) for row in rows]
        return torch.tensor(values, dtype=torch.long).reshape(len(rows), self.width)

    def _row(self, values: list[T], fill: T) -> list[T]:
        padding = [fill] * (self.width - len(values))
        return padding + list(values) if self._left else list(values) + padding
