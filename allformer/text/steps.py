"""The steps of each family's pipeline: from text to pieces and back.

The same steps as in transformers 5 (`models/*/tokenization_*.py`), quirks included: the ids must
be the same.
"""

from __future__ import annotations

import re
import string

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from allformer.text.sentencepiece import SPACE, USER_DEFINED, SentencePiece
from allformer.text.vocabulary import LANGUAGES, LANGUAGES_50, Names, Options, Vocabulary, extra_ids


def bert(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """WordPiece in words and punctuation: "playing." → `play ##ing .`"""
    if str(names["unk"]) not in vocabulary.tokens:
        raise ValueError(f"the vocabulary has no {names['unk']}, the token of what it lacks")
    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary.tokens, unk_token=str(names["unk"])))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),  # None: where lower-cased
        lowercase=options.get("do_lower_case", True),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    return inner


def byte_bpe(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """GPT-2's BPE over bytes, the space at the head of a word: "ä dog" → `Ã¤ Ġdog`."""
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocabulary.tokens,
            vocabulary.merges,
            continuing_subword_prefix="",
            end_of_word_suffix="",
        )
    )
    prefix = options.get("add_prefix_space", False)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    inner.decoder = decoders.ByteLevel()
    return inner


# Contractions, words, single digits, and runs of all else (OpenAI's simple_tokenizer.py).
_CLIP = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d"
    r"|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)


def clip(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """BPE over bytes, in lower case; a word's last piece says so: "Cats!" → `cats</w> !</w>`."""
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocabulary.tokens,
            vocabulary.merges,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
            unk_token=str(names["unk"]),
        )
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = pre_tokenizers.Split(Regex(_CLIP), behavior="removed", invert=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    # The last step is no Strip: the library's fails on a text of nothing.
    ends = decoders.Replace("</w>", " "), decoders.Replace(Regex(r"^\s+|\s+$"), "")
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), *ends])
    return inner


