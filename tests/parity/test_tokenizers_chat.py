"""Chat templates: the same text as transformers, and no way out of the sandbox."""

from __future__ import annotations

import json

import pytest

from allformer.errors import ConfigError
from allformer.text.load import load_tokenizer
from tests.parity.vocabularies import byte_bpe, write

transformers = pytest.importorskip("transformers")

TEMPLATES = {
    "zephyr": (
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
        "{{ '<|user|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'assistant' %}\n"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n"
        "{% endfor %}"
    ),
    "llama2": (
        "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) "
        "%}{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' "
        "%}{{ bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' }}{% else %}"
        "{{ ' '  + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "llama3": (
        "{{- bos_token }}\n{%- set ns = namespace(n=0) %}\n{%- for message in messages %}\n"
        "    {%- set ns.n = ns.n + 1 %}\n    {{- '<|h|>' + message.role + '\n\n' }}\n"
        "    {{- message.content | trim + '<|eot|>' }}\n{%- endfor %}{{ ns.n }}\n"
        "{%- if tools is not none %}{{ tools | tojson(indent=2) }}{% endif %}\n"
        "{%- if add_generation_prompt %}{{- '<|h|>assistant\n\n' }}{%- endif %}\n"
        "{%- if documents is none %}no documents{% endif %}{{ x is defined }} {{ x }}"
    ),
    "chatml": (
        "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
        "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
        "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "odd": (
        "  {% for m in messages %}  \n  {% if m.role == 'skip' %}{% continue %}{% endif %}"
        "{% if loop.index > 3 %}{% break %}{% endif %}\n"
        "    {% generation %}{{ m.content }}<&>é{% set q = 1 %}{% endgeneration %}\n"
        "{{ {'role': m.role} | tojson }} {{ strftime_now('%Y') }} {{ q is defined }}\n{% endfor %} "
        "{{ dict(a='<é>') | tojson(ensure_ascii=true) }}"
    ),
}
CHATS = [
    [
        {"role": "user", "content": '  Be <brief> & "kind" 你好.  '},
        {"role": "assistant", "content": "Hello!\n"},
        {"role": "user", "content": "Bye"},
    ],
    [{"role": "user", "content": "one"}],
    [
        {"role": "user", "content": "a"},
        {"role": "skip", "content": "b"},
        {"role": "assistant", "content": " c "},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<x> & é"}}]
CALLS = [
    {},
    {"add_generation_prompt": True},
    {"tools": TOOLS},
    {"x": "<value>"},
    {"continue_final_message": True},
    {"documents": [{"title": "t", "text": "x"}]},
    {"bos_token": "<other>"},
]


@pytest.fixture(scope="module")
def vocabulary():
    return byte_bpe(["<|endoftext|>"])


def directory(tmp_path, vocabulary, **config):
    return write(
        tmp_path / "chat", vocabulary, config={"model_type": "gpt2"}, tokenizer_config=config
    )


def place(path, template, form):
    """The template in one of the three forms in which checkpoints have it."""
    config = path / "tokenizer_config.json"
    if form == "file":
        (path / "chat_template.jinja").write_text(template, encoding="utf-8")
        config.write_text(json.dumps({"chat_template": "the file wins"}))
    elif form == "string":
        config.write_text(json.dumps({"chat_template": template}))
    else:
        several = {"default": template, "tool_use": "with tools: " + template}
        entries = [{"name": name, "template": text} for name, text in several.items()]
        config.write_text(json.dumps({"chat_template": entries}))


def ask(tokenizer, chat, **call):
    try:
        return tokenizer.apply_chat_template(chat, **call)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("form", ["string", "list", "file"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_transformers_own(name, form, vocabulary, tmp_path):
    path = directory(tmp_path, vocabulary)
    place(path, TEMPLATES[name], form)
    theirs = transformers.AutoTokenizer.from_pretrained(str(path))
    ours = load_tokenizer(path)
    answered = 0
    for chat in CHATS:
        for call in CALLS:
            want = ask(theirs, chat, tokenize=False, **call)
            got = ask(ours, chat, **call)
            assert (got is ConfigError) if isinstance(want, type) else (got == want), (chat, call)
            if not isinstance(want, type):
                answered += 1
                ids = theirs.apply_chat_template(chat, tokenize=True, return_dict=False, **call)
                assert ours.apply_chat_template(chat, tokenize=True, **call) == ids
    assert answered > len(CHATS)
    ours.save(tmp_path / "saved")
    saved = load_tokenizer(tmp_path / "saved")
    for call in CALLS[:3]:
        assert ask(saved, CHATS[0], **call) == ask(ours, CHATS[0], **call)


def test_a_template_has_no_way_out(vocabulary, tmp_path):
    ours = load_tokenizer(directory(tmp_path, vocabulary))
    for template in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ ('%s' % 1).format.__self__.__class__.mro() }}",
    ):
        with pytest.raises(ConfigError, match="chat template refuses"):
            ours.apply_chat_template(CHATS[1], chat_template=template)


def test_a_template_sees_plain_data_only(vocabulary, tmp_path):
    class Image:
        def save(self, path):
            raise AssertionError("a template called a method")

    ours = load_tokenizer(directory(tmp_path, vocabulary))
    chat = [{"role": "user", "content": [{"type": "image", "image": Image()}]}]
    template = (
        "{{ messages[0].content[0].image }} {{ messages[0].content[0].image.save is defined }}"
    )
    assert ours.apply_chat_template(chat, chat_template=template) == "<Image> False"


def test_what_cannot_be_is_explained(vocabulary, tmp_path):
    ours = load_tokenizer(directory(tmp_path, vocabulary))
    chat = CHATS[1]
    with pytest.raises(ConfigError, match=r"no chat template.*chat_template\.jinja"):
        ours.apply_chat_template(chat)
    for call, message in (
        ({"chat_template": "{% for"}, "cannot be read"),
        ({"chat_template": "x", "truncation": True}, "has no truncation"),
        ({"chat_template": "x", "tools": [len]}, "JSON schemas"),
        (
            {
                "chat_template": "x",
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "choose one",
        ),
        ({"chat_template": "x", "continue_final_message": True}, "leaves out the last message"),
    ):
        with pytest.raises(ConfigError, match=message):
            ours.apply_chat_template(chat, **call)
    with pytest.raises(ConfigError, match="empty"):
        ours.apply_chat_template([], chat_template="x")
    with pytest.raises(ConfigError, match="must be a dict"):
        ours.apply_chat_template(["hello"], chat_template="x")


def test_several_templates_without_a_default_must_be_named(vocabulary, tmp_path):
    several = [{"name": "a", "template": "A"}, {"name": "b", "template": "B"}]
    ours = load_tokenizer(directory(tmp_path, vocabulary, chat_template=several))
    assert ours.apply_chat_template(CHATS[1], chat_template="b") == "B"
    with pytest.raises(ConfigError, match=r"name one.*: a, b"):
        ours.apply_chat_template(CHATS[1])
