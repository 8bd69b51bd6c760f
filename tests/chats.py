"""Conversations for tests, and the templates and tokenisers that they are written with."""

from __future__ import annotations

from functools import cache
from typing import Any

from allformer.text.chat_default import with_chat
from allformer.text.tokenizer import Tokenizer, train_tokenizer

START, END = "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Says itself what the model wrote, as transformers' training templates do.
GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Writes thoughts before the last answer alone, as Qwen3's does.
FORGETS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if loop.last and message['role'] == 'assistant' %}{{ '<think></think>' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = [
    "What is a dog? A dog is an animal that barks, and a friend of people.",
    "Name three colours. Red, green and blue.\n\n1. One\n2. Two",
    "什么是狗？狗是人类的朋友。请列出三种颜色：红、绿、蓝。谢谢！",
    "system user assistant You are a helpful assistant.",
]
CHATS: list[list[dict[str, Any]]] = [
    [
        {"role": "user", "content": "What is a dog?"},
        {"role": "assistant", "content": "An animal that barks."},
    ],
    [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "请列出三种颜色。"},
        {"role": "assistant", "content": "红、绿、蓝。\n谢谢！"},
        {"role": "user", "content": "\nAnd in English?\n"},
        {"role": "assistant", "content": "\n\nRed, green and blue.  "},
        {"role": "user", "content": "再见"},
        {"role": "assistant", "content": "再见 🙂"},
    ],
]


@cache
def chat_tokenizer(template: str | None = CHATML) -> Tokenizer:
    """A small one of bytes with ChatML's two tokens."""
    trained = train_tokenizer(TEXTS * 3, "byte-bpe", 400, specials=(START, END))
    return with_chat(trained, template)


def answers_by_hand(tokenizer: Tokenizer, ids: list[int]) -> list[bool]:
    """Another reading of ChatML: from behind `<|im_start|>assistant\\n` to `<|im_end|>`."""
    head = tokenizer.encode(f"{START}assistant\n", add_special_tokens=False)
    end = tokenizer.token_to_id(END)
    found, inside = [], False
    for i, token in enumerate(ids):
        inside = inside or ids[max(0, i - len(head)) : i] == head
        found.append(inside)
        inside = inside and token != end
    return found
