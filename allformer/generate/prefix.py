"""What was read stays read: the beginning that a prompt shares with the last one costs nothing.

    prefix = Prefix()
    first = generate(model, ids, prefix=prefix, max_new_tokens=50)
    more = torch.cat([first, question], dim=1)               # a conversation goes on
    second = generate(model, more, prefix=prefix, max_new_tokens=50)
    prefix.reused                                            # tokens of it that were not read again

Legend: B rows of a prompt, R rows that are kept, L columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.states import Cache
from allformer.generate.stepper import State

_NOBODY = -1  # in place of an id where padding stands


class Prefix:
    """The ids and the cache of the last call: prompt and answer, of every row.

    Each row of the next prompt goes on from the kept row that begins most like it, so that rows may
    come in another order, leave, or have a beginning in common that one row has read. What is kept
    belongs to a model as it was: with other weights, or in another dtype, all is read anew. So it
    is where a layer cannot go back (a window that has moved on, sums) or reads pieces of a text
    otherwise than the whole (hashes, segments). What is written through `parameter.data` torch does
    not count: after it, `clear`, which also gives the memory back.
    """

    def __init__(self) -> None:
        self.reused = 0  # of each row's tokens in the last call: how many were not computed again
        self._cache: Cache | None = None
        self._ids: Tensor | None = None  # R L: what the cache has read; −1 where padding stands
        self._of: Any = None

    def __len__(self) -> int:
        """How many tokens of each row are kept."""
        return 0 if self._ids is None else self._ids.shape[1]

    def clear(self) -> None:
        """Forget all: the memory is free."""
        self._cache, self._ids, self._of = None, None, None

    @contextmanager
    def lent(
        self, state: State, ids: Tensor, model: nn.Module, kind: Any, alone: bool
    ) -> Iterator[None]:
        """Around a search from the prompt `ids` in a fresh `state`, which leaves out what is kept.

        `kind` is what else the cache depends on. A search that is broken off is kept up to its last
        whole step, if one row is all there is (`alone`): of several, some may have moved.
        """
        self._enter(state, ids[:, state.skip :], (_weights(model), kind))

        def keep() -> None:  # a layer in four bits may have brought its bytes into another order
            self._of = (_weights(model), kind)
            self._keep(state)

        try:
            yield
        except BaseException:
            state.plainly()
            cache = state.cache
            if alone and cache is not None and cache.cuts(int(cache.length)):
                cache.cut(int(cache.length))  # some layers may have read more than others
                keep()
            else:
                self.clear()
            raise
        keep()

    def _enter(self, state: State, ids: Tensor, of: Any) -> None:
        cache, kept = self._cache, self._ids
        state.record = True
        self.reused = 0
        if self._of == of and cache is not None and kept is not None:
            rows, length = shared(_marked(ids, state.mask), kept)
            if length and _goes_on(cache, length):
                if rows != list(range(len(kept))):
                    cache.select(torch.tensor(rows, device=ids.device))
                if int(cache.length) > length:
                    cache.cut(length)
                self.reused = length
                state.cache, state.read = cache, ids[:, :length]
                state.skip += length  # prefill reads what follows
        self.clear()

    def _keep(self, state: State) -> None:
        state.plainly()
        assert state.cache is not None
        assert state.read is not None
        length = int(state.cache.length)
        self._cache, self._ids = state.cache, _marked(state.read[:, :length], state.mask)


def shared(ids: Tensor, kept: Tensor) -> tuple[list[int], int]:
    """For each row of `ids` (B L) the row of `kept` (R L) that begins most like it, and how many
    tokens all of them have in common with theirs; the last of `ids` is not among them: what follows
    it is asked for.

    `shared(torch.tensor([[5, 6, 7]]), torch.tensor([[5, 1], [5, 6]]))` → `([1], 2)`
    """
    width = min(ids.shape[1] - 1, kept.shape[1])
    found = []
    for row in ids[:, :width]:
        alike = (row == kept[:, :width]).long().cumprod(1).sum(1)  # R
        found.append(torch.stack([alike.argmax(), alike.max()]))
    rows, lengths = torch.stack(found, 1).tolist()
    return rows, min(lengths)


def _goes_on(cache: Cache, length: int) -> bool:
    """Whether a cache, taken back to `length` tokens, is as if it had read no more."""
    pieces = all(layer.own.pieces for layer in cache.layers)
    return pieces and (int(cache.length) == length or cache.cuts(length))


def _marked(ids: Tensor, mask: Tensor | None) -> Tensor:
    return ids if mask is None else ids.masked_fill(~mask[:, : ids.shape[1]], _NOBODY)


def _weights(model: nn.Module) -> list[tuple[int, int, int]]:
    """Which tensors a model is, and how often each was written to; tables that it works out for
    itself, and makes longer, are not among them."""
    tensors = [
        x
        for module in model.modules()
        for name, x in (*module._parameters.items(), *module._buffers.items())
        if x is not None and name not in module._non_persistent_buffers_set
    ]
    return [(id(x), x.data_ptr(), 0 if x.is_inference() else x._version) for x in tensors]
