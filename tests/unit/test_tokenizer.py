"""Tokenisers: every kind gives text back as it was, here and in other libraries."""

import json
import pickle
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from allformer.errors import ConfigError, DataError
from allformer.text.load import load_tokenizer
from allformer.text.lossless import LOSSLESS
from allformer.text.tokenizer import KINDS as ALL_KINDS
from allformer.text.tokenizer import SENTENCE_KINDS as KINDS
from allformer.text.tokenizer import Tokenizer, train_tokenizer

LINES = [
    "Hello, world! This is a dog.",
    "Two men (both young) aren't talking: 25 km/h, 3.14%...",
    'He said "yes" - or did he? A well-known dog\'s world.',
    "Zwei junge Männer fahren schnell über die Straße; größer, Übung!",
    "我有2本 books。",
    "你好，世界！他说：“我不知道。”这是什么？",
    "我不知道他们在哪里。",
] * 3
SENTENCES = [
    *LINES[:7],
    "Hello, world!",
    "Straße 25: (aren't!)",
    "《书》",
    "。你好 world！",
    "a",
    "...",
]
# U+2581 is the mark of a space, and is read as one.
ALPHABET = sorted({char for line in LINES for char in line} - {"▁"})


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(iter([*LINES, "《书》"]), request.param, vocab=400)


@pytest.fixture(scope="module")
def all_kinds() -> list[Tokenizer]:
    return [train_tokenizer(LINES, kind, vocab=300) for kind in KINDS]


@pytest.mark.parametrize("text", SENTENCES)
def test_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids) == text


@settings(derandomize=True, deadline=None)
@given(words=st.lists(st.text(ALPHABET), max_size=8))
def test_any_text_of_known_characters_comes_back(
    all_kinds: list[Tokenizer], words: list[str]
) -> None:
    text = " ".join(" ".join(words).split())
    for tokenizer in all_kinds:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_run_of_any_length_comes_back(tokenizer: Tokenizer) -> None:
    for text in ("world" * 50, "你好" * 150, "." * 250, "2" * 130):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_white_space_becomes_single_spaces(tokenizer: Tokenizer) -> None:
    for text in ("  Hello,\t world! \n", "Hello,\u00a0world!", "Hello,\u2028\u3000world!"):
        assert tokenizer.decode(tokenizer.encode(text)) == "Hello, world!"


def test_composed_and_decomposed_letters_are_one(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("u\u0308ber") == tokenizer.encode("über")


def test_full_width_punctuation_survives(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("，") != tokenizer.encode(",")


def test_specials_have_their_ids_and_encode_adds_none(tokenizer: Tokenizer) -> None:
    ids = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    assert ids == (0, 1, 2, 3)
    assert not set(ids) & set(tokenizer.encode("Hello, world!"))
    assert tokenizer.decode([2, *tokenizer.encode("Hello"), 3, 0, 0]) == "Hello"
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_a_special_typed_by_a_user_is_text(tokenizer: Tokenizer) -> None:
    assert not {0, 2, 3} & set(tokenizer.encode("a <s> b </s> <pad>"))


def test_a_batch_is_its_texts(tokenizer: Tokenizer) -> None:
    batch = tokenizer.encode_batch(SENTENCES)
    assert batch == [tokenizer.encode(text) for text in SENTENCES]
    assert tokenizer.decode_batch(batch) == SENTENCES


def test_an_unknown_character_is_unk_and_only_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("你好☃ world")
    assert ids.count(tokenizer.unk_id) == 1
    assert tokenizer.decode(ids) == "你好 world"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_frequent_words_and_chinese_words_are_one_piece(kind: str) -> None:
    lines = [
        "this world",
        "the world, too",
        "a world!",
        "不知道。",
        "我不知道什么。",
        "他不知道你",
    ] * 20
    tokenizer = train_tokenizer(lines, kind, vocab=60)
    assert tokenizer.tokens(tokenizer.encode("a world!")) == ["·a", "·world", "!"]
    assert len(tokenizer.encode("不知道")) == 1
    assert len(tokenizer.encode("world!")) == 2  # punctuation never joins a word


def test_wordpiece_takes_han_characters_one_by_one() -> None:
    tokenizer = train_tokenizer(LINES, "wordpiece", vocab=300)
    assert tokenizer.tokens(tokenizer.encode("我不知道")) == list("我不知道")


def test_tokens_show_spaces_readably(tokenizer: Tokenizer) -> None:
    shown = tokenizer.tokens([*tokenizer.encode("Hello world"), tokenizer.eos_id])
    assert "".join(shown).removeprefix("·") == "Hello·world</s>"
    with pytest.raises(DataError, match="id 99999 is not in the vocabulary"):
        tokenizer.tokens([99999])


def test_a_space_is_known_without_having_been_seen() -> None:
    for kind in KINDS:
        tokenizer = train_tokenizer(["你好"], kind)
        assert tokenizer.decode(tokenizer.encode("你 好")) == "你 好"


def test_lowercase_is_an_option() -> None:
    tokenizer = train_tokenizer(LINES, lowercase=True)
    assert tokenizer.decode(tokenizer.encode("HELLO, Straße")) == "hello, straße"


@pytest.mark.parametrize("kind", KINDS)
def test_vocab_is_an_upper_bound(kind: str) -> None:
    characters = len({char for line in LINES for char in line})
    least = characters + 4 + (kind == "unigram")
    for vocab in (least, least + 5, 100_000):
        assert characters + 4 <= train_tokenizer(LINES, kind, vocab).vocab_size <= vocab
    with pytest.raises(ConfigError, match=rf"vocab={least - 1} .*use vocab={least} or more"):
        train_tokenizer(LINES, kind, vocab=least - 1)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "char"])
