"""`allformer generate`, `summarise` and `translate`: texts that a model writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.ahead import Draft, Lookup, Memory, aids, fit_draft, refuse_beams
from allformer.cli.common import (
    AsJson,
    Device,
    File,
    Model,
    Texts,
    Truncate,
    WriterDtype,
    checked,
    given,
    open_writer,
    read_text,
    say,
)
from allformer.cli.lines import Verb, read_source, run
from allformer.errors import AllformerError

GENERATE = (
    'Examples: `allformer generate openai-community/gpt2 "Once upon a time" --top-p 0.9 --seed 1`; '
    '`allformer generate CHAT "Who wrote Faust?" --chat`; '
    '`allformer generate CHAT "A person as JSON" --chat --json-schema person.json`; '
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
        list[str] | None,
        typer.Option(help="End before this text; may be given several times."),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="What is written matches this expression.")
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="What is written is JSON that satisfies this schema.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="What is written follows this grammar (Lark).")
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
    dtype: WriterDtype = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a text, or answer it; or go on with a recording (--audio, --seconds, --out).

    What is typed is answered while it is being written, and at the end it is told how fast; without
    TEXT, --chat holds a conversation. A line of a file gives one line, in which \\n stands for a
    line break."""
    if any(x is not None for x in (audio, seconds, out)):
        words = given(
            text=text, file=file, max_new_tokens=max_new_tokens, top_p=top_p, num_beams=num_beams,
            repetition_penalty=repetition_penalty, stop=stop, system=system, dtype=dtype,
            chat_template=chat_template, chat=chat or None, regex=regex, json_schema=json_schema,
            grammar=grammar, draft=draft, lookup=lookup, cache=cache,
        )  # fmt: skip
        return _sound(model, audio, seconds, out, words, temperature=temperature, top_k=top_k,
                      seed=seed, device=device, as_json=as_json)  # fmt: skip
    told = given(system=system, chat_template=chat_template)
    if told and not chat:
        name = next(iter(told)).replace("_", "-")
        raise AllformerError(f"--{name} is a part of a chat; give --chat too")
    options: dict[str, Any] = checked(
        {"stop_strings": "--stop"},
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_beams=num_beams,
        repetition_penalty=repetition_penalty,
        stop_strings=None if stop is None else tuple(stop),
    )
    if temperature == 0:
        del options["temperature"]
        options["do_sample"] = False
    elif not {"temperature", "top_k", "top_p"}.isdisjoint(options):
        options["do_sample"] = True
    if chat_template is not None:
        told["chat_template"] = read_text(chat_template)
    form = _form(regex, json_schema, grammar)
    options |= told | given(seed=seed, structured=form) | {"chat": chat, "num_return_sequences": 1}
    options |= aids(draft, lookup, cache, num_beams, dtype)
    source = read_source(text, file)
    pipeline, kind = open_writer(model, device, dtype)
    options |= kind
    beams = _beams(pipeline, num_beams)
    refuse_beams(draft, lookup, num_beams, beams)
    if draft is not None:
        options["assistant_model"] = fit_draft(draft, pipeline, device, dtype)
    if source.typed and beams == 1:  # tokens are final as they come; those of beams are not
        from allformer.cli.chat import converse
        from allformer.cli.say import say_texts

        if chat and source.live and not as_json:
            converse(pipeline, source, options)
        else:
            say_texts(pipeline, source, options, as_json)
        return
    from allformer.tasks import Pace
    from allformer.tasks import generate as work

    pace = Pace()
    verb = Verb(
        lambda texts: work(pipeline, texts, pace=pace, **options),
        lambda written: written,
        lambda prompt, written: {"prompt": prompt, "text": written},
    )
    run(source, verb, as_json=as_json, chunk=64)
    if pace.new:
        say(str(pace))


def _form(regex: str | None, json_schema: Path | None, grammar: Path | None) -> Any:
    """The form that what is written must have; a bad one is refused before a model is opened."""
    from allformer.generate.structured import Structured

    forms = given(regex=regex, json_schema=json_schema, grammar=grammar)
    if len(forms) > 1:
        names = " and ".join("--" + name.replace("_", "-") for name in forms)
        raise AllformerError(f"{names} are two forms of one text; give one of them")
    if json_schema is not None:
        return Structured.json_schema(read_text(json_schema))
    if grammar is not None:
        return Structured.grammar(read_text(grammar))
    return None if regex is None else Structured.regex(regex)


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


def _beams(pipeline: Any, num_beams: int | None) -> int:
    """How many beams there will be: what was given, or what the checkpoint says."""
    from allformer.tasks.verbs import need
    from allformer.tasks.writing import settings

    need(pipeline, "generate")
    return num_beams or settings(pipeline).num_beams or 1


def summarise(
    model: Model,
    text: Texts = None,
    file: File = None,
    max_new_tokens: MaxNewTokens = None,
    num_beams: NumBeams = None,
    prefix: Prefix = None,
    truncate: Truncate = False,
    device: Device = None,
    dtype: WriterDtype = None,
    as_json: AsJson = False,
) -> None:
    """A summary of each text.

    The checkpoint's own settings for the task hold (config.json: task_specific_params)."""
    from allformer.tasks import summarise as work

    options = checked(max_new_tokens=max_new_tokens, num_beams=num_beams) | given(prefix=prefix)
    source = read_source(text, file)
    pipeline, kind = open_writer(model, device, dtype)
    verb = Verb(
        lambda texts: work(pipeline, texts, truncate=truncate, **options, **kind),
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
    dtype: WriterDtype = None,
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
    pipeline, kind = open_writer(model, device, dtype)
    verb = Verb(
        lambda texts: work(pipeline, texts, truncate=truncate, **searched, **told, **kind),
        lambda written: written,
        lambda said, written: {"source": said, "translation": written},
    )
    run(lines, verb, as_json=as_json)
