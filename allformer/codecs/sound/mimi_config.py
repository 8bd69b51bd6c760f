"""What a Mimi is made of (Défossez et al., 2024: Moshi, section 3.3).

tree = Mimi()
tree.hop, tree.books                       # 1920 samples a frame (12.5 a second), 32 codebooks
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from allformer.codecs.sound.config import MOST_BOOKS, Codes
from allformer.codecs.sound.seanet_config import Seanet
from allformer.config import (
    Attention,
    Block,
    Feed,
    Norm,
    Rotary,
    Source,
    Stack,
    Window,
    repeat,
)
from allformer.config.base import Positive
from allformer.config.check import refuse
from allformer.config.counting import Part, Widths
from allformer.config.sound_codec import SoundCodec

_COUNTED = 10  # seconds: how far its window looks back, and what a frame's work is counted at


@dataclass(frozen=True)
class CodecFrames(Source):
    """The frames of a sound as they are: a stack that begins with them has nothing before it."""

    def lines(self, stack: Widths, name: str, shared: bool = False) -> Iterator[Part]:
        yield from ()


def transformer(
    dim: int = 512, layers: int = 8, heads: int = 8, feed: int = 2048, window: int = 250
) -> Stack:
    """A Transformer between convolutions, as Mimi has two: `transformer(dim=64, layers=2)`.

    Causal, with rotary positions, a window, layer scale, and no norm at its end.
    """
    block = Block(
        Attention(heads, bias=False, mixer=Window(window - 1)),
        Feed(feed, "gelu", bias=False),
        norm=Norm("layer", 1e-5),
        norm_at="pre",
        dropout=0.0,
        scale=0.01,
    )
    return Stack(
        dim, CodecFrames(), None, repeat(block, layers), causal=True,
        relative=Rotary(10_000.0, length=8000), dropout=0.0,
    )  # fmt: skip


TRUNK = Seanet(
    hidden=64, ratios=(8, 6, 5, 4), last_kernel=3, padding="constant", norm=None, lstm=0,
    shortcut=False,
)  # fmt: skip
STACK = transformer()


@dataclass(frozen=True)
class Mimi(SoundCodec):
    """Kyutai's Mimi: convolutions with a Transformer behind those of the encoder and before those
    of the decoder, and two quantisers side by side.

    `every` so many frames of the convolutions become one; going back, each of `groups` groups of
    channels is widened on its own. The first `semantic` codebooks and the `acoustic` ones behind
    them both quantise the same frames, as vectors of `code_dim` numbers, and what they say is added
    up. The sizes are those that Kyutai published.
    """

    rate: Positive = 24_000
    trunk: Seanet = TRUNK
    encoder: Stack = STACK
    decoder: Stack = STACK
    every: Positive = 2
    groups: Positive = 512
    codes: Codes = 2048
    code_dim: Positive = 256
    semantic: Positive = 1
    acoustic: Positive = 31

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder.dim != self.encoder.dim:
            refuse(self, "decoder", f"must be as wide as the encoder, {self.dim}", "give one dim")
        for name in ("encoder", "decoder"):
            if not isinstance(getattr(self, name).source, CodecFrames):
                refuse(self, name, "reads what convolutions give", "give it source=CodecFrames()")
        if self.every < 2:
            refuse(self, "every", "must be at least 2", "Mimi has 2")
        if self.dim % self.groups:
            refuse(self, "groups", f"must divide the width, {self.dim}", f"try {self.dim}")
        if self.books > MOST_BOOKS:
            refuse(self, "acoustic", f"must be at most {MOST_BOOKS - self.semantic}", "try 31")

    @property
    def dim(self) -> int:
        """Numbers of a frame."""
        return self.encoder.dim

    @property
    def channels(self) -> int:
        return self.trunk.channels

    @property
    def hop(self) -> int:
        return self.trunk.hop * self.every

    @property
    def books(self) -> int:
        return self.semantic + self.acoustic

    @property
    def projects(self) -> bool:
        """Whether frames are quantised in another width than their own."""
        return self.code_dim != self.dim

    def lines(self) -> Iterator[Part]:
        pace, slow, dim = self.rate / self.trunk.hop, self.pace, self.dim
        kernel, trunk = 2 * self.every, self.trunk
        yield trunk.line("encoder", list(trunk.encoder(dim)), self.rate)
        yield from _each_second(self.encoder, "encoder stack", pace)
        text = f"{kernel}·d² = {kernel}·{dim}²"
        yield Part("downsampling", text, kernel * dim**2, round(2 * kernel * dim**2 * slow))
        yield self._quantisers(slow)
        each = dim // self.groups
        text = f"{kernel}·d·d/{self.groups}"
        held = kernel * dim * each
        yield Part("upsampling", text, held, round(2 * held * slow))
        yield from _each_second(self.decoder, "decoder stack", pace)
        yield trunk.line("decoder", list(trunk.decoder(dim)), pace)

    def _quantisers(self, pace: float) -> Part:
        codes, small = self.codes, self.code_dim
        held = self.books * (codes * small + codes + 1)
        work = self.books * 2 * codes * small
        text = f"{self.books} × (sums V·d = {codes}·{small}, V counts, begun)"
        if self.projects:
            held += 4 * self.dim * small
            work += 8 * self.dim * small
            text += f", 4 × {self.dim}·{small}"
        return Part("codebooks", text, held, round(work * pace))


def _each_second(stack: Stack, name: str, pace: float) -> Iterator[Part]:
    """A stack's lines, with the work of a second."""
    for part in stack.lines(name, max(1, round(_COUNTED * pace))):
        flops, quadratic = (round(n * pace) for n in (part.flops, part.quadratic))
        yield replace(part, flops=flops, quadratic=quadratic)
