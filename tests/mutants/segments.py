"""Planted bugs of Transformer-XL: distances, what is remembered, and words in clusters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.mutants.mutants import Mutant, bug
from tests.parity import test_transfo_xl
from tests.property import test_segments

KILLERS: dict[str, Callable[[], None]] = {
    "xl by hand": partial(test_segments.check_formula, "post", True, None),
    "xl by hand, pre, clamped": partial(test_segments.check_formula, "pre", False, 4),
    "xl segments are one text": test_segments.check_whole,
    "xl zeros, padded": test_segments.check_zeros_padded,
    "xl reset": test_segments.check_fresh,
    "xl no gradient": test_segments.check_no_gradient,
    "xl cached": test_segments.check_cached,
    "xl on record": partial(test_transfo_xl.check_loaded, "post"),
    "xl on record, same length": partial(test_transfo_xl.check_loaded, "pre"),
    "xl on record, untied": partial(test_transfo_xl.check_loaded, "loose"),
}
XL, MEMORY = "relatives.xl", "states.segment:SegmentMemory"
HEAD = "heads.adaptive:AdaptiveHead"
ANY = {"raises": Exception}

MUTANTS: list[Mutant] = [
    bug("u left out", "keys are not asked for but by the query", f"{XL}:XLPart.query",
        "q + self.biases.u[:, None].to(q.dtype)", "q", "xl by hand", "xl on record"),
    bug("u for v", "one bias does the work of two", f"{XL}:XLPart.scores",
        "self.biases.v", "self.biases.u", "xl by hand"),
    bug("distances not scaled", "far and near drown what is said", f"{XL}:XLPart.scores",
        ") * self.scale", ")", "xl by hand"),
    bug("distances shifted by one", "each key one further", f"{XL}:shifted",
        "padded[:, :, 1:].reshape(", "padded[:, :, :-1].reshape(", "xl by hand"),
    bug("distances not shifted", "every query stands at the end", f"{XL}:Distances.scores",
        "shifted(found) if places.tail else picked(found, places)", "found", "xl by hand"),
    bug("sines and cosines in turn", "trained on other vectors", f"{XL}:sinusoids",
        "torch.cat([angle.sin(), angle.cos()], dim=-1)",
        "torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)", "xl by hand",
        "xl on record"),
    bug("clamp ignored", "far keys at distances never trained", f"{XL}:sinusoids",
        "if clamp is not None:", "if False:", "xl by hand, pre, clamped", "xl on record"),
    bug("memory not normed", "pre-norm reads two kinds of states", "block:Block.steps",
        "norm_of_sum(before, None, self.attention_norm)", "before", "xl by hand, pre, clamped"),
    bug("memory of outputs", "a layer remembers what it said, not what it read",
        f"{MEMORY}.see", "self._seen = x.detach()", "self._seen = x.detach() * 0.5", "xl by hand"),
    bug("memory keeps the oldest", "nothing new is remembered", f"{MEMORY}.update",
        "whole[:, max(0, whole.shape[1] - self.size) :]", "whole[:, : self.size]", "xl by hand"),
    bug("memory carries gradient", "back through all segments", f"{MEMORY}.see",
        "x.detach()", "x", "xl no gradient"),
    bug("memory one place off", "all distances to it are wrong", f"{MEMORY}.places",
        "torch.arange(past - held,", "torch.arange(past - held + 1,", "xl segments are one text",
        **ANY),
    bug("a new document remembers the last", "leaks from text to text", f"{MEMORY}._real",
        "torch.cat([real[:, self.first - old :], keep], dim=1)",
        "torch.cat([real[:, self.first - old :] | True, keep], dim=1)", "xl reset"),
    bug("kept keys not reordered", "beams take the wrong past", f"{MEMORY}.select",
        "if self._kept is not None:", "if False:", "xl cached", **ANY),
    bug("zeros are not looked at", "the first segment sees too little", f"{MEMORY}.__init__",
        "size if blank else 0", "0", "xl on record"),
    bug("same length sees one more", "one key too many", "mixers.window:Window.__init__",
        "self.config.reach, self.config.dilation",
        "(self.config.left + 1, self.config.right), self.config.dilation",
        "xl on record, same length"),
    bug("a rare word without its cluster", "probabilities sum to more than one", f"{HEAD}.forward",
        "first[..., frequent + i - 1, None] + inside", "inside", "xl on record"),
    bug("clusters exchanged", "rare words have another's probability", f"{HEAD}.forward",
        "frequent + i - 1", "-i", "xl on record"),
    bug("projection of another cluster", "tied to the wrong matrix", f"{HEAD}._projection",
        "0 if self.source.divide == 1 else i", "0", "xl on record", **ANY),
    bug("own projections are the source's", "an untied head is tied", f"{HEAD}._projection",
        "if str(i) in self.projections:", "if False:", "xl on record, untied", **ANY),
    bug("padding before zeros moves them", "padded prompts go on otherwise", f"{MEMORY}._real",
        "if self.blank:", "if False:", "xl zeros, padded"),
    bug("padding before zeros is no zeros", "padded prompts go on otherwise", "stack:Stack._zeros",
        "if cache is None or", "if True or", "xl zeros, padded"),
]  # fmt: skip
