"""Clauses: one meaning, two word orders.

    English   subject  verb  object   for whom  with whom  how  where  when
    Chinese   subject  when  modal  with whom  how  where  for whom  verb  object

What is asked about stays in its place in Chinese and goes to the front in English. So a question
is the same clause with a question word in one slot: its Chinese is the word (什么), its English is
empty there, and the caller names the word to put in front.
"""

from typing import NamedTuple

from allformer.data.phrasebook.lexicon import (
    CAN,
    FUTURE,
    GOING,
    HABIT,
    MUST,
    PAST,
    PROGRESSIVE,
    SHOULD,
    STATE,
    WANT,
    Tense,
    Verb,
)
from allformer.data.phrasebook.phrases import NOBODY, NP, Phrase

NONE = Phrase("", "")
_MODALS = {FUTURE: "will", CAN: "can", MUST: "must", SHOULD: "should"}


class Clause(NamedTuple):
    """The meaning of a clause. An empty slot is a phrase of two empty strings."""

    subject: NP
    verb: Verb
    tense: Tense
    object: NP = NOBODY
    negative: bool = False
    time: Phrase = NONE
    adverb: Phrase = NONE  # often, 常常
    duration: Phrase = NONE  # for two hours, 两个小时
    place: Phrase = NONE  # at the library, 在图书馆
    means: Phrase = NONE  # by bus, 坐公共汽车
    company: NP = NOBODY  # with my friend, 和我的朋友一起
    favour: NP = NOBODY  # for my mother, 给我妈妈

    @property
    def cores(self) -> tuple[str, ...]:
        """The combinations of who, verb and object by which the corpus is split.

        Everyone who takes part has one: `book+buy+father` and `I+book+buy` if he buys it for me.
        """
        verb, object = self.verb.base, self.object.head
        first = core(self.subject.head, verb, object)
        other = self.company.head or self.favour.head
        return (first, core(other, verb, object)) if other else (first,)


def core(*words: str) -> str:
    """A combination of content words in any order: `core("I", "like", "tea")`."""
    return "+".join(sorted(filter(None, words)))


class Sentence(NamedTuple):
    """A sentence in both languages, and the combinations of content words in it.

    A sentence about one content word, such as "Where is my hat?", has no combination.
    """

    en: str
    zh: str
    cores: tuple[str, ...]


def say(en: str, zh: str, *cores: str, ask: bool = False) -> Sentence:
    """A finished sentence: `say("it is two o'clock", "两点了")`, or with `ask` a question."""
    en = en[0].upper() + en[1:]
    return Sentence(f"{en}?", f"{zh}？", cores) if ask else Sentence(f"{en}.", f"{zh}。", cores)


# English -----------------------------------------------------------------------------------------


def _verb_forms(clause: Clause) -> tuple[str, str, str]:
    """Auxiliary, main verb, and the one word where "do" is not needed: did, buy, bought."""
    verb, tense, be = clause.verb, clause.tense, clause.subject.be
    if tense is PAST:
        return "did", verb.base, verb.past
    if tense is HABIT or tense is STATE:
        return ("does", verb.base, verb.third) if be == "is" else ("do", verb.base, verb.base)
    if tense is WANT:
        to = f"want to {verb.base}"
        return ("does", to, f"wants to {verb.base}") if be == "is" else ("do", to, to)
    if tense is PROGRESSIVE:
        return be, verb.ing, ""
    if tense is GOING:
        return be, f"going to {verb.base}", ""
    return _MODALS[tense], verb.base, ""


def _join(*words: str) -> str:
    return " ".join(filter(None, words))


def _rest(clause: Clause) -> str:
    """All that follows the English verb."""
    return _join(
        clause.verb.particle,
        clause.object.obj,
        clause.favour.obj and f"for {clause.favour.obj}",
        clause.company.obj and f"with {clause.company.obj}",
        clause.means.en,
        clause.place.en,
        clause.duration.en,
        clause.time.en,
    )


def english(clause: Clause) -> str:
    """The clause as an English statement: "he did not buy any books yesterday"."""
    auxiliary, main, fused = _verb_forms(clause)
    if not clause.negative:
        verb = fused or f"{auxiliary} {main}"
    elif clause.tense is CAN:
        verb = f"cannot {main}"
    else:
        verb = f"{auxiliary} not {main}"
    return _join(clause.subject.en, clause.adverb.en, verb, _rest(clause))


def english_question(clause: Clause, front: str = "") -> str:
    """The clause as a question, with a question word in front if one is asked for."""
    auxiliary, main, _ = _verb_forms(clause)
    return _join(front, auxiliary, clause.subject.en, clause.adverb.en, main, _rest(clause))


# Chinese -----------------------------------------------------------------------------------------


def chinese(clause: Clause, le: str = "verb", then: str = "", focus: bool = False) -> str:
    """The clause in Chinese, without its full stop.

    `le` says where 了 goes if the clause is past and affirmative: after the verb (看了一本书),
    at the end (看书了, as questions have it) or nowhere (in a relative clause). `then` is the 就
    of a main clause after 如果. `focus` frames what is asked about the past with 是 … 的.
    """
    verb, tense, place = clause.verb, clause.tense, clause.place.zh
    marker = (verb.zh_not or tense.zh_not) if clause.negative else tense.zh
    if marker == "正在":  # which holds the 在 of the place already: 他正在图书馆看书
        place = place[1:]
    happened = tense is PAST and not clause.negative and not focus
    inner = "了" if happened and le == "verb" else ""
    final = "了" if happened and le == "end" else ""
    # Before 谁 the time comes first: 昨天谁买了这本书？
    subject, time = clause.subject.zh, clause.time.zh
    start = time + subject if subject == "谁" else subject + time
    predicate = verb.zh + inner + clause.duration.zh + verb.rest
    if verb.coverb:
        predicate = verb.coverb + clause.object.zh + predicate
    else:
        predicate += clause.object.zh
    return "".join(
        (
            start,
            clause.adverb.zh,
            then,
            "是" if focus else marker,
            clause.company.zh and f"和{clause.company.zh}一起",
            clause.means.zh,
            place,
            clause.favour.zh and f"给{clause.favour.zh}",
            predicate,
            "的" if focus else final,
        )
    )