def llama(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """BPE over the whole text, unknown characters as bytes: "a ☃" → `▁a ▁ <0xE2> <0x98> <0x83>`."""
    inner = tokenizers.Tokenizer(
        models.BPE(vocabulary.tokens, vocabulary.merges, fuse_unk=True, byte_fallback=True)
    )
    prefix = options.get("add_prefix_space")
    prefix = True if prefix is None else prefix
    # legacy: a space before each part between special tokens, not before the first alone
    scheme = ("always" if options.get("legacy", False) else "first") if prefix else "never"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    inner.decoder = _decoder(prefix)
    return inner


def _decoder(prefix: bool) -> decoders.Decoder:
    """Pieces to text where unknown characters are bytes; `prefix`: drop the first space."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", left=1)] if prefix else steps)


def _unigram(
    pieces: list[tuple[str, float]], unk_id: int, prefix: bool = True, split: bool = True
) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unk_id, byte_fallback=False))
    scheme = "always" if prefix else "never"
    metaspace = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)
    inner.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
        if split
        else metaspace
    )
    inner.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    return inner


def albert(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """Unigram pieces of text without accents and capitals: "Café" → `▁cafe`."""
    inner = _unigram(vocabulary.pieces, 1, options.get("add_prefix_space", True))
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not options.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if options.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if vocabulary.charsmap:
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    inner.normalizer = normalizers.Sequence(steps)
    return inner


def big_bird(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """Unigram pieces of the text as it is, runs of spaces made one: "Café  x" → `▁Café ▁x`."""
    unknown = (str(names["unk"]), 0.0)
    unk_id = vocabulary.pieces.index(unknown) if unknown in vocabulary.pieces else 100
    inner = _unigram(vocabulary.pieces, unk_id, options.get("add_prefix_space", True), split=False)
    inner.normalizer = normalizers.Replace(Regex(" {2,}"), SPACE)
    return inner


_PUNCTUATION = f"[{re.escape(string.punctuation)}]"  # ASCII's alone, as there


def siglip(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """Unigram pieces of text without capitals and punctuation: "A cat!" → `▁a ▁cat`.

    The mark of a space stands before the text's first part alone, and a text that begins with a
    space has two: transformers puts the mark there before it takes out what it does not want.
    Unlike there, letters are lowered and composed as the `tokenizers` library does it, and a text
    that ends in `</s>` gets another.
    """
    texts = [text for text, _ in vocabulary.pieces]
    unknown = str(names["unk"])
    if unknown not in texts:
        raise ValueError(f"the vocabulary has no {unknown}, the token of what it lacks")
    unk_id = texts.index(unknown)
    inner = tokenizers.Tokenizer(models.Unigram(vocabulary.pieces, unk_id, byte_fallback=False))
    lower = [normalizers.Lowercase()] if options.get("do_lower_case", True) else []
    table = [normalizers.Precompiled(vocabulary.charsmap)] if vocabulary.charsmap else []
    inner.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(SPACE, " "),
            *lower,
            # At the head it becomes the mark: where nothing is left of the first character, the
            # library does not know the text's first part as such.
            normalizers.Replace(Regex(f"^{_PUNCTUATION}+"), SPACE),
            normalizers.Replace(Regex(_PUNCTUATION), ""),
            normalizers.Replace(Regex(r"\s"), " "),
            *table,
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex("^ "), SPACE + SPACE),
            normalizers.Replace(Regex(f"^{SPACE}$"), ""),
        ]
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    inner.decoder = decoders.Metaspace(SPACE, prepend_scheme="first")
    return inner


def t5(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """Unigram pieces, and the sentinels behind them: "<extra_id_0> a" → `<extra_id_0> ▁a`."""
    pieces = list(vocabulary.pieces)
    if vocabulary.symbols is not None:  # from a spiece.model, which has no <extra_id_…>
        pieces += [(token, 0.0) for token in reversed(extra_ids(options))]
    inner = _unigram(pieces, 2)
    if vocabulary.charsmap:
        inner.normalizer = normalizers.Precompiled(vocabulary.charsmap)
    return inner


def _fairseq(
    vocabulary: Vocabulary, names: Names, first: str, languages: tuple[str, ...] = ()
) -> list[tuple[str, float]]:
    """fairseq's ids: <s> <pad> </s> <unk>, sentencepiece's from 3 on, languages, <mask>."""
    if vocabulary.symbols is None:  # a tokenizer.json has that order already
        return vocabulary.pieces
    head = [(str(names[name]), 0.0) for name in (first, "pad", "eos", "unk")]
    tail = [(code, 0.0) for code in languages] + [(str(names["mask"]), 0.0)]
    return head + vocabulary.pieces[3:] + tail


def xlm_roberta(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """Unigram pieces with fairseq's ids."""
    pieces = _fairseq(vocabulary, names, "bos")
    inner = _unigram(pieces, 3, options.get("add_prefix_space", True))
    if vocabulary.charsmap:
        inner.normalizer = normalizers.Precompiled(vocabulary.charsmap)
    return inner


def mbart(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """Unigram pieces with fairseq's ids and 25 languages behind them."""
    # No normaliser: transformers 5 leaves out the model's own here.
    return _unigram(_fairseq(vocabulary, names, "bos", LANGUAGES), 3)


def mbart50(vocabulary: Vocabulary, names: Names, options: Options) -> tokenizers.Tokenizer:
    """The same with 52 languages, and runs of spaces made one."""
    inner = _unigram(_fairseq(vocabulary, names, "cls", LANGUAGES_50), 3, split=False)
    steps: list[normalizers.Normalizer] = []
    if vocabulary.charsmap:
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    inner.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    return inner


def from_sentencepiece(model: SentencePiece) -> tokenizers.Tokenizer:
    """A model of no known family: its own settings, as steps of the `tokenizers` library."""
    if model.model == "unigram":
        inner = tokenizers.Tokenizer(
            models.Unigram(
                [(piece.text, piece.score) for piece in model.pieces],
                unk_id=model.unk_id,
                byte_fallback=model.byte_fallback,
            )
        )
    else:
        inner = tokenizers.Tokenizer(
            models.BPE(
                {piece.text: i for i, piece in enumerate(model.pieces)},
                model.merges(),
                unk_token=model.names.get("unk"),
                fuse_unk=True,
                byte_fallback=model.byte_fallback,
            )
        )
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.squeeze:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if any(piece.kind == USER_DEFINED for piece in model.pieces):
        # Between such symbols each part is normalised by itself: a mark before each would be wrong.
        # (And spaces beside them are dropped where `squeeze`; sentencepiece keeps one.)
        scheme = "first" if model.dummy_prefix else "never"
        inner.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    else:  # not Metaspace: it puts no mark before a text that starts with a space
        steps += [normalizers.Prepend(SPACE)] if model.dummy_prefix else []
        steps.append(normalizers.Replace(" ", SPACE))
    if steps:
        inner.normalizer = normalizers.Sequence(steps)
    inner.decoder = _decoder(model.dummy_prefix)
    return inner
