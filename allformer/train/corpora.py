"""From a recipe's data section to pairs of text."""

from __future__ import annotations

from dataclasses import replace

from allformer.data.parallel import Corpus, hold_out, open_corpus
from allformer.errors import DataError
from allformer.train.recipe import DataRecipe


def open_data(data: DataRecipe, corpus: Corpus | None = None) -> Corpus:
    """Train, validation and test pairs; a missing validation split is held out of train."""
    corpus = corpus or _open(data)
    if corpus.validation is None:
        train, validation = hold_out(corpus.train, data.hold_out)
        corpus = replace(corpus, train=train, validation=validation)
    return corpus


def _open(data: DataRecipe) -> Corpus:
    if data.path is not None:
        columns = (1, 0) if data.swap else (0, 1)
        return open_corpus(data.path, data.source, data.target, columns=columns)
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


def _phrasebook(data: DataRecipe) -> Corpus:
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
