"""Two towers that are taught to agree: a text and an image that belong together point one way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allformer.config.check import refuse
from allformer.config.counting import Part
from allformer.config.head import Head
from allformer.config.model import Model, no_cross
from allformer.config.stack import Stack
from allformer.config.vector_head import VectorHead


@dataclass(frozen=True)
class Contrast(Head):
    """Cosines of all texts with all images, times e^s; each should find its own (CLIP).

    `text` and `image` make the vectors; the learned s starts at `scale`: ln(1/0.07), as published.
    With a `bias`, learned from there on and added to the scores, each pair is judged by itself, by
    a sigmoid (SigLIP, which starts with ln 10 and −10).
    """

    text: VectorHead
    image: VectorHead
    scale: float = 2.6592
    bias: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text.output == self.image.output:
            must = f"has the output {self.text.output!r}, as the image has"
            refuse(self, "text", must, 'try output="text_embeds" and output="image_embeds"')

    def fits(self, stack: Stack) -> object:
        """Refuse to stand on one stack."""
        refuse(self, "text", "and image are of two stacks", "use TwoTowers(text, vision, head)")


@dataclass(frozen=True)
class TwoTowers(Model):
    """A stack that reads text, one that reads images, and a head that compares what they give.

    `TwoTowers(text, vision, Contrast(VectorHead("eos", 512, output="text_embeds"), …))`. The two
    stacks share nothing: widths, depths and norms are their own.
    """

    text: Stack
    vision: Stack
    head: Contrast

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("text", "vision"):
            no_cross(self, name)
        self.head.text.fits(self.text)
        self.head.image.fits(self.vision)
        sizes = self.head.text.size(self.text), self.head.image.size(self.vision)
        if sizes[0] != sizes[1]:
            must = f"has a text's vector of width {sizes[0]}, and an image's of {sizes[1]}"
            refuse(self, "head", must, "give both VectorHeads one width")
        if not self.text.source.vocab:
            refuse(self, "text", "reads no tokens", "give it source=Tokens(…)")
        if self.vision.source.vocab:
            refuse(self, "vision", "reads tokens, as the text does", "give it source=Patches(…)")

    def lines(self, n: int) -> Iterator[Part]:
        for name, stack in self.stacks.items():
            yield from stack.lines(name, n)
        yield from self.head.text.lines(self.text, "text vector")
        yield from self.head.image.lines(self.vision, "image vector")
        learned = 1 if self.head.bias is None else 2
        yield Part("scale" if learned == 1 else "scale and bias", str(learned), learned)
