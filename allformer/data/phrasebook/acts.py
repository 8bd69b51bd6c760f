"""What people do: statements and questions around a verb.

The styles of objects follow one principle: what is asserted has "a book" or "two books" (一本书,
两本书), what is asked or denied has "any books" (书), and both can have "this book" or "my book".
"""

from collections.abc import Sequence

from allformer.data.phrasebook.clauses import (
    NONE,
    Clause,
    Sentence,
    chinese,
    core,
    english,
    english_question,
    say,
)
from allformer.data.phrasebook.lexicon import (
    ACTION,
    CAN,
    CITIES,
    FUTURE,
    GIVE,
    GOING,
    HABIT,
    MUST,
    NOUNS,
    PAST,
    PLACES,
    PROGRESSIVE,
    SHOULD,
    STATE,
    VERB,
    VERBS,
    WANT,
    Noun,
    Tense,
    Verb,
    words,
)
from allformer.data.phrasebook.phrases import (
    ADVERBS,
    ASKED,
    BY_THE_CLOCK,
    DAY_PARTS,
    FUTURE_TIMES,
    HABIT_TIMES,
    HOURS_LONG,
    NOBODY,
    NOW,
    NP,
    OFTEN,
    PAST_DAYS,
    PAST_TIMES,
    SUBJECTS,
    Draw,
    Phrase,
    goal,
    other_person,
    thing,
    time,
)

# What goes with what -----------------------------------------------------------------------------


def of_kinds(kinds: str) -> tuple[Noun, ...]:
    """The nouns of these kinds: `of_kinds("drink dish")`."""
    return tuple(noun for noun in NOUNS if noun.kind in kinds.split())


_VERBS = (*VERBS, GIVE)
OBJECTS = {verb.base: of_kinds(verb.kinds) for verb in _VERBS}
COUNTED = {base: tuple(n for n in nouns if not n.unit) for base, nouns in OBJECTS.items()}
_DAILY = {verb.base: of_kinds(verb.daily) for verb in _VERBS}
TAKES_PEOPLE = {verb.base: "person" in verb.kinds.split() for verb in _VERBS}
WHERE = {
    verb.base: tuple(Phrase(PLACES[p].at, f"在{PLACES[p].zh}") for p in verb.places.split())
    for verb in _VERBS
}
GOALS = (*(place for place in PLACES.values() if place.en != "home"), *CITIES)
_LOCAL_GOALS = tuple(place for place in GOALS if place not in CITIES)
_CITY_NAMES = tuple(place.head for place in CITIES)
_LOCAL_MEANS = (
    Phrase("by bus", "坐公共汽车"),
    Phrase("by taxi", "坐出租车"),
    Phrase("by bicycle", "骑自行车"),
)
_CITY_MEANS = (Phrase("by train", "坐火车"), Phrase("by plane", "坐飞机"))

