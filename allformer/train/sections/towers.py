"""Sizes of two towers: one that reads images, one that reads their captions.

model:
  vision: {patch: 4, dim: 192, heads: 3, feed: 768, layers: 6}
  text: {dim: 128, heads: 4, feed: 512, layers: 2, dropout: 0.0}
  width: 128
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from allformer.config import Contrast, Feed, Norm, Probe, TwoTowers, VectorHead
from allformer.families.original import BOS, EOS, PAD
from allformer.families.siglip import BIAS, START
from allformer.train.sections.model import FORMS, AnyModelRecipe, ModelRecipe, PatchRecipe
from allformer.train.sections.section import Count

SHAPE = "two-towers"


@dataclass(frozen=True)
class TowersRecipe(AnyModelRecipe):
    """A ViT and a decoder of GPT-2's form, as CLIP has them, and vectors of `width` numbers.

    The text's vector is read at its end, the image's at `[CLS]`, or by a probe where there is none.
    A text has at most `length` tokens. `sigmoid`: each pair is judged by itself (SigLIP).
    """

    vision: PatchRecipe
    text: ModelRecipe = field(default_factory=lambda: ModelRecipe(128, 4, 512, 2, dropout=0.0))
    width: Count = 128
    length: Count = 32
    sigmoid: bool = False

    def tree(self, shape: str = SHAPE, length: int = 512) -> TwoTowers:
        if shape != SHAPE:
            self.refuse("vision", f"is of two towers, but this objective wants {shape}", "leave it")
        text = self.text.tree("decoder", self.length).decoder
        text = replace(text, source=replace(text.source, pad_id=PAD, bos_id=BOS, eos_id=EOS))
        sight = self.vision.tree().encoder
        probe = Probe(self.vision.heads, Feed(self.vision.feed, act="gelu"), Norm())
        words = VectorHead("eos", self.width, output="text_embeds")
        at: Any = "first" if self.vision.cls else probe
        images = VectorHead(at, self.width, output="image_embeds")
        start: dict[str, Any] = {"scale": START, "bias": BIAS} if self.sigmoid else {}
        return TwoTowers(text, sight, Contrast(words, images, **start))


FORMS["vision"] = TowersRecipe
