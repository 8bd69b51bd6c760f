"""Phrases: the parts of a sentence, each made in both languages at once.

A noun phrase knows how English agrees with it; a time, a place or a companion is just a pair of
strings. The grammar of clauses decides where each language puts them.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from allformer.data.phrasebook.lexicon import (
    ATTRIBUTES,
    DAYS,
    DIGITS,
    MONTHS,
    NAMES,
    NOUNS,
    ONES,
    ORDINALS,
    PARTS,
    PEOPLE,
    PRONOUNS,
    RELATIONS,
    TENS,
    Noun,
    Person,
    Place,
)

Item = TypeVar("Item")


class Draw:
    """Random choices that are the same on every machine: `Draw(0).pick("abc")`.

    Only `Random.random` is promised not to change between Python versions; `choice` is not.
    """

    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random

    def pick(self, items: Sequence[Item]) -> Item:
        """One item, each as likely as the next; write an item twice to double its chance."""
        return items[int(self.uniform() * len(items))]

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self.uniform() < probability


class Phrase(NamedTuple):
    """A time, a place, a companion: English beside Chinese."""

    en: str
    zh: str


class NP(NamedTuple):
    """A noun phrase: `en` as subject, `obj` as object, `be` for agreement, `head` its noun."""

    en: str
    obj: str
    zh: str
    be: str
    head: str
    pronoun: str = ""  # "he" for my father: empty where the noun does not tell


THIS = (Phrase("this", "这"), Phrase("that", "那"))
THESE = (Phrase("these", "这"), Phrase("those", "那"))
NOBODY = NP("", "", "", "is", "")  # the object of a verb that has none


# Numbers -----------------------------------------------------------------------------------------


def number(n: int) -> Phrase:
    """A number to ten or from twenty to 99: `number(25) == ("twenty-five", "二十五")`."""
    tens, ones = divmod(n, 10)
    zh = ("十" if tens == 1 else DIGITS[tens] + "十" if tens else "") + DIGITS[ones]
    if n <= 10:
        return Phrase(ONES[n], zh)
    return Phrase(f"{TENS[tens]}-{ONES[ones]}" if ones else TENS[tens], zh)


def count(n: int) -> Phrase:
    """A number before a measure word, where two is 两 and never 二: `count(2) == ("two", "两")`."""
    return Phrase("two", "两") if n == 2 else number(n)


COUNTS = tuple(count(n) for n in (2, 2, 3, 3, 4, 5, 6))
HOURS_LONG = tuple(Phrase(f"for {count(n).en} hours", f"{count(n).zh}个小时") for n in (2, 3, 4))


# People ------------------------------------------------------------------------------------------


def _related(owner_index: int, person: Person) -> NP:
    owner = PRONOUNS[owner_index]
    # 我爸爸, 我的朋友; and a plural owner keeps 的 even with kin: 我们的爸爸.
    de = "" if person.kin and not owner.zh.endswith("们") else "的"
    en = f"{owner.possessive} {person.en}"
    return NP(en, en, owner.zh + de + person.zh, "is", person.en, person.pronoun)


def _pointed(person: Person) -> list[NP]:
    one = [
        NP(f"{en} {person.en}", f"{en} {person.en}", zh + person.measure + person.zh, "is",
           person.en, person.pronoun)
        for en, zh in THIS
    ]  # fmt: skip
    # They are 他们, unless all are women; such groups are not taken up again by a pronoun.
    they = "" if person.pronoun == "she" else "they"
    many = [
        NP(f"{en} {person.plural}", f"{en} {person.plural}", f"{zh}些{person.zh}", "are",
           person.en, they)
        for en, zh in THESE
    ]  # fmt: skip
    return one * 2 + many


PRONOUN_NPS = {p.en: NP(p.en, p.obj, p.zh, p.be, p.en, p.en) for p in PRONOUNS}
_PRONOUNS = tuple(PRONOUN_NPS.values())
_NAMES = tuple(NP(p.en, p.en, p.zh, "is", p.en, p.pronoun) for p in NAMES)
_RELATED = tuple(_related(owner, p) for p in RELATIONS for owner in range(len(PRONOUNS)))
_POINTED = tuple(np for p in PEOPLE for np in _pointed(p))
SUBJECTS = _PRONOUNS * 10 + _NAMES * 5 + _RELATED + _POINTED
# Those that one asks about: nobody asks what he did himself.
ASKED = tuple(np for np in SUBJECTS if np.en not in ("I", "we"))
# Those that "he", "she" or "they" can take up again in the next clause.
REFERABLE = tuple(np for np in SUBJECTS if np.pronoun)
# Without 的, for use inside a relative clause, which ends in a 的 of its own.
PLAIN_PEOPLE = tuple(np for np in SUBJECTS if "的" not in np.zh)


def clash(a: NP, b: NP) -> bool:
    """Whether two people in one sentence would be the same one, as in "I helped me"."""
    return a.head == b.head or {a.head, b.head} == {"I", "we"}


def other_person(draw: Draw, subject: NP, among: Sequence[NP] = SUBJECTS) -> NP:
    """Somebody who is not the subject."""
    while True:
        person = draw.pick(among)
        if not clash(subject, person):
            return person


# Things ------------------------------------------------------------------------------------------

KINDS = tuple(dict.fromkeys(noun.kind for noun in NOUNS))
ATTRIBUTES_OF = {
    kind: tuple(Phrase(en, zh) for en, zh, kinds in ATTRIBUTES if kind in kinds.split())
    for kind in KINDS
}
OWNERS = tuple(Phrase(p.possessive, p.zh) for p in PRONOUNS)
_NO_ATTRIBUTE = Phrase("", "")


def a_or_an(words: str) -> str:
    """`a_or_an("old car") == "an old car"`; spelling is enough for the words we have."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def thing(draw: Draw, noun: Noun, style: str, plain: bool = False) -> NP:
    """A noun phrase for a thing, in one of the styles that translate without loss.

    The styles are `one` (a book, 一本书), `many` (two books, 两本书), `this` (that book, 那本书),
    `these` (these two books, 这两本书), `own` (my book, 我的书), `any` (any books, 书) and `bare`
    (books, 书). `plain` leaves colours out, whose 的 would crowd a relative clause.
    """
    if style in ("any", "bare"):
        en = noun.plural if style == "bare" else f"any {noun.plural}"
        return NP(en, en, noun.zh, "are", noun.en)
    if style == "own":
        owner = draw.pick(OWNERS)
        en = f"{owner.en} {noun.en}"
        return NP(en, en, f"{owner.zh}的{noun.zh}", "is", noun.en)
    if style == "this":
        this = draw.pick(THIS)
        en = f"{this.en} {noun.one}"
        return NP(en, en, this.zh + noun.measure + noun.zh, "is", noun.en)
    attributes = ATTRIBUTES_OF[noun.kind]
    attribute = _NO_ATTRIBUTE
    if attributes and not plain and draw.chance(0.4):
        attribute = draw.pick(attributes)
    modifier = f"{attribute.en} " if attribute.en else ""
    if style == "one":
        en = a_or_an(modifier + noun.one)
        return NP(en, en, f"一{noun.measure}{attribute.zh}{noun.zh}", "is", noun.en)
    quantity = draw.pick(COUNTS)
    en = f"{quantity.en} {modifier}{noun.many}"
    zh = f"{quantity.zh}{noun.measure}{attribute.zh}{noun.zh}"
    if style == "these":
        these = draw.pick(THESE)
        en, zh = f"{these.en} {en}", these.zh + zh
    return NP(en, en, zh, "are", noun.en)


