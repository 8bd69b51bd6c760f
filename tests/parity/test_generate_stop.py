"""Stop strings are found where transformers finds them, whatever the tokeniser."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.generation import StopStringCriteria

from allformer.errors import ConfigError
from allformer.generate.generate import generate
from allformer.generate.stop import Stop
from allformer.text.tokenizer import train_tokenizer
from tests.models import VOCAB, left_padding, tokens
from tests.parity.gpt2 import gpt2_twins

TEXTS = [
    "Stop here, please: the stopper is at the top of the stopped opera.",
    "He stops. They stop; topspin stopgap!\nNew line, then two\n\nlines.",
    "停在这里。请停下，好吗？ 你好 世界",
    "naïve café — über straße 😀 done </s>",
    "abcdef fedcba",
]
STRINGS = [
    "stop",
    "op",
    "s",
    "\n",
    "\n\n",
    ". ",
    "停下",
    "é",
    "ß",
    "😀",
    "</s>",
    " the",
    "xyz",
    "the top",
]
OLD = not hasattr(StopStringCriteria, "_get_stop_string_matching_mode")  # spells no bytes yet


@cache
def tokeniser(kind: str) -> tokenizers.Tokenizer:
    """A small one of each way to write bytes, spaces and borders."""
    specials = ["<pad>", "<unk>", "<s>", "</s>"]
    if kind == "byte level":
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=400, special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        )  # fmt: skip
        inner.train_from_iterator(TEXTS, trainer)
        return inner
    if kind == "byte fallback":
        pieces = specials + [f"<0x{b:02X}>" for b in range(256)]
        pieces += sorted({c for text in TEXTS[:2] + TEXTS[4:] for c in text.replace(" ", "▁")})
        pieces += ["th", "▁th", "▁s", "▁st", "▁sto", "pp", "opp", "▁▁", "</"]
        vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
        merges = [("t", "h"), ("▁", "th"), ("▁", "s"), ("▁s", "t"), ("p", "p"), ("o", "pp")]
        inner = tokenizers.Tokenizer(
            models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
        )
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        inner.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
             decoders.Strip(" ", 1, 0)]
        )  # fmt: skip
        return inner
    if kind == "word piece":
        inner = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.decoder = decoders.WordPiece(cleanup=False)
        inner.train_from_iterator(
            TEXTS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=specials)
        )
        return inner
    return train_tokenizer(TEXTS * 3, kind, vocab=120)._inner


KINDS = ["byte level", "byte fallback", "word piece", "bpe"]


def rows(kind: str) -> list[list[int]]:
    """Every prefix of every text, and tokens in no order at all."""
    inner, r = tokeniser(kind), random.Random(1)
    out = []
    for text in TEXTS:
        ids = inner.encode(text, add_special_tokens=False).ids
        out += [ids[: n + 1] for n in range(len(ids))]
    size = inner.get_vocab_size()
    out += [[r.randrange(size) for _ in range(r.randint(1, 9))] for _ in range(100)]
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_string_is_found_where_transformers_finds_it(kind):
    fast = PreTrainedTokenizerFast(tokenizer_object=tokeniser(kind))
    found = set()
    for string in STRINGS:
        if OLD and not string.isascii():
            continue
        try:
            theirs = StopStringCriteria(fast, [string])
        except ValueError:  # it refuses a string that no token can end
            assert not any(bool(Stop((), [string], fast)(torch.tensor([x]))) for x in rows(kind))
            continue
        mine = {
            "fast": Stop((), [string], fast),
            "library": Stop((), [string], tokeniser(kind)),
        }
        for ids in rows(kind):
            row = torch.tensor([ids])
            want = bool(theirs(row, None))
            for name, stop in mine.items():
                assert bool(stop(row)) == want, (string, fast.convert_ids_to_tokens(ids), name)
            if want:
                found.add(string)
    assert {"stop", "op", "s"} <= found
    if kind in ("byte level", "byte fallback") and not OLD:
        assert {"停下", "é", "ß", "😀"} <= found, "characters of several tokens"


def test_several_strings_stop_at_the_first_that_is_there():
    inner = tokeniser("byte level")
    stop = Stop((), ["zzz", "top", "here"], inner)
    ids = torch.tensor([inner.encode("the stopped", add_special_tokens=False).ids])
    ends = [bool(stop(ids[:, : n + 1])) for n in range(ids.shape[1])]
    said = [inner.decode(ids[0, : n + 1].tolist()) for n in range(ids.shape[1])]
    assert [n for n, end in enumerate(ends) if end] == [
        next(n for n, text in enumerate(said) if "top" in text)
    ]


@cache
def letters() -> tokenizers.Tokenizer:
    """As many tokens as the small models have: letters, and pairs that cross borders."""
    pieces = ["<pad>", "<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += ["ab", "bc", "ca", "nop", "qr", "sta", "uvw"]
    inner = tokenizers.Tokenizer(
        models.WordLevel(dict(zip(pieces, range(VOCAB), strict=True)), "<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return inner


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("ends", [3, None])
def test_generation_stops_at_strings_as_in_transformers(beams, ends):
    fast = PreTrainedTokenizerFast(tokenizer_object=letters(), pad_token="<pad>")
    mask = left_padding([8, 3, 5], 8)
    stopped = 0
    for seed in range(4):
        ours, theirs = gpt2_twins(seed)
        ids = tokens(3, 8, seed).where(mask.bool(), 0)
        plain = theirs.generate(ids, attention_mask=mask, max_new_tokens=12, num_beams=beams)
        said = [letters().decode(row[8:].tolist()) for row in plain]
        strings = [said[0][2:4], said[1][1:3] or "ab", said[2][4:5] or "st"]
        options = {
            "max_new_tokens": 12, "num_beams": beams, "num_return_sequences": beams,
            "stop_strings": strings, "eos_token_id": ends, "pad_token_id": 9,
        }  # fmt: skip
        if ends is None and beams > 1:
            options["num_return_sequences"] = 1
        want = theirs.generate(ids, attention_mask=mask, tokenizer=fast, **options)
        got = generate(ours, ids, mask, tokenizer=letters(), **options)
        if ends is None and beams > 1:
            want = want.masked_fill(want == -1, 9)  # −1 is no token
        assert got.tolist() == want.tolist()
        stopped += got.shape != plain.shape or got.tolist() != plain.tolist()
    assert stopped >= 2


class OnlyDecodes:
    """A tokeniser of which nothing is known but that it decodes."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.inner.decode(ids, skip_special_tokens=skip_special_tokens)


