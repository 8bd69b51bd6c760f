"""The rules of the phrasebook, and how often each is used."""

from collections.abc import Callable

from allformer.data.phrasebook.acts import (
    ask_object,
    ask_subject,
    ask_when,
    ask_where,
    give,
    state,
    statement,
    yes_no,
)
from allformer.data.phrasebook.being import (
    age,
    calendar,
    comparison,
    is_at,
    is_near,
    is_whose,
    price,
    quality,
    there_is,
)
from allformer.data.phrasebook.clauses import Sentence
from allformer.data.phrasebook.joined import because, condition, object_relative, subject_relative
from allformer.data.phrasebook.phrases import Draw

RULES: tuple[tuple[Callable[[Draw], Sentence], int], ...] = (
    (statement, 34),
    (yes_no, 10),
    (state, 6),
    (ask_object, 7),
    (ask_subject, 3),
    (ask_where, 3),
    (ask_when, 3),
    (give, 3),
    (there_is, 4),
    (is_near, 1),
    (is_at, 2),
    (is_whose, 1),
    (quality, 2),
    (comparison, 9),
    (price, 3),
    (age, 1),
    (calendar, 1),
    (object_relative, 6),
    (subject_relative, 5),
    (because, 3),
    (condition, 4),
)
_WHEEL = tuple(rule for rule, weight in RULES for _ in range(weight))


def sentence(draw: Draw) -> Sentence:
    """One sentence of 4 to 16 English words and at most 26 characters: `sentence(Draw(0))`."""
    while True:
        drawn = draw.pick(_WHEEL)(draw)
        if 3 <= drawn.en.count(" ") <= 15 and len(drawn.zh) <= 26:
            return drawn
