"""Texts as ids: tokenised once into tables, or on the way where they are a stream.

A row of a table is a document: its `ids`, how many `bytes` of UTF-8 it had, and where sentences
are wanted `cuts`, the tokens of each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from allformer.data.fetch import cache_directory
from allformer.data.mixture import Mixture
from allformer.data.records import Record, Records
from allformer.data.stream import Stream
from allformer.data.table import Table, build_table
from allformer.errors import DataError
from allformer.text.lossless import byte_ids
from allformer.text.marian import MarianPipeline
from allformer.text.tokenizer import Tokenizer
from allformer.train.progress import Asides
from allformer.train.sections.data import TextData
from allformer.train.texts import Texts, TextSets, fingerprint, size_of

Say = Callable[[str], None]
_SMALL = 32 << 20  # bytes of files that are encoded in memory, without a folder for them
_TOKENS = 1 << 26  # of a mixture that are copied together at a time
_FORM = "1"  # of what `TextEncoder` gives: another is another table

# Behind the signs that end a sentence (and the quotes that close after them), or at a new line. A
# Chinese sentence has no space behind it.
_SENTENCE = re.compile(
    r"""(?<=[.!?…]["'”’)\]])(?=[^\S\n])|(?<=[.!?…])(?=[^\S\n])|(?<=[。！？])(?!\n)|(?<=\n)(?!\n)"""
)


def sentences(text: str) -> list[str]:
    """`sentences("One. Two.\\nThree")` → ["One.", " Two.\\n", "Three"]: together, the text."""
    return [part for part in _SENTENCE.split(text) if part]


@dataclass(frozen=True)
class TextEncoder:
    """What a process that tokenises needs: `TextEncoder(tokenizer)(records)`."""

    tokenizer: Tokenizer
    cuts: bool = False

    def __call__(self, records: list[Record]) -> dict[str, Any]:
        """Documents without a token are left out."""
        texts = [_text(record) for record in records]
        table = None if self.cuts else byte_ids(self.tokenizer._inner)
        rows: Any
        cuts: Any = []
        if table is not None:
            rows = [table[np.frombuffer(text.encode(), np.uint8)] for text in texts]
        elif self.cuts:
            rows, cuts = self._by_sentence(texts)
        else:
            rows = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        some = [i for i, row in enumerate(rows) if len(row)]
        found: dict[str, Any] = {
            "ids": [rows[i] for i in some],
            "bytes": [len(texts[i].encode("utf-8", "surrogatepass")) for i in some],
        }
        return found | ({"cuts": [cuts[i] for i in some]} if self.cuts else {})

    def _by_sentence(self, texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        each = [sentences(text) for text in texts]
        flat = [part for parts in each for part in parts]
        encoded = iter(self.tokenizer.encode_batch(flat, add_special_tokens=False) if flat else [])
        rows, cuts = [], []
        for parts in each:
            pieces = [ids for ids in islice(encoded, len(parts)) if ids]
            rows.append([i for ids in pieces for i in ids])
            cuts.append([len(ids) for ids in pieces])
        return rows, cuts


def _text(record: Record) -> str:
    text = record["text"]
    if not isinstance(text, str):
        raise DataError(
            f"the text is {text!r:.80}, a {type(text).__name__}; name another column in "
            f"data.columns: {{text: NAME}}"
        )
    return text


def literal(tokenizer: Tokenizer) -> Tokenizer:
    """One that takes special tokens in a text for text: data gives no commands."""
    if tokenizer.settings.split_special_tokens or isinstance(tokenizer._inner, MarianPipeline):
        return tokenizer
    settings = replace(tokenizer.settings, split_special_tokens=True)
    return Tokenizer(tokenizer._copy(), settings)


class EncodedTexts:
    """All texts of a run as ids: `EncodedTexts(sets, data, tokenizer, seed=0, say=print)`."""

    def __init__(
        self,
        sets: TextSets,
        data: TextData,
        tokenizer: Tokenizer,
        *,
        seed: int,
        say: Say,
        cuts: bool = False,
    ) -> None:
        self.data, self.seed = data, seed
        self._encode = TextEncoder(literal(tokenizer), cuts)
        self._hash = blake2b(repr(tokenizer.__reduce__()[1][0]).encode(), digest_size=8).hexdigest()
        self.validation = self._table(sets.validation, "validation", say)
        self._stream: Stream | None = None
        self._tables: list[Table] = []
        if sets.stream:
            records = [each for each in sets.train if isinstance(each, Records)]
            weights = data.weights or None
            self._stream = Stream(records, weights=weights, buffer=data.buffer, seed=seed)
            say(f"training: a stream of {', '.join(each.description for each in records)}")
        else:
            self._tables = [self._table(each, "training", say) for each in sets.train]

    @property
    def streams(self) -> bool:
        """Whether an epoch comes in parts, whose number nobody knows."""
        return self._stream is not None

    def chunks(self, epoch: int, first: int = 0) -> Iterator[Table]:
        """The documents of an epoch: all at once, or part by part from number `first` on."""
        if self._stream is not None:
            yield from self._stream.chunks(self._encode, self.data.buffer, epoch=epoch, start=first)
        elif not self.data.weights:
            if not first:
                yield self._tables[0]
        else:
            mixed = Mixture(self._tables, self.data.weights).epoch(seed=self.seed, epoch=epoch)
            ends = np.cumsum(mixed["ids"].lengths)
            parts = (ends - 1) // _TOKENS
            for number in np.unique(parts)[first:]:
                yield mixed.take(np.flatnonzero(parts == number))

    def _table(self, texts: Texts, name: str, say: Say) -> Table:
        folder = None
        key = ""
        if size_of(texts) >= _SMALL or (size_of(texts) and self.data.cache):
            parts = (_FORM, fingerprint(texts), self._hash, str(self._encode.cuts))
            key = blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()
            base = cache_directory() / "tables" if self.data.cache is None else self.data.cache
            folder = Path(base) / key
        progress = partial(Asides(say), f"{name}, tokenised")
        table = build_table(texts, self._encode, folder, key=key, progress=progress)
        say(f"{name}: {len(table):,} texts, {int(table['ids'].lengths.sum()):,} tokens")
        return table
