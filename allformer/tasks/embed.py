"""`embed` and `similarity`: texts as vectors, and how near they are.

A directory of sentence-transformers says how the vectors are made; any other checkpoint gives the
mean of its tokens' last states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.errors import ConfigError, DataError
from allformer.tasks.batching import encode, feed
from allformer.tasks.pipeline import Pipeline, Source, as_pipeline
from allformer.tasks.pooling import Normalise, Pooling, Step
from allformer.tasks.sentence import Sentence, refuse_other_vectors


def embed(
    pipeline: Source,
    texts: str | Sequence[str],
    *,
    pooling: str | Sequence[str] | None = None,
    normalise: bool | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    truncate: bool | None = None,
) -> Tensor:
    """The vectors of texts, texts × dim (of one text: dim), fp32 on the CPU.

    >>> embed("all-MiniLM-L6-v2", ["A man is eating food.", "A man eats bread."]).shape
    torch.Size([2, 384])

    `pooling`: mean, cls, max, mean_sqrt_len_tokens, weightedmean or lasttoken, or several side by
    side; `normalise`: to length 1. Both are the checkpoint's own unless given. `prompt` is put
    before each text; `prompt_name` takes one of the checkpoint's.

    A text that is longer than the model takes is refused unless `truncate` is True. Where the
    checkpoint says at which length sentence-transformers cuts, it is cut there, with a warning,
    unless `truncate` is False.
    """
    pipeline = as_pipeline(pipeline, head=False)
    one = isinstance(texts, str)
    many = [texts] if isinstance(texts, str) else list(texts)
    if pipeline.sentence is None and pooling is None:
        refuse_other_vectors(pipeline.directory)
    sentence = pipeline.sentence or Sentence(pipeline.directory, (Pooling(),))
    steps = _steps(sentence.steps, pooling, normalise)
    before = _prompt(sentence, prompt, prompt_name)
    lower = _lowered if sentence.lower else str
    limits = [limit for limit in (sentence.max_length, pipeline.longest) if limit is not None]
    batch = encode(
        pipeline,
        [lower(before + text) if isinstance(text, str) else text for text in many],
        limit=min(limits, default=None),
        truncate=sentence.max_length is not None if truncate is None else truncate,
    )
    count = _prompt_tokens(pipeline, lower(before)) if before else 0
    found: dict[int, Tensor] = {}
    for rows, inputs in feed(pipeline, batch):
        with torch.inference_mode():
            given: dict[str, Any] = inputs
            x = next(iter(pipeline.model.states(**given).values()))
            for step in steps:
                if isinstance(step, Pooling):
                    x = step.pool(x, inputs["attention_mask"], count)
                else:
                    x = step(x)
        found |= dict(zip(rows, x.float().cpu().clone(), strict=True))
    if not many:
        return torch.empty(0, pipeline.stack.states)
    return found[0] if one else torch.stack([found[i] for i in range(len(many))])


def similarity(
    pipeline: Source,
    a: str | Sequence[str],
    b: str | Sequence[str] | None = None,
    *,
    pairs: bool = False,
    measure: str | None = None,
    **options: Any,
) -> Tensor:
    """How near the texts of `a` and `b` are, len(a) × len(b); without `b`, those of `a` all round.

    >>> similarity("all-MiniLM-L6-v2", "A man is eating food.", "A man is eating bread.")
    tensor(0.7442)

    One text on a side takes its dimension away. `pairs=True` compares the first with the first,
    the second with the second, and so on. `measure` is "cosine" unless the checkpoint says
    otherwise; "dot"; "euclidean" and "manhattan" are distances, negated. `options` are `embed`'s.
    """
    pipeline = as_pipeline(pipeline, head=False)
    name = measure or (pipeline.sentence.measure if pipeline.sentence is not None else "cosine")
    if name not in MEASURES:
        raise ConfigError(f"measure={name!r} is not known; try {', '.join(MEASURES)}")
    other = a if b is None else b
    first, second = ([x] if isinstance(x, str) else list(x) for x in (a, other))
    if pairs and len(first) != len(second):
        raise DataError(f"pairs=True, but there are {len(first)} texts and {len(second)}")
    vectors = embed(pipeline, [*first, *([] if b is None else second)], **options)
    x, y = vectors[: len(first)], vectors[len(first) :] if b is not None else vectors
    if pairs:
        return MEASURES[name](x[:, None], y[:, None])[:, 0, 0]
    out = MEASURES[name](x, y)
    out = out[0] if isinstance(a, str) else out
    return out[..., 0] if isinstance(other, str) else out


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    return _dot(F.normalize(x, dim=-1), F.normalize(y, dim=-1))


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.transpose(-1, -2)


def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    return -torch.cdist(x, y)


def _manhattan(x: Tensor, y: Tensor) -> Tensor:
    return -torch.cdist(x, y, p=1.0)


# … N D, … M D → … N M; more is nearer.
MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": _cosine, "dot": _dot, "euclidean": _euclidean, "manhattan": _manhattan,
}  # fmt: skip


def _steps(
    steps: Sequence[Step], pooling: str | Sequence[str] | None, normalise: bool | None
) -> list[Step]:
    """The checkpoint's steps, with what the caller wants otherwise."""
    modes = (pooling,) if isinstance(pooling, str) else None if pooling is None else tuple(pooling)
    out: list[Step] = []
    for step in steps:
        if isinstance(step, Pooling) and modes is not None:
            step = Pooling(modes, step.prompt)
        if not (isinstance(step, Normalise) and normalise is False):
            out.append(step)
    return [*out, Normalise()] if normalise else out


def _prompt(sentence: Sentence, prompt: str | None, name: str | None) -> str:
    if prompt is not None:
        return prompt
    name = sentence.prompt_name if name is None else name
    if name is None:
        return ""
    if name not in sentence.prompts:
        known = ", ".join(sentence.prompts) or "none"
        raise ConfigError(f"prompt_name={name!r} is not known; the checkpoint has {known}")
    return sentence.prompts[name]


def _prompt_tokens(pipeline: Pipeline, prompt: str) -> int:
    """How many tokens of a row are the prompt's; a special token at its end is the text's."""
    ids = pipeline.tokenizer.encode(prompt)
    return len(ids) - (bool(ids) and ids[-1] in pipeline.tokenizer.special_ids.values())


def _lowered(text: str) -> str:
    """Letter by letter, as the `tokenizers` library does it."""
    return "".join(letter.lower() for letter in text)
