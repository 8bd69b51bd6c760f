"""From a recipe's data section to texts: which are trained on, which are kept apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

from allformer.data.parallel import text_hash
from allformer.data.records import Record, Records, Splits, hold_out, open_records, open_splits
from allformer.errors import DataError
from allformer.train.sections.data import TextData

Texts = Iterable[Record]  # as often as one likes; each has its "text"
_MOST_HELD_OUT = 1000
_SHARE = 0.05  # of the texts, kept apart where nobody says how many
_SAMPLE = 1_000_000  # texts of a stream that a tokeniser is trained on


@dataclass(frozen=True)
class TextSets:
    """Texts to train on, one set for each weight, and those to validate on."""

    train: tuple[Texts, ...]
    validation: Texts
    stream: bool = False

    def texts(self) -> Iterator[str]:
        """All training texts; of a stream the first million."""
        found = (str(record["text"]) for record in chain.from_iterable(self.train))
        return islice(found, _SAMPLE) if self.stream else found

    def fingerprint(self) -> str:
        """Of the training texts."""
        seen = blake2b(digest_size=16)
        for texts in self.train:
            seen.update(fingerprint(texts).encode())
        return seen.hexdigest()


def open_texts(data: TextData, corpus: TextSets | Iterable[str] | None = None) -> TextSets:
    """`open_texts(recipe.data)`, or texts that are at hand: `open_texts(data, ["One.", "Two."])`.

    Where nothing is there to validate on, some texts are taken from those to train on.
    """
    if isinstance(corpus, TextSets):
        return corpus
    if corpus is not None:
        return _apart(data, [as_records(corpus)])
    splits = _splits(data)
    train = [each.train for each in splits if each.train is not None]
    if not train:
        raise DataError(
            "data.path and data.corpus are both empty: there is nothing to train on; "
            "give --data PATH, or set data.corpus to tiny-shakespeare, wikitext-2 or enwik8"
        )
    if not data.weights:  # one set: read one after the other
        train = [replace(train[0], sources=tuple(s for each in train for s in each.sources))]
    kept: list[Texts] = [each.validation for each in splits if each.validation is not None]
    if data.validation is not None:
        paths = data.validation if isinstance(data.validation, tuple) else (data.validation,)
        kept = [open_records(paths, data.format, **_options(data))]
    if kept:
        return TextSets(tuple(train), Joined(tuple(kept)), data.stream)
    return _apart(data, train)


def as_records(texts: Iterable[str]) -> list[Record]:
    """Texts that are at hand, as records."""
    found = [{"text": text} for text in texts]
    if any(not isinstance(record["text"], str) for record in found):
        raise DataError("corpus= must be texts: a list of str, or TextSets")
    return found


def _splits(data: TextData) -> list[Splits]:
    if data.corpus is not None:
        from allformer.data.public_text import open_public

        if len(data.paths) > 1:
            raise DataError(f"data.corpus={data.corpus!r} lies in one folder; give one data.path")
        return [open_public(data.corpus, *data.paths[:1], **_options(data))]
    return [open_splits(path, data.format, **_options(data)) for path in data.paths]


def _options(data: TextData) -> dict[str, Any]:
    """Of `open_records`: what is asked for, and no more."""
    found: dict[str, Any] = {"columns": {"text": data.columns.get("text", "text")}}
    return found | ({} if data.unit is None else {"unit": data.unit})


# --- texts to validate on, taken from those to train on ---------------------------------------


def _apart(data: TextData, sets: Sequence[Texts]) -> TextSets:
    if data.stream:
        raise DataError(
            "data.stream=true: a stream is not read to its end to hold texts out of it; give "
            "data.validation"
        )
    both = [_held(each, data) for each in sets]
    return TextSets(tuple(train for train, _ in both), Joined(tuple(kept for _, kept in both)))


def _held(texts: Texts, data: TextData) -> tuple[Texts, Texts]:
    asked = _SHARE if data.hold_out is None else data.hold_out
    if data.unit == "file" and asked < 1:
        return Ends(texts, asked, last=False), Ends(texts, asked, last=True)
    count = int(asked)
    if asked < 1:
        different = {text_hash(str(record["text"]), 0) for record in texts}
        count = max(1, int(asked * len(different)))
        count = min(count, _MOST_HELD_OUT) if data.hold_out is None else count
    try:
        if isinstance(texts, Records):
            return hold_out(texts, count, column="text")
        return _held_list(list(texts), count)
    except DataError as error:
        raise DataError(
            f"data.hold_out={count}: {error}; data.unit=file cuts off the end of a single text"
        ) from None


def _held_list(texts: list[Record], count: int) -> tuple[Texts, Texts]:
    """As `hold_out` does, by what the texts say."""
    hashes = [text_hash(record["text"], 0) for record in texts]
    different = sorted(set(hashes))
    if count >= len(different):
        raise DataError(f"there are {len(different)} different texts; hold out fewer")
    limit = different[count - 1]
    pairs = list(zip(texts, hashes, strict=True))
    return [t for t, h in pairs if h > limit], [t for t, h in pairs if h <= limit]


@dataclass(frozen=True)
class Joined:
    """Several sets, one after the other."""

    sets: tuple[Texts, ...]

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.sets)

    @property
    def size(self) -> int:
        """Bytes of the files, as far as they are files."""
        return sum(size_of(each) for each in self.sets)

    def fingerprint(self) -> str:
        """Of all of them."""
        return "+".join(map(fingerprint, self.sets))


@dataclass(frozen=True)
class Ends:
    """Each text without its last `share`, or that alone: nanoGPT keeps the last tenth apart."""

    texts: Texts
    share: float
    last: bool

    def __iter__(self) -> Iterator[Record]:
        for record in self.texts:
            text = record["text"]
            border = int(len(text) * (1 - self.share))
            if part := text[border:] if self.last else text[:border]:
                yield {"text": part}

    @property
    def size(self) -> int:
        """Of the whole."""
        return size_of(self.texts)

    def fingerprint(self) -> str:
        """Of the whole, and which part of it."""
        return f"{fingerprint(self.texts)}/{self.share}/{self.last}"


def size_of(texts: Texts) -> int:
    """Bytes of files; 0 of what is in memory."""
    size: int = getattr(texts, "size", 0)
    return size


def fingerprint(texts: Texts) -> str:
    """A hash of everything that decides the texts."""
    if isinstance(texts, Records | Joined | Ends):
        return texts.fingerprint()
    seen = blake2b(digest_size=16)
    for record in texts:
        data = record["text"].encode("utf-8", "surrogatepass")
        seen.update(len(data).to_bytes(8, "little") + data)
    return seen.hexdigest()
