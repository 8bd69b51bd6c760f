"""From a recipe's data section to pairs of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allformer.data.parallel import Corpus, Pair, directory_splits, hold_out, open_corpus
from allformer.data.records import Records, open_splits
from allformer.errors import DataError
from allformer.train.sections.data import PairData

_MOST_HELD_OUT = 1000


def open_data(data: PairData, corpus: Corpus | None = None) -> Corpus:
    """Train, validation and test pairs; a missing validation split is held out of train."""
    corpus = corpus or _open(data)
    if data.prefix:
        parts = (corpus.train, corpus.validation, corpus.test)
        corpus = Corpus(*(None if part is None else Prefixed(part, data.prefix) for part in parts))  # type: ignore[arg-type]
    if corpus.validation is None:
        count = data.hold_out or _share(corpus.train)
        try:
            train, validation = hold_out(corpus.train, count)
        except DataError as error:
            if not str(error).startswith("count="):  # a record is broken
                raise
            raise DataError(f"data.hold_out={count}: {error}") from None
        corpus = replace(corpus, train=train, validation=validation)
    return corpus


def _share(pairs: Iterable[Pair]) -> int:
    """One source sentence in twenty is enough to validate on, and a thousand always are."""
    different: set[int] = set()
    for source, _ in pairs:
        different.add(hash(source))
        if len(different) >= 20 * _MOST_HELD_OUT:
            break
    return max(1, len(different) // 20)


def open_split(data: PairData, split: str, *, new: bool = False) -> Iterable[Pair]:
    """The pairs of "test", "val" or "train" to score on: `open_split(recipe.data, "val")`.

    A directory need hold no other split. A file (or a pair of files) that is `new`, not what the
    run was trained on, is the split itself.
    """
    names = {"test": "test", "val": "validation", "train": "train"}
    if split not in names:
        raise DataError(f"split={split!r} is not known; try {', '.join(names)}")
    parts: dict[str, Any]
    if data.path is None or data.columns or not Path(data.path).is_dir():
        corpus = _open(data)
        if new:
            return Prefixed(corpus.train, data.prefix) if data.prefix else corpus.train
        parts = vars(corpus)
    else:
        parts = directory_splits(Path(data.path), data.source, data.target, columns=data.sides)
    found: Iterable[Pair] | None = parts.get(names[split])
    if found is not None and data.prefix:
        found = Prefixed(found, data.prefix)
    if found is None and split == "val" and parts.get("train") is not None:
        return open_data(data).validation or ()
    if found is None:
        there = [name for name, part in names.items() if parts.get(part) is not None]
        raise DataError(
            f"the data has no {split} split; it has {', '.join(there) or 'none'}; "
            f"try --split {there[0] if there else 'val'}, or give --data"
        )
    return found


def _open(data: PairData) -> Corpus:
    if data.path is not None and data.columns:
        return _named(data)
    if data.path is not None:
        return open_corpus(data.path, data.source, data.target, columns=data.sides)
    if data.corpus == "phrasebook":
        return _phrasebook(data)
    if data.corpus is not None:
        from allformer.data.public import public_corpus

        folder = public_corpus(data.corpus, data.source, data.target)
        return open_corpus(folder, data.source, data.target)
    raise DataError(
        "data.corpus and data.path are both empty: there is nothing to train on; "
        "give --data DIR, or set data.corpus to phrasebook, multi30k or tatoeba-cmn-eng"
    )


@dataclass(frozen=True)
class Prefixed:
    """Pairs with words before each source, which tell a model what to do."""

    pairs: Iterable[Pair]
    prefix: str

    def __iter__(self) -> Iterator[Pair]:
        return ((self.prefix + source, target) for source, target in self.pairs)


@dataclass(frozen=True)
class RecordPairs:
    """Records with a source and a target, as pairs; as often as one likes."""

    records: Records

    def __iter__(self) -> Iterator[Pair]:
        for record in self.records:
            source, target = record["source"], record["target"]
            if not isinstance(source, str) or not isinstance(target, str):
                raise DataError(
                    f"{self.records.description}: {source!r:.60} and {target!r:.60} are not two "
                    f"texts; name other columns in data.columns"
                )
            yield source, target


def _named(data: PairData) -> Corpus:
    """Files of any format whose columns the recipe names."""
    assert data.path is not None
    found = open_splits(data.path, data.format, columns=data.columns)
    if found.train is None:
        raise DataError(f"data.path={data.path} has no training split; name its files train.*")
    parts = (found.train, found.validation, found.test)
    return Corpus(*(None if part is None else RecordPairs(part) for part in parts))  # type: ignore[arg-type]


def _phrasebook(data: PairData) -> Corpus:
    from allformer.data.phrasebook import phrasebook

    if {data.source, data.target} != {"en", "zh"}:
        raise DataError(
            f"the phrasebook has en and zh, not {data.source} → {data.target}; "
            f"set data.source and data.target to those"
        )
    book = phrasebook()
    order = (0, 1) if data.source == "en" else (1, 0)
    parts = (book.train, book.validation, book.test)
    return Corpus(*([(pair[order[0]], pair[order[1]]) for pair in part] for part in parts))
