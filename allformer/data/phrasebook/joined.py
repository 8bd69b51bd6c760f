"""Sentences of two clauses, which the two languages order differently: that, who, because, if."""

from allformer.data.phrasebook.acts import (
    ACTIONS,
    COUNTED,
    GOALS,
    OBJECTS,
    TAKES_PEOPLE,
    WHERE,
    action,
)
from allformer.data.phrasebook.being import FITTING, SMALL_KINDS, describe
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
    FUTURE,
    HABIT,
    PAST,
    PEOPLE,
    PROGRESSIVE,
    RELATIONS,
    SPOTS,
    STATE,
    VERB,
    VERBS,
    WANT,
    Noun,
    Person,
    Tense,
    Verb,
    words,
)
from allformer.data.phrasebook.phrases import (
    ASKED,
    COUNTS,
    NOBODY,
    NP,
    OWNERS,
    PAST_DAYS,
    PLAIN_PEOPLE,
    PRONOUN_NPS,
    REFERABLE,
    SUBJECTS,
    Draw,
    Phrase,
    goal,
    other_person,
    thing,
    time,
)

# Relative clauses: after the noun in English, before it in Chinese -------------------------------

_GAPS = tuple(verb for verb in VERBS if verb.gap for _ in range(1 + len(OBJECTS[verb.base]) // 3))
_GAP_TENSES = (PAST, PAST, PAST, PROGRESSIVE, WANT, STATE)


def _object_relative(draw: Draw) -> tuple[NP, str, Clause]:
    """A noun phrase such as "the book that I bought", its kind, and the clause in it."""
    while True:
        verb = draw.pick(_GAPS)
        tense = draw.pick(_GAP_TENSES)
        if tense in verb.tenses:
            break
    subject = draw.pick(SUBJECTS)
    item: Noun | Person
    if TAKES_PEOPLE[verb.base] and (not COUNTED[verb.base] or draw.chance(0.3)):
        item = draw.pick(PEOPLE)
        while item.en == subject.head:
            item = draw.pick(PEOPLE)
    else:
        item = draw.pick(COUNTED[verb.base])
    clause = Clause(subject, verb, tense, NP("", "", "", "is", item.en))
    if tense is PAST:
        if draw.chance(0.3):
            clause = clause._replace(place=draw.pick(WHERE[verb.base]))
        if verb.base == "read" or (clause.place is NONE and draw.chance(0.7)):
            clause = clause._replace(time=time(draw, PAST_DAYS))
    that = f"that {english(clause)}"
    gap = f"{chinese(clause, le='')}的那"  # without 了: 我昨天买的那本书
    if draw.chance(0.2):
        n = draw.pick(COUNTS)
        en = f"the {n.en} {item.many} {that}"
        return NP(en, en, f"{gap}{n.zh}{item.measure}{item.zh}", "are", item.en), item.kind, clause
    en = f"the {item.en} {that}"
    return NP(en, en, f"{gap}{item.measure}{item.zh}", "is", item.en), item.kind, clause


def object_relative(draw: Draw) -> Sentence:
    """The book that I bought yesterday is very heavy. 我昨天买的那本书很重。"""
    np, kind, clause = _object_relative(draw)
    verb, done = clause.verb, clause.tense is PAST
    moods = ["quality", "quality"] if FITTING[kind] else []
    if kind != "person" and verb.tenses[0] is not STATE:
        moods.append("like")
    if kind not in ("film", "song") and (clause.tense is not PROGRESSIVE or verb.base == "look"):
        moods.append("where")
    if kind in SMALL_KINDS and done:
        moods.append("spot")
    if verb.base in ("buy", "sell"):
        moods.append("price")
    mood = draw.pick(moods)
    if mood == "quality":
        return describe(draw, np, kind, *clause.cores)
    if mood == "like":
        return _about(draw, VERB["like"], np, clause)
    if mood == "where":
        return say(f"where {np.be} {np.en}", f"{np.zh}在哪里", *clause.cores, ask=True)
    if mood == "price":
        return say(f"how much {np.be} {np.en}", f"{np.zh}多少钱", *clause.cores, ask=True)
    where_en, where_zh, where = draw.pick(SPOTS)
    cores = (core(np.head, where), *clause.cores)
    return say(f"{np.en} {np.be} {where_en}", f"{np.zh}在{where_zh}", *cores)


def _about(draw: Draw, verb: Verb, np: NP, inner: Clause) -> Sentence:
    """Somebody knows or likes what the relative clause tells of; so, not so, or whether."""
    mood = draw.pick(("yes", "no", "ask"))
    subject = other_person(draw, np, ASKED if mood == "ask" else SUBJECTS)
    outer = Clause(subject, verb, STATE, np, mood == "no")
    cores = (*outer.cores, *inner.cores)
    if mood == "ask":
        return say(english_question(outer), chinese(outer) + "吗", *cores, ask=True)
    return say(english(outer), chinese(outer), *cores)


_DOERS = tuple(
    verb
    for verb in ACTIONS
    if verb.base not in ("find", "look", "sell")  # who did these is not seen on the spot
)
_GROWN = ("friend", "teacher")
_ANYONE = ("friend", "classmate")


def _subject_relative(draw: Draw) -> tuple[NP, Person, Clause]:
    """A noun phrase such as "the girl who is drinking tea", her, and the clause in it."""
    person = draw.pick(PEOPLE)
    gap = NP("who", "", "", "is", person.en)
    while True:
        verb = draw.pick(_DOERS)
        tense = draw.pick((PROGRESSIVE, PROGRESSIVE, PAST, WANT, HABIT))
        # 工作 in the past wants a duration, too much for one noun to carry.
        if tense in verb.tenses and (verb.kinds if tense is not HABIT else not verb.kinds):
            break
    if TAKES_PEOPLE[verb.base]:
        object = other_person(draw, gap, PLAIN_PEOPLE)
    elif verb.kinds == "place":
        object = goal(draw.pick(GOALS))
    elif not verb.kinds:
        object = NOBODY
    else:
        noun = draw.pick(OBJECTS[verb.base])
        styles = ("this",) if verb.definite else ("one", "this")
        style = "bare" if noun.unit and tense is PROGRESSIVE else draw.pick(styles)
        object = thing(draw, noun, style, plain=True)
    clause = Clause(gap, verb, tense, object)
    if tense is HABIT:
        clause = clause._replace(place=draw.pick(WHERE[verb.base]))
    elif tense is PAST:
        clause = clause._replace(time=time(draw, PAST_DAYS))
    en = f"the {person.en} {english(clause)}"
    zh = f"{chinese(clause)}的那{person.measure}{person.zh}"
    return NP(en, en, zh, "is", person.en), person, clause


def subject_relative(draw: Draw) -> Sentence:
    """The girl who is drinking tea is my friend. 正在喝茶的那个女孩是我的朋友。"""
    np, person, clause = _subject_relative(draw)
    mood = draw.pick(("quality", "is", "who", "know", "know"))
    if mood == "quality":
        return describe(draw, np, "person", *clause.cores)
    if mood == "know":
        return _about(draw, VERB[draw.pick(("know", "know", "like"))], np, clause)
    if mood == "who":
        return say(f"who is {np.en}", f"{np.zh}是谁", *clause.cores, ask=True)
    roles = _GROWN if person.en in ("man", "woman", "doctor", "nurse") else _ANYONE
    role = draw.pick(roles)
    role_zh = next(relation.zh for relation in RELATIONS if relation.en == role)
    owner = draw.pick(OWNERS)
    cores = (core(np.head, role), *clause.cores)
    return say(f"{np.en} is {owner.en} {role}", f"{np.zh}是{owner.zh}的{role_zh}", *cores)


# Because and if ----------------------------------------------------------------------------------

# Reasons not to, and reasons to: (English after "he was", Chinese after 他, content word).
_HINDERS = (("very busy", "很忙", "busy"), ("very tired", "很累", "tired"))
_HELPS = (("not busy", "不忙", "busy"), ("not tired", "不累", "tired"))


# What one does or does not do for want of time.
_LEISURE = tuple(
    VERB[base]
    for base in words("read watch listen write cook wash repair help call go go go study swim run")
)


def _main_clause(draw: Draw, tense: Tense, negative: bool) -> tuple[Clause, NP]:
    """Something done or not done, and the pronoun that takes its subject up again."""
    while True:
        clause = action(draw, draw.pick(REFERABLE), not negative, negative, _LEISURE, (tense,))
        pronoun = PRONOUN_NPS[clause.subject.pronoun]
        others = (clause.object, clause.company, clause.favour)
        if pronoun not in others:
            return clause._replace(means=NONE), pronoun


def because(draw: Draw) -> Sentence:
    """My mother did not go to the park because she was very busy. 因为我妈妈很忙，所以她没去公园。

    In either language the noun comes first and the pronoun takes it up; as the clauses change
    places, so do the noun and the pronoun.
    """
    negative = draw.chance(0.6)
    clause, pronoun = _main_clause(draw, PAST, negative)
    subject = clause.subject
    if draw.chance(0.4):
        en = "had no time" if negative else "had time"
        zh, word = ("没有时间" if negative else "有时间"), "time"
    else:
        state_en, zh, word = draw.pick(_HINDERS if negative else _HELPS)
        en = f"{'were' if subject.be == 'are' else 'was'} {state_en}"
    main_zh = chinese(clause._replace(subject=pronoun))
    return say(
        f"{english(clause)} because {pronoun.en} {en}",
        f"因为{subject.zh}{zh}，所以{main_zh}",
        *clause.cores,
        core(subject.head, word),
    )


_OUTDOORS = ("go", "run", "swim")


def condition(draw: Draw) -> Sentence:
    """We will not go to the park if it rains tomorrow. 如果明天下雨，我们就不会去公园。"""
    negative = draw.chance(0.4)
    clause, pronoun = _main_clause(draw, FUTURE, negative)
    clause, subject = clause._replace(time=NONE), clause.subject
    when = time(draw, _CONDITION_TIMES)
    if clause.verb.base in _OUTDOORS and draw.chance(0.7):
        weather, weather_zh = ("it rains", "下雨") if negative else ("it does not rain", "不下雨")
        en = f"{english(clause)} if {weather} {when.en}"
        return say(en, f"如果{when.zh}{weather_zh}，{chinese(clause, then='就')}", *clause.cores)
    has = "has" if pronoun.be == "is" else "have"
    if draw.chance(0.4):
        en = f"{has} no time" if negative else f"{has} time"
        zh, word = ("没有时间" if negative else "有时间"), "time"
    else:
        state_en, zh, word = draw.pick(_HINDERS if negative else _HELPS)
        en = f"{pronoun.be} {state_en}"
    main_zh = chinese(clause._replace(subject=pronoun), then="就")
    return say(
        f"{english(clause)} if {pronoun.en} {en} {when.en}",
        f"如果{subject.zh}{when.zh}{zh}，{main_zh}",
        *clause.cores,
        core(subject.head, word),
    )


# Days alone: "if he has time at a quarter past eight" is no way to plan.
_CONDITION_TIMES = (
    (Phrase("tomorrow", "明天"),),
    (Phrase("tomorrow evening", "明天晚上"), Phrase("this evening", "今天晚上")),
    (Phrase("on Saturday", "星期六"), Phrase("on Sunday", "星期天")),
)
