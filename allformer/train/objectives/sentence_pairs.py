"""Two texts that follow each other, or do not: BERT's next sentence and ALBERT's sentence order.

As BERT's data was made: sentences of a document are gathered until they fill a row (one row in ten
is shorter, so that short rows are known too), and cut at random into two texts. For `next-sentence`
the second one is in half of the rows from another document (1: it does not follow), and what was
cut off is used in the next row. For `sentence-order` the two are swapped in half of the rows
(1: swapped; Lan et al. 2020). A pair that is too long is cut at either end, at random.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from allformer.data.encoded import Rows
from allformer.data.table import Table
from allformer.errors import DataError
from allformer.train.batch import Array
from allformer.train.objectives.segments import TextRows

KINDS = ("next-sentence", "sentence-order")
_SHORT = 0.1  # of the rows aim at a length of their own
Span = tuple[int, int]  # where a text begins among the ids, and its tokens


def sentence_pairs(table: Table, kind: str, length: int, *seed: int) -> tuple[TextRows, Array]:
    """Rows of at most `length` tokens, and their labels; by the numbers of `seed` alone."""
    makers = {"next-sentence": _next_sentences, "sentence-order": _ordered}
    documents = _documents(table)
    if kind == "next-sentence" and len(documents) < 2:
        raise DataError(
            "pair=next-sentence takes texts from other documents, and there is one alone; separate "
            "documents by blank lines (data.unit=document), or use pair=sentence-order"
        )
    random = np.random.default_rng(seed)
    found = [(*_fitted(a, b, length - 3, random), label)
             for number in range(len(documents))
             for a, b, label in makers[kind](documents, number, length - 3, random)]  # fmt: skip
    if not found:
        raise DataError(f"pair={kind}: no document has two sentences; see data.unit")
    a, b, labels = zip(*found, strict=True)
    ids = table["ids"].ids
    return TextRows(_rows(ids, a), _rows(ids, b)), np.array(labels, np.int64)


def _documents(table: Table) -> list[list[Span]]:
    """The sentences of each document."""
    ids, cuts = table["ids"], table["cuts"]
    found = []
    for number in range(len(ids)):
        lengths = np.asarray(cuts[number], np.int64)
        starts = int(ids.starts[number]) + np.cumsum(lengths) - lengths
        found.append(list(zip(starts.tolist(), lengths.tolist(), strict=True)))
    return found


def _gathered(
    sentences: list[Span], most: int, random: np.random.Generator
) -> Generator[tuple[list[Span], int], int | None, None]:
    """Sentences that together reach the length aimed at, and that length. Who asks may send back
    how many of them it left unused."""
    at = 0
    while at < len(sentences):
        aim = int(random.integers(2, most + 1)) if random.random() < _SHORT else most
        end, total = at, 0
        while end < len(sentences) and total < aim:
            total += sentences[end][1]
            end += 1
        unused = yield sentences[at:end], aim
        at = max(at + 1, end - (unused or 0))


def _next_sentences(
    documents: list[list[Span]], number: int, most: int, random: np.random.Generator
) -> Iterator[tuple[Span, Span, int]]:
    gather = _gathered(documents[number], most, random)
    unused: int | None = None
    while True:
        try:
            some, aim = gather.send(unused)
        except StopIteration:
            return
        border = int(random.integers(1, len(some))) if len(some) > 1 else 1
        first, unused = _joined(some[:border]), 0
        if len(some) > 1 and random.random() >= 0.5:
            yield first, _joined(some[border:]), 0
            continue
        other = int(random.integers(len(documents) - 1))
        sentences = documents[other + (other >= number)]
        start = int(random.integers(len(sentences)))
        end, total = start, 0
        while end < len(sentences) and (end == start or total < aim - first[1]):
            total += sentences[end][1]
            end += 1
        unused = len(some) - border
        yield first, _joined(sentences[start:end]), 1


def _ordered(
    documents: list[list[Span]], number: int, most: int, random: np.random.Generator
) -> Iterator[tuple[Span, Span, int]]:
    for some, _ in _gathered(documents[number], most, random):
        if len(some) > 1:
            border = int(random.integers(1, len(some)))
            pair = _joined(some[:border]), _joined(some[border:])
        elif some[0][1] > 1:  # one sentence that fills the row: its halves have an order too
            start, length = some[0]
            half = int(random.integers(1, length))
            pair = (start, half), (start + half, length - half)
        else:
            continue
        swapped = random.random() < 0.5
        yield (*(pair[::-1] if swapped else pair), int(swapped))


def _joined(sentences: list[Span]) -> Span:
    """Neighbours as one text: they lie end to end."""
    return sentences[0][0], sum(length for _, length in sentences)


def _fitted(a: Span, b: Span, most: int, random: np.random.Generator) -> tuple[Span, Span]:
    """Token by token off the longer of the two, from either end."""
    over = a[1] + b[1] - most
    if over <= 0:
        return a, b
    short, long = sorted((a[1], b[1]))
    first = min(over, long - short)  # off the longer alone, until they are alike
    from_short = (over - first) // 2
    from_long = over - from_short
    from_a = from_long if a[1] > b[1] else from_short
    return _cut(a, from_a, random), _cut(b, over - from_a, random)


def _cut(text: Span, count: int, random: np.random.Generator) -> Span:
    return text[0] + int(random.binomial(count, 0.5)), text[1] - count


def _rows(ids: Array, spans: tuple[Span, ...]) -> Rows:
    both = np.array(spans, np.int64)
    return Rows(ids, both[:, 1], both[:, 0])
