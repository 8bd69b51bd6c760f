"""Exact match and F1 of answers: SQuAD's, and CMRC 2018's for Chinese."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# The signs that CMRC's script leaves out; ASCII's full stop and comma are not among them. (Its list
# has the ellipsis as one string of two signs, which never equals one: so it stays.)
_CHINESE = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_TOKEN = re.compile(r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+")


class AnswerScore(NamedTuple):
    """1 where the answer is one of those wanted, and how much it has in common with the nearest."""

    exact: float
    f1: float


def normalize(text: str) -> str:
    """`normalize("The  Eiffel-Tower!")` → "eiffeltower": no case, punctuation, articles, spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_and_f1(wanted: Sequence[str], given: str) -> AnswerScore:
    """`exact_and_f1(["the cat", "a black cat"], "black cat")` → exact 1, F1 1.

    SQuAD 2.0's script: the best over all that are wanted; without any (or none but articles and
    punctuation) the right answer is the empty one. 1.1's differs in that last case alone.
    """
    return _best(list(filter(None, map(normalize, wanted))), normalize(given), _words)


def exact_and_f1_chinese(wanted: Sequence[str], given: str) -> AnswerScore:
    """`exact_and_f1_chinese(["北京市"], "北京")` → exact 0, F1 0.8: a character is a token.

    CMRC's F1 counts the longest run of tokens in common, not the bag of them. Text that is not
    Chinese is cut at spaces, where CMRC's script has nltk's tokeniser: they differ where a full
    stop, a comma or an apostrophe of ASCII is in it.
    """
    return _best(list(filter(None, map(_chinese, wanted))), _chinese(given), _run)


def _chinese(text: str) -> str:
    return text.lower().strip().translate(_CHINESE)


def _best(wanted: list[str], given: str, common: Callable[[str, str], float]) -> AnswerScore:
    wanted = wanted or [""]
    exact = float(given in wanted)
    if not given or wanted == [""]:
        return AnswerScore(exact, exact)
    return AnswerScore(exact, max(common(one, given) for one in wanted))


def _words(wanted: str, given: str) -> float:
    a, b = Counter(wanted.split()), Counter(given.split())
    return _f1((a & b).total(), a.total(), b.total())


def _run(wanted: str, given: str) -> float:
    a, b = _TOKEN.findall(wanted), _TOKEN.findall(given)
    longest, ending = 0, [0] * (len(b) + 1)  # ending[j]: the common run that ends at b[j − 1]
    for token in a:
        ending = [0, *(ending[j] + 1 if token == other else 0 for j, other in enumerate(b))]
        longest = max(longest, *ending)
    return _f1(longest, len(a), len(b))


def _f1(common: int, wanted: int, given: int) -> float:
    return 2 * common / (wanted + given) if common else 0.0