def goal(place: Place) -> NP:
    """A place as the object of a verb: go to the park, leave Beijing."""
    return NP(place.en, place.en, place.zh, "is", place.head)


# Times: English goes from small to large, Chinese from large to small ----------------------------


def clock(hour: int) -> tuple[Phrase, ...]:
    """The times on a clock from that hour on: `clock(2)[1] == ("half past two", "两点半")`."""
    h = count(hour)
    return (
        Phrase(f"{h.en} o'clock", f"{h.zh}点"),
        Phrase(f"half past {h.en}", f"{h.zh}点半"),
        Phrase(f"a quarter past {h.en}", f"{h.zh}点一刻"),
    )


def _in_parts(en: str, zh: str) -> list[Phrase]:
    """That day's morning, afternoon and evening: yesterday morning, 昨天早上."""
    return [Phrase(f"{en} {part}", zh + part_zh) for part, part_zh, _ in PARTS]


def _by_the_clock(en: str, zh: str) -> list[Phrase]:
    """That day by the clock: at eight o'clock yesterday morning, 昨天早上八点."""
    return [
        Phrase(f"at {time.en} {en} {part}", zh + part_zh + time.zh)
        for part, part_zh, hours in PARTS
        for hour in hours
        for time in clock(hour)
    ]


DATES = tuple(
    Phrase(f"the {ORDINALS[day]} of {month}", f"{number(index).zh}月{number(day).zh}号")
    for index, month in enumerate(MONTHS, 1)
    for day in range(1, 11)
)
_ON_DATE = tuple(Phrase(f"on {date.en}", date.zh) for date in DATES)
_ON_DAY = tuple(Phrase(f"on {en}", zh) for en, zh in DAYS)
_ON_DAY_PART = tuple(p for day in _ON_DAY for p in _in_parts(day.en, day.zh))

# Groups of times; a group is drawn first, so that 120 dates do not drown "yesterday".
PAST_DAYS = (
    (Phrase("yesterday", "昨天"),),
    (Phrase("today", "今天"), Phrase("last week", "上个星期")),
    tuple(Phrase(f"last {en}", f"上个{zh}") for en, zh in DAYS),
    _ON_DAY,
    _ON_DATE,
    (*_in_parts("yesterday", "昨天"), Phrase("this morning", "今天早上")),
    _ON_DAY_PART,
)
PAST_TIMES = (*PAST_DAYS, tuple(_by_the_clock("yesterday", "昨天")))
FUTURE_DAYS = (
    (Phrase("tomorrow", "明天"),),
    (Phrase("today", "今天"), Phrase("next week", "下个星期")),
    tuple(Phrase(f"next {en}", f"下个{zh}") for en, zh in DAYS),
    _ON_DAY,
    _ON_DATE,
    (*_in_parts("tomorrow", "明天"), Phrase("this evening", "今天晚上")),
    _ON_DAY_PART,
)
FUTURE_TIMES = (*FUTURE_DAYS, tuple(_by_the_clock("tomorrow", "明天")))
BY_THE_CLOCK = tuple(_by_the_clock("every", "每天"))
HABIT_TIMES = (
    (Phrase("every day", "每天"),),
    tuple(_in_parts("every", "每天")),
    tuple(Phrase(f"every {en}", f"每个{zh}") for en, zh in DAYS),
    BY_THE_CLOCK,
)
DAY_PARTS = tuple(Phrase(f"in the {part}", zh) for part, zh, _ in PARTS)
NOW = Phrase("now", "现在")
OFTEN = Phrase("often", "常常")
ADVERBS = (
    OFTEN,
    Phrase("always", "总是"),
    Phrase("sometimes", "有时候"),
    Phrase("never", "从不"),
)


def time(draw: Draw, groups: Sequence[Sequence[Phrase]]) -> Phrase:
    """A time out of one of the groups: `time(draw, PAST_TIMES)`."""
    return draw.pick(draw.pick(groups))
