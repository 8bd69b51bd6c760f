"""Planted bugs of blocks that look at blocks, and of BigBird's files and heads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from allformer.core.mixers import block_sparse
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_big_bird as birds
from tests.parity import zoo

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


@cache
def _written(name: str) -> Path:
    """The case as transformers writes it, once."""
    return zoo.on_disk(zoo.oracle(birds.BY_NAME[name]), Path(_FOLDER.name) / name)


def _drawn_anew(check: Callable[..., None], name: str, *more: object) -> Callable[[], None]:
    """What was drawn without the bug is not found again, nor what was drawn with it."""

    def run() -> None:
        block_sparse._drawn_slots.cache_clear()
        try:
            check(*more, path=_written(name))
        finally:
            block_sparse._drawn_slots.cache_clear()

    return run


def _same(name: str, side: str = "right") -> Callable[[], None]:
    return _drawn_anew(birds.check_forward, name, name, side)


def _trained(name: str, side: str = "right") -> Callable[[], None]:
    return _drawn_anew(birds.check_training, name, name, side)


KILLERS: dict[str, Callable[[], None]] = {
    "bird": _same("bird"),
    "bird, left": _same("bird", "left"),
    "bird scaled": _same("bird scaled"),
    "bird classes": _same("bird classes"),
    "bird answers": _same("bird span"),
    "bird words, trained": _trained("bird words"),
    "bird answers, trained": _trained("bird span"),
    "bird, short": _drawn_anew(birds.check_width, "bird", 36),
    "bird question": _drawn_anew(birds.check_question, "bird span"),
}
SLOTS, SPARSE = "random_blocks:slots_of", "mixers.block_sparse:BlockSparse"

MUTANTS: list[Mutant] = [
    bug("the first block counts once", "in eval mode transformers' random blocks are all block 0",
        SLOTS, "times[:, :, 0] += mixer.random", "times[:, :, 0] += 0", "bird"),
    bug("the first neighbour counts twice", "it is the first block too",
        SLOTS, "times[:, 0, 1] = times[:, -1, 3] = 0", "times[:, -1, 3] = 0", "bird"),
    bug("the last neighbour counts twice", "it is the last block too",
        SLOTS, "times[:, 0, 1] = times[:, -1, 3] = 0", "times[:, 0, 1] = 0", "bird"),
    bug("a window of two blocks", "nobody looks ahead",
        SLOTS, "[zero, at - 1, at, at + 1, end]", "[zero, at - 1, at, at, end]", "bird"),
    bug("no last block", "the end is not global",
        SLOTS, "np.full_like(at, blocks - 1)", "np.full_like(at, blocks - 2)", "bird"),
    bug("one pattern for all heads", "less is seen",
        "random_blocks:_by_plan", "order = dice.permutation(near)",
        "order = dice.permutation(near) if head == 0 else order", "bird words, trained"),
    bug("one pattern for all layers", "less is seen",
        "allformer.families.blocks:read_blocks", "seed=i", "seed=0", "bird words, trained"),
    bug("blocks that are seen anyway are drawn", "they count twice",
        "random_blocks:_by_plan", "seen = {0, i - 1, i, i + 1, near - 1}", "seen = {0, i}",
        "bird words, trained"),
    bug("padding is looked at by blocks", "it moves real outputs", f"{SPARSE}._gathering",
        "bias = bias.masked_fill(~seen, least)", "pass", "bird", "bird, left"),
    bug("padding is looked at by the first and the last", "it moves real outputs",
        f"{SPARSE}._gathering", ".masked_fill(~real, least)", "", "bird", "bird, left"),
    bug("padding is given something", "the head for answers scores it", f"{SPARSE}.forward",
        "out * plan.keep[..., None]", "out", "bird answers, trained"),
    bug("too short is less than short", "one length is sparse that is not", f"{SPARSE}.plan",
        "width <= self.config.short", "width < self.config.short", "bird, short"),
    bug("vectors are not scaled", "quiet", "allformer.families.big_bird:_read_stack",
        'scale=fields.flag("rescale_embeddings", False)',
        'scale=fields.flag("rescale_embeddings", False) is None', "bird scaled"),
    bug("BigBird's classifier with tanh", "RoBERTa's", "allformer.families.big_bird:read",
        "dense=act", 'dense="tanh"', "bird classes"),
    bug("answers without the residual", "another function", "heads.reading:ReadingHead.forward",
        "self.norm(hidden + h)", "self.norm(h)", "bird answers"),
    bug("no answer is impossible", "the first token says it", "heads.reading:ReadingHead.on_grid",
        "barred[:, 0] = False", "pass", "bird answers"),
    bug("the question may answer", "it often has the words", "heads.reading:ReadingHead.on_grid",
        "return scores - BARRED * barred[..., None].to(scores.dtype)", "return scores",
        "bird answers"),
    bug("token types follow from nothing", "question and text alike",
        "heads.reading:ReadingHead.complete", "(~self._question(grid)).long()",
        "self._question(grid).long() * 0", "bird question"),
]  # fmt: skip
