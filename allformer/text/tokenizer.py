"""Train tokenisers with the `tokenizers` library.

For language models there are three kinds that give every text back byte for byte: see
`lossless.py`; for symbols between spaces there is `separated.py`. The four for texts that are
sentences share one way from text to pieces, so that every sentence comes back as it was:

1. NFC (never NFKC, which would turn the Chinese "，" into ","), runs of white space become one
   space; `lowercase` on demand.
2. A space becomes the mark "▁" at the head of the word that follows it. The first word gets one
   too, so that "Hello" is one piece wherever it stands; a sentence that starts with a Chinese or
   Japanese character does not, because there it would mark nothing.
3. Words, runs of Chinese or Japanese, single digits and punctuation are cut apart; a piece never
   reaches over such a border, so "world!" and "world" share the piece "▁world".
4. The model (BPE, WordPiece, Unigram, or one piece per character) cuts each part into pieces.

Decoding joins the pieces and turns "▁" into a space. All of it is inside `tokenizer.json`, which
`tokenizers.Tokenizer.from_file` and transformers' `PreTrainedTokenizerFast` open as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from allformer.errors import ConfigError, DataError
from allformer.text.ids import SPECIALS, TRAINED
from allformer.text.lossless import LOSSLESS, train_lossless
from allformer.text.sentencepiece import SPACE  # in the user's text it reads as a space
from allformer.text.separated import SEPARATED, train_separated
from allformer.text.wrapper import Tokenizer

__all__ = ["KINDS", "SENTENCE_KINDS", "SPECIALS", "Tokenizer", "train_tokenizer"]

SENTENCE_KINDS = ("bpe", "wordpiece", "unigram", "char")  # the four kinds for sentences
KINDS = (*SENTENCE_KINDS, *LOSSLESS, SEPARATED)
MASK = "<mask>"  # among the further special tokens, it is the tokeniser's mask

# Scripts written without spaces; the second class adds their punctuation and full-width forms.
_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}ー]"
_CJK_START = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303F\uFF00-\uFFEF]"
# At most 100 characters a part: WordPiece turns a longer one into <unk>.
_WORD = rf"(?:(?!{_CJK})[\p{{L}}\p{{M}}]){{1,100}}"
_SIGNS = r"([^▁\p{L}\p{M}\p{N}])\1{0,99}"  # "..." stays together, '."' does not


def train_tokenizer(
    lines: Iterable[str],
    kind: str = "bpe",
    vocab: int = 8000,
    *,
    lowercase: bool = False,
    specials: Sequence[str] = (),
) -> Tokenizer:
    """Train a tokeniser of at most `vocab` pieces on lines of text, read once as a stream.

    >>> tokenizer = train_tokenizer(["Hello, world!", "Hallo, Welt!"], "bpe", vocab=200)
    >>> tokenizer.decode(tokenizer.encode("Hello, Welt!"))
    'Hello, Welt!'

    Every character of `lines` gets a piece of its own; one that they lack becomes `<unk>`.
    A text too small for `vocab` pieces gives fewer: see `tokenizer.vocab_size`. The same lines
    give the same tokeniser, except for "unigram": its trainer breaks ties at random, so that a
    second training may number the pieces otherwise. Keep the saved file.

    `specials` are special tokens beside `<pad>`, `<unk>`, `<s>` and `</s>`, with the ids from 4 on:
    `specials=("<mask>",)`. A tokeniser that has some knows all special tokens where they stand in a
    text, as a user must be able to write them; one that has none takes them for text.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r} is no tokeniser; choose one of {', '.join(KINDS)}")
    names = (*SPECIALS, *specials)
    if len(set(names)) < len(names):
        raise ConfigError(
            f"specials={list(specials)} has a token twice, or one that is always there"
        )
    if kind not in SENTENCE_KINDS and lowercase:
        raise ConfigError(f"lowercase=True: kind={kind!r} keeps the text; choose another kind")
    if kind == SEPARATED:
        return _finished(train_separated(lines, vocab, names), specials)
    if kind in LOSSLESS:
        return _finished(train_lossless(lines, kind, vocab, names), specials)
    normalizer = _normalizer(lowercase, mark_start=kind != "char")
    splitter = pre_tokenizers.Split(Regex(_parts(kind)), "isolated")
    inner = tokenizers.Tokenizer(_model(kind))
    texts = _check_alphabet(lines, normalizer, kind, vocab, len(names))
    if kind == "unigram":
        texts = _parts_with_twins(texts, normalizer, splitter)
    else:
        inner.normalizer, inner.pre_tokenizer = normalizer, splitter
    inner.train_from_iterator(texts, _trainer(kind, vocab, names))
    inner.normalizer, inner.pre_tokenizer = normalizer, splitter
    inner.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finished(inner, specials)


