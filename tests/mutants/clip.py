"""Planted bugs of CLIP and SigLIP: where a text ends, what is normed, how towers are compared."""

from __future__ import annotations

from collections.abc import Callable

from allformer.errors import ConfigError
from tests.mutants.families import _written
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_clip, test_siglip


def _check(kind: str, name: str) -> Callable[[], None]:
    check = getattr(test_clip, f"check_{kind}")
    return lambda: check(test_clip.BY_NAME[name], _written(test_clip, name))


KILLERS: dict[str, Callable[[], None]] = {
    "clip text": _check("text", "clip text"),
    "clip text, old end": _check("text", "clip text, old end"),
    "clip vision": _check("vision", "clip vision"),
    "clip": _check("both", "clip both"),
    "clip, trained": _check("contrast", "clip both"),
    "siglip": lambda: test_siglip.check_both(
        test_siglip.WHOLE, _written(test_siglip, test_siglip.WHOLE.name)
    ),
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
        "one_way(scores.t(), own)", "one_way(scores, own)", "clip, trained"),
    bug("pairs that do not fit are not pushed apart", "every text fits every image",
        "heads.contrast:each_pair", "scores, belongs", "scores, belongs + 1 - belongs", "siglip"),
    bug("no bias", "far too many pairs fit at first", f"{SCORES}.compare",
        "scores + self.bias.to(text.dtype)", "scores", "siglip"),
    bug("a probe without its residual", "what it saw is lost", "heads.probe:Probe.forward",
        "c + self.feed(self.norm(c))", "self.feed(self.norm(c))", "siglip"),
]  # fmt: skip
