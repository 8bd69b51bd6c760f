"""Heads: what turns hidden states into an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from allformer.config.base import Activation, Config, Probability
from allformer.config.check import Rule, choice, refuse
from allformer.config.counting import Part, dense, plain_line
from allformer.config.norm import Norm
from allformer.config.patches import Patches
from allformer.config.stack import Stack

PROBLEMS = (
    None, "regression", "single_label_classification", "multi_label_classification",
)  # fmt: skip
At = Literal["token", "pool", "first", "last", "eos", "mean", "patches", "first+patches"]
Identifier = Annotated[str, Rule(str.isidentifier, "must be an identifier", 'try "words"')]


class Head(Config, slot=True):
    """What reads hidden states. One with tensors of its own must say `parameters`, or `af.count`
    disagrees with what is built. `pooled`: it reads the pooler's output."""

    @property
    def pooled(self) -> bool:
        return False

    def fits(self, stack: Stack) -> object:
        """Refuse a stack that it cannot read."""

    def parameters(self, stack: Stack) -> int:
        """Of its own, on top of `stack`; a tied table is the stack's."""
        return 0

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        """Its lines in the count."""
        yield plain_line(name, self.parameters(stack))


@dataclass(frozen=True)
class Transform(Config):
    """What BERT does before its output matrix: norm(act(x W + b)), to the embedding's width."""

    act: Activation = "gelu"
    norm: Norm = Norm()


@dataclass(frozen=True)
class LMHead(Head):
    """Scores over the vocabulary; `tied` uses the (target) embedding as its matrix.

    `transform` is a dense layer before it (BERT); `scale` multiplies its input (T5: dim^-½);
    `offset` adds stored numbers that are not trained (BART's final_logits_bias).
    """

    tied: bool = True
    bias: bool = False
    transform: Transform | None = None
    scale: float | None = None
    offset: bool = False

    def words(self, stack: Stack) -> int:
        """How many words it scores: all that the stack reads."""
        return stack.source.vocab

    def parameters(self, stack: Stack) -> int:
        return sum(line.parameters for line in self.lines(stack, ""))

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        vocab, dim, width = self.words(stack), stack.states, stack.width
        if self.transform is not None:
            own = dense(dim, width) + self.transform.norm.parameters(width)
            yield Part(f"{name} transform", f"d·{width} + {width} + norm", own, 2 * dim * width)
            dim = width
        matrix, bias = (0 if self.tied else vocab * dim), (vocab if self.bias else 0)
        text = "tied to the embedding" if self.tied else f"V·d = {vocab:,}·{dim}"
        yield Part(name, text + (" + V" if bias else ""), matrix + bias, flops=2 * vocab * dim)


@dataclass(frozen=True)
class Pool(Config):
    """The first token's state through a dense layer: BERT's `pooler_output`; without `dense`, only
    through the activation (DINOv2: as it is)."""

    act: Activation = "tanh"
    dense: bool = True

    def line(self, dim: int) -> Part:
        """Its line in the count; once a sequence, so that its work does not matter."""
        if not self.dense:
            return Part("pooler", "the first state itself", 0)
        return Part("pooler", "d² + d", dense(dim, dim))


@dataclass(frozen=True)
class ClassHead(Head):
    """Scores over `labels`: for each token (`at="token"`), or for the sequence from one state.

    `at`: `"pool"` the pooler's output (BERT), `"first"` token (RoBERTa), the `"last"` one that is
    not padding (GPT), the last `"eos"` (BART), the `"mean"` of all (ImageGPT); of an image the mean
    of its `"patches"`, or the first token and that mean side by side (`"first+patches"`, DINOv2).
    `dense` is the activation of a layer in between.
    `problem=None` is told by the labels: one label is regression, whole numbers are classes,
    fractions are several classes at once.
    """

    labels: Annotated[
        tuple[str, ...], Rule(bool, "must be a tuple of at least one name", 'try ("no", "yes")')
    ]
    at: At = "pool"
    dense: Activation | None = None
    bias: bool = True
    dropout: Probability = 0.0
    problem: Annotated[str | None, choice(PROBLEMS)] = None

    @property
    def pooled(self) -> bool:
        return self.at == "pool"

    def fits(self, stack: Stack) -> None:
        if "patches" in self.at and not isinstance(stack.source, Patches):
            refuse(self, "at", "reads patches of an image, which its stack has not", 'try "first"')

    def reads(self, stack: Stack) -> int:
        """The width of what it reads."""
        return stack.states * (2 if self.at == "first+patches" else 1)

    def parameters(self, stack: Stack) -> int:
        wide = self.reads(stack)
        between = dense(wide, stack.dim) if self.dense else 0
        return between + dense(stack.dim if self.dense else wide, len(self.labels), self.bias)

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        classes = len(self.labels)
        twice = "2" if self.at == "first+patches" else ""
        text = f"{twice}d² + d + d·{classes}" if self.dense else f"{twice}d·{classes}"
        text += f" + {classes}" if self.bias else ""
        flops = (
            2 * stack.states * classes if self.at == "token" else 0
        )  # once a sequence: no matter
        yield Part(name, text, self.parameters(stack), flops)


@dataclass(frozen=True)
class SpanHead(Head):
    """Where an answer begins and ends in the text: two scores for each token (SQuAD)."""

    bias: bool = True
    dropout: Probability = 0.0

    def parameters(self, stack: Stack) -> int:
        return dense(stack.states, 2, self.bias)

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        text = "d·2" + (" + 2" if self.bias else "")
        yield Part(name, text, self.parameters(stack), 4 * stack.states)


@dataclass(frozen=True)
class Beside(Config):
    """One of several heads: its name, the output that it fills and the target that it reads."""

    name: Identifier
    head: Head
    output: Identifier
    target: Identifier

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.head, Several):
            refuse(self, "head", "is itself several heads", "put them all into one Several")


@dataclass(frozen=True)
class Several(Head):
    """Heads side by side: `Several((Beside("words", LMHead(), "logits", "labels"), …))`."""

    parts: Annotated[
        tuple[Beside, ...], Rule(bool, "must be a tuple of at least one Beside", "see PretrainHead")
    ]

    def __post_init__(self) -> None:
        super().__post_init__()
        for what in ("name", "output"):
            names = [getattr(part, what) for part in self.parts]
            if len(set(names)) < len(names):
                refuse(self, "parts", f"has one {what} twice", "give each its own")

    def part(self, name: str) -> Head:
        """The head of that name: `head.part("words")`."""
        for part in self.parts:
            if part.name == name:
                return part.head
        raise KeyError(f"{name!r} is none of {', '.join(part.name for part in self.parts)}")

    def parameters(self, stack: Stack) -> int:
        return sum(part.head.parameters(stack) for part in self.parts)

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        for part in self.parts:
            yield from part.head.lines(stack, f"{name}: {part.name}")


def PretrainHead(words: LMHead, pair: ClassHead) -> Several:
    """BERT's pair: masked words and whether the second sentence follows the first."""
    return Several((
        Beside("words", words, "prediction_logits", "labels"),
        Beside("pair", pair, "seq_relationship_logits", "next_sentence_label"),
    ))  # fmt: skip


def heads_of(head: Head | None) -> tuple[Head, ...]:
    """The heads side by side, or the one that there is, or none."""
    if isinstance(head, Several):
        return tuple(part.head for part in head.parts)
    return () if head is None else (head,)


def words_of(head: Head | None) -> LMHead | None:
    """The head over the vocabulary, if there is one, alone or beside others."""
    return next((one for one in heads_of(head) if isinstance(one, LMHead)), None)
