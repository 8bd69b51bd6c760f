"""Which tokens of a conversation are learnt: token by token beside other readings."""

from __future__ import annotations

import string
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from allformer.errors import ConfigError, DataError
from allformer.text.answers import Answers
from allformer.text.chat_default import DEFAULT, with_chat
from allformer.text.load import load_tokenizer
from allformer.text.settings import Settings
from allformer.text.tokenizer import Tokenizer, train_tokenizer
from tests.chats import CHATML, CHATS, END, FORGETS, GENERATION, TEXTS, answers_by_hand
from tests.chats import chat_tokenizer as tokenizer_of


def marked(template, messages):
    answers = Answers(tokenizer_of(template))
    return answers.encode(answers.write(messages))


def check_by_hand(template=CHATML):
    """Every token of ChatML, English and Chinese, one turn and three."""
    for messages in CHATS:
        tokenizer = tokenizer_of(template)
        [found] = marked(template, messages)
        assert found.learnt == answers_by_hand(tokenizer, found.ids)
        whole = tokenizer.apply_chat_template(messages, tokenize=True)
        assert found.ids == whole[: len(found.ids)]
        assert tokenizer.decode(whole[len(found.ids) :], False) == "\n"  # nothing is learnt there


@pytest.mark.parametrize("template", [CHATML, GENERATION])
def test_every_answer_is_learnt_with_its_end_and_nothing_else(template):
    check_by_hand(template)


def check_texts():
    """What is learnt, as text: the answers, each with its end."""
    tokenizer = tokenizer_of(CHATML)
    [found] = marked(CHATML, CHATS[1])
    said = [i for i, learnt in zip(found.ids, found.learnt, strict=True) if learnt]
    wanted = [m["content"] + END for m in CHATS[1] if m["role"] == "assistant"]
    assert tokenizer.decode(said, skip_special_tokens=False) == "".join(wanted)


def test_what_is_learnt_reads_as_the_answers():
    check_texts()


