"""Texts to batches that a model takes: encoded together, run with others of their length."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from allformer import config
from allformer.core import heap
from allformer.errors import LengthError
from allformer.tasks.call import check_texts
from allformer.tasks.pipeline import Pipeline
from allformer.text.batch import Batch
from allformer.text.sentencepiece import SPACE

BUDGET = {"cpu": 4096, "cuda": 32_768}  # tokens of one batch, padding included


def encode(
    pipeline: Pipeline,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    truncate: bool = False,
) -> Batch:
    """Texts (or pairs of them) as ids; one that is longer than `limit` is refused or cut."""
    check_texts(texts)
    check_texts(pairs or (), "pair")
    if not truncate or limit is None:
        batch = pipeline.tokenizer(texts, pairs, padding_side="right")
        check_lengths(batch, texts, limit, pipeline)
        warn_unknown(batch, texts, pipeline)
        return batch
    batch = pipeline.tokenizer(texts, pairs, padding_side="right", max_length=limit, truncate=True)
    if batch.cut:
        first = excerpt(texts[batch.cut[0]])
        some = "1 text was" if len(batch.cut) == 1 else f"{len(batch.cut)} texts were"
        warnings.warn(f"{some} cut to {limit} tokens, the first: {first}", stacklevel=4)
    warn_unknown(batch, texts, pipeline)
    return batch


def warn_unknown(batch: Batch, texts: Sequence[str], pipeline: Pipeline) -> None:
    """Tell of texts that are mostly pieces which the tokeniser has not: the model cannot read them.

    An alphabet it never saw, or the tokeniser of another checkpoint, looks like this.
    """
    special = dict(pipeline.tokenizer.special_ids)
    unknown = special.pop("unk", None)
    if unknown is None or unknown in special.values():  # bytes: every text can be spelt
        return
    ids, kept = batch["input_ids"], batch["attention_mask"].bool()
    space = pipeline.tokenizer.token_to_id(SPACE)  # known, and no word of any language
    for token in (*special.values(), -1 if space is None else space):
        kept = kept & (ids != token)
    share = ((ids == unknown) & kept).sum(1) / kept.sum(1).clamp_min(1)
    rows = (share > 0.5).nonzero()[:, 0].tolist()
    if rows:
        lost = sorted({batch.texts[row] for row in rows})
        some = "1 text is" if len(lost) == 1 else f"{len(lost)} of {len(texts)} texts are"
        warnings.warn(
            f"{some} mostly unknown to the tokeniser ({pipeline.tokenizer.settings.tokenizer_class}"
            f"), the first: {share[rows[0]]:.0%} of {excerpt(texts[lost[0]])}; is the checkpoint "
            f"made for this language?",
            stacklevel=4,
        )


def check_lengths(
    batch: Batch,
    texts: Sequence[str],
    limit: int | None,
    pipeline: Pipeline,
    way_out: str = "split it, or cut it with truncate=True (--truncate)",
) -> None:
    """Refuse the first text that is too long, with its number, its length and a way out."""
    if limit is None or batch.width <= limit:
        return
    lengths = batch["attention_mask"].sum(1).tolist()
    row = next(i for i, length in enumerate(lengths) if length > limit)
    text = batch.texts[row]
    raise LengthError(
        f"text {text + 1} ({excerpt(texts[text])}) has {lengths[row]} tokens, but "
        f"{pipeline.architecture} takes {limit}; {way_out}"
    )


def excerpt(text: str, width: int = 40) -> str:
    """The beginning of a text, quoted, for a message."""
    line = " ".join(text.split())
    return f'"{line}"' if len(line) <= width else f'"{line[:width]}…"'


def feed(
    pipeline: Pipeline,
    batch: Batch,
    *,
    grows: Callable[[int], int] = lambda length: length,
    share: int = 1,
    alone: bool = False,
    left: bool = False,
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Rows of a batch, longest first, and their tensors on the model's device.

    `grows(length)` is how many tokens a row becomes while it is worked on; `share` divides the
    budget of tokens, as beams do; `alone` gives one row at a time; `left` says that the batch is
    padded there.
    """
    device, tokens = pipeline.model.device, pipeline.stack.source
    lengths = batch["attention_mask"].sum(1).tolist()
    budget = 0 if alone else BUDGET.get(device.type, BUDGET["cpu"]) // share
    with heap.kept(device):
        for rows in by_length(map(grows, lengths), budget):
            width = max(lengths[row] for row in rows)
            columns = slice(batch.width - width, None) if left else slice(width)
            inputs = {name: x[rows, columns].to(device) for name, x in batch.items()}
            if not (isinstance(pipeline.model.config, config.EncoderOnly) and tokens.types):
                inputs.pop("token_type_ids", None)
            if tokens.pad_id is not None:
                # The model may look for its own, the tokeniser has another.
                gap = inputs["attention_mask"] == 0
                inputs["input_ids"] = inputs["input_ids"].masked_fill(gap, tokens.pad_id)
            yield rows, inputs


def by_length(lengths: Iterable[int], budget: int) -> Iterator[list[int]]:
    """Indices in groups of like length, longest first, each of at most `budget` padded tokens.

    >>> list(by_length([3, 9, 2], budget=9))
    [[1], [0, 2]]
    """
    order = sorted(enumerate(lengths), key=lambda item: -item[1])
    group: list[int] = []
    width = 0
    for i, length in order:
        if group and (len(group) + 1) * width > budget:
            yield group
            group = []
        if not group:
            width = max(1, length)
        group.append(i)
    if group:
        yield group
