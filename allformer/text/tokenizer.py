"""Tokenisers: train, save and load the four kinds with the `tokenizers` library.

All four share one way from text to pieces, so that every text comes back as it was:

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
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from allformer.errors import ConfigError, DataError

KINDS = ("bpe", "wordpiece", "unigram", "char")
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
SPACE = "▁"  # U+2581, SentencePiece's mark; in the user's text it reads as a space

_MODEL_KIND = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "char"}
_FILE = "tokenizer.json"

# Scripts written without spaces; the second class adds their punctuation and full-width forms.
_CJK = r"[\p{Han}\p{Hiragana}\p{Katakana}ー]"
_CJK_START = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3000-\u303F\uFF00-\uFFEF]"
# At most 100 characters a part: WordPiece turns a longer one into <unk>.
_WORD = rf"(?:(?!{_CJK})[\p{{L}}\p{{M}}]){{1,100}}"
_SIGNS = r"([^▁\p{L}\p{M}\p{N}])\1{0,99}"  # "..." stays together, '."' does not


def train_tokenizer(
    lines: Iterable[str], kind: str = "bpe", vocab: int = 8000, *, lowercase: bool = False
) -> Tokenizer:
    """Train a tokeniser of at most `vocab` pieces on lines of text, read once as a stream.

    >>> tokenizer = train_tokenizer(["Hello, world!", "Hallo, Welt!"], "bpe", vocab=200)
    >>> tokenizer.decode(tokenizer.encode("Hello, Welt!"))
    'Hello, Welt!'

    Every character of `lines` gets a piece of its own; one that they lack becomes `<unk>`.
    A text too small for `vocab` pieces gives fewer: see `tokenizer.vocab_size`. The same lines
    give the same tokeniser, except for "unigram": its trainer breaks ties at random, so that a
    second training may number the pieces otherwise. Keep the saved file.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r} is no tokeniser; choose one of {', '.join(KINDS)}")
    normalizer = _normalizer(lowercase, mark_start=kind != "char")
    splitter = pre_tokenizers.Split(Regex(_parts(kind)), "isolated")
    inner = tokenizers.Tokenizer(_model(kind))
    texts = _check_alphabet(lines, normalizer, kind, vocab)
    if kind == "unigram":
        texts = _parts_with_twins(texts, normalizer, splitter)
    else:
        inner.normalizer, inner.pre_tokenizer = normalizer, splitter
    inner.train_from_iterator(texts, _trainer(kind, vocab))
    inner.normalizer, inner.pre_tokenizer = normalizer, splitter
    inner.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(inner)


