"""A checkpoint's tokeniser: from whichever files, into batches, back to files; and its errors."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from threading import Thread

import pytest
import tokenizers
import torch
from tokenizers import models

from allformer.errors import ConfigError, DataError, LengthError
from allformer.text.charsmap import CharsMap
from allformer.text.load import load_tokenizer
from allformer.text.sentencepiece import read_sentencepiece
from allformer.text.tokenizer import Tokenizer, train_tokenizer
from allformer.text.unigram import Unigram
from tests.parity.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    sentencepiece,
    write,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "wrote", "it", "goethe", "faust",
         "in", "weimar", "?", ".", "##s", "a"]  # fmt: skip
LLAMA = [
    ("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    ("▁▁", -1e9, NORMAL), ("▁a", -1.0, NORMAL), ("ab", -2.0, NORMAL), ("▁", -1e9, NORMAL),
    ("a", -1e9, NORMAL), ("b", -1e9, NORMAL),
]  # fmt: skip


@pytest.fixture
def bert(tmp_path):
    files = {"vocab.txt": "".join(f"{word}\n" for word in WORDS)}
    return load_tokenizer(write(tmp_path / "bert", files))


@pytest.fixture
def gpt2(tmp_path):
    vocab = {token: i for i, token in enumerate(["a", "b", "Ġ", "ab", "Ã", "¤", "<|endoftext|>"])}
    files = {"encoder.json": json.dumps(vocab), "vocab.bpe": "#version: 0.2\na b\n"}
    return load_tokenizer(write(tmp_path / "gpt2", files))


def ids(tokenizer, text):
    return [tokenizer._inner.id_to_token(i) for i in tokenizer.encode(text)]


# ---------------------------------------------------------------------- files without a class


def test_a_bare_vocab_txt_is_berts(bert):
    assert bert.encode("Who wrote Faust?") == [2, 5, 6, 9, 12, 3]
    assert bert.encode("who", "Weimar") == [2, 5, 3, 11, 3]
    assert bert.decode([2, 5, 6, 7, 12, 3, 0]) == "who wrote it?"
    assert bert.special_ids == {"unk": 1, "sep": 3, "pad": 0, "cls": 2, "mask": 4}


def test_openais_file_names_are_gpt2s(gpt2):
    assert gpt2.encode("ab b") == [3, 2, 1]
    assert gpt2.eos_id == gpt2.bos_id == 6


def test_vocab_json_with_robertas_specials_is_robertas(tmp_path):
    vocab = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "<mask>"])}
    files = {"vocab.json": json.dumps(vocab), "merges.txt": ""}
    tokenizer = load_tokenizer(write(tmp_path / "x", files))
    assert tokenizer.encode("a", "a") == [0, 4, 2, 2, 4, 2]
    assert tokenizer.mask_id == 5


def test_a_bare_sentencepiece_model_is_opened_as_its_settings_ask(tmp_path):
    def opened(name, **settings):
        data = sentencepiece(LLAMA, 2, byte_fallback=True, **settings)
        return load_tokenizer(write(tmp_path / name, {"tokenizer.model": data}))

    plain = opened("plain", squeeze=False)
    assert ids(plain, "ab") == ["▁a", "b"]
    assert ids(plain, " ab") == ["▁", "▁a", "b"]  # a mark before each text, spaces or not
    assert ids(plain, "a  ab") == ["▁a", "▁", "▁a", "b"]  # scores put runs of spaces last
    assert ids(plain, "aé") == ["▁a", "<0xC3>", "<0xA9>"]
    assert plain.decode(plain.encode("  a é b")) == "  a é b"
    assert plain.special_ids == {"bos": 1, "eos": 2, "unk": 0}
    assert ids(opened("squeeze"), "  a   ab ") == ["▁a", "▁a", "b"]
    assert ids(opened("no-prefix", dummy_prefix=False), "ab") == ["ab"]


def test_user_symbols_of_a_bare_model_are_one_piece(tmp_path):
    pieces = [*LLAMA, ("ab<x>", 0.0, USER_DEFINED)]
    files = {"tokenizer.model": sentencepiece(pieces, 2, byte_fallback=True, squeeze=False)}
    tokenizer = load_tokenizer(write(tmp_path / "x", files))
    assert ids(tokenizer, "aab<x>ab") == ["▁a", "ab<x>", "ab"]
    assert tokenizer.decode(tokenizer.encode("aab<x>")) == "aab<x>"  # not a special token


def test_a_run_of_ours_opens_as_any_other(tmp_path):
    trained = train_tokenizer(["Hello, world!", "Hallo, Welt!"], "bpe", vocab=60)
    trained.save(tmp_path / "run")
    opened = load_tokenizer(tmp_path / "run")
    for text in ("Hello, Welt!", "a <s> typed </s>"):
        assert opened.encode(text) == trained.encode(text)
    assert opened.special_ids == trained.special_ids == {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
    assert opened.decode(opened.encode("Hello")) == "Hello"
    old = tmp_path / "old"
    trained.save(old / "tokenizer.json")
    assert [file.name for file in old.iterdir()] == ["tokenizer.json"]
    assert Tokenizer.load(old).encode("Hello, <s>") == trained.encode("Hello, <s>")


def test_a_trained_one_can_be_told_what_to_put_around(tmp_path):
    transformers = pytest.importorskip("transformers")
    trained = train_tokenizer(["Hello, world!", "Hallo, Welt!"], "bpe", vocab=60)
    ended = trained.with_specials(after=["</s>"])
    assert ended.encode("Hello") == [*trained.encode("Hello"), 3]
    assert trained.encode("Hello")[-1] != 3
    ended.save(tmp_path / "marian")
    (tmp_path / "marian" / "config.json").write_text('{"model_type": "marian"}')
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "marian"))
    for text in ("Hello, Welt!", "a <s> typed </s>"):
        assert theirs(text)["input_ids"] == ended.encode(text)
    assert (theirs.pad_token_id, theirs.eos_token_id) == (0, 3)
    with pytest.raises(ConfigError, match="'<x>' is not in the vocabulary"):
        trained.with_specials(before=["<x>"])


# ---------------------------------------------------------------------- batches


def test_a_batch_is_what_a_model_takes(bert):
    batch = bert(["Who wrote it?", "Who?"], ["Goethe.", "A"])
    assert batch["input_ids"].tolist() == [
        [2, 5, 6, 7, 12, 3, 8, 13, 3],
        [2, 5, 12, 3, 15, 3, 0, 0, 0],
    ]
    assert batch["token_type_ids"].tolist() == [[0] * 6 + [1] * 3, [0] * 4 + [1] * 2 + [0] * 3]
    assert batch["attention_mask"].tolist() == [[1] * 9, [1] * 6 + [0] * 3]
    assert {**batch}.keys() == {"input_ids", "token_type_ids", "attention_mask"}
    assert batch["input_ids"].dtype == torch.long
    left = bert(["Who wrote it?", "Who?"], padding_side="left", device="cpu")
    assert left["input_ids"][1].tolist() == [0, 0, 2, 5, 12, 3]
    assert left["attention_mask"][1].tolist() == [0, 0, 1, 1, 1, 1]
    assert left.offsets(1) == [(0, 0), (0, 0), (0, 0), (0, 3), (3, 4), (0, 0)]
    assert left.sequence_ids(1) == [None, None, None, 0, 0, None]
    assert left.word_ids(1) == [None, None, None, 0, 1, None]
    assert left.tokens(1) == ["", "", "[CLS]", "who", "?", "[SEP]"]
    assert bert("Who")["input_ids"].tolist() == [[2, 5, 3]]
    assert bert([])["input_ids"].shape == (0, 0)
    with pytest.raises(ConfigError, match="padding_side='top'"):
        bert(["who"], padding_side="top")


def test_without_a_pad_token_the_mask_alone_says_what_is_padding(gpt2):
    batch = gpt2(["ab", "a b"])
    assert batch["input_ids"].tolist() == [[3, 6, 6], [0, 2, 1]]
    assert batch["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert "token_type_ids" not in batch
    with pytest.raises(DataError, match=r"GPT2Tokenizer has no pad token; it has bos, eos, unk"):
        _ = gpt2.pad_id


def test_nothing_is_cut_unasked_and_a_cut_is_told(bert):
    long = "who wrote it in weimar " * 3
    full = bert.encode(long)
    assert len(full) == 17
    assert bert([long])["input_ids"].shape == (1, 17)
    with pytest.raises(LengthError, match=r"text 1 has 17 ids, more than max_length=8.*truncate"):
        bert(["who", long], max_length=8)
    batch = bert(["who", long], max_length=8, truncate=True)
    assert batch.cut == [1]
    assert batch["input_ids"][1].tolist() == [*full[:7], 3]
    assert bert.encode(long) == full  # the limit stays with that call
    assert bert([long])["input_ids"].shape == (1, 17)
    with pytest.raises(ConfigError, match=r"need max_length"):
        bert([long], truncate=True)
    with pytest.raises(ConfigError, match=r"max_length=2 leaves no room"):
        bert([long], max_length=2, truncate=True)


def test_windows_hold_the_whole_question_and_all_of_the_passage(bert):
    passage = "goethe wrote it in weimar . faust in weimar ."
    batch = bert(["who wrote it ?", "who"], [passage, "a"], max_length=12, windows=2)
    assert batch.texts == [0, 0, 0, 1]
    spans = [
        [
            span
            for span, s in zip(batch.offsets(row), batch.sequence_ids(row), strict=True)
            if s == 1
        ]
        for row in range(3)
    ]
    assert all(span[-2:] == later[:2] for span, later in pairwise(spans))
    covered = [passage[start:end] for span in spans for start, end in span]
    assert set(covered) == set(passage.split())
    for row in range(3):
        assert batch["input_ids"][row, :6].tolist() == [2, 5, 6, 7, 12, 3]
    with pytest.raises(LengthError, match=r"windows=5 must be smaller than the 5 ids"):
        bert(["who wrote it ?"], [passage], max_length=12, windows=5)
    with pytest.raises(ConfigError, match="windows=-1"):
        bert(["who"], [passage], max_length=12, windows=-1)


def test_threads_with_and_without_a_limit_do_not_meet(bert):
    long = "who wrote it in weimar " * 20
    full = bert.encode(long)
    wrong = []

    def work(limit):
        for _ in range(50):
            if limit:
                row = bert([long], max_length=limit, truncate=True)["input_ids"]
                wrong.append(row.shape[1]) if row.shape[1] != limit else None
            elif bert.encode(long) != full:
                wrong.append(0)

    threads = [Thread(target=work, args=(limit,)) for limit in (8, 0, 20, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_is_no_text_is_named(bert):
    for call in (bert, bert.encode_batch):
        with pytest.raises(DataError, match="text 1 is no text but None"):
            call(["who", None])
        with pytest.raises(DataError, match=r"pair 0 has half a character.*at 2"):
            call(["who"], ["a \ud83d b"])
        with pytest.raises(DataError, match="2 texts but 1 pairs"):
            call(["who", "it"], ["a"])
    with pytest.raises(DataError, match="not one text"):
        bert.encode_batch("who")


def test_pieces_of_bytes_are_shown_as_letters(gpt2):
    assert gpt2.encode("b ä") == [1, 2, 4, 5]
    assert gpt2.tokens([1, 2, 3, 6]) == ["b", "·", "ab", "<|endoftext|>"]
    assert gpt2.decode(gpt2.encode("b ä")) == "b ä"
    assert gpt2.token_to_id("Ġ") == 2
    assert gpt2.token_to_id("no") is None


# ---------------------------------------------------------------------- what is wrong with files


def test_an_empty_directory_names_what_was_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"is no directory"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(DataError, match=r"no tokeniser; .*tokenizer\.json, vocab\.txt.*nothing"):
        load_tokenizer(tmp_path)


SPIECE = sentencepiece([("<unk>", 0.0, UNKNOWN), ("▁a", -1.0, NORMAL)])
FIELD_24 = b"\x12\x03\xc0\x01\x01"  # trainer_spec.treat_whitespace_as_suffix = true


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer.json": "{}"}, r"tokenizer\.json is not a readable tokenizer\.json"),
        ({"tokenizer.json": b"\xff\xfe"}, r"not a readable tokenizer\.json"),
        ({"vocab.txt": b"\xff\xfe\n"}, r"vocab\.txt cannot be read"),
        ({"vocab.txt": "a\nb\n"}, r"has no \[UNK\]"),
        ({"vocab.json": '{"a": 0}'}, r"has no merges\.txt, of which its class GPT2Tokenizer"),
        ({"vocab.json": '{"a": 0', "merges.txt": ""}, r"vocab\.json is not JSON"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b\n"}, r"`b` out of vocabulary.*one check"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a\n"}, r"merges\.txt cannot be read"),
        ({"tokenizer.model": b""}, r"no sentencepiece model.*no pieces"),
        ({"tokenizer.model": SPIECE[:-3]}, r"damaged .*past the end"),
        ({"tokenizer.model": b"\x0f"}, r"field of unknown kind 7"),
        ({"tokenizer.model": b"\x0a\x02\x08\x01"}, r"number 1 where text"),
        ({"tokenizer.model": sentencepiece([("a", 0.0, NORMAL)], 3)}, r"of type 'word'; only uni"),
        ({"tokenizer.model": SPIECE + FIELD_24}, r"treat_whitespace_as_suffix"),
        ({"source.spm": SPIECE}, r"no target\.spm and no vocab\.json: a MarianTokenizer"),
        (
            {"source.spm": SPIECE, "target.spm": SPIECE, "vocab.json": '{"</s>": 0}'},
            r"vocab\.json has no <unk>",
        ),
        ({"tokenizer_config.json": "[]"}, r"holds no JSON object"),
        (
            {"tokenizer_config.json": '{"tokenizer_class": "XLNetTokenizer"}', "spiece.model": b""},
            r"class XLNetTokenizer, which is known here from a tokenizer\.json alone",
        ),
        (
            {"config.json": '{"model_type": "albert"}', "vocab.txt": "a\n"},
            r"no spiece\.model, of which its class AlbertTokenizer.*there is config\.json, vocab",
        ),
    ],
)
def test_files_that_cannot_be_are_explained(files, message, tmp_path):
    directory = write(tmp_path / "x", files)
    with pytest.raises(DataError, match=message):
        load_tokenizer(directory)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"padding_side": "top"}, ConfigError, "padding_side='top'"),
        ({"pad_token": 3}, DataError, "pad_token=3 must be a text"),
        ({"added_tokens_decoder": {"0": "x"}}, DataError, "an added token is described as 'x'"),
    ],
)
def test_settings_that_cannot_be_are_explained(config, error, message, tmp_path):
    files = {"vocab.txt": "[UNK]\n"}
    directory = write(tmp_path / "x", files, tokenizer_config=config)
    with pytest.raises(error, match=message):
        load_tokenizer(directory)


def test_added_tokens_that_get_other_ids_are_told(tmp_path):
    files = {"vocab.txt": "".join(f"{word}\n" for word in WORDS)}
    files["added_tokens.json"] = '{"<x>": 40}'
    with pytest.warns(UserWarning, match=r"<x> is 16, not 40"):
        load_tokenizer(write(tmp_path / "x", files))


def test_an_unknown_language_names_the_known(tmp_path, bert):
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    files = {"sentencepiece.bpe.model": sentencepiece([*pieces, ("▁a", -1.0, NORMAL)])}
    mbart = load_tokenizer(write(tmp_path / "x", files, config={"model_type": "mbart"}))
    assert ids(mbart, "a") == ["▁a", "</s>", "en_XX"]
    with pytest.raises(ConfigError, match=r"'xx_YY' is not in the vocabulary; try ar_AR, cs_CZ"):
        mbart.with_language("xx_YY")
    with pytest.raises(ConfigError, match="is for mBART; this BertTokenizer"):
        bert.with_language("en_XX")


def test_a_sentencepiece_file_is_read_field_by_field(tmp_path):
    file = tmp_path / "m.model"
    file.write_bytes(sentencepiece(LLAMA, 2, byte_fallback=True, squeeze=False, ids=(1, -1, 2)))
    model = read_sentencepiece(file)
    assert [piece.text for piece in model.pieces] == [text for text, _, _ in LLAMA]
    assert model.pieces[259].score == -1e9
    assert (model.pieces[0].kind, model.pieces[1].kind, model.pieces[3].kind) == (2, 3, 6)
    assert (model.model, model.byte_fallback, model.dummy_prefix, model.squeeze) == (
        "bpe", True, True, False,
    )  # fmt: skip
    assert model.names == {"unk": "<unk>", "bos": "<s>", "pad": "</s>"}  # eos_id is -1
    assert model.merges(by_score=False) == [("▁", "▁"), ("▁", "a"), ("a", "b")]
    assert model.merges() == [("▁", "a"), ("a", "b"), ("▁", "▁")]


def test_unknown_characters_cost_ten_more_than_the_worst_piece(tmp_path):
    scores = {"u1": -10.0, "23": -10.0, "4w": -10.0, "1234": -1.0}
    file = tmp_path / "m.model"
    pieces = [("<unk>", 0.0, UNKNOWN), *((text, score, NORMAL) for text, score in scores.items())]
    file.write_bytes(sentencepiece(pieces))
    unigram = Unigram(read_sentencepiece(file))
    assert unigram.cut("u1234w") == [("u1", True), ("23", True), ("4w", True)]  # -30 > -1 - 2 · 20
    assert unigram.cut("xy1234") == [("xy", False), ("1234", True)]
    assert unigram.cut("") == []


def test_marians_added_tokens_take_their_spaces_with_them(tmp_path):
    pieces = [("<unk>", 0.0, UNKNOWN), ("▁", -2.0, NORMAL), ("a", -2.0, NORMAL)]
    spm = sentencepiece(pieces, squeeze=False)
    vocab = {"</s>": 0, "<unk>": 1, "▁": 2, "a": 3, "<pad>": 4, "<x>": 5}
    files = {"source.spm": spm, "target.spm": spm, "vocab.json": json.dumps(vocab)}

    def opened(**flags):
        token = {"content": "<x>", "special": True, "normalized": False, **flags}
        config = {"added_tokens_decoder": {"5": token}}
        name = "-".join(flags) or "plain"
        return load_tokenizer(write(tmp_path / name, files, tokenizer_config=config))

    text = "a <x> a"
    assert opened().encode(text) == [2, 3, 2, 5, 2, 2, 3, 0]
    assert opened(lstrip=True).encode(text) == [2, 3, 5, 2, 2, 3, 0]
    right = opened(rstrip=True)
    assert right.encode(text) == [2, 3, 2, 5, 2, 3, 0]
    assert right([text]).offsets(0)[-2:] == [(6, 7), (0, 0)]


def test_marian_is_cut_for_its_end_and_has_no_windows(tmp_path):
    spm = sentencepiece([("<unk>", 0.0, UNKNOWN), ("▁a", -1.0, NORMAL), ("b", -1.0, NORMAL)])
    vocab = {"</s>": 0, "<unk>": 1, "▁a": 2, "b": 3, "<pad>": 4}
    files = {"source.spm": spm, "target.spm": spm, "vocab.json": json.dumps(vocab)}
    marian = load_tokenizer(write(tmp_path / "x", files))
    batch = marian(["abb a", "a"], max_length=3, truncate=True)
    assert batch["input_ids"].tolist() == [[2, 3, 0], [2, 0, 4]]
    assert batch.cut == [0]
    with pytest.raises(ConfigError, match="windows are for questions"):
        marian(["abb a"], max_length=3, windows=1)
    with pytest.raises(ConfigError, match="puts </s> after each text"):
        marian.with_specials(after=["</s>"])


@pytest.mark.parametrize("table", [b"\x01", struct.pack("<I", 64) + b"\0" * 8, b"\x03\0\0\0abc"])
def test_a_damaged_table_of_characters_is_told(table, tmp_path):
    file = tmp_path / "m.model"
    file.write_bytes(sentencepiece([("<unk>", 0.0, UNKNOWN)], charsmap=table))
    with pytest.raises(DataError, match="table of characters is damaged"):
        CharsMap(read_sentencepiece(file))


def test_a_tokenizer_json_without_special_tokens_puts_nothing_around(tmp_path):
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer = load_tokenizer(write(tmp_path / "x", {"tokenizer.json": inner.to_str()}))
    assert tokenizer.encode("a", "a") == [0, 0]
    assert tokenizer.special_ids == {}
    with pytest.raises(DataError, match="has no eos token; it has no special token"):
        _ = tokenizer.eos_id
