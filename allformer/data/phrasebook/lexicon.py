"""The words of the phrasebook: one table for each kind of word, English beside Chinese.

Every row carries what the two grammars need to know about the word and nothing else: its English
forms, its Chinese form, its measure word, and what it goes with, so that nobody eats a bicycle.
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """A thing. `unit` is empty for things that are counted; coffee is counted in cups."""

    en: str
    plural: str  # the bare form: "books", but "coffee"
    zh: str
    measure: str  # 一本书, 一杯咖啡
    kind: str
    unit: str = ""
    units: str = ""

    @property
    def one(self) -> str:
        """The form after "a" or "this": `book`, `cup of coffee`."""
        return f"{self.unit} of {self.en}" if self.unit else self.en

    @property
    def many(self) -> str:
        """The form after "two": `books`, `cups of coffee`."""
        return f"{self.units} of {self.en}" if self.unit else self.plural


NOUNS = (
    Noun("book", "books", "书", "本", "book"),
    Noun("dictionary", "dictionaries", "词典", "本", "dictionary"),
    Noun("newspaper", "newspapers", "报纸", "份", "newspaper"),
    Noun("letter", "letters", "信", "封", "letter"),
    Noun("article", "articles", "文章", "篇", "article"),
    Noun("ticket", "tickets", "票", "张", "ticket"),
    Noun("map", "maps", "地图", "张", "map"),
    Noun("movie", "movies", "电影", "部", "film"),
    Noun("game", "games", "比赛", "场", "film"),
    Noun("song", "songs", "歌", "首", "song"),
    Noun("apple", "apples", "苹果", "个", "fruit"),
    Noun("orange", "oranges", "橙子", "个", "fruit"),
    Noun("egg", "eggs", "鸡蛋", "个", "egg"),
    Noun("dumpling", "dumplings", "饺子", "个", "dish"),
    Noun("rice", "rice", "米饭", "碗", "dish", "bowl", "bowls"),
    Noun("noodles", "noodles", "面条", "碗", "dish", "bowl", "bowls"),
    Noun("coffee", "coffee", "咖啡", "杯", "drink", "cup", "cups"),
    Noun("tea", "tea", "茶", "杯", "drink", "cup", "cups"),
    Noun("milk", "milk", "牛奶", "杯", "drink", "glass", "glasses"),
    Noun("water", "water", "水", "杯", "drink", "glass", "glasses"),
    Noun("juice", "juice", "果汁", "杯", "drink", "glass", "glasses"),
    Noun("shirt", "shirts", "衬衫", "件", "clothes"),
    Noun("coat", "coats", "大衣", "件", "clothes"),
    Noun("skirt", "skirts", "裙子", "条", "clothes"),
    Noun("hat", "hats", "帽子", "顶", "clothes"),
    Noun("car", "cars", "汽车", "辆", "vehicle"),
    Noun("bicycle", "bicycles", "自行车", "辆", "vehicle"),
    Noun("computer", "computers", "电脑", "台", "device"),
    Noun("phone", "phones", "手机", "部", "device"),
    Noun("umbrella", "umbrellas", "雨伞", "把", "umbrella"),
    Noun("chair", "chairs", "椅子", "把", "furniture"),
    Noun("table", "tables", "桌子", "张", "furniture"),
    Noun("cat", "cats", "猫", "只", "animal"),
    Noun("dog", "dogs", "狗", "只", "animal"),
    Noun("bird", "birds", "鸟", "只", "animal"),
)


class Pronoun(NamedTuple):
    """A personal pronoun with its object and possessive forms."""

    en: str
    obj: str
    possessive: str
    zh: str
    be: str  # "am", "is" or "are": all the agreement that English has


PRONOUNS = (
    Pronoun("I", "me", "my", "我", "am"),
    Pronoun("you", "you", "your", "你", "are"),
    Pronoun("he", "him", "his", "他", "is"),
    Pronoun("she", "her", "her", "她", "is"),
    Pronoun("we", "us", "our", "我们", "are"),
    Pronoun("they", "them", "their", "他们", "are"),
)


class Person(NamedTuple):
    """A person by role. `pronoun` is empty where the word does not tell he from she."""

    en: str
    plural: str
    zh: str
    measure: str
    pronoun: str
    kin: bool = False  # 我爸爸, but 我的朋友: close kin take no 的
    kind: str = "person"

    @property
    def one(self) -> str:
        """As for a noun, the form after "a": `teacher`."""
        return self.en

    @property
    def many(self) -> str:
        """As for a noun, the form after "two": `teachers`."""
        return self.plural


RELATIONS = (
    Person("father", "", "爸爸", "", "he", kin=True),
    Person("mother", "", "妈妈", "", "she", kin=True),
    Person("older brother", "", "哥哥", "", "he", kin=True),
    Person("older sister", "", "姐姐", "", "she", kin=True),
    Person("younger brother", "", "弟弟", "", "he", kin=True),
    Person("younger sister", "", "妹妹", "", "she", kin=True),
    Person("friend", "friends", "朋友", "个", ""),
    Person("teacher", "teachers", "老师", "位", ""),
    Person("classmate", "classmates", "同学", "个", ""),
)

PEOPLE = (
    Person("man", "men", "男人", "个", "he"),
    Person("woman", "women", "女人", "个", "she"),
    Person("boy", "boys", "男孩", "个", "he"),
    Person("girl", "girls", "女孩", "个", "she"),
    Person("student", "students", "学生", "个", ""),
    Person("nurse", "nurses", "护士", "位", ""),
    Person("doctor", "doctors", "医生", "位", ""),
)

NAMES = (
    Person("Tom", "", "汤姆", "", "he"),
    Person("David", "", "大卫", "", "he"),
    Person("Mary", "", "玛丽", "", "she"),
    Person("Anna", "", "安娜", "", "she"),
)


class Place(NamedTuple):
    """A place that one can be at and go to; `measure` only where it is one of many."""

    en: str  # "the park", "Beijing"
    at: str  # "in the park", "at home"
    zh: str
    measure: str = ""

    @property
    def head(self) -> str:
        """The content word: `park`, `Beijing`, `home`."""
        return self.en.removeprefix("the ")


PLACES = {
    place.head: place
    for place in (
        Place("home", "at home", "家"),
        Place("Beijing", "in Beijing", "北京"),
        Place("Shanghai", "in Shanghai", "上海"),
        Place("Guangzhou", "in Guangzhou", "广州"),
        Place("the school", "at the school", "学校", "所"),
        Place("the hospital", "at the hospital", "医院", "家"),
        Place("the park", "in the park", "公园", "个"),
        Place("the library", "at the library", "图书馆", "个"),
        Place("the shop", "at the shop", "商店", "家"),
        Place("the supermarket", "at the supermarket", "超市", "家"),
        Place("the restaurant", "at the restaurant", "饭馆", "家"),
        Place("the museum", "at the museum", "博物馆", "个"),
        Place("the hotel", "at the hotel", "酒店", "家"),
        Place("the station", "at the station", "车站", "个"),
        Place("the bank", "at the bank", "银行", "家"),
        Place("the airport", "at the airport", "机场", "个"),
        Place("the office", "at the office", "办公室"),
    )
}
CITIES = (PLACES["Beijing"], PLACES["Shanghai"], PLACES["Guangzhou"])
BUILDINGS = tuple(place for place in PLACES.values() if place.measure)

# Where small things lie. English puts the relation first (on the table), Chinese last (桌子上).
SPOTS = (
    ("on the table", "桌子上", "table"),
    ("under the table", "桌子下面", "table"),
    ("on the chair", "椅子上", "chair"),
    ("under the chair", "椅子下面", "chair"),
    ("on the bed", "床上", "bed"),
    ("under the bed", "床下面", "bed"),
    ("in the box", "盒子里", "box"),
    ("behind the door", "门后面", "door"),
)


class Tense(NamedTuple):
    """A tense or a modal: the word that Chinese sets before the verb, and before it when negated.

    An empty `zh_not` says that the phrasebook does not negate this one.
    """

    name: str
    zh: str
    zh_not: str


PAST = Tense("past", "", "没")  # 没 denies that it happened, so 了 goes with the affirmative alone
HABIT = Tense("habit", "", "不")
STATE = Tense("state", "", "不")  # present of know, like, need, have
PROGRESSIVE = Tense("progressive", "正在", "没在")
FUTURE = Tense("will", "会", "不会")
GOING = Tense("going to", "要", "")
CAN = Tense("can", "能", "不能")
MUST = Tense("must", "必须", "")
SHOULD = Tense("should", "应该", "不应该")
WANT = Tense("want to", "想", "不想")

# How often each is drawn for a verb that takes them all.
ACTION = (
    *(PAST,) * 10,
    *(FUTURE,) * 5,
    *(PROGRESSIVE,) * 6,
    *(WANT,) * 4,
    *(HABIT,) * 11,
    *(GOING,) * 3,
    *(CAN,) * 3,
    *(SHOULD,) * 2,
    *(MUST,) * 2,
)


def without(*tenses: Tense) -> tuple[Tense, ...]:
    """The tenses of an action less some: `without(PROGRESSIVE)` for arriving."""
    return tuple(tense for tense in ACTION if tense not in tenses)


class Verb(NamedTuple):
    """A verb, its English forms, its Chinese parts, and what it goes with.

    Chinese is `coverb` object `zh` 了 `rest` for 给我打了电话, and `zh` 了 object for 买了书.
    """

    base: str
    third: str
    past: str
    ing: str
    zh: str
    kinds: str = ""  # of object; "person" for people, "place" for a goal, empty for none
    places: str = ""  # where it is done
    tenses: tuple[Tense, ...] = ACTION
    daily: str = ""  # kinds of object with which it can be a habit; nobody buys cars every day
    particle: str = ""  # "wait for", "go to"
    coverb: str = ""
    rest: str = ""  # 电话 of 打电话, 泳 of 游泳: what 了 and 两个小时 go before
    zh_not: str = ""  # only 有, which 没 negates in every tense
    company: bool = False  # done "with my friend"
    favour: bool = False  # done "for my mother"
    punctual: bool = False  # as a habit it needs the hour: "leaves the office at five o'clock"
    owned: bool = True  # its object can be somebody's already: "wash my car", not "buy my car"
    definite: bool = False  # its object is always a known one: "use my phone"
    gap: bool = False  # its object can head a relative clause: "the book that I bought"


VERBS = (
    Verb(
        *("buy", "buys", "bought", "buying", "买"),
        "book dictionary newspaper ticket map fruit egg drink clothes vehicle device umbrella "
        "furniture",
        "shop Beijing Shanghai Guangzhou",
        daily="newspaper fruit egg drink",
        owned=False,
        favour=True,
        gap=True,
    ),
    Verb(
        *("sell", "sells", "sold", "selling", "卖"),
        "book vehicle device furniture",
        "shop Beijing Shanghai Guangzhou",
        tenses=without(PROGRESSIVE, HABIT),
        gap=True,
    ),
    Verb(
        *("read", "reads", "read", "reading", "看"),
        "book newspaper letter article",
        "home library school park office",
        daily="book newspaper article",
        gap=True,
    ),
    Verb(
        *("watch", "watches", "watched", "watching", "看"),
        "film",
        "home school hotel",
        daily="film",
        owned=False,
        company=True,
        gap=True,
    ),
    Verb(
        *("listen", "listens", "listened", "listening", "听"),
        "song",
        "home park school",
        daily="song",
        particle="to",
        company=True,
        owned=False,
    ),
    Verb(
        *("write", "writes", "wrote", "writing", "写"),
        "letter article",
        "home library office hotel",
        daily="letter article",
        owned=False,
        gap=True,
    ),
    Verb(
        *("drink", "drinks", "drank", "drinking", "喝"),
        "drink",
        "home restaurant office hotel",
        daily="drink",
        company=True,
    ),
    Verb(
        *("eat", "eats", "ate", "eating", "吃"),
        "fruit egg dish",
        "home restaurant school hotel",
        daily="fruit egg dish",
        company=True,
    ),
    Verb(
        *("cook", "cooks", "cooked", "cooking", "做"),
        "dish",
        "home restaurant",
        daily="dish",
        owned=False,
        favour=True,
        company=True,
    ),
    Verb(
        *("wash", "washes", "washed", "washing", "洗"),
        "clothes vehicle fruit",
        "home hotel",
        daily="clothes fruit",
        favour=True,
        gap=True,
    ),
    Verb(
        *("repair", "repairs", "repaired", "repairing", "修"),
        "vehicle device furniture umbrella",
        "home school shop",
        tenses=without(HABIT),
        favour=True,
        gap=True,
    ),
    Verb(
        *("use", "uses", "used", "using", "用"),
        "device map dictionary umbrella",
        "library school office",
        tenses=without(HABIT),
        definite=True,
        gap=True,
    ),
    Verb(
        *("find", "finds", "found", "finding", "找到"),
        "animal book dictionary letter ticket map umbrella device",
        "park station library school office",
        tenses=(PAST, PAST, PAST, CAN, MUST),
        gap=True,
    ),
    Verb(
        *("look", "looks", "looked", "looking", "找"),
        "animal person book dictionary letter ticket map umbrella device",
        "park station airport library school office",
        tenses=(PROGRESSIVE, PROGRESSIVE, GOING, MUST),
        particle="for",
        definite=True,
        gap=True,
    ),
    Verb(
        *("see", "sees", "saw", "seeing", "看见"),
        "person animal",
        "park station airport museum supermarket shop bank",
        tenses=(PAST, PAST, PAST, CAN),
        gap=True,
    ),
    Verb(
        *("help", "helps", "helped", "helping", "帮助"),
        "person",
        "school hospital office",
        daily="person",
    ),
    Verb(
        *("call", "calls", "called", "calling", "打"),
        "person",
        "home office station",
        daily="person",
        coverb="给",
        rest="电话",
    ),
    Verb(
        *("wait", "waits", "waited", "waiting", "等"),
        "person",
        "station airport museum supermarket park hotel",
        tenses=without(PAST, HABIT),  # 等了我 needs a duration to be Chinese
        particle="for",
        company=True,
    ),
    Verb(
        *("go", "goes", "went", "going", "去"),
        "place",
        tenses=without(PROGRESSIVE),
        daily="place",
        particle="to",
        company=True,
    ),
    Verb(
        *("leave", "leaves", "left", "leaving", "离开"),
        "place",
        tenses=without(PROGRESSIVE),
        daily="place",
        punctual=True,
    ),
    Verb(
        *("work", "works", "worked", "working", "工作"),
        places="school hospital library museum shop supermarket restaurant hotel bank office",
        daily="none",
        company=True,
    ),
    Verb(
        *("study", "studies", "studied", "studying", "学习"),
        places="home school library Beijing Shanghai Guangzhou",
        daily="none",
        company=True,
    ),
    Verb(
        *("rest", "rests", "rested", "resting", "休息"),
        places="home park hotel office",
        daily="none",
    ),
    Verb(
        *("swim", "swims", "swam", "swimming", "游"),
        places="school hotel",
        daily="none",
        rest="泳",
        company=True,
    ),
    Verb(
        *("run", "runs", "ran", "running", "跑"),
        places="park school",
        daily="none",
        rest="步",
        company=True,
    ),
    Verb(
        *("know", "knows", "", "", "认识"),
        "person",
        tenses=(STATE,),
        gap=True,
    ),
    Verb(
        *("like", "likes", "", "", "喜欢"),
        "person book film song fruit egg dish drink clothes vehicle animal",
        tenses=(STATE,),
        gap=True,
    ),
    Verb(
        *("need", "needs", "", "", "需要"),
        "dictionary ticket map device umbrella furniture clothes vehicle",
        tenses=(STATE,),
        gap=True,
    ),
    Verb(
        *("have", "has", "", "", "有"),
        "book dictionary newspaper letter ticket map fruit clothes vehicle device umbrella "
        "furniture animal",
        tenses=(STATE,),
        zh_not="没",
    ),
)
VERB = {verb.base: verb for verb in VERBS}
GIVE = Verb(
    *("give", "gives", "gave", "giving", "给"),
    "book dictionary newspaper ticket map fruit drink clothes umbrella device",
    tenses=(PAST, PAST, FUTURE, GOING, WANT),
)


class Adjective(NamedTuple):
    """An adjective and the kinds of thing that it can describe."""

    en: str
    more: str  # "bigger", "more expensive"; empty where nobody would compare
    zh: str
    kinds: str


ADJECTIVES = (
    Adjective("tall", "taller", "高", "person child"),
    Adjective("busy", "busier", "忙", "person child"),
    Adjective("young", "younger", "年轻", "person"),  # 年轻 is said of adults
    Adjective("smart", "smarter", "聪明", "person child"),
    Adjective("tired", "", "累", "person child"),
    Adjective("happy", "", "高兴", "person child"),
    Adjective(
        *("expensive", "more expensive", "贵"),
        "book dictionary ticket map fruit clothes vehicle device umbrella furniture",
    ),
    Adjective(
        *("cheap", "cheaper", "便宜"),
        "book dictionary ticket map fruit clothes vehicle device umbrella furniture",
    ),
    Adjective(
        *("new", "newer", "新"),
        "book dictionary map clothes vehicle device umbrella furniture building",
    ),
    Adjective(
        *("old", "older", "旧"),
        "book dictionary map clothes vehicle device umbrella furniture",
    ),
    Adjective(
        *("big", "bigger", "大"),
        "map fruit clothes vehicle umbrella furniture animal building",
    ),
    Adjective(
        *("small", "smaller", "小"),
        "map fruit clothes vehicle umbrella furniture animal building device",
    ),
    Adjective(
        *("heavy", "heavier", "重"),
        "book dictionary vehicle device umbrella furniture",
    ),
    Adjective(
        *("beautiful", "more beautiful", "漂亮"),
        "clothes vehicle device umbrella furniture animal building",
    ),
    Adjective("long", "longer", "长", "film song letter article"),
    Adjective("clean", "cleaner", "干净", "clothes vehicle furniture building"),
)

# Before a noun only these: short ones join it directly (新书), colours take 色的.
ATTRIBUTES = (
    ("new", "新", "book dictionary map clothes vehicle device umbrella furniture"),
    ("old", "旧", "book dictionary map clothes vehicle device umbrella furniture"),
    ("big", "大", "fruit egg umbrella furniture animal"),
    ("small", "小", "fruit egg umbrella furniture animal"),
    ("red", "红色的", "fruit clothes vehicle umbrella"),
    ("blue", "蓝色的", "clothes vehicle umbrella furniture"),
    ("green", "绿色的", "clothes vehicle umbrella furniture"),
    ("black", "黑色的", "clothes vehicle device umbrella animal"),
    ("white", "白色的", "clothes vehicle device furniture animal"),
)


def words(text: str) -> tuple[str, ...]:
    """A table written as a line: `words("buy sell") == ("buy", "sell")`."""
    return tuple(text.split())


# Indexed by the number, hence the blanks; the teens are not used.
ONES = words("_ one two three four five six seven eight nine ten")
TENS = words("_ _ twenty thirty forty fifty sixty seventy eighty ninety")
ORDINALS = words("_ first second third fourth fifth sixth seventh eighth ninth tenth")
DIGITS = ("", *"一二三四五六七八九")
DAYS = (
    ("Monday", "星期一"),
    ("Tuesday", "星期二"),
    ("Wednesday", "星期三"),
    ("Thursday", "星期四"),
    ("Friday", "星期五"),
    ("Saturday", "星期六"),
    ("Sunday", "星期天"),
)
MONTHS = words(
    "January February March April May June July August September October November December"
)
# Part of the day, and the hours that people call so in both languages.
PARTS = (
    ("morning", "早上", range(6, 10)),
    ("afternoon", "下午", range(1, 6)),
    ("evening", "晚上", range(6, 11)),
)