def _finished(inner: tokenizers.Tokenizer, specials: Sequence[str]) -> Tokenizer:
    """What is special beside the four has a name where transformers has one for it."""
    if not specials:
        return Tokenizer(inner)
    names = {**TRAINED.names, **({"mask": MASK} if MASK in specials else {})}
    return Tokenizer(inner, replace(TRAINED, names=names, split_special_tokens=False))


def _normalizer(lowercase: bool, mark_start: bool) -> normalizers.Sequence:
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if lowercase else []
    steps += [normalizers.NFC(), normalizers.Replace(Regex(r"[\s▁]+"), " "), normalizers.Strip()]
    if mark_start:
        steps.append(normalizers.Replace(Regex(rf"\A(?!{_CJK_START})"), SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def _parts(kind: str) -> str:
    """The pattern that cuts text into the parts over whose borders no piece reaches."""
    if kind == "char":
        return r"(?m:.)"
    # WordPiece gives up a whole part for one unknown character: let that part be one character.
    run = _CJK if kind == "wordpiece" else _CJK + "{1,100}"
    return rf"{SPACE}?(?:{run}|{_WORD}|\p{{N}}|{_SIGNS})"


def _model(kind: str) -> models.Model:
    if kind == "bpe":
        return models.BPE(unk_token="<unk>")
    if kind == "wordpiece":
        # No "##": as in the other kinds the mark is on the start of a word, not on what follows.
        return models.WordPiece(
            unk_token="<unk>", continuing_subword_prefix="", max_input_chars_per_word=101
        )
    if kind == "unigram":
        return models.Unigram()
    return models.WordLevel(unk_token="<unk>")


def _trainer(kind: str, vocab: int, specials: Sequence[str]) -> trainers.Trainer:
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "special_tokens": list(specials),
        "show_progress": False,
    }
    if kind == "char":
        return trainers.WordLevelTrainer(**common)
    if kind == "unigram":
        return trainers.UnigramTrainer(unk_token="<unk>", **common)
    common["min_frequency"] = 2  # a piece seen once is a memory, not a rule
    if kind == "bpe":
        # No piece is a whole Chinese clause.
        return trainers.BpeTrainer(max_token_length=16, **common)
    return trainers.WordPieceTrainer(continuing_subword_prefix="", **common)


def _check_alphabet(
    lines: Iterable[str],
    normalizer: normalizers.Normalizer,
    kind: str,
    vocab: int,
    specials: int,
) -> Iterator[str]:
    """Pass the lines on; when they end, raise if their characters do not fit in `vocab`."""
    seen: set[str] = set()
    for line in lines:
        seen.update(normalizer.normalize_str(line))
        yield line
    letters = seen - {SPACE}
    if not letters:
        raise DataError("no text to train a tokeniser on: every line is empty")
    least = len(letters) + 1 + specials
    if kind == "unigram":
        least += 1  # its trainer overshoots where no room is left beside the characters
    if vocab < least:
        raise ConfigError(
            f"vocab={vocab} is too small for a {kind} tokeniser: the text has "
            f"{len(letters) + 1} different characters and there are {specials} special "
            f"tokens; use vocab={least} or more, or rid the text of rare characters"
        )
    letter = min(letters)
    yield f"{letter} {letter}"  # so that the space is known even if no line has one


def _parts_with_twins(
    lines: Iterable[str], normalizer: normalizers.Normalizer, splitter: pre_tokenizers.PreTokenizer
) -> Iterator[str]:
    """The parts of the lines, and for each frequent part one twin with a space behind it.

    The unigram trainer takes as candidates the strings that go on in two different ways in its
    list of different parts. A frequent word never does, as it is a part that just ends; its twin
    lets it. On 29,000 English-German captions this takes a sentence from 16.9 pieces to 14.4.
    """
    once: set[str] = set()
    twins: set[str] = set()
    for line in lines:
        for part, _ in splitter.pre_tokenize_str(normalizer.normalize_str(line)):
            yield part
            (twins if part in once else once).add(part)
    for part in sorted(twins):
        yield part + SPACE
