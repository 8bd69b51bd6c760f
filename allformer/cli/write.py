"""`allformer generate`, `summarise` and `translate`: texts that a model writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.ahead import Draft, Lookup, Memory, aids, fit_draft
from allformer.cli.common import (
    AsJson,
    Device,
    Dtype,
    File,
    Model,
    Texts,
    Truncate,
    checked,
    given,
    open_model,
    read_text,
)
from allformer.cli.lines import Source, Verb, read_source, run
from allformer.errors import AllformerError

GENERATE = (
    'Examples: `allformer generate openai-community/gpt2 "Once upon a time" --top-p 0.9 --seed 1`; '
    '`allformer generate CHAT "Who wrote Faust?" --chat`; '
    "`allformer generate MODEL --file prompts.txt --json > written.jsonl`; "
    '`allformer generate LARGE "Once upon a time" --draft SMALL`; '
    "`allformer generate runs/digits --audio prompt.wav --seconds 5 --out out.wav`"
)
SUMMARISE = (
    "Examples: `allformer summarise facebook/bart-large-cnn --file articles.txt` (one a line); "
    '`allformer summarise google-t5/t5-small "$(cat article.txt)" --truncate`'
)
TRANSLATE = (
    'Examples: `allformer translate demo "I have two cats."`; '
    "`allformer translate runs/m30k --file test.en > test.de`; "
    "`cat a.en | allformer translate Helsinki-NLP/opus-mt-en-de`; "
    '`allformer translate google-t5/t5-small "I have two cats." --source en --target de`'
)
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Longest output; default: its own, or 256 (summaries 128).")
]
NumBeams = Annotated[int | None, typer.Option(help="1 is greedy; default: the checkpoint's.")]
Seed = Annotated[int | None, typer.Option(help="Of what is drawn.")]
Prefix = Annotated[str | None, typer.Option(help="Words to put before each text.")]


def generate(
    context: typer.Context,
    model: Model,
    text: Texts = None,
    file: File = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Annotated[
        float | None, typer.Option(help="Draw: below 1 safer, above 1 bolder; 0 is greedy.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the likeliest that together have p.")
    ] = None,
    num_beams: NumBeams = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: repeats less.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop after this text; may be given several times.")
    ] = None,
    seed: Seed = None,
    chat: Annotated[bool, typer.Option("--chat", help="As a message in a chat.")] = False,
    system: Annotated[str | None, typer.Option(help="A chat's system message.")] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="A chat's template (jinja), instead of the checkpoint's.")
    ] = None,
    draft: Draft = None,
    lookup: Lookup = None,
    cache: Memory = None,
    audio: Annotated[
        Path | None, typer.Option(help="A recording to go on with: MODEL has AudioLM's stages.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="X", help="Of new sound; default: 5.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The sound, as .wav, .flac, .ogg or .mp3.")
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a text, or answer it; or go on with a recording (--audio, --seconds, --out).

    What is typed is answered while it is being written; without TEXT, --chat holds a conversation.
    A line of a file gives one line, in which \\n stands for a line break."""
    if any(x is not None for x in (audio, seconds, out)):
        words = given(
            text=text, file=file, max_new_tokens=max_new_tokens, top_p=top_p, num_beams=num_beams,
            repetition_penalty=repetition_penalty, stop=stop, system=system, dtype=dtype,
            chat_template=chat_template, chat=chat or None, draft=draft, lookup=lookup, cache=cache,
        )  # fmt: skip
        return _sound(model, audio, seconds, out, words, temperature=temperature, top_k=top_k,
                      seed=seed, device=device, as_json=as_json)  # fmt: skip
    told = given(system=system, chat_template=chat_template)
    if told and not chat:
        name = next(iter(told)).replace("_", "-")
        raise AllformerError(f"--{name} is a part of a chat; give --chat too")
    options: dict[str, Any] = checked(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_beams=num_beams,
        repetition_penalty=repetition_penalty,
        stop_strings=stop,
    )
    if temperature == 0:
        del options["temperature"]
        options["do_sample"] = False
    elif not {"temperature", "top_k", "top_p"}.isdisjoint(options):
        options["do_sample"] = True
    if chat_template is not None:
        told["chat_template"] = read_text(chat_template)
    options |= told | given(seed=seed) | {"chat": chat}
    options |= aids(context, draft, lookup, cache)
    source = read_source(text, file)
    pipeline = open_model(model, device, dtype)
    if draft is not None:
        options["assistant_model"] = fit_draft(draft, pipeline, device, dtype)
    if source.typed and not as_json and _one_by_one(pipeline, num_beams):
        _live(pipeline, source, options)
        return
    from allformer.tasks import generate as work

    verb = Verb(
        lambda texts: work(pipeline, texts, **options),
        lambda written: written,
        lambda prompt, written: {"prompt": prompt, "text": written},
    )
    run(source, verb, as_json=as_json, chunk=64)


