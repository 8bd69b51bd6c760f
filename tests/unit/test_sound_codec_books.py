"""How residual codebooks learn: moving means, beginnings, dead codes, fewer books at random."""

from __future__ import annotations

import torch
from torch import Tensor

from allformer.codecs.sound import Encodec, EncodecModel, Seanet
from allformer.codecs.sound.books import Book, Books
from allformer.codecs.sound.ema import Following
from allformer.codecs.sound.start import start_on
from allformer.core.model import build


def books(count: int = 2, codes: int = 4, dim: int = 3) -> Books:
    torch.manual_seed(0)
    made = Books(Book(codes, dim) for _ in range(count)).double()
    for i in range(count):
        made.book(i).reset_parameters()
        made.book(i).vectors.normal_()
        made.book(i).sums.copy_(made.book(i).vectors)
    return made


def frames(rows: int = 4, length: int = 5, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, length, generator=generator, dtype=torch.float64)


def all_of(z: Tensor, count: int = 2) -> Tensor:
    return torch.full((len(z),), count)


def check_follows() -> None:
    """Counts and sums are moving means of what each book met, vectors their quotient."""
    ours, reference = books(), books()
    following = Following(ours)
    following.quantise(frames(), all_of(frames()))
    following.settle(decay=0.9, restart=0.0)
    left = frames().movedim(1, -1).flatten(0, 1)
    for i in range(2):
        book = reference.book(i)
        ids = book.nearest(left)
        for code in range(4):
            mine = left[ids == code]
            count = 0.9 * 1 + 0.1 * len(mine)
            total = 0.9 * book.vectors[code] + 0.1 * mine.sum(0)
            torch.testing.assert_close(ours.book(i).counts[code], torch.tensor(count).double())
            torch.testing.assert_close(ours.book(i).sums[code], total)
            torch.testing.assert_close(
                ours.book(i).vectors[code], total / count, rtol=1e-4, atol=1e-4
            )
        left = left - book.vectors[ids]


def check_pieces() -> None:
    """Two micro-batches teach what one batch of both does; filler teaches nothing."""
    whole, parts, filled = books(), books(), books()
    z, keep = frames(), torch.tensor([1.0, 1.0, 1.0, 0.0])
    for made, batches in ((whole, [z[:3]]), (parts, [z[:1], z[1:3]])):
        following = Following(made)
        for batch in batches:
            following.quantise(batch, all_of(batch))
        following.settle(0.9, 0.0)
    following = Following(filled)
    following.quantise(z, all_of(z), keep)
    following.settle(0.9, 0.0)
    for i in range(2):
        torch.testing.assert_close(whole.book(i).vectors, parts.book(i).vectors)
        torch.testing.assert_close(whole.book(i).vectors, filled.book(i).vectors)


def check_dropout() -> None:
    """Each sound is the sum of its own number of books, and teaches those alone."""
    made = books(3)
    following, z = Following(made), frames(3)
    found = following.quantise(z, torch.tensor([1, 3, 2]))
    codes = made.encode(z)
    for row, count in enumerate((1, 3, 2)):
        wanted = made.decode(codes[row : row + 1, :count])
        torch.testing.assert_close(found.vectors[row : row + 1], wanted)
    assert following.counts.sum(1).tolist() == [15, 10, 5]
    first = (z[0] - made.decode(codes[:1, :1])[0]).square().mean()
    torch.testing.assert_close(found.apart[0], first)


def check_straight_through() -> None:
    """Codes forwards, the frames' own gradient backwards; commitment draws frames to codes."""
    z = frames().requires_grad_(True)
    found = Following(books()).quantise(z, all_of(z))
    weights = frames(seed=2)
    (gradient,) = torch.autograd.grad((found.vectors * weights).sum(), z, retain_graph=True)
    torch.testing.assert_close(gradient, weights)
    (gradient,) = torch.autograd.grad(found.apart.sum(), z)
    assert gradient.abs().sum() > 0


def test_books_are_moving_means():
    check_follows()


def test_a_batch_in_pieces_teaches_what_the_whole_one_does():
    check_pieces()


def test_each_sound_has_its_own_number_of_books():
    check_dropout()


def test_the_gradient_passes_the_codes_by():
    check_straight_through()


def test_0_books_are_the_frames_themselves_and_teach_all_books():
    made = books()
    following, z = Following(made), frames(2)
    found = following.quantise(z, torch.tensor([0, 2]))
    torch.testing.assert_close(found.vectors[0], z[0])
    torch.testing.assert_close(found.vectors[1:], made.decode(made.encode(z[1:])))
    assert following.counts.sum(1).tolist() == [10, 10]


def check_begins() -> None:
    """New books begin at vectors of what they meet: the second one at what the first has left."""
    made = books()
    following, z = Following(made), frames()
    following.forget()
    following.quantise(z, all_of(z))
    rows = z.movedim(1, -1).flatten(0, 1)
    left = rows - made.book(0).look_up(made.book(0).nearest(rows))
    for book, seen in ((made.book(0), rows), (made.book(1), left)):
        apart = (book.vectors[:, None] - seen).square().sum(-1).min(1).values
        assert apart.max() < 1e-12
        assert float(book.begun) == 1


def test_new_books_begin_at_what_they_meet():
    check_begins()


def test_a_book_that_met_nothing_waits_and_then_begins():
    made = books()
    following, z = Following(made), frames()
    following.forget()
    before = made.book(1).vectors.clone()
    following.quantise(z, all_of(z, 1))
    following.settle(0.9, 0.1)
    assert torch.equal(made.book(1).vectors, before)
    assert float(made.book(1).begun) == 0
    following.quantise(z, all_of(z, 2))
    assert float(made.book(1).begun) == 1


def test_dead_codes_begin_anew_and_living_ones_stay():
    made = books(1)
    book = made.book(0)
    book.vectors[3] = 1e6  # nothing is near it
    book.sums[3], book.counts[3] = 1e4, 0.01
    following, z = Following(made), frames()
    following.quantise(z, all_of(z, 1))
    alive = book.vectors[:3].clone()
    following.settle(0.9, 0.1)
    seen = z.movedim(1, -1).flatten(0, 1)
    assert (book.vectors[3] - seen).square().sum(-1).min() < 1e-6
    assert (book.vectors[:3] - alive).abs().max() < 2


def test_looking_teaches_nothing():
    made = books()
    following, z = Following(made), frames()
    following.quantise(z, all_of(z), learn=False)
    assert not following.counts.any()


def test_a_codec_starts_with_frames_of_one_size_whatever_the_level():
    torch.manual_seed(0)
    tree = Encodec(
        8000, Seanet(hidden=4, ratios=(4, 2), lstm=1), dim=8, codes=16, bandwidths=(4.0,)
    )
    for level in (1e-3, 0.3):
        codec = build(tree, seed=0)
        assert isinstance(codec, EncodecModel)
        wave = level * torch.randn(4, 1, 400)
        start_on(codec, wave)
        z = codec.compressed(wave)
        assert 0.8 < float(z.detach().std()) < 1.2
        assert float(codec.sounded(z).detach().std()) < 0.2 * level
