"""Text while it is being written: never half a character, never a stop string or a part of one."""

from __future__ import annotations

from functools import cache

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from allformer.errors import ConfigError
from allformer.tasks.ends import Ends
from allformer.tasks.stream import Stream
from allformer.text.ids import TRAINED
from allformer.text.settings import Settings
from allformer.text.tokenizer import Tokenizer, train_tokenizer

WIDE = "你好，世界！👩‍👩‍👧 Straße — naïve café 🇩🇪. " * 12
PROMPT = "Wer ist der Mann? "


@cache
def bytes_alone() -> Tokenizer:
    """A token a byte: every character but the plainest has several."""
    return train_tokenizer([PROMPT + WIDE], "bytes", 260)


@cache
def fallback() -> Tokenizer:
    """LLaMA's way: words with a mark for the space, and bytes for all that is no word."""
    words = ["▁", "▁Wer", "▁ist", "▁der", "▁Mann", "?", "e", "a", "n"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(inner, Settings(names={"unk": "<unk>", "bos": "<s>", "eos": "</s>"}))


TOKENISERS = {"bytes": bytes_alone, "fallback": fallback}


def bits(tokenizer: Tokenizer, new: list[int], stop=(), prompt: str = PROMPT) -> list[str]:
    """What a stream shows of these tokens, one after the other."""
    shown: list[str] = []
    stream = Stream(tokenizer, shown.append, stop)
    stream.put(torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)]))
    for token in new:
        stream.put(torch.tensor([token]))
    stream.end()
    assert stream.text == "".join(shown)
    return shown


def check_whole_characters(name: str) -> None:
    """All of a long text comes, in order, each character whole and as soon as it is."""
    tokenizer = TOKENISERS[name]()
    ids = tokenizer.encode(WIDE, add_special_tokens=False)
    shown: list[str] = []
    stream = Stream(tokenizer, shown.append)
    stream.put(torch.tensor([tokenizer.encode(PROMPT, add_special_tokens=False)]))
    for count, token in enumerate(ids, 1):
        stream.put(torch.tensor([token]))
        if "\ufffd" not in (text := tokenizer.decode(ids[:count])):
            assert stream.text == text, "nothing waits longer than it must"
    assert "".join(shown) == tokenizer.decode(ids)
    assert not any("\ufffd" in bit for bit in shown)


@pytest.mark.parametrize("name", TOKENISERS)
def test_a_character_is_shown_whole_and_as_soon_as_it_is(name):
    check_whole_characters(name)


def test_bytes_that_never_become_a_character_are_shown_in_the_end():
    tokenizer = bytes_alone()
    ids = tokenizer.encode("ja ü", add_special_tokens=False)
    assert bits(tokenizer, ids[:-1]) == ["j", "a", " ", "\ufffd"]
    assert "".join(bits(tokenizer, [*ids[:-1], *ids[:2]])) == "ja \ufffdja"


def check_stop_strings() -> None:
    """A stop string ends the text and is never seen, not even in part; what looks like one is."""
    tokenizer = bytes_alone()

    def shown(text: str, *stop: str, prompt: str = PROMPT) -> list[str]:
        return bits(tokenizer, tokenizer.encode(text, add_special_tokens=False), stop, prompt)

    assert shown("ja\nUser: und", "\nUser:") == ["j", "a"]
    assert shown("ja\nUsed", "\nUser:") == ["j", "a", "\nUsed"]
    assert shown("aab und", "ab") == ["a"]
    assert shown("ja 世界 nein", "世界", "nein") == ["j", "a", " "]
    assert shown("ja 世", "世界") == ["j", "a", " ", "世"], "the end makes it clear"
    assert shown(": und", "Mann? : u") == []
    assert shown("und", "Mann") == ["u", "n", "d"], "what stands in the prompt ends nothing"
    long = "=" * 40
    assert "".join(shown("x" * 70 + long + "y", long)) == "x" * 70
    assert "".join(shown("x" * 70 + long[1:] + "y", long)) == "x" * 70 + long[1:] + "y"


def test_stop_strings_are_held_back():
    check_stop_strings()


def test_what_a_clean_up_may_close_is_held_back():
    tokenizer = Tokenizer(bytes_alone()._inner, Settings(names=TRAINED.names, clean_up=True))
    ids = tokenizer.encode("er is n't da . ", add_special_tokens=False)
    shown = bits(tokenizer, ids, prompt="ja")
    assert "".join(shown) == "er isn't da. " == tokenizer.decode(ids)


def test_texts_side_by_side_are_refused():
    with pytest.raises(ConfigError, match="a stream shows one text, not 2"):
        Stream(bytes_alone(), print).put(torch.tensor([[1, 2], [3, 4]]))


def test_the_earliest_of_several_ends_counts():
    ends = Ends(("cd", "bc", "abcde"))
    assert ends.find("xabcde", 0) == 1
    assert ends.find("xabcd", 0) == 2
    assert ends.find("bcbc", 2) == 2
    assert ends.find("bcbc", 1) == 0
    assert ends.find("xyz", 0) == -1
    assert [ends.held(text) for text in ("", "xa", "xab", "xabcd", "xb", "xx")] == [
        0,
        1,
        2,
        4,
        1,
        0,
    ]
    assert Ends().find("x", 0) == -1
    assert Ends().held("x") == 0
