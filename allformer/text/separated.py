"""A trained tokeniser for texts whose symbols stand between spaces: made languages, not English.

`[MAX 2 9 [MIN 4 7 ] 0 ]` has nine pieces, of which eight differ. Every symbol of the training texts
is a piece, numbered in the order of their letters; one that they lack becomes `<unk>`. What comes
back has one space between symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import models, pre_tokenizers

from allformer.errors import ConfigError, DataError

SEPARATED = "words"


def train_separated(
    lines: Iterable[str], vocab: int, specials: Sequence[str]
) -> tokenizers.Tokenizer:
    """The pipeline: `train_separated(["[MAX 2 9 ]"], 100, SPECIALS)`."""
    words: set[str] = set()
    for line in lines:
        words.update(line.split())
        if len(words) + len(specials) > vocab:
            raise ConfigError(
                f"vocab={vocab} is too small for a {SEPARATED} tokeniser: the text has more than "
                f"{vocab - len(specials)} different words and there are {len(specials)} special "
                "tokens; use more, or kind=bpe, which cuts rare words"
            )
    words -= set(specials)
    if not words:
        raise DataError("no text to train a tokeniser on: every line is empty")
    numbers = {token: i for i, token in enumerate([*specials, *sorted(words)])}
    inner = tokenizers.Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    inner.add_special_tokens(list(specials))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # of no decoder: joined by spaces
    return inner