# Verbs with many objects are drawn more often, so that no noun is rare.
ACTIONS = tuple(
    verb
    for verb in VERBS
    if verb.tenses[0] is not STATE
    for _ in range(6 if verb.kinds == "place" else 5 + len(OBJECTS[verb.base]) // 3)
)
_STATES = tuple(verb for verb in VERBS if verb.tenses[0] is STATE)

_LIKED_IN_GENERAL = words("fruit egg dish drink film song")


def _styles(verb: Verb, tense: Tense, noun: Noun, asserted: bool) -> tuple[str, ...]:
    """The styles in which the object is natural in both languages."""
    known = ("this", "own") if verb.owned else ("this",)
    if tense is HABIT or (verb.base == "like" and noun.kind in _LIKED_IN_GENERAL):
        return ("bare",)
    if verb.base == "like":
        return ("bare", "this", "own")
    if tense is PROGRESSIVE and noun.unit:
        return ("bare",)
    if verb.definite or (tense in (CAN, SHOULD) and not asserted):
        return known
    if tense is PROGRESSIVE:
        return ("one", *known) if asserted else known
    if tense is STATE:
        return ("one", "many") if asserted else ("any",)
    if asserted:
        return ("one", "one", "one", "many", "many", "these", *known)
    return ("any", "any", *known)


_STYLES = {
    (verb.base, tense.name, noun.en, asserted): _styles(verb, tense, noun, asserted)
    for verb in _VERBS
    for tense in dict.fromkeys(verb.tenses)
    for noun in OBJECTS[verb.base]
    for asserted in (True, False)
}


def _object(draw: Draw, subject: NP, verb: Verb, tense: Tense, asserted: bool) -> NP:
    nouns = _DAILY[verb.base] if tense is HABIT else OBJECTS[verb.base]
    if TAKES_PEOPLE[verb.base] and (not nouns or draw.chance(0.3)):
        return other_person(draw, subject)
    if verb.kinds == "place":
        return goal(draw.pick(_LOCAL_GOALS if tense is HABIT else GOALS))
    if not nouns:
        return NOBODY
    noun = draw.pick(nouns)
    return thing(draw, noun, draw.pick(_STYLES[verb.base, tense.name, noun.en, asserted]))


def timed(draw: Draw, clause: Clause) -> Clause:
    """The clause with a time that suits its tense, or an adverb, or neither."""
    tense, negative = clause.tense, clause.negative
    if tense is PAST:
        # "They read my book" does not show its tense; a time does.
        always = clause.verb.past == clause.verb.base or clause.duration.en
        if always or draw.chance(0.8):
            days = PAST_DAYS if clause.duration.en else PAST_TIMES
            return clause._replace(time=time(draw, days))
    elif tense is HABIT:
        if negative:
            return clause._replace(time=draw.pick(DAY_PARTS)) if draw.chance(0.5) else clause
        if clause.verb.punctual:
            return clause._replace(time=draw.pick(BY_THE_CLOCK))
        if draw.chance(0.5):
            return clause._replace(adverb=draw.pick(ADVERBS))
        return clause._replace(time=time(draw, HABIT_TIMES))
    elif tense is PROGRESSIVE:
        return clause._replace(time=NOW) if draw.chance(0.3) else clause
    elif clause.verb.base != "see" and draw.chance(0.8 if tense in (FUTURE, GOING) else 0.4):
        return clause._replace(time=time(draw, FUTURE_TIMES))
    return clause


def _circumstance(draw: Draw, clause: Clause) -> Clause:
    """The clause with at most one of: where, with whom, for whom, how."""
    verb, subject = clause.verb, clause.subject
    if clause.tense is PROGRESSIVE and clause.negative:
        return clause  # 没在 and a place would read as the negated past
    if verb.base == "go" and not clause.negative:
        if clause.object.head in _CITY_NAMES and draw.chance(0.8):
            return clause._replace(means=draw.pick(_CITY_MEANS))
        if clause.object.head not in _CITY_NAMES and draw.chance(0.4):
            return clause._replace(means=draw.pick(_LOCAL_MEANS))
    if verb.company and draw.chance(0.25):
        friend = other_person(draw, subject)
        if clause.object.head != friend.head:
            return clause._replace(company=friend)
    if verb.favour and draw.chance(0.25):
        friend = other_person(draw, subject)
        if "的" not in clause.object.zh:  # what is washed for somebody is not another's
            return clause._replace(favour=friend)
    if WHERE[verb.base] and draw.chance(0.45):
        return clause._replace(place=draw.pick(WHERE[verb.base]))
    return clause


def action(
    draw: Draw,
    subject: NP,
    asserted: bool = True,
    negative: bool = False,
    verbs: Sequence[Verb] = ACTIONS,
    tenses: Sequence[Tense] = ACTION,
) -> Clause:
    """A clause about something done, with everything in it but its mood."""
    while True:
        verb = draw.pick(verbs)
        tense = draw.pick(verb.tenses)
        if negative and (not tense.zh_not or (tense is HABIT and verb.punctual)):
            continue
        if tense in tenses:
            break
    clause = Clause(subject, verb, tense, _object(draw, subject, verb, tense, asserted), negative)
    if tense is PAST and asserted and clause.object is NOBODY:
        clause = clause._replace(duration=draw.pick(HOURS_LONG))  # 工作了两个小时
    return _circumstance(draw, timed(draw, clause))


# Statements and questions about what people do ---------------------------------------------------


def statement(draw: Draw) -> Sentence:
    """She bought two red apples at the shop yesterday. 她昨天在商店买了两个红色的苹果。"""
    negative = draw.chance(0.25)
    clause = action(draw, draw.pick(SUBJECTS), not negative, negative)
    return say(english(clause), chinese(clause), *clause.cores)


def yes_no(draw: Draw) -> Sentence:
    """Did you buy any books yesterday? 你昨天买书了吗？"""
    while True:
        clause = action(draw, draw.pick(SUBJECTS), asserted=False)
        if clause.tense is MUST or clause.adverb not in (NONE, OFTEN):
            continue
        # "Should I …?" is a question to ask of oneself, "Did I …?" is not.
        if clause.subject.en not in ("I", "we") or clause.tense in (CAN, SHOULD):
            break
    zh = chinese(clause, le="end") + "吗"
    return say(english_question(clause), zh, *clause.cores, ask=True)


def state(draw: Draw) -> Sentence:
    """He does not know my teacher. 他不认识我的老师。 Do you have any cats? 你有猫吗？"""
    verb, mood = draw.pick(_STATES), draw.pick(("yes", "yes", "no", "ask"))
    subject = draw.pick(ASKED if mood == "ask" else SUBJECTS)
    object = _object(draw, subject, verb, STATE, mood == "yes")
    clause = Clause(subject, verb, STATE, object, mood == "no")
    if mood == "ask":
        return say(english_question(clause), chinese(clause) + "吗", *clause.cores, ask=True)
    return say(english(clause), chinese(clause), *clause.cores)


_WHAT = NP("", "", "什么", "is", "what")
_WHOM = NP("", "", "谁", "is", "whom")
_WHO = NP("who", "", "谁", "is", "who")
# "What" must leave no doubt about the verb: 看什么 is both read and watch.
_ASKS_WHAT = tuple(VERB[b] for b in words("buy sell write drink eat cook wash repair find look"))
_ASKS_WHOM = tuple(VERB[b] for b in words("help call wait see look"))
_ASKS_WHICH = tuple(VERB[b] for b in words("buy sell read watch write wash repair use find"))
_ASKS_WHOSE = tuple(verb for verb in _ASKS_WHICH if verb.owned)
_ASKS_ANY = (PAST, PAST, FUTURE, WANT, PROGRESSIVE)


def _asked_object(draw: Draw) -> tuple[str, Verb, NP]:
    """A question word for the object: its English front, a verb, and its Chinese in the slot."""
    word = draw.pick(("what", "who", "which", "whose", "how many"))
    if word == "what":
        return "what", draw.pick(_ASKS_WHAT), _WHAT
    if word == "who":
        return "who", draw.pick(_ASKS_WHOM), _WHOM
    if word == "how many":
        verb = draw.pick((*_ASKS_WHICH[:4], VERB["drink"], VERB["eat"], VERB["have"]))
        noun = draw.pick(OBJECTS[verb.base])
        np = NP("", "", f"几{noun.measure}{noun.zh}", "is", noun.en)
        return f"how many {noun.many}", verb, np
    verb = draw.pick(_ASKS_WHOSE if word == "whose" else _ASKS_WHICH)
    noun = draw.pick(COUNTED[verb.base])
    if word == "which":
        np = NP("", "", f"哪{noun.measure}{noun.zh}", "is", noun.en)
        return f"which {noun.en}", verb, np
    return f"whose {noun.en}", verb, NP("", "", f"谁的{noun.zh}", "is", noun.en)


def ask_object(draw: Draw) -> Sentence:
    """What did he buy yesterday? 他昨天买了什么？ Which book do you want to read? 你想看哪本书？"""
    front, verb, np = _asked_object(draw)
    tenses = tuple(tense for tense in _ASKS_ANY if tense in verb.tenses)
    if front.startswith("how many"):
        tenses = tuple(tense for tense in tenses if tense is not PROGRESSIVE)
    clause = Clause(draw.pick(ASKED), verb, draw.pick(tenses or (verb.tenses[0],)), np)
    if clause.tense is not STATE:
        clause = timed(draw, clause)
    return say(english_question(clause, front), chinese(clause), *clause.cores, ask=True)


def ask_subject(draw: Draw) -> Sentence:
    """Who repaired my bicycle yesterday? 昨天谁修了我的自行车？"""
    while True:
        clause = action(draw, _WHO, tenses=(PAST, FUTURE, PROGRESSIVE, CAN, WANT))
        # 现在谁正在 says the same twice, and 谁工作了三个小时 is an odd thing to ask.
        if clause.time != NOW and not clause.duration.en:
            break
    return say(english(clause), chinese(clause), *clause.cores, ask=True)


_IN_WHICH_PLACE = Phrase("", "在哪里")
_WHEN = Phrase("", "什么时候")


def ask_where(draw: Draw) -> Sentence:
    """Where did you buy this book? 你是在哪里买这本书的？ Where does he work? 他在哪里工作？"""
    subject = draw.pick(ASKED)
    if draw.chance(0.2):
        clause = Clause(subject, VERB["go"]._replace(particle=""), draw.pick((PAST, FUTURE, WANT)))
        clause = timed(draw, clause._replace(object=NP("", "", "哪里", "is", "where")))
        return say(english_question(clause, "where"), chinese(clause), *clause.cores, ask=True)
    while True:
        clause = action(draw, subject, asserted=False, tenses=(PAST, FUTURE, WANT, HABIT))
        known = " any " not in f" {clause.object.en} "
        if clause.verb.places and clause.adverb is NONE and known:
            break
    clause = clause._replace(place=_IN_WHICH_PLACE, company=NOBODY, favour=NOBODY)
    zh = chinese(clause, focus=clause.tense is PAST)
    return say(english_question(clause, "where"), zh, *clause.cores, ask=True)


def ask_when(draw: Draw) -> Sentence:
    """When did you sell your car? 你是什么时候卖你的汽车的？ When will he go? 他什么时候去？"""
    while True:
        clause = action(draw, draw.pick(ASKED), asserted=False, tenses=(PAST, FUTURE, CAN))
        if clause.tense is CAN and clause.verb.base == "see":
            continue
        if " any " not in f" {clause.object.en} ":
            break
    if clause.tense is PAST:
        clause = clause._replace(time=NONE, place=_WHEN, company=NOBODY, means=NONE)
        zh = chinese(clause, focus=True)
    else:
        # 什么时候 alone tells the future, and 会 after it would sound like a doubt.
        clause = clause._replace(time=_WHEN, place=NONE)
        zh = chinese(clause._replace(tense=HABIT) if clause.tense is FUTURE else clause)
    return say(english_question(clause, "when"), zh, *clause.cores, ask=True)


def give(draw: Draw) -> Sentence:
    """He gave my friend two books yesterday. 他昨天给了我的朋友两本书。"""
    tense = draw.pick(GIVE.tenses)
    mood = draw.pick(("yes", "yes", "no", "ask")) if tense.zh_not else "yes"
    subject = draw.pick(ASKED if mood == "ask" else SUBJECTS)
    person, noun = other_person(draw, subject), draw.pick(OBJECTS["give"])
    gift = thing(draw, noun, draw.pick(("one", "many")) if mood == "yes" else "any")
    object = NP("", f"{person.obj} {gift.obj}", person.zh + gift.zh, "is", noun.en)
    clause = timed(draw, Clause(subject, GIVE, tense, object, mood == "no"))
    cores = (*clause.cores, core(person.head, GIVE.base, noun.en))
    if mood == "ask":
        zh = chinese(clause, le="end") + "吗"
        return say(english_question(clause), zh, *cores, ask=True)
    return say(english(clause), chinese(clause), *cores)