class Tokenizer:
    """Text to ids and back. Made by `train_tokenizer` or `Tokenizer.load`.

    >>> tokenizer = Tokenizer.load("runs/en-de")
    >>> tokenizer.encode_batch(["A dog runs.", "Two men talk."])
    [[52, 318, 1207, 9], [190, 131, 864, 9]]
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        missing = [token for token in SPECIALS if inner.token_to_id(token) is None]
        if missing:
            raise DataError(
                f"the tokeniser has no {', '.join(missing)}; all of {', '.join(SPECIALS)} are "
                "needed: train one with train_tokenizer"
            )
        # "<s>" typed by a user is text, not a command to the model.
        inner.encode_special_tokens = True
        self._inner = inner

    def encode(self, text: str) -> list[int]:
        """The ids of one text, with nothing added (no `<s>`, no `</s>`).

        >>> tokenizer.encode("A dog runs.")
        [52, 318, 1207, 9]
        """
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str], *, dropout: float = 0.0) -> list[list[int]]:
        """The ids of many texts at once, much faster than one by one.

        >>> tokenizer.encode_batch(["A dog runs.", "Two men talk."], dropout=0.1)
        [[52, 318, 77, 460, 9], [190, 131, 864, 9]]

        `dropout` > 0 is BPE-dropout (Provilkov et al. 2020): each merge is left out with that
        probability, so that training sees many cuts of a word. The draws come from a generator
        inside the `tokenizers` library which cannot be seeded: two runs differ.
        """
        inner = self._inner if dropout == 0 else self._with_dropout(dropout)
        encodings = inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [list(encoding.ids) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are left out.

        >>> tokenizer.decode([52, 318, 1207, 9, 3, 0, 0])
        'A dog runs.'
        """
        return str(self._inner.decode([int(i) for i in ids], skip_special_tokens=True))

    def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
        """The texts of many lists of ids.

        >>> tokenizer.decode_batch([[52, 318], [190, 131]])
        ['A dog', 'Two men']
        """
        return [self.decode(ids) for ids in batch]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces to show a reader, as on the axes of an attention plot; "·" stands for a space.

        >>> tokenizer.tokens(tokenizer.encode("A dog runs."))
        ['·A', '·dog', '·runs', '.']
        """
        pieces = []
        for i in ids:
            piece = self._inner.id_to_token(int(i))
            if piece is None:
                raise DataError(f"id {int(i)} is not in the vocabulary of {self.vocab_size} pieces")
            pieces.append(piece.replace(SPACE, "·"))
        return pieces

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        name = type(self._inner.model).__name__
        return _MODEL_KIND.get(name, name)

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special tokens included."""
        return int(self._inner.get_vocab_size())

    @property
    def pad_id(self) -> int:
        """The id that fills a row of a batch; 0."""
        return self._id("<pad>")

    @property
    def unk_id(self) -> int:
        """The id of what the vocabulary lacks; 1."""
        return self._id("<unk>")

    @property
    def bos_id(self) -> int:
        """The id that starts a sentence; 2."""
        return self._id("<s>")

    @property
    def eos_id(self) -> int:
        """The id that ends a sentence; 3."""
        return self._id("</s>")

    def save(self, path: str | Path) -> Path:
        """Write `tokenizer.json` into a directory, or the `.json` file that `path` names.

        >>> tokenizer.save("runs/en-de")
        PosixPath('runs/en-de/tokenizer.json')
        """
        file = _json_file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        self._inner.save(str(file))
        return file

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Open a `tokenizer.json`, or the one in a directory.

        >>> Tokenizer.load("runs/en-de").vocab_size
        8000
        """
        file = _json_file(path)
        if not file.is_file():
            raise DataError(f"no tokeniser at {file}; give a tokenizer.json or its directory")
        try:
            inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"{file} is not a readable tokenizer.json: {error}") from error
        return cls(inner)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    def __reduce__(self) -> tuple[Any, ...]:  # to worker processes: by its text
        return _from_text, (self._inner.to_str(),)

    def _id(self, token: str) -> int:
        i = self._inner.token_to_id(token)
        assert i is not None  # looked for in __init__
        return i

    def _with_dropout(self, dropout: float) -> tokenizers.Tokenizer:
        # A copy, so that neither a file saved meanwhile nor another thread sees the dropout.
        if self.kind != "bpe":
            raise ConfigError(
                f"dropout={dropout} needs a tokeniser of kind 'bpe', this one is {self.kind!r}; "
                "leave dropout=0 or train with kind='bpe'"
            )
        if not 0 < dropout <= 1:
            raise ConfigError(f"dropout={dropout} must lie in 0 to 1; 0.1 is usual")
        copy = _from_text(self._inner.to_str())._inner
        copy.model.dropout = dropout
        return copy


def _from_text(text: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(text))


def _json_file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" and not path.is_dir() else path / _FILE


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


def _trainer(kind: str, vocab: int) -> trainers.Trainer:
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "special_tokens": list(SPECIALS),
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
    lines: Iterable[str], normalizer: normalizers.Normalizer, kind: str, vocab: int
) -> Iterator[str]:
    """Pass the lines on; when they end, raise if their characters do not fit in `vocab`."""
    seen: set[str] = set()
    for line in lines:
        seen.update(normalizer.normalize_str(line))
        yield line
    letters = seen - {SPACE}
    if not letters:
        raise DataError("no text to train a tokeniser on: every line is empty")
    least = len(letters) + 1 + len(SPECIALS)
    if kind == "unigram":
        least += 1  # its trainer overshoots where no room is left beside the characters
    if vocab < least:
        raise ConfigError(
            f"vocab={vocab} is too small for a {kind} tokeniser: the text has "
            f"{len(letters) + 1} different characters and there are {len(SPECIALS)} special "
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
