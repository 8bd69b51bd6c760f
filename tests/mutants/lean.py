"""Planted bugs of what is faster on a CPU: lean decoders, oneDNN's products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_best_sums, test_largest, test_lean, test_listener_speed, test_matmul

KILLERS: dict[str, Callable[[], None]] = {
    "lean decoder": test_listener_speed.check_lean,
    "lean gpt2": partial(test_lean.check_same, "gpt2"),
    "lean llama": partial(test_lean.check_same, "llama"),
    "lean marian": partial(test_lean.check_same, "marian"),
    "lean t5": partial(test_lean.check_same, "t5"),
    "lean copies part": test_lean.check_copies_tear,
    "lean chunks": test_lean.check_chunks,
    "lean weights": test_lean.check_changed_weights,
    "largest": test_largest.check_largest,
    "best sums": test_best_sums.check_best_sums,
    "derivatives": test_matmul.check_derivatives,
}
HERE = "allformer.core.lean"
CACHE, LAYER, PLACES = f"{HERE}.cache:LeanCache", f"{HERE}.layer", f"{HERE}.places"
STEPPER, SUMS = "allformer.generate.lean", "allformer.generate.best_sums"

MUTANTS: list[Mutant] = [
    bug("lean queries are not scaled", "attention over sound is too sharp", f"{LAYER}:attend",
        "q * how.scale", "q * 1.0", "lean decoder"),
    bug("lean heads stay apart", "texts of one source are mixed up", f"{LAYER}:attend",
        "permute(0, 3, 1, 2, 4)", "permute(0, 1, 3, 2, 4)", "lean decoder", "lean marian"),
    bug("beams stay where they were", "a beam goes on from another's words", f"{CACHE}.select",
        "self.extra = self.extra.index_select(0, rows)\n        return",
        "self.extra = self.extra.clone()\n        return", "lean marian", "lean gpt2"),
    bug("beams see each other's new words", "texts of a source grow alike", f"{CACHE}.widen",
        "_NEVER).fill_diagonal_(0.0)", "0.0)", "lean marian"),
    bug("copies that part have the first one's words", "rows say what their neighbours said",
        f"{CACHE}.settle", "descending=True", "descending=False", "lean gpt2"),
    bug("the prompt is lost when copies part", "rows go on from nothing", f"{CACHE}.settle",
        "repeat_interleave(self.copies)", "repeat(self.copies)", "lean copies part"),
    bug("padding of a prompt is seen", "a row depends on its neighbours' length", f"{CACHE}.bias",
        "masked_fill_(~known, _NEVER)", "masked_fill_(~known, 0.0)", "lean gpt2"),
    bug("padding has its number", "positions of a padded row are too high", f"{CACHE}.numbers",
        "counted = self.keep.cumsum(1)", "counted = self.keep.long().fill_(1).cumsum(1)",
        "lean gpt2"),
    bug("places of beams are columns", "T5's distances grow with the beams", f"{CACHE}.places",
        "if self.copies == 1", "if True", "lean t5"),
    bug("sources change and their padding stays", "a text looks at padding", f"{CACHE}._take",
        "self.across.index_select(0, sources)", "self.across.index_select(0, sources.flip(0))",
        "lean marian"),
    bug("a turn the wrong way", "distances are mirrored", f"{PLACES}:Turns.make",
        "[-turn.sin, turn.sin]", "[turn.sin, -turn.sin]", "lean llama"),
    bug("values are not behind the keys", "attention mixes keys", f"{LAYER}:Layer._within",
        "parts[:, :, h + g :]", "parts[:, :, h : h + g]", "lean llama"),
    bug("a later part of a prompt forgets the first", "long prompts lose their beginning",
        f"{CACHE}.mask", "tril(columns - new)", "tril()", "lean chunks"),
    bug("old weights are held", "a model that was trained on writes as before", f"{STEPPER}:hold",
        "kinds[dtype].weights != weights", "False", "lean weights"),
    bug("the best are sought in too few chunks", "beams go on from worse words",
        "allformer.generate.largest:largest", "tops.topk(count + 1, dim=1)", "tops.topk(2, dim=1)",
        "largest"),
    bug("a forbidden word stands for its chunk", "better words of other beams are not looked at",
        f"{SUMS}:_forbid", "tops[:, chunk] =", "unused =", "best sums"),
    bug("scores of beams are forgotten", "every beam goes on alike", f"{SUMS}:_sums",
        ".add_(score)", "", "best sums"),
    bug("words of another beam", "a beam goes on with its neighbour's words", f"{SUMS}:best_sums",
        "torch.arange(0, rows * beams, beams)", "torch.arange(0, rows)", "best sums"),
    bug("a product's gradients are of one row", "weights learn from the first token alone",
        "allformer.core.matmul:_Product.backward", "dy.sum(0) if", "dy[0] if", "derivatives"),
    bug("a product's gradients are another's", "weights learn from what they give",
        "allformer.core.matmul:_Product.backward", "matmul(dy, weight.t(), None)",
        "matmul(dy, weight.t(), None).flip(0)", "derivatives"),
]  # fmt: skip
