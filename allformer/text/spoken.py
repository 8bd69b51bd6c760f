"""Transcripts as they are compared: Whisper's normalisers (Radford et al., 2022, appendix C).

    tidy = english(load_spelling("openai/whisper-tiny.en"))
    tidy("Mr. Brown's got twenty-one colours!")           # mister brown has got 21 colors

Errors of spelling, punctuation and the way numbers are written are no errors of hearing. The list
of British and American spellings is the checkpoint's (`normalizer.json`); without one spellings
stay as they are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path

from allformer.errors import CheckpointError
from allformer.json_file import read_object
from allformer.text.spoken_numbers import numbers_as_digits

FILE = "normalizer.json"
Tidy = Callable[[str], str]

# Letters that Unicode does not take apart.
_LETTERS = str.maketrans({
    "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "æ": "ae", "Æ": "AE", "ß": "ss", "ẞ": "SS",
    "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "th", "ł": "l", "Ł": "L",
})  # fmt: skip
_KEPT = ".%$¢€£"  # beside numbers
_HESITATIONS = re.compile(r"\b(hmm|mm|mhm|mmm|uh|um)\b")
_SHORT = {
    "won't": "will not", "can't": "can not", "let's": "let us", "ain't": "aint",
    "y'all": "you all", "wanna": "want to", "gotta": "got to", "gonna": "going to",
    "i'ma": "i am going to", "imma": "i am going to", "woulda": "would have",
    "coulda": "could have", "shoulda": "should have", "ma'am": "madam",
}  # fmt: skip
_TITLES = {
    "mr": "mister", "mrs": "missus", "st": "saint", "dr": "doctor", "prof": "professor",
    "capt": "captain", "gov": "governor", "ald": "alderman", "gen": "general", "sen": "senator",
    "rep": "representative", "pres": "president", "rev": "reverend", "hon": "honorable",
    "asst": "assistant", "assoc": "associate", "lt": "lieutenant", "col": "colonel",
    "jr": "junior", "sr": "senior", "esq": "esquire",
}  # fmt: skip
# At the end of a word; what was done ("'s been") before what is ("'s").
_ENDS = {
    "'d been": "had been", "'s been": "has been", "'d gone": "had gone", "'s gone": "has gone",
    "'d done": "had done", "'s got": "has got", "n't": "not", "'re": "are", "'s": "is",
    "'d": "would", "'ll": "will", "'t": "not", "'ve": "have", "'m": "am",
}  # fmt: skip
_REPLACED = [
    *((re.compile(rf"\b{short}\b"), long) for short, long in _SHORT.items()),
    *((re.compile(rf"\b{short}\b"), f"{long} ") for short, long in _TITLES.items()),
    *((re.compile(rf"{end}\b"), f" {long}") for end, long in _ENDS.items()),
]


def basic(text: str) -> str:
    """Of any language: lower case, no brackets, no punctuation.

    >>> basic("Nein, [Lachen] sagt er!")
    'nein sagt er '
    """
    text = unicodedata.normalize("NFKC", _unbracketed(text.lower()))
    return _one_space("".join(" " if _is_mark(c) else c for c in text).lower())


def english(spelling: Mapping[str, str] | None = None) -> Tidy:
    """The normaliser of English, with a list of spellings.

    >>> english({"colour": "color"})("It's twenty-one colour.")
    'it is 21 color'
    """
    known = spelling or {}

    def tidy(text: str) -> str:
        text = _HESITATIONS.sub("", _unbracketed(text.lower()))
        text = re.sub(r"\s+'", "'", text)
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
        text = re.sub(r"(\d),(\d)", r"\1\2", text)
        text = re.sub(r"\.([^0-9]|$)", r" \1", text)  # points that are no decimal points
        text = numbers_as_digits(_plain_letters(text))
        text = " ".join(known.get(word, word) for word in text.split())
        text = re.sub(r"[.$¢€£]([^0-9])", r" \1", text)
        return _one_space(re.sub(r"([^0-9])%", r"\1 ", text))

    return tidy


def load_spelling(directory: str | Path) -> dict[str, str]:
    """A checkpoint's list of British words and their American form; empty where it has none.

    >>> load_spelling("openai/whisper-tiny.en")["colour"]
    'color'
    """
    path = Path(directory) / FILE
    if not path.is_file():
        return {}
    found = read_object(path, CheckpointError)
    if not all(isinstance(word, str) for word in found.values()):
        raise CheckpointError(f"{path} is no list of spellings; download it again")
    return found


def _unbracketed(text: str) -> str:
    return re.sub(r"\(([^)]+?)\)", "", re.sub(r"[<\[][^>\]]*[>\]]", "", text))


def _plain_letters(text: str) -> str:
    """Without accents; marks and signs but those of numbers are spaces."""
    out = []
    for c in unicodedata.normalize("NFKD", text):
        if c in _KEPT:
            out.append(c)
        elif unicodedata.category(c) != "Mn":
            out.append(" " if _is_mark(c) else c.translate(_LETTERS))
    return "".join(out)


def _is_mark(c: str) -> bool:
    return unicodedata.category(c)[0] in "MSP"


def _one_space(text: str) -> str:
    return re.sub(r"\s+", " ", text)