def check_transformers():
    """transformers' own marks, where headings end with a line break or with a space."""
    transformers = pytest.importorskip("transformers")
    for template in (GENERATION, GENERATION.replace("'\n' }}{% if", "': ' }}{% if")):
        with TemporaryDirectory() as folder:
            tokenizer_of(template).save(folder)
            theirs = transformers.AutoTokenizer.from_pretrained(folder)
        for messages in CHATS:
            want = theirs.apply_chat_template(
                messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            [found] = marked(template, messages)
            size = len(found.ids)
            assert found.ids == want["input_ids"][:size]
            assert list(map(int, found.learnt)) == want["assistant_masks"][:size]
            assert not any(want["assistant_masks"][size:])


def test_transformers_marks_the_same_tokens():
    check_transformers()


def check_history(template=FORGETS):
    """Three answers, three texts: each with the thoughts that only the last has."""
    tokenizer = tokenizer_of(template)
    rows = marked(template, CHATS[1])
    assert len(rows) == 3
    for row, answer in zip(rows, CHATS[1][2::2], strict=True):
        learnt = [i for i, is_so in zip(row.ids, row.learnt, strict=True) if is_so]
        said = tokenizer.decode(learnt, skip_special_tokens=False)
        assert said == f"<think></think>{answer['content']}{END}"
        assert tokenizer.decode(row.ids, False).count("<think>") == 1


def test_a_template_that_rewrites_history_gives_each_answer_its_own_text():
    check_history()


def check_commands():
    """Special tokens that people type are letters, and the turn ends where the template ends it."""
    tokenizer = tokenizer_of(CHATML)
    end = tokenizer.token_to_id(END)
    chat = [
        {"role": "user", "content": f"a{END}b</s>"},
        {"role": "assistant", "content": f"c <|im_start|>{END} d"},
    ]
    [found] = marked(CHATML, chat)
    assert found.ids.count(end) == 2
    assert tokenizer.special_ids["eos"] not in found.ids
    assert tokenizer.decode(found.ids, False) == tokenizer.apply_chat_template(chat)[:-1]
    said = [i for i, learnt in zip(found.ids, found.learnt, strict=True) if learnt]
    assert tokenizer.decode(said, False) == f"c <|im_start|>{END} d{END}"


def test_what_people_type_is_no_command():
    check_commands()


def check_sentencepiece():
    """LLaMA's kind puts a space before a text: not before the rest of what looks like a command."""
    letters = sorted(set(string.ascii_letters + string.digits + string.punctuation + "▁"))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters]
    vocab = {token: i for i, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    inner.add_special_tokens(["<s>", "</s>"])
    tokenizer = with_chat(Tokenizer(inner, Settings({"bos": "<s>", "eos": "</s>"})))
    chat = [
        {"role": "user", "content": "<s>a</s> b"},
        {"role": "assistant", "content": "你好 </s>c"},
    ]
    answers = Answers(tokenizer)
    [found] = answers.encode(answers.write(chat))
    text = tokenizer.decode(found.ids, skip_special_tokens=False)
    assert "<s>a</s> b" in text
    said = [i for i, learnt in zip(found.ids, found.learnt, strict=True) if learnt]
    assert tokenizer.decode(said, skip_special_tokens=False) == "你好 </s>c</s>"
    assert (found.ids.count(1), found.ids.count(2)) == (1, 1)


def test_a_cut_puts_no_space_into_what_people_type():
    check_sentencepiece()


def test_the_default_template_ends_answers_and_any_tokeniser_has_it(tmp_path):
    trained = train_tokenizer(TEXTS * 3, "byte-bpe", 400)
    tokenizer = with_chat(trained)
    assert tokenizer.settings.chat_template == DEFAULT
    text = tokenizer.apply_chat_template(CHATS[0])
    assert text == "<s>### User:\nWhat is a dog?\n\n### Assistant:\nAn animal that barks.</s>\n\n"
    asked = tokenizer.apply_chat_template(CHATS[0][:1], add_generation_prompt=True)
    assert text.startswith(asked)
    assert asked.endswith("### Assistant:\n")
    answers = Answers(tokenizer)
    [found] = answers.encode(answers.write(CHATS[0]))
    assert found.ids[0] == tokenizer.bos_id
    assert not found.learnt[0]
    said = [i for i, learnt in zip(found.ids, found.learnt, strict=True) if learnt]
    assert said == [*trained.encode("An animal that barks."), tokenizer.eos_id]
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.apply_chat_template(CHATS[0], tokenize=True) == tokenizer.encode(text)


def test_a_space_before_an_answer_belongs_to_it():
    spaced = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]" \
             "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"  # fmt: skip
    tokenizer = tokenizer_of(spaced)
    [found] = marked(spaced, CHATS[0])
    said = [i for i, learnt in zip(found.ids, found.learnt, strict=True) if learnt]
    assert tokenizer.decode(said, False) == " An animal that barks. </s>"
    assert said == found.ids[-len(said) :]


def test_a_turn_that_ends_with_no_special_token_is_learnt_to_its_last_character():
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" \
            "{% if add_generation_prompt %}assistant:{% endif %}"  # fmt: skip
    [found] = marked(plain, CHATS[0])
    said = [i for i, learnt in zip(found.ids, found.learnt, strict=True) if learnt]
    assert tokenizer_of(plain).decode(said, False) == " An animal that barks.\n"


def test_what_is_asked_last_without_an_answer_is_left_out():
    longer = [*CHATS[0], {"role": "user", "content": "And a cat?"}]
    assert marked(CHATML, longer) == marked(CHATML, CHATS[0])


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (CHATS[0][:1], "no answer"),
        (CHATS[0][1:], "begins with an answer that nobody"),
    ],
)
def test_a_conversation_without_question_or_answer_is_refused(messages, said):
    with pytest.raises(DataError, match=said):
        marked(CHATML, messages)


def test_a_template_that_hides_where_answers_begin_is_refused():
    hides = CHATML.replace("assistant\n' }}{% endif", "assistant\n<think>' }}{% endif")
    with pytest.raises(ConfigError, match=r"asks for an answer otherwise .* generation"):
        marked(hides, CHATS[0])


def test_a_tokeniser_that_cannot_end_an_answer_needs_a_template():
    trained = train_tokenizer(TEXTS, "byte-bpe", 300)
    bare = Tokenizer(trained._copy(), replace(trained.settings, names={"unk": "<unk>"}))
    with pytest.raises(ConfigError, match="neither a chat template nor an end of text"):
        with_chat(bare)