class Slow:
    """transformers' slow tokenisers: pieces and how to join them."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.convert_ids_to_tokens = inner.id_to_token
        self.convert_tokens_to_string = inner.decoder.decode
        self.inner = inner

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": self.inner.encode(text, add_special_tokens=add_special_tokens).ids}


@pytest.mark.parametrize("wrap", [OnlyDecodes, Slow, train_tokenizer])
def test_any_tokeniser_that_can_spell_will_do(wrap):
    inner = tokeniser("bpe")
    other = train_tokenizer(TEXTS * 3, "bpe", vocab=120) if wrap is train_tokenizer else wrap(inner)
    found = 0
    for string in ("stop", "op", "s", " the", "停下", "é"):
        plain, wrapped = Stop((), [string], inner), Stop((), [string], other)
        for ids in rows("bpe"):
            row = torch.tensor([ids])
            assert bool(wrapped(row)) == bool(plain(row)), (string, inner.decode(ids))
            found += bool(plain(row))
    assert found > 20


def test_what_cannot_spell_is_refused():
    with pytest.raises(ConfigError, match="tokenizer=dict cannot spell its tokens; give"):
        Stop((), ["x"], {"a": 1})


def test_an_id_beyond_the_tokeniser_is_in_no_text():
    s, t = (letters().token_to_id(letter) for letter in "st")
    stop = Stop((), ["st"], letters())
    rows = torch.tensor([[5, s, t], [10**6, s, t], [s, 10**6, t]])
    assert stop(rows).tolist() == [True, True, False]
