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
            for tensor in (book.begun, book.sums, book.counts):
                tensor.zero_()

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
        order = torch.arange(len(self.books), device=books.device)
        every = (books > order[:, None]).to(rows)  # Q B
        taught = every if keep is None else every * keep.to(rows)
        places, met = self._draw(taught, rows.shape[1]) if learn else (None, None)
        for i, book in enumerate(self.books):
            used = every[i]
            if places is not None and met is not None:
                self._meet(i, left.detach(), places[i], met[i])
            ids = book.nearest(left.detach())
            code = book.look_up(ids).detach()
            if learn:
                self._gather(i, left.detach(), ids, taught[i])
            apart = apart + used * (left - code).square().mean((1, 2))
            code = used[:, None, None] * code
            total, left = total + code, left - code
        through = rows + (total - rows).detach()  # codes forwards, the vectors' gradient backwards
        through = torch.where(plain, rows, through)
        return Quantised(through.movedim(-1, 1), apart / books.to(rows))

    @torch.no_grad()
    def _draw(self, taught: Tensor, frames: int) -> tuple[Tensor, Tensor]:
        """For each book V of the N vectors that it meets, by chance, Q V; and whether it meets any,
        Q 1. All books at once: each of them would take as many small kernels as they all do."""
        shares = taught.repeat_interleave(frames, 1).cumsum(1)  # Q N
        whole = shares[:, -1:]
        chance = torch.rand(self.counts.shape, device=taught.device, dtype=shares.dtype)
        places = torch.searchsorted(shares, chance * whole, right=True)
        return places.clamp_max(shares.shape[1] - 1), whole > 0

    @torch.no_grad()
    def _meet(self, i: int, rows: Tensor, places: Tensor, met: Tensor) -> None:
        """Take the vectors of B F d at `places`; a book that has not begun begins at them."""
        book, drawn = self.books[i], rows.flatten(0, 1)[places]
        self.drawn[i] = torch.where(met, drawn, self.drawn[i])
        begins = met & (book.begun < 0.5)
        book.vectors.copy_(torch.where(begins, drawn, book.vectors))
        book.begun.copy_(torch.maximum(book.begun, met.to(book.begun)))

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
        books, count = self.books, self.counts  # Q V
        used = count.sum(1, keepdim=True) > 0  # Q 1
        weight = (1 - decay) * used.to(count)
        counts = torch.stack([book.counts for book in books]).lerp(count, weight)
        sums = torch.stack([book.sums for book in books]).lerp(self.sums, weight[..., None])
        least = restart * count.mean(1, keepdim=True)
        dead = used & (counts < least)
        sums = torch.where(dead[..., None], least[..., None] * self.drawn, sums)
        counts = torch.where(dead, least.expand_as(count), counts)
        whole = counts.sum(1, keepdim=True)
        smooth = (counts + _LITTLE) / (whole + count.shape[1] * _LITTLE) * whole
        vectors = sums / smooth[..., None].clamp_min(1e-12)
        vectors = torch.where(used[..., None], vectors, torch.stack([b.vectors for b in books]))
        for name, found in (("counts", counts), ("sums", sums), ("vectors", vectors)):
            torch._foreach_copy_([getattr(book, name) for book in books], list(found.unbind()))
        count.zero_()
        self.sums.zero_()
