"""Planted bugs of what draws: DALL-E's masks, places and head, its loss, chance; ImageGPT."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from allformer.config import ColumnMask, NearMask, RowMask
from allformer.errors import AllformerError
from tests.mutants.images import _written
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_image_processors, test_imagegpt
from tests.property import test_image_masks
from tests.unit import test_drawing

_FOLDER = tempfile.TemporaryDirectory(prefix="drawing")


@cache
def _root() -> Path:
    """Pictures, a codec and a run of one step, once."""
    return test_drawing.prepared(Path(_FOLDER.name), steps=1)


def _masks() -> None:
    for mixer in (RowMask(6, 7), ColumnMask(6, 7), NearMask(6, 7, 3)):
        test_image_masks.check_mask(mixer)


def _imagegpt(name: str) -> None:
    test_imagegpt.check_forward(name, _written(test_imagegpt, name))


KILLERS: dict[str, Callable[[], None]] = {
    "image masks": _masks,
    "dalle formula": test_image_masks.check_formula,
    "dalle steps": test_image_masks.check_steps,
    "dalle score": test_image_masks.check_score,
    "dalle loss": lambda: test_drawing.check_loss(_root()),
    "dalle codes": lambda: test_drawing.check_codes(_root()),
    "dalle codes, guided": lambda: test_drawing.check_codes(_root(), 2.5),
    "pick a code": test_drawing.check_pick,
    "imagegpt": partial(_imagegpt, "pixels"),
    "imagegpt, every option": partial(_imagegpt, "pixels, every option"),
    "imagegpt classes": partial(_imagegpt, "classes"),
    "numbers of colours": lambda: test_image_processors.check_numbers(
        test_image_processors.NUMBERED[0]
    ),
}
MASK, SOURCE, HEAD = "mixers.axial_mask", "sources.joined", "heads.joined:JoinedHead"
LOSS, DRAW = "allformer.train.objectives.text_to_image:TextToImage", "allformer.generate.codes"
FAMILY, ASIDE = "allformer.families", {"raises": (AssertionError, AllformerError)}

MUTANTS: list[Mutant] = [
    bug("the code above is not seen", "rows know nothing of each other", f"{MASK}:RowMask.reached",
        "far.le(", "far.lt(", "image masks", "dalle formula"),
    bug("the column beside", "a code looks at another column", f"{MASK}:ColumnMask.reached",
        ".eq(0)", ".eq(1)", "image masks"),
    bug("a row too many", "the kernel reaches further than it is wide", f"{MASK}:NearMask.reached",
        "clamp(max=side)", "clamp(max=side + 1)", "image masks"),
    bug("one code ahead", "what is to be said is seen", f"{MASK}:ImageMask.mask",
        "(far >= 0)", "(far >= -1)", "image masks", "dalle formula"),
    bug("the first code is text", "everybody sees it", f"{MASK}:ImageMask.mask",
        "< self.config.text", "<= self.config.text", "image masks"),
    bug("one vector for all padding", "where a text ends is not told by its place",
        f"{SOURCE}:Joined.vectors", "own, x)", "x, x)", "dalle formula"),
    bug("columns run slowest", "the picture lies on its side", f"{SOURCE}:TextAndPlane.forward",
        "self.rows[:, None] + self.columns", "self.rows + self.columns[:, None]", "dalle formula"),
    bug("codes a place too late", "the first code is said as a word", f"{HEAD}.forward",
        "where + 1 >= self.source.length", "where >= self.source.length",
        "dalle formula", "dalle score"),
    bug("the last state's place", "a step says words", "decoder_only:DecoderOnlyModel.step",
        "else where[-1:]", "else 0 * where[-1:]", "dalle steps"),
    bug("words weigh most", "images are learnt last", f"{LOSS}.loss",
        "(1 - share) * image, share * text", "share * image, (1 - share) * text", "dalle loss"),
    bug("padding is to be said", "most of the text loss is nothing", f"{LOSS}.loss",
        "aims.masked_fill(", "torch.clone(aims) if True else aims.masked_fill(", "dalle loss"),
    bug("codes are read as words", "what was drawn is taken for text", f"{DRAW}:draw_codes",
        "said[-1] + head.source.words", "said[-1] + 0", "dalle codes"),
    bug("away from the text", "guidance draws anything else", f"{DRAW}:draw_codes",
        "(with_text - without)", "(without - with_text)", "dalle codes, guided"),
    bug("the last of the likeliest is out", "top_k is one less", f"{DRAW}:pick",
        "scores < least", "scores <= least", "pick a code"),
    bug("bolder is safer", "temperature works the other way", f"{DRAW}:pick",
        "scores / temperature", "scores * temperature", "pick a code"),
    bug("the beginning is said too", "a score more than its files have",
        f"{FAMILY}.imagegpt:read", "LMHead() if tied else ColourHead()", "LMHead(tied)",
        "imagegpt", **ASIDE),
    bug("the first layer counts from two", "every layer's scores are too small",
        f"{FAMILY}.gpt2:read_stack", "base / (i + 1)", "base / (i + 2)", "imagegpt, every option"),
    bug("the last pixel speaks", "the classifier looks at a corner", f"{FAMILY}.imagegpt:read",
        'class_head(fields, "mean"', 'class_head(fields, "first"', "imagegpt classes"),
    bug("half the product", "pixels go to a wrong colour", "allformer.images.clusters:nearest",
        "- 2 * np.matmul", "- np.matmul", "numbers of colours"),
]  # fmt: skip
