"""How residual codebooks learn: moving means, beginnings on real vectors, fewer books at random.

    following = Following(codec.quantiser)
    found = following.quantise(z, books=torch.tensor([6, 2]))    # in the loss of each micro-batch
    following.settle(decay=0.99, restart=0.1)                    # once, when the step is taken

What the vectors of a step come to is gathered over its micro-batches and taken in once, so that a
batch cut in pieces teaches the books what the whole one would. All changes are in place and wait
for nothing: a captured step may hold them.

Legend: B sounds, d numbers a frame, F frames, Q codebooks of V vectors, N = B·F.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from allformer.codecs.sound.books import Book, Books

_LITTLE = 1e-5  # Laplace's: no code is divided by nothing


class Quantised(NamedTuple):
    """What the decoder reads, with the encoder's gradient, and how far the encoder was from it."""

    vectors: Tensor  # B d F
    apart: Tensor  # B: the mean squared distance of what each book met from its code


class Following:
    """What a step has met so far, of each book: `counts` Q V, `sums` Q V d and `drawn` Q V d, some
    of its vectors by chance, at which books begin and dead codes begin anew."""

    def __init__(self, books: Books) -> None:
        self.books = [book for book in books.layers if isinstance(book, Book)]
        vectors = self.books[0].vectors
        shape, device = (len(self.books), *vectors.shape), vectors.device
        self.sums = torch.zeros(shape, device=device, dtype=vectors.dtype)
        self.drawn = torch.zeros_like(self.sums)
        self.counts = torch.zeros(shape[:2], device=device, dtype=vectors.dtype)

    def forget(self) -> None:
        """The books are new: each begins at vectors of the first batch that it meets."""
        for book in self.books:
            book.begun.zero_()

    def quantise(
        self, z: Tensor, books: Tensor, keep: Tensor | None = None, learn: bool = True
    ) -> Quantised:
        """Frames B d F by the first `books` (B) of the codebooks, a number for each sound
        (quantiser dropout; Zeghidour et al., 2021, section III-C).

        0 books are all of them for what is learnt, but the decoder reads the frames themselves: it
        learns the sooner for it (Défossez et al., 2024, section 3.3.2). Sounds with `keep` 0 teach
        the books nothing; with `learn` False none does.
        """
        plain = (books == 0)[:, None, None]
        books = torch.where(books == 0, len(self.books), books)
        rows = z.movedim(1, -1).to(self.sums.dtype)  # B F d
        left, total = rows, torch.zeros_like(rows)
        apart = torch.zeros_like(rows[:, 0, 0])
        for i, book in enumerate(self.books):
            used = (books > i).to(rows)  # B
            each = used if keep is None else used * keep.to(rows)
            if learn:
                self._meet(i, left.detach(), each)
            ids = book.nearest(left.detach())
            code = book.look_up(ids).detach()
            if learn:
                self._gather(i, left.detach(), ids, each)
            apart = apart + used * (left - code).square().mean((1, 2))
            code = used[:, None, None] * code
            total, left = total + code, left - code
        through = rows + (total - rows).detach()  # codes forwards, the vectors' gradient backwards
        through = torch.where(plain, rows, through)
        return Quantised(through.movedim(-1, 1), apart / books.to(rows))

    @torch.no_grad()
    def _meet(self, i: int, rows: Tensor, each: Tensor) -> None:
        """Draw V of the vectors B F d; a book that has not begun begins at them."""
        book, flat = self.books[i], rows.flatten(0, 1)
        shares = each.repeat_interleave(rows.shape[1]).cumsum(0)  # N
        met = shares[-1:] > 0
        chance = torch.rand(len(book.vectors), device=rows.device, dtype=shares.dtype)
        place = torch.searchsorted(shares, chance * shares[-1], right=True)
        drawn = flat[place.clamp_max(len(flat) - 1)]
        self.drawn[i] = torch.where(met, drawn, self.drawn[i])
        new, begins = (book.begun < 0.5), met & (book.begun < 0.5)
        book.vectors.copy_(torch.where(begins, drawn, book.vectors))
        book.sums.copy_(torch.where(begins, 0 * drawn, book.sums))
        book.counts.copy_(torch.where(begins, 0 * book.counts, book.counts))
        book.begun.copy_(torch.where(new, met.to(book.begun), book.begun))

    @torch.no_grad()
    def _gather(self, i: int, rows: Tensor, ids: Tensor, each: Tensor) -> None:
        weight = each[:, None].expand_as(ids).flatten()  # N
        self.counts[i].index_add_(0, ids.flatten(), weight)
        self.sums[i].index_add_(0, ids.flatten(), rows.flatten(0, 1) * weight[:, None])

    @torch.no_grad()
    def settle(self, decay: float, restart: float) -> None:
        """The step is over: counts and sums go (1 − decay) of the way to what it had, and vectors
        are their quotient (van den Oord et al., 2017, A.1).

        A code that stands for fewer than `restart` times what it would if all were as frequent is
        dead, and begins anew at one of the vectors drawn (Zeghidour et al., 2021, section III-C). A
        book that the step did not use stays as it is.
        """
        for i, book in enumerate(self.books):
            count, used = self.counts[i], self.counts[i].sum() > 0
            weight = (1 - decay) * used.to(count)
            book.counts.lerp_(count, weight)
            book.sums.lerp_(self.sums[i], weight)
            least = restart * count.sum() / len(count)
            dead = used & (book.counts < least)
            book.sums.copy_(torch.where(dead[:, None], least * self.drawn[i], book.sums))
            book.counts.copy_(torch.where(dead, least.expand_as(count), book.counts))
            whole = book.counts.sum()
            smooth = (book.counts + _LITTLE) / (whole + len(count) * _LITTLE) * whole
            vectors = book.sums / smooth[:, None].clamp_min(1e-12)
            book.vectors.copy_(torch.where(used, vectors, book.vectors))
        self.counts.zero_()
        self.sums.zero_()
