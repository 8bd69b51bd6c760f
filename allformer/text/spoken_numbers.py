"""Numbers in words as digits: "twenty one dollars" → "$21"; the rules are those of Whisper's
normaliser for English (Radford et al., 2022, appendix C)."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

Value = int | str  # an int can still grow ("two hundred" + "five"), a str is digits as they came

ZEROS = ("o", "oh", "zero")
_ONES = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_TIMES = (
    "thousand", "million", "billion", "trillion", "quadrillion", "quintillion", "sextillion",
    "septillion", "octillion", "nonillion", "decillion",
)  # fmt: skip
ONES = {name: number for number, name in enumerate(_ONES, 1)}
TENS = {name: 10 * number for number, name in enumerate(_TENS, 2)}
TIMES = {"hundred": 100} | {name: 1000**power for power, name in enumerate(_TIMES, 1)}
_ODD = {1: "first", 2: "second", 3: "third", 5: "fifth", 12: "twelfth"}
_ODD_ENDS = {1: "st", 2: "nd", 3: "rd"}


def _ordinal(name: str, number: int) -> str:
    return _ODD.get(number, name + ("h" if name.endswith("t") else "th"))


# "sixes", "third", "forties", "thousandth" → the number and what follows its digits.
ENDED_ONES = {
    "zeroth": (0, "th"),
    **{("sixes" if name == "six" else f"{name}s"): (n, "s") for name, n in ONES.items()},
    **{_ordinal(name, n): (n, _ODD_ENDS.get(n, "th")) for name, n in ONES.items()},
}
ENDED_TENS = {
    **{name.replace("y", "ies"): (n, "s") for name, n in TENS.items()},
    **{name.replace("y", "ieth"): (n, "th") for name, n in TENS.items()},
}
ENDED_TIMES = {f"{name}{end}": (n, end) for end in ("s", "th") for name, n in TIMES.items()}
SIGNS = {"minus": "-", "negative": "-", "plus": "+", "positive": "+"}
MONEY = {
    name + end: sign
    for name, sign in {"pound": "£", "euro": "€", "dollar": "$", "cent": "¢"}.items()
    for end in ("", "s")
}
SHARES = ("per", "percent")
REPEATS = {"double": 2, "triple": 3}
JOINTS = ("and", *REPEATS, "point")
_SIGNED = {*SIGNS.values(), *MONEY.values()}
_DIGITS = re.compile(r"^\d+(\.\d+)?$")
WORDS = {
    *ZEROS, *ONES, *TENS, *TIMES, *ENDED_ONES, *ENDED_TENS, *ENDED_TIMES, *SIGNS, *MONEY, *SHARES,
    *JOINTS,
}  # fmt: skip


def numbers_as_digits(text: str) -> str:
    """`numbers_as_digits("one hundred and five dollars and two cents")` → "$105.02"."""
    return _written(" ".join(_Reader(_spaced(text).split()).read()))


def _spaced(text: str) -> str:
    """Halves as decimals; digits and letters apart, but "21 st" together."""
    parts = re.split(r"\band\s+a\s+half\b", text)
    out: list[str] = []
    for i, part in enumerate(parts):
        if not part.strip():
            continue
        out.append(part)
        if i < len(parts) - 1:
            last = part.rsplit(maxsplit=2)[-1]
            number = last in ONES or last in TENS or last in ZEROS or last in TIMES
            out.append("point five" if number else "and a half")
    text = re.sub(r"([a-z])([0-9])", r"\1 \2", " ".join(out))
    text = re.sub(r"([0-9])([a-z])", r"\1 \2", text)
    return re.sub(r"([0-9])\s+(st|nd|rd|th|s)\b", r"\1\2", text)


def _written(text: str) -> str:
    """Dollars and cents together; one(s) as a word."""
    text = re.sub(
        r"([€£$])([0-9]+) (?:and )?¢([0-9]{1,2})\b",
        lambda m: f"{m[1]}{m[2]}.{int(m[3]):02d}",
        text,
    )
    text = re.sub(r"[€£$]0.([0-9]{1,2})\b", lambda m: f"¢{int(m[1])}", text)
    return re.sub(r"\b1(s?)\b", r"one\1", text)


class _Reader:
    """Goes through words with the number so far in `value` and a sign before it in `sign`."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.out = words, list[str]()
        self.value: Value | None = None
        self.sign = ""
        self.at = 0

    def read(self) -> list[str]:
        while self.at < len(self.words):
            self._one(self.words[self.at])
            self.at += 1
        self._flush()
        return self.out

    # --- neighbours and output --------------------------------------------------------------------

    @property
    def before(self) -> str:
        return self.words[self.at - 1] if self.at else ""

    @property
    def after(self) -> str:
        return self.words[self.at + 1] if self.at + 1 < len(self.words) else ""

    @property
    def number_follows(self) -> bool:
        return self.after in WORDS or bool(_DIGITS.match(self.after))

    def _say(self, word: Value) -> None:
        self.out.append(f"{self.sign}{word}")
        self.value, self.sign = None, ""

    def _flush(self) -> None:
        if self.value is not None:
            self._say(self.value)

    def _plain(self, word: str) -> None:
        self._flush()
        self._say(word)

    # --- kinds of words ---------------------------------------------------------------------------

    def _one(self, word: str) -> None:
        bare = word[1:] if word[0] in _SIGNED else word
        if _DIGITS.match(bare):
            self._digits(word, bare)
            return
        kinds: tuple[tuple[object, Callable[[str], None]], ...] = (
            (ZEROS, self._zero), (ONES, self._grow), (TENS, self._grow),
            (ENDED_ONES, self._ended), (ENDED_TENS, self._ended),
            (TIMES, self._times), (ENDED_TIMES, self._ended_times),
            (SIGNS, self._signed), (MONEY, self._money), (SHARES, self._share),
            (JOINTS, self._joint),
        )  # fmt: skip
        handle = next((do for kind, do in kinds if word in kind), self._plain)  # type: ignore[operator]
        handle(word)

    def _digits(self, word: str, bare: str) -> None:
        if isinstance(self.value, str) and self.value.endswith("."):
            self.value += word  # decimals, or a part of an address
            return
        self._flush()
        self.sign = word[0] if bare != word else self.sign
        number = Fraction(bare)
        self.value = number.numerator if number.denominator == 1 else bare

    def _zero(self, word: str) -> None:
        self.value = f"{self.value or ''}0"

    def _grow(self, word: str) -> None:
        self.value = self._grown(ONES.get(word) or TENS[word], word in ONES)

    def _grown(self, number: int, unit: bool) -> Value:
        """The value and a number below 100: in its room ("forty" + "two"), or written behind."""
        value = self.value
        if value is None:
            return number
        if isinstance(value, str) or (unit and self.before in ONES):
            if unit and number < 10 and self.before in TENS:
                return f"{value}"[:-1] + str(number)  # "nineteen eighty" + "four"
            return f"{value}{number}"
        room = 10 if unit and number < 10 else 100
        return value + number if value % room == 0 else f"{value}{number}"

    def _ended(self, word: str) -> None:
        unit = word in ENDED_ONES
        number, end = ENDED_ONES[word] if unit else ENDED_TENS[word]
        self._say(f"{self._grown(number, unit)}{end}")

    def _times(self, word: str) -> None:
        times = TIMES[word]
        if self.value is None:
            self.value = times
        elif isinstance(self.value, int) and self.value:
            self.value = _in_thousands(self.value, times)
        else:
            product = _product(self.value, times)
            if product is None:
                self._flush()
            self.value = times if product is None else product

    def _ended_times(self, word: str) -> None:
        times, end = ENDED_TIMES[word]
        product: int | None = times
        if isinstance(self.value, int):
            product = _in_thousands(self.value, times)
        elif isinstance(self.value, str):
            product = _product(self.value, times)
            if product is None:
                self._flush()
                product = times
        self._say(f"{product}{end}")

    def _signed(self, word: str) -> None:
        self._flush()
        if self.number_follows:
            self.sign = SIGNS[word]
        else:
            self._say(word)

    def _money(self, word: str) -> None:
        if self.value is None:
            self._say(word)
        else:
            self.sign = MONEY[word]
            self._flush()

    def _share(self, word: str) -> None:
        if self.value is None:
            self._say(word)
        elif word == "percent":
            self._say(f"{self.value}%")
        elif self.after == "cent":
            self._say(f"{self.value}%")
            self.at += 1
        else:
            self._plain(word)

    def _joint(self, word: str) -> None:
        if not self.number_follows:
            self._plain(word)
        elif word == "point":
            follows = self.after in ONES or self.after in TENS or self.after in ZEROS
            if follows or _DIGITS.match(self.after):
                self.value = f"{self.value or ''}."
        elif word == "and":
            if self.before not in TIMES:  # "two hundred and five"
                self._plain(word)
        elif self.after in ONES or self.after in ZEROS:
            self.value = f"{self.value or ''}{str(ONES.get(self.after, 0)) * REPEATS[word]}"
            self.at += 1
        else:
            self._plain(word)


def _in_thousands(value: int, times: int) -> int:
    """What stands below a thousand is multiplied: "two thousand three" + "hundred"."""
    return value // 1000 * 1000 + value % 1000 * times


def _product(value: Value, times: int) -> int | None:
    """`_product("2.5", 1000)` → 2500; None where it is no whole number."""
    try:
        product = Fraction(value) * times
    except ValueError:
        return None
    return product.numerator if product.denominator == 1 else None
