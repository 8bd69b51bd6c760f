"""A fresh head for a model: `head: {kind: classes, labels: [negative, positive]}`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from allformer.config import (
    ChoiceHead,
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
from allformer.families.own_head import with_own_head
from allformer.train.sections.section import Section, one_of, share

PROBLEMS = {
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
    """Scores over labels for a whole text, as the body's family has it; of a body of no family:
    from the pooler, the last token, or the end token."""

    labels: tuple[str, ...] = ()
    problem: Annotated[str, one_of(*PROBLEMS)] = "single"
    dropout: Annotated[float | None, share("0.1")] = None  # None: as the family has it, else 0.1

    def put(self, tree: Any) -> Any:
        found = with_own_head(tree, "class", _labels(self.labels))
        if found is not None:
            return _changed(found, self.dropout, problem=PROBLEMS[self.problem])
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
            dropout=0.1 if self.dropout is None else self.dropout,
            problem=PROBLEMS[self.problem],
        )


@dataclass(frozen=True)
class Tags(HeadRecipe, named="tags"):
    """Scores over labels for each token."""

    labels: tuple[str, ...] = ()
    dropout: Annotated[float | None, share("0.1")] = None  # None: as the family has it, else 0.1

    def put(self, tree: Any) -> Any:
        found = with_own_head(tree, "token", _labels(self.labels))
        if found is not None:
            return _changed(found, self.dropout)
        return super().put(_unpooled(tree))

    def head(self, tree: Any) -> Head:
        dropout = 0.1 if self.dropout is None else self.dropout
        return ClassHead(_labels(self.labels), at="token", dropout=dropout)


@dataclass(frozen=True)
class Spans(HeadRecipe, named="spans"):
    """Where an answer begins and ends."""

    dropout: Annotated[float | None, share("0.1")] = None  # None: as the family has it, else 0

    def put(self, tree: Any) -> Any:
        found = with_own_head(tree, "span")
        return super().put(_unpooled(tree)) if found is None else _changed(found, self.dropout)

    def head(self, tree: Any) -> Head:
        return SpanHead(dropout=self.dropout or 0.0)


@dataclass(frozen=True)
class Choice(HeadRecipe, named="choice"):
    """One score for each text, from the pooler: which of several goes best with a question."""

    dropout: Annotated[float | None, share("0.1")] = None  # None: as the family has it, else 0.1

    def put(self, tree: Any) -> Any:
        found = with_own_head(tree, "choice")
        if found is not None:
            return _changed(found, self.dropout)
        if isinstance(tree, EncoderOnly) and tree.pool is None:
            tree = replace(tree, head=None, pool=Pool())
        return super().put(tree)

    def head(self, tree: Any) -> Head:
        if not isinstance(tree, EncoderOnly):
            raise ConfigError(
                f"model.head.kind=choice reads an encoder's pooler, but model is a "
                f"{type(tree).__name__}; choose an encoder"
            )
        return ChoiceHead(dropout=0.1 if self.dropout is None else self.dropout)


@dataclass(frozen=True)
class NoHead(HeadRecipe, named="none"):
    """The states themselves, for vectors."""

    def put(self, tree: Any) -> Any:
        return super().put(_unpooled(tree))

    def head(self, tree: Any) -> None:
        if isinstance(tree, DecoderOnly | EncoderOnly | EncoderDecoder):
            return
        raise ConfigError(f"model.head.kind=none: {type(tree).__name__} needs a head")


def _changed(tree: Any, dropout: float | None, **fields: Any) -> Any:
    """The tree whose head has these fields, and this dropout where one is given."""
    given = {} if dropout is None else {"dropout": dropout}
    return replace(tree, head=replace(tree.head, **given, **fields))


def _unpooled(tree: Any) -> Any:
    """Without a pooler that nothing reads, so that no weight is left untrained."""
    return replace(tree, head=None, pool=None) if isinstance(tree, EncoderOnly) else tree


def _labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    return labels or ("?",)  # the objective finds them in the data


def gives_one_number(head: Any) -> bool:
    """Whether a head is a reward model's."""
    return isinstance(head, ClassHead) and head.at == "last" and len(head.labels) == 1


def one_number(tree: Any, label: str) -> Any:
    """A decoder's tree with a head that gives one number, from its last token."""
    tree = Classes((label,), "regression", 0.0).put(tree)
    return replace(tree, head=replace(tree.head, problem=PROBLEMS["regression"]))