def test_training_twice_gives_the_same_file(kind: str) -> None:
    texts = [pickle.dumps(train_tokenizer(LINES, kind, 200)) for _ in range(2)]
    assert texts[0] == texts[1]


def test_wrong_kind_and_empty_text_are_explained() -> None:
    with pytest.raises(ConfigError, match=r"kind='bert' .* bpe, wordpiece, unigram, char"):
        train_tokenizer(LINES, "bert")
    with pytest.raises(DataError, match="every line is empty"):
        train_tokenizer(["", "  "])


def test_file_opens_here_in_tokenizers_and_in_transformers(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    file = tokenizer.save(tmp_path / "run")
    assert file == tmp_path / "run" / "tokenizer.json"
    ours = [Tokenizer.load(tmp_path / "run"), Tokenizer.load(file)]
    plain = tokenizers.Tokenizer.from_file(str(file))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
    for text in SENTENCES:
        ids = tokenizer.encode(text)
        assert [other.encode(text) for other in ours] == [ids, ids]
        assert plain.encode(text).ids == ids
        assert fast(text)["input_ids"] == ids
        assert plain.decode(ids) == fast.decode(ids) == text
    assert ours[0].kind == tokenizer.kind
    assert pickle.loads(pickle.dumps(tokenizer)).encode("<s> a") == tokenizer.encode("<s> a")


def test_loading_what_is_not_there_or_not_ours_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tokeniser at"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"not a readable tokenizer.json"):
        Tokenizer.load(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "other.json"))
    with pytest.raises(DataError, match="has no <pad>"):
        Tokenizer.load(tmp_path / "other.json")


