"""Which tasks a model can do: its shape and its head say so."""

from __future__ import annotations

from collections.abc import Mapping

from allformer import config
from allformer.errors import TaskError
from allformer.families import FAMILIES
from allformer.families.family import head_kind
from allformer.tasks.pipeline import Pipeline

# By the kind of head (`head_kind`); every model can embed.
ENCODER = {
    "words": ("fill",), "pretrain": ("fill",), "class": ("classify",), "token": ("tag",),
    "span": ("answer",), "choice": ("choose",),
}  # fmt: skip
DECODER = {**ENCODER, "words": ("generate",)}
BOTH = {**ENCODER, "words": ("generate", "translate", "summarise")}
VECTORS = ("embed", "similarity")  # one thing: the last is not told in errors
NEEDS = {
    "fill": ("words", "a head over the vocabulary on an encoder"),
    "classify": ("class", "a classification head"),
    "tag": ("token", "a head that labels tokens"),
    "answer": ("span", "a head that finds where an answer begins and ends"),
    "choose": ("choice", "a head that chooses among texts"),
    "generate": ("words", "a decoder with a head over the vocabulary"),
    "translate": ("words", "an encoder-decoder with a head over the vocabulary (Marian, T5, …)"),
    "summarise": ("words", "an encoder-decoder with a head over the vocabulary (BART, T5, …)"),
}


def verbs(pipeline: Pipeline) -> tuple[str, ...]:
    """What this checkpoint can do: `("fill", "embed", "similarity")`."""
    tree = pipeline.model.config
    own = _table(tree).get(head_kind(tree), ())
    both = isinstance(tree, config.EncoderDecoder) and "generate" in own
    if both and "mask" in pipeline.tokenizer.special_ids:
        own = (*own, "fill")  # BART was trained to
    return (*own, *VECTORS)


def _table(tree: config.Model) -> Mapping[str, tuple[str, ...]]:
    """What a model of this shape can do, by the kind of its head."""
    if isinstance(tree, config.EncoderDecoder):
        return BOTH
    return DECODER if isinstance(tree, config.DecoderOnly) else ENCODER


def need(pipeline: Pipeline, verb: str) -> None:
    """Refuse a checkpoint that cannot, and say what it can."""
    can = verbs(pipeline)
    if verb in can:
        return
    kind, what = NEEDS[verb]
    raise TaskError(
        f"{verb} needs {what}, but {pipeline.directory} is a {pipeline.architecture}: it can "
        f"{', '.join(can[:-1])} (`allformer {can[0]}`); {_other(pipeline, kind, verb)}"
    )


def _other(pipeline: Pipeline, kind: str, verb: str) -> str:
    """What could: a class of its family, unless no model of this shape can."""
    if verb not in _table(pipeline.model.config).get(kind, ()):
        return f"give another checkpoint to {verb}"
    family = FAMILIES.get(pipeline.model.provenance.family)
    known = {} if family is None else family.architectures
    fits = next((name for name, head in known.items() if head == kind), None)
    if fits is None or fits == pipeline.architecture:
        return f"give a checkpoint that was trained to {verb}"
    return f"give a {fits} that was trained to {verb}"
