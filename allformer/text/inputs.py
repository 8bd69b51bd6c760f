"""What a tokeniser is given, checked: texts, or texts and their pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from allformer.errors import DataError

Texts = Sequence[str] | Sequence[Sequence[str]]  # the second: each text as a list of its words


def pair_up(texts: Texts, pairs: Texts | None) -> list[Any]:
    """The library's form: `pair_up(["a"], ["b"])` → `[("a", "b")]`."""
    if isinstance(texts, str) or isinstance(pairs, str):
        raise DataError("texts must be a list of texts, not one text: put it into [ ]")
    if pairs is None:
        return list(texts)
    if len(pairs) != len(texts):
        raise DataError(f"there are {len(texts)} texts but {len(pairs)} pairs; each needs its own")
    return list(zip(texts, pairs, strict=True))


def not_text(texts: Texts, pairs: Texts | None) -> DataError:
    """Why the library refuses them: it only says that it does."""
    for name, given in (("text", texts), ("pair", pairs or ())):
        for i, text in enumerate(given):
            words = [text] if isinstance(text, str) else text
            if not isinstance(words, list | tuple) or any(not isinstance(w, str) for w in words):
                return DataError(f"{name} {i} is no text but {text!r}")
            broken = re.search("[\ud800-\udfff]", "".join(words))
            if broken:
                return DataError(
                    f"{name} {i} has half a character (surrogate {broken[0]!r} at "
                    f"{broken.start()}): it was read with a wrong encoding; read it as UTF-8"
                )
    return DataError("each text must be a string, or a list of words with is_split_into_words")