def test_bpe_dropout_varies_the_cut_and_leaves_no_trace(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(LINES, "bpe", vocab=400)
    text = LINES[1]
    cuts = tokenizer.encode_batch([text] * 50, dropout=0.3)
    assert len({tuple(ids) for ids in cuts}) > 1
    assert set(tokenizer.decode_batch(cuts)) == {text}
    assert tokenizer.encode_batch([text] * 5) == [tokenizer.encode(text)] * 5
    saved = json.loads(tokenizer.save(tmp_path).read_text(encoding="utf-8"))
    assert saved["model"]["dropout"] is None


def test_bpe_dropout_needs_bpe() -> None:
    with pytest.raises(ConfigError, match=r"dropout=0.1 needs .*'bpe', this one is 'unigram'"):
        train_tokenizer(LINES, "unigram").encode_batch(["a"], dropout=0.1)
    with pytest.raises(ConfigError, match=r"dropout=1.5"):
        train_tokenizer(LINES, "bpe").encode_batch(["a"], dropout=1.5)


# --- lossless kinds, and further special tokens ------------------------------------------------

ODD = "First Citizen:\nBefore we  proceed,\t<s> hear </s>.\n\n\n你好 ▁ é e\u0301\r\n  end "


@pytest.mark.parametrize("kind", LOSSLESS)
def test_a_lossless_tokeniser_gives_every_text_back_as_it_was(kind, tmp_path):
    tokenizer = train_tokenizer([ODD, "plain"] * 3, kind, 400)
    tokenizer.save(tmp_path)
    for one in (tokenizer, load_tokenizer(tmp_path), Tokenizer.load(tmp_path)):
        assert one.decode(one.encode(ODD)) == ODD
        assert one.decode(one.encode("")) == ""
    if kind != "characters":  # any text at all
        assert tokenizer.decode(tokenizer.encode("🙂 ŷ\x00\n")) == "🙂 ŷ\x00\n"
    else:
        assert tokenizer.encode("🙂") == [1]
        assert tokenizer.vocab_size == 4 + len(set(ODD + "plain"))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_further_special_tokens_are_known_in_a_text_and_by_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    specials = ("<mask>", "<extra_id_0>", "<extra_id_1>")
    tokenizer = train_tokenizer([ODD, "a dog runs"] * 3, kind, 400, specials=specials)
    assert [tokenizer.token_to_id(token) for token in specials] == [4, 5, 6]
    assert tokenizer.mask_id == 4
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "a dog<mask> runs <extra_id_1>"
    for one in (tokenizer, load_tokenizer(tmp_path)):
        assert [i for i in one.encode(text) if i < 7] == [4, 6]
        assert one.encode(text) == theirs(text).input_ids
    assert theirs.mask_token_id == 4
    assert theirs.decode(tokenizer.encode("a dog runs")) == "a dog runs"


def test_what_a_lossless_tokeniser_cannot_be_is_refused():
    with pytest.raises(ConfigError, match=r"vocab=100 is too small for a bytes .* vocab=260"):
        train_tokenizer(["a"], "bytes", 100)
    with pytest.raises(ConfigError, match=r"vocab=6 .* 3 different characters .* vocab=7"):
        train_tokenizer(["abc"], "characters", 6)
    with pytest.raises(ConfigError, match=r"lowercase=True: kind='bytes' keeps the text"):
        train_tokenizer(["a"], "bytes", 300, lowercase=True)
    with pytest.raises(ConfigError, match=r"specials=.* twice"):
        train_tokenizer(["a"], "bytes", 300, specials=("<s>",))
    for kind in LOSSLESS:
        with pytest.raises(DataError, match="every line is empty"):
            train_tokenizer(["", ""], kind, 300)


# --- symbols between spaces ---------------------------------------------------------------------


def test_symbols_between_spaces_are_a_piece_each(tmp_path):
    tokenizer = train_tokenizer(["[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 10 ]"], "words", 40)
    assert tokenizer.vocab_size == 4 + 10
    text = "[MIN 10  9 ]"
    assert len(tokenizer.encode(text)) == 4
    tokenizer.save(tmp_path)
    for one in (tokenizer, load_tokenizer(tmp_path)):
        assert one.encode(text) == tokenizer.encode(text)
        assert one.decode(one.encode(text)) == "[MIN 10 9 ]"
        assert one.encode("[MED") == [1]  # never seen
    with pytest.raises(ConfigError, match=r"vocab=6 is too small for a words .* more than 2 diff"):
        train_tokenizer(["a b c"], "words", 6)
    with pytest.raises(DataError, match="every line is empty"):
        train_tokenizer(["", " "], "words", 6)
    with pytest.raises(ConfigError, match="kind='words' keeps the text"):
        train_tokenizer(["a"], "words", 6, lowercase=True)
