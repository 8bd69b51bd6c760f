"""The architecture of a config as one SVG, with the shape beside each arrow.

svg = architecture(preset("original-base"))

The data flows upwards. A `Column` has a cursor that climbs from 0 to ever smaller y; the picture's
height is known once both columns are drawn. Colours come from the page's style sheet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from allformer import config
from allformer.config.head import words_of
from allformer.explain.words import Pair, joined, label, spans, word

WIDTH, MARGIN = 920, 24
BOX, SIDE = 236, 46  # a box's width; the room beside it, inside the frame, for the residual's path
ARROW = 30
STRIP, FOOT = 32, 26  # the frame reaches so far above its last box and below its first
LEFT, RIGHT = MARGIN + SIDE + BOX // 2, WIDTH - MARGIN - SIDE - BOX // 2
TO_OUTSIDE = (
    STRIP + ARROW,
    STRIP + 12,
)  # an arrow that leaves the frame: length, place of its shape
ACTS = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)", "silu": "SiLU"}
GATED = {"relu": "ReGLU", "gelu": "GEGLU", "gelu_tanh": "GEGLU (tanh)", "silu": "SwiGLU"}


@dataclass
class Column:
    """One stack being drawn from the bottom up; `out` is the side on which residuals run."""

    x: int
    out: int  # −1 left, +1 right
    kind: str  # encoder or decoder, for the colour
    y: float = 0.0
    parts: list[str] = field(default_factory=list)

    def text(self, pair: Pair, y: float, css: str = "", x: float | None = None) -> None:
        """A line of text centred on the column (or at `x`)."""
        at = self.x if x is None else x
        self.parts.append(f'<text x="{at:g}" y="{y:g}" class="{css}">{spans(pair, "tspan")}</text>')

    def arrow(self, shape: str, length: float = ARROW, at: float | None = None) -> None:
        """Climb by an arrow with a tensor's shape beside it, `at` so far up (or in the middle)."""
        top = self.y - length
        self.parts.append(f'<path class="wire tip" d="M{self.x} {self.y:g}V{top + 5:g}"/>')
        middle = self.y - (length / 2 if at is None else at) + 4
        side = "start" if self.out < 0 else "end"  # where no residual runs
        self.parts.append(
            f'<text x="{self.x - 10 * self.out}" y="{middle:g}" class="shape {side}">{shape}</text>'
        )
        self.y = top

    def box(self, title: Pair, *lines: Pair, css: str = "") -> float:
        """Climb by a box with a title and smaller lines; returns the y of its middle."""
        height = 30 + 17 * len(lines)
        top = self.y - height
        self.parts.append(
            f'<rect class="box {css or self.kind}" x="{self.x - BOX / 2:g}" y="{top:g}" '
            f'width="{BOX}" height="{height}" rx="7"/>'
        )
        self.text(title, top + 20, "name")
        for i, line in enumerate(lines):
            self.text(line, top + 37 + 17 * i, "small")
        self.y = top
        return top + height / 2

    def residual(self, start: float, end: float) -> None:
        """The path of x around a sub-layer, from height `start` into the side of what is at `end`.

        It leaves the arrow, runs outside the boxes and comes back.
        """
        side = self.x + self.out * (BOX / 2 + SIDE / 2)
        edge = self.x + self.out * (BOX / 2 + 5)
        self.parts.append(
            f'<path class="wire tip" d="M{self.x} {start:g}H{side - self.out * 8:g}'
            f"Q{side:g} {start:g} {side:g} {start - 8:g}V{end + 8:g}"
            f'Q{side:g} {end:g} {side - self.out * 8:g} {end:g}H{edge:g}"/>'
        )

    def frame(self, bottom: float, left: Pair, right: Pair) -> None:
        """The border around the layers, beneath them, with a note on each side of the arrow."""
        top = self.y - STRIP
        width = BOX + 2 * SIDE
        self.parts.insert(
            0,
            f'<rect class="frame {self.kind}" x="{self.x - width / 2:g}" y="{top:g}" '
            f'width="{width}" height="{bottom - top:g}" rx="12"/>',
        )
        self.text(left, top + 20, "caption start", self.x - width / 2 + 14)
        self.text(right, top + 20, "caption end", self.x + width / 2 - 14)


