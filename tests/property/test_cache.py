"""Decoding with a cache gives what decoding everything at once gives."""

from __future__ import annotations

import pytest
import torch

from allformer.errors import ConfigError
from tests.models import KINDS, decoder_only, left_padding, loud, right_padding, tokens

CHUNKS = [[1] * 48, [5, 1, 30, 1, 1, 10], [48], [31, 2, 15]]  # 32 is where the cache must grow
DECODERS = ["decoder paper", "decoder modern"]


def close(mine: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def check_decoder(kind: str, chunks: list[int], left_padded: bool, kernel: str = "fast") -> None:
    model = loud(KINDS[kind])
    ids, width = tokens(3, sum(chunks)), sum(chunks)
    mask = left_padding([width, width - 9, 4], width) if left_padded else None
    wanted = model(ids, mask, kernel=kernel).logits
    cache, done = model.new_cache(), 0
    for chunk in chunks:
        end = done + chunk
        seen = None if mask is None else mask[:, :end]
        out = model(ids[:, done:end], seen, cache=cache, kernel=kernel).logits
        real = torch.ones(3, chunk).bool() if mask is None else mask[:, done:end].bool()
        close(out[real], wanted[:, done:end][real])
        done = end
    assert cache.length == width


@torch.no_grad()
def check_step(kind: str, chunks: list[int], kernel: str = "fast") -> None:
    model = loud(KINDS[kind])
    source, keep = tokens(3, 50, 1), right_padding([50, 30, 4], 50)
    target = tokens(3, sum(chunks), 2)
    wanted = model(source, keep, target, kernel=kernel).logits
    memory = model.encode(source, keep)
    cache, done = model.new_cache(), 0
    for chunk in chunks:
        ids = target[:, done : done + chunk]
        first = memory if done == 0 else None  # later calls need the mask alone
        done += chunk
        close(model.step(ids, cache, first, keep, kernel=kernel), wanted[:, done - 1])
    fresh = model.step(
        target[:, :3], model.new_cache(), memory.flip(0), keep.flip(0), kernel=kernel
    )
    other = model(source.flip(0), keep.flip(0), target[:, :3], kernel=kernel).logits[:, -1]
    close(fresh, other)  # nothing of the first source is left over


@torch.no_grad()
def check_reordering(kind: str) -> None:
    """Beam search reorders rows between steps; each row must take its past with it."""
    model = loud(KINDS[kind])
    ids = tokens(4, 48)
    rows = torch.tensor([2, 2, 0, 3])
    cache = model.new_cache()
    model(ids[:, :20], cache=cache)
    cache.select(rows)
    moved = torch.cat([ids[rows, :20], ids[:, 20:]], 1)
    out = model(ids[:, 20:], cache=cache).logits
    close(out, model(moved).logits[:, 20:])


@torch.no_grad()
def check_shrinking(kind: str) -> None:
    """Finished sentences leave the batch: target and source rows go together."""
    model = loud(KINDS[kind])
    source, keep, target = tokens(4, 50, 1), right_padding([50, 9, 30, 4], 50), tokens(4, 40, 2)
    memory, cache = model.encode(source, keep), model.new_cache()
    model.step(target[:, :20], cache, memory, keep)
    rows = torch.tensor([3, 1])
    cache.select(rows, cross=True)
    out = model.step(target[rows, 20:], cache, None, keep[rows])
    close(out, model(source[rows], keep[rows], target[rows]).logits[:, -1])


@pytest.mark.parametrize("left_padded", [False, True], ids=["unpadded", "left-padded"])
@pytest.mark.parametrize("chunks", CHUNKS, ids=["one by one", "mixed", "all", "over the edge"])
@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_with_a_cache_gives_the_same_logits(kind, chunks, left_padded):
    check_decoder(kind, chunks, left_padded)


@pytest.mark.parametrize("left_padded", [False, True], ids=["unpadded", "left-padded"])
def test_the_eager_kernel_with_a_cache_gives_the_same_logits(left_padded):
    check_decoder("decoder modern", CHUNKS[1], left_padded, kernel="eager")


@pytest.mark.parametrize("chunks", CHUNKS, ids=["one by one", "mixed", "all", "over the edge"])
@pytest.mark.parametrize("kind", ["seq2seq paper", "seq2seq modern"])
def test_steps_give_the_logits_of_the_whole_target(kind, chunks):
    check_step(kind, chunks)


@pytest.mark.parametrize("kind", DECODERS)
def test_reordered_rows_keep_their_past(kind):
    check_reordering(kind)


@pytest.mark.parametrize("kind", ["seq2seq paper", "seq2seq modern"])
def test_rows_can_leave_the_batch_with_their_source(kind):
    check_shrinking(kind)


@torch.no_grad()
def check_mask_covers_all() -> None:
    """A mask over the new tokens alone, or over too few or too many, is refused and not guessed."""
    model, ids = loud(KINDS["decoder paper"]), tokens(2, 12)
    mask = left_padding([12, 7], 12)
    for cached in (0, 5):
        for width in (1, 2, 7, 11, 13):
            cache = model.new_cache()
            if cached:
                model(ids[:, :cached], mask[:, :cached], cache=cache)
            wrong = torch.ones(2, width).long()
            with pytest.raises(ConfigError) as caught:
                model(ids[:, cached:], wrong, cache=cache)
            assert str(caught.value) == (
                f"attention_mask covers {width} tokens, but there are {cached} in the cache and "
                f"{12 - cached} new ones; give a mask over all of them"
            )
            assert cache.length == cached  # nothing was written: the call can be made again
            out = model(ids[:, cached:], mask, cache=cache).logits
            real = mask[:, cached:].bool()
            close(out[real], model(ids, mask).logits[:, cached:][real])


def test_a_mask_that_does_not_cover_cached_and_new_tokens_is_refused():
    check_mask_covers_all()


def test_two_caches_do_not_share_anything():
    model = loud(decoder_only())
    one, two = model.new_cache(), model.new_cache()
    with torch.no_grad():
        model(tokens(1, 5, 1), cache=one)
        wanted = model(tokens(1, 3, 3), cache=one).logits
        one = model.new_cache()
        model(tokens(1, 5, 1), cache=one)
        model(tokens(1, 7, 2), cache=two)
        close(model(tokens(1, 3, 3), cache=one).logits, wanted)
