"""Perplexity, bits per byte and per word of a model on texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from allformer import config
from allformer.core import heap
from allformer.data.records import open_records
from allformer.data.records.open import Paths
from allformer.errors import AllformerError, ConfigError, DataError, TaskError
from allformer.evaluate.masked import mask_of, pseudo_nll
from allformer.evaluate.segments import memory_of, segment_nll
from allformer.evaluate.windows import text_nll
from allformer.metrics import bits_per_byte, perplexity
from allformer.tasks.batching import BUDGET, warn_unknown
from allformer.tasks.pipeline import Pipeline

LENGTH = 1024  # tokens at once of a model that says no limit

Watch = Callable[[int, int], object]  # tokens scored so far, of how many


@dataclass
class Sums:
    """What was scored, added up: the figures are quotients of these."""

    texts: int = 0
    tokens: int = 0
    bytes: int = 0
    words: int = 0
    nll: float = 0.0

    def pseudo(self) -> dict[str, Any]:
        """Perplexity per token, of what is no likelihood of the whole: no bits of a byte."""
        if not self.tokens:
            raise DataError("there is nothing to score: all texts are empty; give others")
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "pseudo_nll": self.nll / self.tokens,
            "pseudo_perplexity": perplexity(self.nll, self.tokens),
        }

    def figures(self) -> dict[str, Any]:
        """Perplexity per token and per word, bits per byte, and of how much."""
        if not self.tokens:
            raise DataError("there is nothing to score: no text has two tokens; give longer ones")
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "words": self.words,
            "nll": self.nll / self.tokens,
            "perplexity": perplexity(self.nll, self.tokens),
            "bits_per_byte": bits_per_byte(self.nll, max(1, self.bytes)),
            "word_perplexity": perplexity(self.nll, max(1, self.words)),
        }


def open_texts(paths: Paths, column: str = "text", *, lines: bool = False) -> Iterator[str]:
    """The texts of files: of plain text each file is one (or each line), else each record.

    >>> next(open_texts("wikitext/valid.txt.gz"))
    ' = Homarus gammarus = …'
    """
    records = open_records(paths, unit="line" if lines else "file", columns={"text": column})
    for record in records:
        text = str(record["text"])
        if text.strip():
            yield text


def evaluate_texts(
    pipeline: Pipeline,
    texts: Iterable[str],
    *,
    length: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
    watch: Watch = lambda done, total: None,
) -> dict[str, Any]:
    """How well a decoder foretells each text, read through a window that slides.

    >>> evaluate_texts(open_pipeline("gpt2"), [article], stride=512)["bits_per_byte"]
    0.94

    `length` tokens are read at once (the model's limit), `stride` of them scored in each window
    (half of the length): less is slower and better. The first token of a text is not scored, as
    nothing foretells it, unless the tokeniser puts a beginning before it; nor are its bytes
    counted.

    A model that remembers earlier segments (Transformer-XL) reads segments of `length` tokens
    instead, one after the other, and remembers `memory` of them, if not as many as in training.
    """
    model = pipeline.model
    if not isinstance(model.config, config.DecoderOnly):
        raise TaskError(
            f"perplexity needs a decoder with a head over the vocabulary, but "
            f"{pipeline.directory} is a {pipeline.architecture}"
        )
    model.vocab_head  # noqa: B018  (raises, and says how to get one)
    remembered = memory_of(model, memory)
    if remembered:
        return _with_memory(pipeline, texts, length, stride, remembered, watch)
    length = _length(pipeline, length)
    stride = length // 2 if stride is None else stride
    read = partial(text_nll, model, length=length, stride=stride)
    return {**_summed(pipeline, texts, read, watch), "length": length, "stride": stride}


def _with_memory(
    pipeline: Pipeline,
    texts: Iterable[str],
    length: int | None,
    stride: int | None,
    memory: int,
    watch: Watch,
) -> dict[str, Any]:
    """Segment after segment."""
    if stride is not None:
        raise ConfigError(
            f"stride={stride} is of a window that slides, but this model remembers {memory} tokens "
            f"of the segments before; leave it out, or give memory=0"
        )
    model = pipeline.model
    own = memory_of(model, None) or memory
    length = min(own, LENGTH) if length is None else length
    read = partial(segment_nll, model, length=length, memory=memory)
    return {**_summed(pipeline, texts, read, watch), "length": length, "memory": memory}


def _summed(
    pipeline: Pipeline, texts: Iterable[str], read: Callable[..., Any], watch: Watch
) -> dict[str, Any]:
    """The figures of all texts; `read(ids, batch_tokens=…, advance=…)` gives one's sums."""
    sums, budget = Sums(), BUDGET.get(pipeline.model.device.type, BUDGET["cpu"])
    encoded = [_ids(pipeline, text) for text in texts]
    done = Counter(sum(len(ids) - 1 for ids, _ in encoded), watch)
    with heap.kept(pipeline.model.device):
        for ids, counted in encoded:
            add(sums, counted, read(ids, batch_tokens=budget, advance=done.add))
    return sums.figures()


def evaluate_masked(
    pipeline: Pipeline,
    texts: Iterable[str],
    *,
    length: int | None = None,
    watch: Watch = lambda done, total: None,
) -> dict[str, Any]:
    """Pseudo-perplexity of a masked language model: each token masked in its turn.

    >>> evaluate_masked(open_pipeline("bert-base-cased"), sentences)["pseudo_perplexity"]
    8.3

    A text longer than `length` tokens (the model's limit) is scored in parts. As many rows are run
    as there are tokens.
    """
    model, tokenizer = pipeline.model, pipeline.tokenizer
    if not isinstance(model.config, config.EncoderOnly):
        raise TaskError(
            f"pseudo-perplexity needs an encoder with a head over the vocabulary, but "
            f"{pipeline.directory} is a {pipeline.architecture}"
        )
    model.vocab_head  # noqa: B018
    mask, length = mask_of(tokenizer, pipeline.directory), _length(pipeline, length)
    sums, budget = Sums(), BUDGET.get(model.device.type, BUDGET["cpu"])
    encoded = [(text, _parts(pipeline, text, length)) for text in texts]
    done = Counter(sum(len(places) for _, parts in encoded for _, places in parts), watch)
    with heap.kept(model.device):
        for text, parts in encoded:
            nlls = [
                pseudo_nll(model, ids, places, mask, batch_tokens=budget, advance=done.add)
                for ids, places in parts
            ]
            add(sums, text, torch.cat(nlls))
    return {**sums.pseudo(), "length": length}


def add(sums: Sums, text: str, nll: torch.Tensor) -> None:
    """One more text, of which `text` is what was scored."""
    sums.texts += 1
    sums.tokens += len(nll)
    sums.bytes += len(text.encode("utf-8", "surrogatepass"))
    sums.words += len(text.split())
    sums.nll += float(nll.sum())
    if not math.isfinite(sums.nll):
        raise AllformerError(
            f"the model gives a likelihood that is not finite for text {sums.texts}; its weights "
            f"may be damaged, or too large for half precision: try --dtype fp32"
        )


class Counter:
    """Tells `watch` how many tokens are done, of all texts."""

    def __init__(self, total: int, watch: Watch) -> None:
        self.done, self.total, self.watch = 0, total, watch

    def add(self, tokens: int) -> None:
        """So many more."""
        self.done += tokens
        self.watch(self.done, self.total)


def _ids(pipeline: Pipeline, text: str) -> tuple[list[int], str]:
    """A text's ids, and what of it they are scored for: all but what the first of them stands for.

    A beginning that the tokeniser puts before it stands for nothing.
    """
    batch = pipeline.tokenizer([text], padding_side="right")
    warn_unknown(batch, [text], pipeline)
    ids: list[int] = batch["input_ids"][0].tolist()
    sequence = batch.sequence_ids(0)
    if not ids or sequence[0] is None:
        return ids, text
    begins = batch.offsets(0)[1][0] if len(ids) > 1 and sequence[1] is not None else len(text)
    return ids, text[begins:]


def _parts(pipeline: Pipeline, text: str, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A text's ids in parts that fit, and where in each the tokens are that are not special."""
    batch = pipeline.tokenizer([text], max_length=length, windows=0, padding_side="right")
    warn_unknown(batch, [text], pipeline)
    parts = []
    for row, (ids, kept) in enumerate(
        zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ):
        own = [i for i, of in enumerate(batch.sequence_ids(row)) if of is not None]
        parts.append((ids[kept.bool()], torch.tensor(own, dtype=torch.long)))
    return parts


def _length(pipeline: Pipeline, asked: int | None) -> int:
    """Tokens at once: as asked, or the model's limit, or what it was trained for."""
    limit = pipeline.trained
    if asked is None:
        return limit or pipeline.stack.trained or LENGTH
    if limit is not None and asked > limit:
        raise ConfigError(
            f"length={asked} is more than the {limit} tokens that {pipeline.directory} can read at "
            f"once; give at most that"
        )
    return asked
