"""`generate`, `translate` and `summarise`: texts that a model writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allformer.errors import ConfigError
from allformer.tasks.call import check_texts, task
from allformer.tasks.languages import Way, way
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.verbs import need
from allformer.tasks.writing import write

NEW, SUMMARY = 256, 128  # tokens at most, where neither caller nor checkpoint says


@task
def generate(
    pipeline: Pipeline,
    prompts: list[Any],
    /,
    *,
    chat: bool = False,
    system: str | None = None,
    chat_template: str | None = None,
    seed: int | None = None,
    **options: Any,
) -> list[str | list[str]]:
    """What the model writes after each prompt (a decoder), or for it (an encoder-decoder).

    >>> generate("gpt2", "The meaning of life is", max_new_tokens=20)
    ' not the same as the meaning of death.'
    >>> generate("llama-chat", "Who wrote Faust?", chat=True, do_sample=True, top_p=0.9, seed=1)
    'Johann Wolfgang von Goethe.'

    `chat` puts the prompt into the checkpoint's chat template (or into `chat_template`), as what
    the user says (after `system`); a prompt may be a list of messages then. `options` are those of
    `model.generate`, with transformers' names; the checkpoint's generation_config.json says the
    others. With `num_return_sequences` > 1, so many texts of each prompt. One of `stop_strings`
    ends a text and is no part of it. `streamer=Stream(…)` shows a text while it is written,
    `pace=Pace()` measures how fast, `structured=Structured.regex(…)` gives it a form,
    `prefix=Prefix()` keeps what was read for the next call, and `dtype=torch.int8` computes in
    eight bits on a CPU.
    """
    need(pipeline, "generate")
    for name, value in (("system", system), ("chat_template", chat_template)):
        if value is not None and not chat:
            raise ConfigError(f"{name}={value!r} is a part of a chat; give chat=True")
    texts = prompts
    if chat:
        texts = [_chat(pipeline, prompt, system, chat_template) for prompt in prompts]
    check_texts(texts, "prompt")
    found = write(pipeline, texts, {}, options, most=lambda _: NEW, seed=seed, special=not chat)
    return [each[0] if len(each) == 1 else each for each in found]


def _chat(
    pipeline: Pipeline,
    prompt: str | Sequence[Mapping[str, Any]],
    system: str | None,
    template: str | None,
) -> str:
    messages: list[dict[str, Any]] = [] if system is None else [_says("system", system)]
    if isinstance(prompt, str):
        messages.append(_says("user", prompt))
    else:
        messages += [dict(message) for message in prompt]
    text = pipeline.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, chat_template=template
    )
    assert isinstance(text, str)
    return text


def _says(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@task
def translate(
    pipeline: Pipeline,
    texts: list[str],
    /,
    *,
    source: str | None = None,
    target: str | None = None,
    prefix: str | None = None,
    truncate: bool = False,
    seed: int | None = None,
    **options: Any,
) -> list[str]:
    """The translation of each text.

    >>> translate("Helsinki-NLP/opus-mt-en-de", "The dog sleeps.")
    'Der Hund schläft.'
    >>> translate("google-t5/t5-small", "The dog sleeps.", source="en", target="de")
    'Der Hund schläft.'

    `source` and `target` are for checkpoints of many languages: T5 (`en`, `de` or their names),
    mBART (`en_XX`, `de_DE` or `en`, `de`), multilingual Marian (`deu`). `prefix` puts other words
    before each text. A run that `allformer train` wrote translates one way, with the beams of its
    recipe. `options` are those of `model.generate`.
    """
    check_texts(texts)
    need(pipeline, "translate")
    told = prefix is not None and source is None and target is None
    found = Way(pipeline) if told else way(pipeline, source, target)
    before = found.prefix if prefix is None else prefix
    return _answers(
        found.pipeline, texts, before, found.options, options, truncate, seed, _translated
    )


@task
def summarise(
    pipeline: Pipeline,
    texts: list[str],
    /,
    *,
    prefix: str | None = None,
    truncate: bool = False,
    seed: int | None = None,
    **options: Any,
) -> list[str]:
    """A summary of each text.

    >>> summarise("facebook/bart-large-cnn", article)
    'Goethe, the author of Faust, was born in Frankfurt in 1749. …'

    What config.json says of the task (`task_specific_params`) holds: beams, lengths, the words
    before the text (T5: `summarize: `); `prefix` puts others, `options` are those of
    `model.generate` and win.
    """
    check_texts(texts)
    need(pipeline, "summarise")
    said = dict((pipeline.raw.get("task_specific_params") or {}).get("summarization") or {})
    before = said.pop("prefix", pipeline.prompts.summarise) or ""
    before = before if prefix is None else prefix
    return _answers(pipeline, texts, before, said, options, truncate, seed, lambda _: SUMMARY)


def _answers(
    pipeline: Pipeline,
    texts: list[str],
    prefix: str,
    said: dict[str, Any],
    options: dict[str, Any],
    truncate: bool,
    seed: int | None,
    most: Any,
) -> list[str]:
    """One text for each; an empty one stays empty."""
    filled = [i for i, text in enumerate(texts) if text.strip()]
    found = write(
        pipeline,
        [prefix + texts[i] for i in filled],
        said,
        {**options, "num_return_sequences": 1},
        most=most,
        seed=seed,
        truncate=truncate,
        whole=True,
    )
    out = [""] * len(texts)
    for i, written in zip(filled, found, strict=True):
        out[i] = written[0]
    return out


def _translated(source: int) -> int:
    """The most tokens of a translation, where neither caller nor checkpoint says."""
    return 2 * source + 20
