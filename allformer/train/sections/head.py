"""A fresh head for a model: `head: {kind: classes, labels: [negative, positive]}`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from allformer.config import (
    ClassHead,
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    Head,
    LMHead,
    Pool,
    SpanHead,
    Transform,
)
from allformer.errors import ConfigError
from allformer.train.sections.section import Section, one_of, share

_PROBLEMS = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True)
class HeadRecipe(Section, section="model.head", key="kind", default="classes"):
    """What is put on the body instead of its own head."""

    def put(self, tree: Any) -> Any:
        """The tree with this head."""
        return replace(tree, head=self.head(tree))

    def head(self, tree: Any) -> Head | None:
        """The head for a body."""
        raise NotImplementedError


@dataclass(frozen=True)
class Words(HeadRecipe, named="words"):
    """Scores over the vocabulary, tied to the embedding; an encoder's with BERT's transform."""

    def head(self, tree: Any) -> Head:
        if isinstance(tree, EncoderOnly):
            norm = tree.encoder.blocks[0].norm
            return LMHead(bias=True, transform=Transform(norm=norm))
        return LMHead()


@dataclass(frozen=True)
class Classes(HeadRecipe, named="classes"):
    """Scores over labels for a whole text: from the pooler, the last token, or the end token."""

    labels: tuple[str, ...] = ()
    problem: Annotated[str, one_of(*_PROBLEMS)] = "single"
    dropout: Annotated[float, share("0.1")] = 0.1

    def put(self, tree: Any) -> Any:
        if isinstance(tree, EncoderOnly) and tree.pool is None:
            tree = replace(tree, head=None, pool=Pool())
        return super().put(tree)

    def head(self, tree: Any) -> Head:
        where = "pool" if isinstance(tree, EncoderOnly) else "last"
        if isinstance(tree, EncoderDecoder):
            where = "eos"
        return ClassHead(
            _labels(self.labels),
            at=where,  # type: ignore[arg-type]
            dropout=self.dropout,
            problem=_PROBLEMS[self.problem],
        )


@dataclass(frozen=True)
class Tags(HeadRecipe, named="tags"):
    """Scores over labels for each token."""

    labels: tuple[str, ...] = ()
    dropout: Annotated[float, share("0.1")] = 0.1

    def head(self, tree: Any) -> Head:
        return ClassHead(_labels(self.labels), at="token", dropout=self.dropout)


@dataclass(frozen=True)
class Spans(HeadRecipe, named="spans"):
    """Where an answer begins and ends."""

    dropout: Annotated[float, share("0.1")] = 0.0

    def head(self, tree: Any) -> Head:
        return SpanHead(dropout=self.dropout)


@dataclass(frozen=True)
class NoHead(HeadRecipe, named="none"):
    """The states themselves, for vectors."""

    def head(self, tree: Any) -> None:
        if isinstance(tree, DecoderOnly | EncoderOnly | EncoderDecoder):
            return
        raise ConfigError(f"model.head.kind=none: {type(tree).__name__} needs a head")


def _labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    return labels or ("?",)  # the objective finds them in the data
