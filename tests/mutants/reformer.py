"""Planted bugs of Reformer: hashes, chunks, two streams, axial positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.mutants.families import _written
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_reformer
from tests.property import test_chunked, test_reversible


def _parity(name: str, side: str = "right") -> Callable[[], None]:
    return lambda: test_reformer.check_forward(
        name, side, _written(test_reformer, name), (64, 48, 7) if side == "left" else (61, 48, 7)
    )


HASHED = partial(test_chunked.check_naive, test_chunked.HASH, 21)
NEAR = partial(test_chunked.check_naive, test_chunked.NEAR, 21)
KILLERS: dict[str, Callable[[], None]] = {
    "hashed": partial(HASHED, False, "right"),
    "hashed, looking back": partial(HASHED, True, "right"),
    "near": partial(NEAR, False, "right"),
    "near, looking back": partial(NEAR, True, "left"),
    "near, in steps": partial(
        test_chunked.test_step_by_step_is_all_at_once, test_chunked.NEAR, 3
    ),
    "hashed, in steps": test_chunked.check_steps,
    "hashed, moved": test_chunked.test_a_state_is_reordered_and_cut,
    "hashes": test_chunked.test_buckets_are_the_nearest_ends_of_rotations_and_factors_count_them,
    "axes": test_chunked.test_an_axial_position_is_its_row_and_its_column,
    "reversed": partial(test_reversible.check_reversed, test_reversible.FULL),
    "reversed hashes": test_reversible.check_decided_once,
    "reversed, shared": partial(
        test_reversible.check_reversed, test_reversible.FULL, layers=4, share=(0, 1, 0, 1)
    ),
    "reformer": _parity("writes"),
    "reformer, unequal chunks": _parity("bare, unequal chunks"),
    "reformer, left": _parity("classes", "left"),
}  # fmt: skip
LSH, RING, ANY = "mixers.lsh:LSH", "chunks:Ring", {"raises": Exception}

MUTANTS: list[Mutant] = [
    bug("a query looks at itself", "nearly all weight is on itself", f"{LSH}._attend",
        "scores.masked_fill_(_itself(query, key), ALONE.get(scores.dtype, -1e5))", "scores",
        "hashed"),
    bug("alone is hidden", "the first token has nothing to say", f"{LSH}._attend",
        "ALONE.get(scores.dtype, -1e5)", "float('-inf')", "hashed, looking back"),
    bug("keys of any length", "long vectors are looked at most", f"{LSH}._keys",
        " * ((qk * qk).mean(-1, keepdim=True) + 1e-6).rsqrt()", "", "hashed"),
    bug("rounds by halves", "a round that saw nothing counts as much", "fused.sorting:merge_rounds",
        "total.softmax(2)", "total.mul(0).softmax(2)", "hashed"),
    bug("unsorted is sorted", "tokens get the context of others", "fused.sorting:merged",
        "moved(context, back, order)", "moved(context, order, back)", "hashed"),
    bug("factors do not count", "buckets of different hashes meet", "mixers.lsh:_buckets",
        "times *= 2 * part.shape[-1]", "times *= part.shape[-1]", "hashes"),
    bug("half of the buckets", "opposite vectors meet", "fused.sorting:farthest",
        "x.shape[-1] + least.indices", "least.indices", "hashes"),
    bug("padding among the rest", "chunks are thinned out by padding", "mixers.lsh:_buckets",
        "if keep is None", "if True", "reformer"),
    bug("the ring turns the other way", "looks ahead instead of back", f"{RING}.look",
        "x.roll(-i, 2)", "x.roll(i, 2)", "near", "hashed"),
    bug("chunks hide nothing behind them", "sees the future within a chunk", f"{RING}.hidden",
        "query[..., None] < key[..., None, :] if self.causal else None", "None",
        "near, looking back", "hashed, looking back"),
    bug("filling is seen", "zeros dilute the weights", "chunks:ring",
        "(0, length - width))", "(0, length - width), value=True)", "near", "hashed"),
    bug("each mixer fills for itself", "layers disagree about the length", "chunks:ring",
        "scene.chunks or (chunk,)", "(chunk,)", "reformer, unequal chunks"),
    bug("steps see whole chunks alone", "its own chunk is not seen", "mixers.local:Local._mask",
        "near <= c.after", "near < c.after", "near, in steps"),
    bug("steps forget the chunk before", "context is lost at each border",
        "mixers.local:Local.new_state", "(1 + c.before) * c.chunk - 1", "c.chunk - 1",
        "near, in steps"),
    bug("a step finds another row's bucket", "beams mix", f"{LSH}._next",
        "(order == count - 1)", "(order[:1] == count - 1)", "hashed, in steps", **ANY),
    bug("buckets stay when beams move", "beams look into each other's buckets",
        "states.hashed:Hashed.select", '("qk", "v", "buckets")', '("qk", "v")', "hashed, moved"),
    bug("columns first", "positions of a row are strewn about", "position:Axial.forward",
        "reversed(range(len(self.config.shape)))", "range(len(self.config.shape))", "axes", **ANY),
    bug("one stream alone", "half of the state is lost", "flows.reversible:Reversible.forward",
        "torch.cat(streams, dim=-1)", "torch.cat((streams[1], streams[1]), dim=-1)", "reversed",
        "reformer"),
    bug("streams crossed", "norm and head read the wrong halves",
        "flows.reversible:Reversible.forward", "torch.cat(streams, dim=-1)",
        "torch.cat(streams[::-1], dim=-1)", "reversed", "reformer"),
    bug("dropout drawn anew", "gradients of another mask", "flows.reversible:Past.again",
        "torch.set_rng_state(self.cpu)", "pass", "reversed"),
    bug("buckets decided anew", "rounding moves tokens to other buckets in the backward pass",
        "once:Tape.take", "if self._next is None:", "if True:", "reversed hashes"),
    bug("gradients of a stream forgotten", "early layers learn too little",
        "flows.reversible:_Reversed.backward", "dc, db + dread", "dc, dread", "reversed"),
    bug("a shared layer's last run counts alone", "shared weights learn too little",
        "flows.reversible:_Reversed.backward", "grad if before is None else before + grad", "grad",
        "reversed, shared"),
    bug("the first column is laid elsewhere", "classes are read at another token",
        "heads.classes:ClassHead.read", "return hidden.grid[:, 0]", "return hidden.grid[:, 1]",
        "reformer, left"),
]  # fmt: skip