def _sound(
    model: str,
    audio: Path | None,
    seconds: float | None,
    out: Path | None,
    words: dict[str, Any],
    **how: Any,
) -> None:
    """Sound instead of text; what belongs to text is refused."""
    from allformer.cli.sound_tokens import go_on

    if words:
        name = next(iter(words)).replace("_", "-")
        flag = name.upper() if name == "text" else f"--{name}"
        raise AllformerError(f"{flag} is for text, but --audio, --seconds and --out are for sound")
    if out is None:
        raise AllformerError("--out is missing: say where the sound goes, --out out.wav")
    go_on(model, audio, 5.0 if seconds is None else seconds, out, **how)


def _one_by_one(pipeline: Any, num_beams: int | None) -> bool:
    """Whether tokens are final as they come; those of beams are not."""
    from allformer.tasks.verbs import need
    from allformer.tasks.writing import settings

    need(pipeline, "generate")
    return (num_beams or settings(pipeline).num_beams or 1) == 1


def _live(pipeline: Any, source: Source, options: dict[str, Any]) -> None:
    """Show the text while it is being written; a chat without TEXT remembers what was said."""
    from allformer.tasks import Stream
    from allformer.tasks import generate as work

    def out(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    options = dict(options)
    remembers = options["chat"] and not isinstance(source.lines, list)
    system = options.pop("system", None) if remembers else None
    said = [] if system is None else [{"role": "system", "content": system}]
    for line in _asked(source) if remembers else source.lines:
        prompt: Any = line.rstrip("\r\n")
        if remembers:
            said.append({"role": "user", "content": prompt})
            prompt = said
        stream = Stream(pipeline.tokenizer, out)
        written = work(pipeline, [prompt], streamer=stream, **options)[0]
        out("\n")
        if remembers:
            said.append({"role": "assistant", "content": written})


def _asked(source: Source) -> Iterator[str]:
    """What a person types, with a sign that it is their turn."""
    lines = iter(source.lines)
    while True:
        if source.live:
            print("> ", end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            if source.live:
                print(file=sys.stderr)  # Ctrl-D leaves the cursor behind the sign
            return
        yield line


def summarise(
    model: Model,
    text: Texts = None,
    file: File = None,
    max_new_tokens: MaxNewTokens = None,
    num_beams: NumBeams = None,
    prefix: Prefix = None,
    truncate: Truncate = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """A summary of each text.

    The checkpoint's own settings for the task hold (config.json: task_specific_params)."""
    from allformer.tasks import summarise as work

    options = checked(max_new_tokens=max_new_tokens, num_beams=num_beams) | given(prefix=prefix)
    source = read_source(text, file)
    pipeline = open_model(model, device, dtype)
    verb = Verb(
        lambda texts: work(pipeline, texts, truncate=truncate, **options),
        lambda summary: summary,
        lambda text, summary: {"text": text, "summary": summary},
    )
    run(source, verb, as_json=as_json, chunk=64)


def translate(
    model: Annotated[
        str, typer.Argument(help="The directory that training wrote, a checkpoint's, or a hub id.")
    ],
    text: Annotated[list[str] | None, typer.Argument(help="What to translate.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="A UTF-8 file, one sentence a line; .gz is read too.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Source language, for checkpoints of many: en, en_XX")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target language, for checkpoints of many: de, de_DE, deu")
    ] = None,
    prefix: Prefix = None,
    beams: Annotated[
        int | None, typer.Option(help="1 is greedy; default: the recipe's or the checkpoint's.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Score = log p / length^penalty; default: its own.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest output; default: its own, or 2 × source + 20.")
    ] = None,
    truncate: Truncate = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Translate text, a file or standard input: one line out for each line in, in order."""
    from allformer.tasks import translate as work

    searched = checked(
        {"num_beams": "--beams"},
        num_beams=beams,
        length_penalty=length_penalty,
        max_new_tokens=max_new_tokens,
    )
    lines = read_source(text, file)
    told = given(source=source, target=target, prefix=prefix)
    pipeline = open_model(model, device, dtype)
    verb = Verb(
        lambda texts: work(pipeline, texts, truncate=truncate, **searched, **told),
        lambda written: written,
        lambda said, written: {"source": said, "translation": written},
    )
    run(lines, verb, as_json=as_json)
