"""Which tasks a model can do: its shape and its head say so."""

from __future__ import annotations

from allformer import config
from allformer.errors import TaskError
from allformer.families import FAMILIES
from allformer.families.family import head_kind
from allformer.tasks.pipeline import Pipeline

# By the kind of head (`head_kind`); every model can embed.
ENCODER = {
    "words": ("fill",), "pretrain": ("fill",), "class": ("classify",), "token": ("tag",),
    "span": ("answer",),
}  # fmt: skip
DECODER = {**ENCODER, "words": ("generate",)}
BOTH = {**ENCODER, "words": ("generate", "translate", "summarise")}
VECTORS = ("embed", "similarity")  # one thing: the last is not told in errors
NEEDS = {
    "fill": ("words", "a head over the vocabulary on an encoder"),
    "classify": ("class", "a classification head"),
    "tag": ("token", "a head that labels tokens"),
    "answer": ("span", "a head that finds where an answer begins and ends"),
    "generate": ("words", "a decoder with a head over the vocabulary"),
    "translate": ("words", "an encoder-decoder with a head over the vocabulary"),
    "summarise": ("words", "an encoder-decoder with a head over the vocabulary"),
}


def verbs(pipeline: Pipeline) -> tuple[str, ...]:
    """What this checkpoint can do: `("fill", "embed", "similarity")`."""
    tree = pipeline.model.config
    if isinstance(tree, config.EncoderDecoder):
        own = BOTH.get(head_kind(tree), ())
        if "generate" in own and "mask" in pipeline.tokenizer.special_ids:
            own = (*own, "fill")  # BART was trained to
    else:
        table = DECODER if isinstance(tree, config.DecoderOnly) else ENCODER
        own = table.get(head_kind(tree), ())
    return (*own, *VECTORS)


def need(pipeline: Pipeline, verb: str) -> None:
    """Refuse a checkpoint that cannot, and say what it can."""
    can = verbs(pipeline)
    if verb in can:
        return
    kind, what = NEEDS[verb]
    raise TaskError(
        f"{verb} needs {what}, but {pipeline.directory} is a {pipeline.architecture}: it can "
        f"{', '.join(can[:-1])}; try `allformer {can[0]}`{_other(pipeline, kind, verb)}"
    )


def _other(pipeline: Pipeline, kind: str, verb: str) -> str:
    """The class of its family that could."""
    family = FAMILIES.get(pipeline.model.provenance.family)
    known = {} if family is None else family.architectures
    fits = next((name for name, head in known.items() if head == kind), None)
    shape = isinstance(pipeline.model.config, config.DecoderOnly) and verb in ("fill", "translate")
    if fits is None or fits == pipeline.architecture or shape:
        return ""
    return f", or give a {fits} that was trained for this"
