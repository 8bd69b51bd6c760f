"""The chat template of a model that has none: headings in plain text, which any tokeniser knows."""

from __future__ import annotations

from dataclasses import replace

from allformer.errors import ConfigError
from allformer.text.wrapper import Tokenizer

# An answer ends with the end of text, so that the model learns to stop; nothing new is added to
# the vocabulary, which trained weights could not read.
DEFAULT = (
    "{{ bos_token }}{% for message in messages %}"
    "### {{ message['role'] | capitalize }}:\n{{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '' }}\n\n"
    "{% endfor %}{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)
HEADINGS = ("### System:\n", "### User:\n", "### Assistant:\n", "### Tool:\n")  # all that it says


def with_chat(tokenizer: Tokenizer, template: str | None = None) -> Tokenizer:
    """One that has a chat template: `template`, else its own, else the default one.

    >>> with_chat(load_tokenizer("gpt2")).apply_chat_template([{"role": "user", "content": "Hi"}])
    '<|endoftext|>### User:\\nHi\\n\\n'

    The special tokens that a template writes are commands from then on, also to a tokeniser that
    we trained, for which those in a text are text.
    """
    chosen = template or tokenizer.settings.chat_template
    if chosen is None:
        if "eos" not in tokenizer.settings.names:
            raise ConfigError(
                "the tokeniser has neither a chat template nor an end of text (eos_token) that "
                "the default one could end an answer with; give objective.template"
            )
        chosen = DEFAULT
    settings = replace(tokenizer.settings, chat_template=chosen, split_special_tokens=False)
    return Tokenizer(tokenizer._copy(), settings)