def architecture(model: config.Model) -> str:
    """The whole picture as an `<svg>` element."""
    if isinstance(model, config.TwoTowers):
        return _towers(model)
    if not isinstance(model, config.EncoderDecoder):
        return _one(model)
    encoder, decoder = Column(LEFT, -1, "encoder"), Column(RIGHT, 1, "decoder")
    _input(encoder, model.encoder, "S", word("diagram.source"), model.shared)
    _layers(encoder, model.encoder, "S")
    _input(decoder, model.decoder, "T", word("diagram.target"), model.shared)
    memory_to = _layers(decoder, model.decoder, "T")
    _output(decoder, model)
    _memory(encoder, model, memory_to)
    return _svg(min(encoder.y, decoder.y) - MARGIN, WIDTH, encoder.parts + decoder.parts)


def _one(model: config.Model) -> str:
    """A model of one stack."""
    stack = model.reader
    width = 2 * (MARGIN + SIDE) + BOX + 140  # positions are written beside the column
    column = Column(width // 2 - 30, 1, "decoder" if stack.causal else "encoder")
    _input(column, stack, "T", word("diagram.tokens"), False)
    _layers(column, stack, "T")
    _output(column, model)
    return _svg(column.y - MARGIN, width, column.parts, "single")


def _towers(model: config.TwoTowers) -> str:
    """Two stacks beside each other that meet in the head."""
    parts: list[str] = []
    top = 0.0
    for x, out, name, n in ((LEFT, -1, "text", "T"), (RIGHT, 1, "vision", "N")):
        stack = model.stacks[name]
        column = Column(x, out, "decoder" if name == "text" else "encoder")
        head = model.head.text if name == "text" else model.head.image
        _input(column, stack, n, word("diagram.tokens"), False)
        _layers(column, stack, n, word(f"diagram.{name}"))
        column.arrow(_width(n, stack.dim), *((ARROW,) if stack.final_norm else TO_OUTSIDE))
        size = head.size(stack)
        column.box(word("diagram.vector"), _same(f"{stack.dim} → {size}"), css="head")
        column.arrow(f"B × {size}")
        _ends(column, word("diagram.compared"))
        parts += column.parts
        top = min(top, column.y)
    return _svg(top - MARGIN, WIDTH, parts)


def _svg(top: float, width: int, parts: list[str], css: str = "") -> str:
    height = MARGIN - top
    return (
        f'<svg class="diagram {css}" viewBox="0 {top:g} {width} {height:g}" width="{width}" '
        f'height="{height:g}" role="img" {label(word("architecture.label"))}>'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0.8L7 4L0 7.2Z"/></marker></defs>'
        + "".join(parts)
        + "</svg>"
    )


def _input(column: Column, stack: config.Stack, n: str, name: Pair, shared: bool) -> None:
    """Tokens, embedding, position and what else comes before the first layer."""
    dim, source = stack.dim, stack.source
    if isinstance(source, config.Patches | config.Sound):
        name = word("diagram.pixels" if isinstance(source, config.Patches) else "diagram.sound")
    column.text(name, column.y, "name")
    column.y -= 18
    if isinstance(source, config.Patches):
        _patches(column, source, dim)
    elif isinstance(source, config.Sound):
        column.arrow(f"B × {source.mels} × 2{n}")
        told = word("diagram.convolutions.size", mels=source.mels, dim=dim)
        column.box(word("diagram.convolutions"), told)
    else:
        column.arrow(f"B × {n}")
        size = f"{source.vocab:,} × {dim}{' · √d' if source.scale else ''}"
        table = word("diagram.shared", size=size) if shared else _same(size)
        column.box(word("diagram.embedding"), table)
    if stack.position is not None:
        column.arrow(_width(n, dim))
        _plus(column, stack.position)
    if stack.source_norm is not None:
        column.arrow(_width(n, dim))
        column.box(_norm(stack.source_norm), css="norm")
    column.arrow(_width(n, dim), FOOT + 20, at=11)


def _patches(column: Column, source: config.Patches, dim: int) -> None:
    height, width = source.image
    column.arrow(f"B × {source.channels} × {height} × {width}")
    lines = [word("diagram.patches.size", patch=source.patch, dim=dim)]
    if source.front:
        only = source.front == 1 and source.cls
        lines.append(word("diagram.front.cls") if only else word("diagram.front", n=source.front))
    column.box(word("diagram.patches"), *lines)


def _plus(column: Column, position: config.Position) -> None:
    """The circle where the positions are added, with the positions' own little wave."""
    x, y, out = column.x, column.y - 11, column.out
    learned = isinstance(position, config.Learned | config.LearnedPlane)
    computed = isinstance(position, config.Sinusoidal | config.SinusoidalPlane)
    stored = isinstance(position, config.StoredSinusoids)
    key = "diagram.learned" if learned else "diagram.sinusoidal"
    wave = x + out * 74
    column.parts.append(
        f'<circle class="round" cx="{x}" cy="{y:g}" r="11"/>'
        f'<path class="wire" d="M{x - 5} {y:g}h10M{x} {y - 5:g}v10"/>'
        f'<path class="wire tip" d="M{wave - out * 16} {y:g}H{x + out * 16}"/>'
        f'<circle class="round" cx="{wave}" cy="{y:g}" r="16"/>'
        f'<path class="wire" d="M{wave - 10} {y:g}q5 -13 10 0t10 0"/>'
    )
    css = "small start" if out > 0 else "small end"
    if learned or computed or stored:
        column.text(word(key), y - 2, css, wave + out * 22)
        column.text(word("diagram.positions"), y + 13, css, wave + out * 22)
    else:
        column.text(word("diagram.own"), y + 5, css, wave + out * 22)
    column.y -= 22


def _layers(column: Column, stack: config.Stack, n: str, name: Pair | None = None) -> float:
    """The frame with one layer inside; returns the height at which cross-attention takes memory."""
    block, bottom = stack.blocks[0], column.y + FOOT
    own = word("diagram.causal" if stack.causal else "diagram.self")
    lines = list(_heads(block.attention, stack.dim, n, n))
    if stack.relative is not None:
        turned = isinstance(stack.relative, config.Rotary)
        lines.append(word("diagram.rotary" if turned else "diagram.relative"))
    _sublayer(column, block, n, stack.dim, own, *lines)
    across = 0.0
    if block.cross is not None:
        column.arrow(_width(n, stack.dim), ARROW + 6)
        there = _heads(block.cross, stack.dim, n, "S")
        across = _sublayer(column, block, n, stack.dim, word("diagram.cross"), *there, css="cross")
    column.arrow(_width(n, stack.dim), ARROW + 6)
    _sublayer(column, block, n, stack.dim, *_feed(block.feed, stack.dim))
    column.frame(bottom, *_captions(name or word(f"diagram.{column.kind}"), stack))
    if stack.final_norm is not None:
        column.arrow(_width(n, stack.dim), *TO_OUTSIDE)
        column.box(_norm(stack.final_norm), css="norm")
    return across


def _sublayer(
    column: Column, block: config.Block, n: str, dim: int, title: Pair, *lines: Pair, css: str = ""
) -> float:
    """One of f's boxes with its norm and its residual; returns the height of f's middle."""
    start = column.y + 14
    if block.norm_at == "pre":
        column.box(_norm(block.norm), css="norm")
        column.arrow(_width(n, dim))
    middle = column.box(title, *lines, css=css)
    column.arrow(_width(n, dim))
    after = word("diagram.add")
    if block.norm_at == "post":
        after = word("diagram.addnorm", norm=_norm(block.norm))
    column.residual(start, column.box(after, css="norm"))
    return middle


def _output(column: Column, model: config.Model) -> None:
    """The head, from the last stack's vectors to probabilities."""
    stack, head = model.writer, words_of(model.head) or model.head
    leave = (ARROW,) if stack.final_norm else TO_OUTSIDE
    column.arrow(_width("T", stack.dim), *leave)
    if isinstance(head, config.LMHead):
        _words(column, stack, head)
    elif isinstance(head, config.ClassHead):
        _classes(column, stack.dim, head)
    elif isinstance(head, config.SpanHead):
        column.box(word("diagram.spans"), _same(f"{stack.dim} → 2"), css="head")
        column.arrow("B × T × 2")
        _ends(column, word("diagram.scores_of"))
    elif head is not None:
        column.box(word("part.head"), _same(type(head).__name__), css="head")
        column.y -= 20
    else:
        _ends(column, word("diagram.hidden"))


def _words(column: Column, stack: config.Stack, head: config.LMHead) -> None:
    vocab = stack.source.vocab
    lines = [_same(f"{stack.dim} → {vocab:,}{' + b' if head.bias else ''}")]
    if head.tied:
        lines.append(word("diagram.tied"))
    column.box(word("diagram.linear"), *lines, css="head")
    column.arrow(f"B × T × {vocab:,}")
    column.box(word("diagram.softmax"), css="head")
    column.arrow(f"B × T × {vocab:,}")
    _ends(column, word("diagram.next" if stack.causal else "diagram.scores_of"))


def _classes(column: Column, dim: int, head: config.ClassHead) -> None:
    shape = f"B × T × {dim}" if head.at == "token" else f"B × {dim}"
    at = {"token": "diagram.each", "pool": "diagram.first", "first": "diagram.first"}
    if head.at == "pool":
        column.box(word("diagram.pool"), word("diagram.first"), css="head")
        column.arrow(shape)
    lines = [word("diagram.classes.size", dim=dim, labels=len(head.labels))]
    if head.at != "pool":
        lines.append(word(at.get(head.at, "diagram.last")))
    column.box(word("diagram.classes"), *lines, css="head")
    column.arrow(shape.replace(str(dim), str(len(head.labels))))
    _ends(column, word("diagram.scores_of"))


def _ends(column: Column, name: Pair) -> None:
    column.text(name, column.y - 6, "name")
    column.y -= 20


def _memory(encoder: Column, model: config.EncoderDecoder, to: float) -> None:
    """The encoder's output, carried over into every decoder layer as keys and values."""
    cross = model.decoder.blocks[0].cross
    assert cross is not None
    size = cross.size(model.decoder.dim)
    x, trunk, edge = encoder.x, LEFT + BOX / 2 + SIDE + 24, RIGHT - BOX / 2 - 5
    top = encoder.y - (ARROW if model.encoder.final_norm else STRIP + ARROW)
    down = 1 if to > top else -1
    encoder.parts.append(
        f'<path class="wire memory" d="M{x} {encoder.y:g}V{top + 10:g}Q{x} {top:g} {x + 10} {top:g}'
        f'H{trunk - 10:g}Q{trunk:g} {top:g} {trunk:g} {top + 10 * down:g}V{to + 11 * down:g}"/>'
        f'<path class="wire memory tip" d="M{trunk:g} {to - 11:g}H{edge:g}"/>'
        f'<path class="wire memory tip" d="M{trunk:g} {to + 11:g}H{edge:g}"/>'
    )
    encoder.text(word("diagram.memory"), top - 9, "name start", x + 10)
    shape = _width("S", model.encoder.dim)
    encoder.parts.append(f'<text x="{x + 10}" y="{top + 17:g}" class="shape start">{shape}</text>')
    for letter, y in (("K", to - 16), ("V", to + 25)):
        shape = f"{letter}  B × {cross.groups} × S × {size}"
        encoder.parts.append(
            f'<text x="{trunk + 9:g}" y="{y:g}" class="shape start">{shape}</text>'
        )
    encoder.y = top - 20


def _captions(name: Pair, stack: config.Stack) -> tuple[Pair, Pair]:
    block, n = stack.blocks[0], len(stack.blocks)
    layers = word("diagram.layers", n=n) if n > 1 else word("diagram.layer")
    rest = word(f"diagram.{block.norm_at}")
    if block.dropout:
        rest = joined(rest, word("diagram.dropout", p=f"{block.dropout:g}"), by=" · ")
    return joined(name, layers, by=" "), rest


def _heads(a: config.Attention, dim: int, rows: str, columns: str) -> tuple[Pair, Pair]:
    key = "diagram.heads" if a.groups == a.heads else "diagram.groups"
    sizes = word(key, heads=a.heads, size=a.size(dim), groups=a.groups)
    return sizes, word("diagram.scores", shape=f"B × {a.heads} × {rows} × {columns}")


def _feed(feed: config.Feed, dim: int) -> tuple[Pair, Pair]:
    if feed.gated:
        text = f"{dim} → 2 · {feed.width} → {dim}, {GATED.get(feed.act, feed.act)}"
        return word("diagram.gated"), _same(text)
    return word("diagram.feed"), _same(
        f"{dim} → {feed.width} → {dim}, {ACTS.get(feed.act, feed.act)}"
    )


def _norm(norm: config.Norm) -> Pair:
    return word("diagram.rmsnorm" if norm.kind == "rms" else "diagram.layernorm")


def _width(n: str, dim: int) -> str:
    return f"B × {n} × {dim}"


def _same(text: str) -> Pair:
    return text, text
