"""Planted bugs of CLIP: where a text ends, what is normed, how two towers are compared."""

from __future__ import annotations

from collections.abc import Callable

from allformer.errors import ConfigError
from tests.mutants.families import _written
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_clip


def _check(kind: str, name: str) -> Callable[[], None]:
    check = getattr(test_clip, f"check_{kind}")
    return lambda: check(test_clip.BY_NAME[name], _written(test_clip, name))


KILLERS: dict[str, Callable[[], None]] = {
    "clip text": _check("text", "text"),
    "clip text, old end": _check("text", "text, old end"),
    "clip vision": _check("vision", "vision"),
    "clip": _check("both", "both"),
    "clip, trained": _check("contrast", "both"),
}
END, SCORES = "heads.vector:VectorHead._end", "heads.contrast:Contrast"

MUTANTS: list[Mutant] = [
    bug("the last end", "end tokens that fill rows up are read", END,
        "return ends.int().argmax(-1)", "return ends.shape[1] - 1 - ends.flip(1).int().argmax(-1)",
        "clip text"),
    bug("the end that old configs name", "2 is no end: no row has one", END,
        'self.config.at == "largest"', "False", "clip text, old end", raises=ConfigError),
    bug("[CLS] without its norm", "vectors of a length of their own",
        "heads.vector:VectorHead.outputs", "x if self.norm is None else self.norm(x)", "x",
        "clip vision"),
    bug("no exponent", "a scale of 2.7 instead of 14: all texts fit", f"{SCORES}.compare",
        "self.scale.exp()", "self.scale", "clip", "clip, trained"),
    bug("products for cosines", "long vectors fit everything", "heads.contrast:unit",
        "torch.div(x, torch.linalg.vector_norm(x, dim=-1, keepdim=True))", "x", "clip"),
    bug("one way alone", "images are not told apart", f"{SCORES}.mismatch",
        "F.cross_entropy(scores.t(), own)", "F.cross_entropy(scores, own)", "clip, trained"),
]  # fmt: skip
