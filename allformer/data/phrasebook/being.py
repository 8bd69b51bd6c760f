"""What there is, where it is, whose, how and how much: sentences around "to be"."""

from allformer.data.phrasebook.acts import of_kinds
from allformer.data.phrasebook.clauses import Sentence, core, say
from allformer.data.phrasebook.lexicon import (
    ADJECTIVES,
    BUILDINGS,
    DAYS,
    NOUNS,
    PARTS,
    PEOPLE,
    PLACES,
    SPOTS,
    Adjective,
    Noun,
    Person,
    Place,
    words,
)
from allformer.data.phrasebook.phrases import (
    ASKED,
    COUNTS,
    DATES,
    NP,
    OWNERS,
    SUBJECTS,
    THIS,
    Draw,
    Phrase,
    a_or_an,
    clock,
    count,
    number,
    other_person,
    thing,
)

# There is, is at, is ----------------------------------------------------------------------------

_PLACES = tuple(PLACES.values())
SMALL_KINDS = words("book dictionary newspaper letter ticket map fruit umbrella device animal")
_SMALL = tuple(noun for noun in NOUNS if noun.kind in SMALL_KINDS)


def there_is(draw: Draw) -> Sentence:
    """There are two books on the table. 桌子上有两本书。"""
    item: Noun | Person
    if draw.chance(0.6):
        item = draw.pick(_SMALL)
        where_en, where_zh, where = draw.pick(SPOTS)
    else:
        item, inside = draw.pick(PEOPLE), draw.pick(BUILDINGS)
        where_en, where_zh, where = f"in {inside.en}", f"{inside.zh}里", inside.head
    many, zh, measure = item.many, item.zh, item.measure
    key = core(item.en, where)
    mood = draw.pick(("one", "many", "many", "no", "any", "how many"))
    if mood == "one":
        return say(f"there is {a_or_an(item.one)} {where_en}", f"{where_zh}有一{measure}{zh}", key)
    if mood == "many":
        n = draw.pick(COUNTS)
        return say(f"there are {n.en} {many} {where_en}", f"{where_zh}有{n.zh}{measure}{zh}", key)
    if mood == "no":
        return say(f"there are no {many} {where_en}", f"{where_zh}没有{zh}", key)
    if mood == "any":
        return say(f"are there any {many} {where_en}", f"{where_zh}有{zh}吗", key, ask=True)
    en = f"how many {many} are there {where_en}"
    return say(en, f"{where_zh}有几{measure}{zh}", key, ask=True)


def is_near(draw: Draw) -> Sentence:
    """Is there a bank near the park? 公园附近有银行吗？"""
    building, near = draw.pick(BUILDINGS), draw.pick(BUILDINGS)
    while near is building:
        near = draw.pick(BUILDINGS)
    where, where_zh, key = f"near {near.en}", f"{near.zh}附近", core(building.head, near.head)
    mood = draw.pick(("yes", "no", "ask", "is it", "it is"))
    if mood == "yes":
        en = f"there is {a_or_an(building.head)} {where}"
        return say(en, f"{where_zh}有一{building.measure}{building.zh}", key)
    if mood == "no":
        return say(f"there is no {building.head} {where}", f"{where_zh}没有{building.zh}", key)
    if mood == "ask":
        en = f"is there {a_or_an(building.head)} {where}"
        return say(en, f"{where_zh}有{building.zh}吗", key, ask=True)
    if mood == "is it":
        return say(f"is {building.en} {where}", f"{building.zh}在{where_zh}吗", key, ask=True)
    return say(f"{building.en} is {where}", f"{building.zh}在{where_zh}", key)


def is_at(draw: Draw) -> Sentence:
    """My book is on the table. 我的书在桌子上。 Where is your mother? 你妈妈在哪里？"""
    mood = draw.pick(("yes", "yes", "no", "ask", "where"))
    if draw.chance(0.5):
        np = draw.pick(SUBJECTS if mood in ("yes", "no") else ASKED)
        place = draw.pick(_PLACES)
        where_en, where_zh, where = place.at, place.zh, place.head
    else:
        np = thing(draw, draw.pick(_SMALL), "own")
        where_en, where_zh, where = draw.pick(SPOTS)
    key = core(np.head, where)
    if mood == "yes":
        return say(f"{np.en} {np.be} {where_en}", f"{np.zh}在{where_zh}", key)
    if mood == "no":
        return say(f"{np.en} {np.be} not {where_en}", f"{np.zh}不在{where_zh}", key)
    if mood == "ask":
        return say(f"{np.be} {np.en} {where_en}", f"{np.zh}在{where_zh}吗", key, ask=True)
    return say(f"where {np.be} {np.en}", f"{np.zh}在哪里", ask=True)


_OWNED = tuple(noun for noun in NOUNS if noun.kind not in ("film", "song"))


def is_whose(draw: Draw) -> Sentence:
    """This is not his coat. 这不是他的大衣。 Whose book is that? 那是谁的书？"""
    noun, owner = draw.pick(_OWNED), draw.pick(OWNERS)
    this, this_zh = draw.pick(THIS)
    zh = f"{owner.zh}的{noun.zh}"
    mood = draw.pick(("yes", "no", "ask", "whose"))
    if mood == "yes":
        return say(f"{this} is {owner.en} {noun.en}", f"{this_zh}是{zh}")
    if mood == "no":
        return say(f"{this} is not {owner.en} {noun.en}", f"{this_zh}不是{zh}")
    if mood == "ask":
        return say(f"is {this} {owner.en} {noun.en}", f"{this_zh}是{zh}吗", ask=True)
    en = f"whose {noun.en} is {this}"
    return say(en, f"{this_zh}是谁的{noun.zh}", ask=True)


# Adjectives and comparison -----------------------------------------------------------------------


def _adjectives(kind: str, compared: bool = False) -> tuple[Adjective, ...]:
    return tuple(a for a in ADJECTIVES if kind in a.kinds.split() and (a.more or not compared))


FITTING = {
    kind: _adjectives(kind)
    for kind in dict.fromkeys(["person", "child", "building", *(noun.kind for noun in NOUNS)])
}
_COMPARED = {kind: _adjectives(kind, compared=True) for kind in FITTING}
_DESCRIBED = tuple(noun for noun in NOUNS if _COMPARED[noun.kind] and not noun.unit)
_OWNED_DESCRIBED = tuple(noun for noun in _DESCRIBED if noun in _OWNED)
_OF_KIND = {noun.kind: of_kinds(noun.kind) for noun in _DESCRIBED}
_IT = NP("it", "it", "它", "is", "it")


def _building(building: Place, this: Phrase) -> NP:
    en = f"{this.en} {building.head}"
    return NP(en, en, this.zh + building.measure + building.zh, "is", building.head)


def _describable(draw: Draw) -> tuple[NP, str]:
    """Somebody or something that an adjective can be said of, and its kind."""
    sort = draw.pick(("person", "person", "thing", "thing", "thing", "building"))
    if sort == "person":
        return draw.pick(SUBJECTS), "person"
    if sort == "building":
        return _building(draw.pick(BUILDINGS), draw.pick(THIS)), "building"
    noun = draw.pick(_DESCRIBED)
    styles = ("this", "own", "these") if noun in _OWNED else ("this", "these")
    return thing(draw, noun, draw.pick(styles), plain=True), noun.kind


_CHILDREN = ("boy", "girl", "student")
# Too much of it is bad; 太漂亮了 is praise, and would not be "too beautiful".
_TOO = words("tall busy young tired expensive old big small heavy long")


def describe(draw: Draw, np: NP, kind: str, *cores: str) -> Sentence:
    """That something is very, not or too so, or the question whether it is."""
    a = draw.pick(FITTING["child" if np.head in _CHILDREN else kind])
    key = core(np.head, a.en)
    mood = draw.pick(("very", "not", "too", "ask"))
    if mood == "ask" and np.en in ("I", "we"):
        mood = "not"
    if mood == "very" or (mood == "too" and a.en not in _TOO):
        return say(f"{np.en} {np.be} very {a.en}", f"{np.zh}很{a.zh}", key, *cores)
    if mood == "not":
        return say(f"{np.en} {np.be} not {a.en}", f"{np.zh}不{a.zh}", key, *cores)
    if mood == "too":
        return say(f"{np.en} {np.be} too {a.en}", f"{np.zh}太{a.zh}了", key, *cores)
    return say(f"{np.be} {np.en} {a.en}", f"{np.zh}{a.zh}吗", key, *cores, ask=True)


def quality(draw: Draw) -> Sentence:
    """This coat is too expensive. 这件大衣太贵了。"""
    np, kind = _describable(draw)
    return describe(draw, np, kind)


def _compared(draw: Draw) -> tuple[NP, NP, str]:
    """Two of a kind to compare."""
    sort = draw.pick(("person", "person", "thing", "thing", "thing", "building"))
    if sort == "person":
        person = draw.pick(SUBJECTS)
        other = other_person(draw, person)
        young = person.head in _CHILDREN or other.head in _CHILDREN
        return person, other, "child" if young else "person"
    if sort == "building":
        building = draw.pick(BUILDINGS)
        a, b = draw.pick((THIS, THIS[::-1]))
        return _building(building, a), _building(building, b), "building"
    noun = model = draw.pick(_OWNED_DESCRIBED)
    if noun.kind != "vehicle" and draw.chance(0.4):
        model = draw.pick(_OF_KIND[noun.kind])
    while True:
        one = thing(draw, noun, draw.pick(("this", "own", "these")), plain=True)
        two = thing(draw, model, draw.pick(("this", "own")), plain=True)
        if one.zh != two.zh and not (one.zh[0] == two.zh[0] == "我"):  # mine may be ours
            return _IT if draw.chance(0.1) else one, two, noun.kind


def comparison(draw: Draw) -> Sentence:
    """My car is cheaper than your car. 我的汽车比你的汽车便宜。"""
    a, b, kind = _compared(draw)
    adjective = draw.pick(_COMPARED[kind])
    en, more, zh = adjective[:3]
    cores = (core(a.head, en), core(b.head, en), core(a.head, en, b.head))
    mood = draw.pick(("more", "more", "much", "little", "less", "less", "same", "ask", "years"))
    if mood == "years" and kind in ("person", "child"):
        n = count(draw.pick(range(2, 11)))
        age, age_zh, word = draw.pick((("older", "大", "old"), ("younger", "小", "young")))
        return say(
            f"{a.en} {a.be} {n.en} years {age} than {b.obj}",
            f"{a.zh}比{b.zh}{age_zh}{n.zh}岁",
            core(a.head, word),
            core(b.head, word),
            core(a.head, word, b.head),
        )
    if mood == "much":
        return say(f"{a.en} {a.be} much {more} than {b.obj}", f"{a.zh}比{b.zh}{zh}得多", *cores)
    if mood == "little":
        en = f"{a.en} {a.be} a little {more} than {b.obj}"
        return say(en, f"{a.zh}比{b.zh}{zh}一点", *cores)
    if mood == "less":
        en = f"{a.en} {a.be} not as {en} as {b.obj}"
        return say(en, f"{a.zh}没有{b.zh}那么{zh}", *cores)
    if mood == "same":
        return say(f"{a.en} {a.be} as {en} as {b.obj}", f"{a.zh}和{b.zh}一样{zh}", *cores)
    if mood == "ask" and a.en not in ("I", "we"):
        en = f"{a.be} {a.en} {more} than {b.obj}"
        return say(en, f"{a.zh}比{b.zh}{zh}吗", *cores, ask=True)
    return say(f"{a.en} {a.be} {more} than {b.obj}", f"{a.zh}比{b.zh}{zh}", *cores)


# Numbers: prices, ages, the calendar -------------------------------------------------------------


_FOR_SALE = of_kinds("book dictionary map ticket clothes umbrella")


def price(draw: Draw) -> Sentence:
    """This hat costs sixty-five yuan. 这顶帽子六十五块钱。 Or how much it is."""
    noun = draw.pick(_FOR_SALE)
    np = thing(draw, noun, draw.pick(("this", "these")), plain=True)
    if draw.chance(0.25):
        return say(f"how much {np.be} {np.en}", f"{np.zh}多少钱", ask=True)
    n = number(draw.pick(range(20, 100)))
    cost = "costs" if np.be == "is" else "cost"
    return say(f"{np.en} {cost} {n.en} yuan", f"{np.zh}{n.zh}块钱", core(noun.en, n.en))


_PARENTS = ("father", "mother")
_ADULTS = tuple(
    np
    for np in SUBJECTS
    if (np.be != "are" or np.en == "you") and np.head not in ("boy", "girl", "student")
)


def age(draw: Draw) -> Sentence:
    """Is her father fifty-two years old? 她爸爸五十二岁吗？"""
    np = draw.pick(_ADULTS)
    n = number(draw.pick(range(40, 70) if np.head in _PARENTS else range(20, 50)))
    key = core(np.head, n.en)
    if np.en != "I" and draw.chance(0.3):
        return say(f"{np.be} {np.en} {n.en} years old", f"{np.zh}{n.zh}岁吗", key, ask=True)
    return say(f"{np.en} {np.be} {n.en} years old", f"{np.zh}{n.zh}岁", key)


_DAYS = tuple(Phrase(*day) for day in DAYS)


def calendar(draw: Draw) -> Sentence:
    """Tomorrow is the third of May. 明天是五月三号。 Or the time by the clock."""
    if draw.chance(0.5):
        day, day_zh = draw.pick((("today", "今天"), ("tomorrow", "明天")))
        date = draw.pick(DATES) if draw.chance(0.8) else draw.pick(_DAYS)
        if draw.chance(0.3):
            return say(f"is {day} {date.en}", f"{day_zh}是{date.zh}吗", ask=True)
        return say(f"{day} is {date.en}", f"{day_zh}是{date.zh}")
    part, part_zh, hours = draw.pick(PARTS)
    now = draw.pick(clock(draw.pick(hours)))
    en = f"it is {now.en} in the {part} now"
    return say(en, f"现在是{part_zh}{now.zh}")
