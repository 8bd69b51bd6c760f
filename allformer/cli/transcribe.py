"""`allformer transcribe`: what is said in recordings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import INT8, Device, given, pick_dtype, say, writable_directory
from allformer.cli.live import PIPE, check_pipe, check_source, live
from allformer.errors import AllformerError

TRANSCRIBE = (
    "Examples: `allformer transcribe talk.mp3`; "
    "`allformer transcribe talk.mp3 --language zh --format srt --out subtitles`; "
    "`allformer transcribe calls/*.wav --model openai/whisper-large-v3 --beams 5 --out texts`; "
    "`allformer transcribe rede.ogg --task translate --clips 60,120`; "
    "`allformer transcribe lecture.mp3 --batch 16 --timestamps word --format json`; "
    "`arecord -q -f S16_LE -r 16000 -t raw | allformer transcribe --stream -`"
)
SHORT = 60.0  # seconds of a recording for which nobody needs a bar
TIMES = ("segment", "word", "none")
Files = Annotated[
    list[str], typer.Argument(metavar="FILE", help="wav, flac, mp3, ogg, …; or a folder of them.")
]


def transcribe(
    files: Files,
    model: Annotated[
        str, typer.Option(help="A Whisper: a directory, a hub id, or OpenAI's .pt file.")
    ] = "openai/whisper-small",
    language: Annotated[
        str | None, typer.Option(help="zh, Chinese, …; default: what is heard in the first 30 s.")
    ] = None,
    task: Annotated[str, typer.Option(help="transcribe, or translate into English.")] = (
        "transcribe"
    ),
    timestamps: Annotated[
        str, typer.Option(help="segment; word; or none: the model writes no times.")
    ] = "segment",
    format: Annotated[
        str | None,
        typer.Option(help="txt, srt, vtt, tsv or json; default: txt, on a terminal with times."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the results: talk.mp3 becomes talk.txt.")
    ] = None,
    beams: Annotated[int | None, typer.Option(min=1, metavar="N", help="Beam search.")] = None,
    patience: Annotated[
        float | None, typer.Option(metavar="X", help="Beams go on until X · N have ended.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="0 … 1; default: by the length itself.")
    ] = None,
    temperature: Annotated[
        str | None,
        typer.Option(metavar="X,X,…", help="Tried in turn; default: 0,0.2,0.4,0.6,0.8,1."),
    ] = None,
    best_of: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Texts that are drawn, above 0.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="What might have been said before: names, a style.")
    ] = None,
    carry_prompt: Annotated[
        bool, typer.Option("--carry-prompt", help="Before each window, not the first alone.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Windows are not told what was said before.")
    ] = False,
    clips: Annotated[
        str | None, typer.Option(metavar="S,E,…", help="Seconds: start, end, start, end, …")
    ] = None,
    compression: Annotated[
        float | None, typer.Option(metavar="X", help="A text that packs better is tried again.")
    ] = None,
    logprob: Annotated[
        float | None, typer.Option(metavar="X", help="A less likely text is tried again.")
    ] = None,
    no_speech: Annotated[
        float | None, typer.Option(metavar="X", help="Likelier silence is skipped.")
    ] = None,
    suppress: Annotated[
        str | None, typer.Option(metavar="IDS", help="Never said; -1: signs nobody speaks.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="For a .pt file: a .tiktoken file, or a directory.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Cut at silence, N windows side by side."),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="As it is said: FILE is - (raw samples) or microphone."),
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(min=1000, metavar="N", help="With --stream -: samples a second (16000)."),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --stream -: interleaved channels (1)."),
    ] = None,
    samples: Annotated[
        str | None, typer.Option(help="With --stream -: s16 (integers, the usual) or f32 (floats).")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what is drawn.")] = 0,
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="fp32, fp16, bf16 or, on a CPU, int8; default: the file's, there fp32."),
    ] = None,
) -> None:
    """Write down what is said in recordings, or translate it into English.

    A recording may be hours long, of any rate and number of channels. Texts go to standard output,
    with --out into files. With --stream words appear while they are said: those in plain letters
    stay as they are, dimmed ones may change.
    """
    from allformer.speech.formats import FORMATS
    from allformer.speech.options import TranscribeOptions
    from allformer.tasks.speech_pipeline import open_speech

    files = files if stream else _all_in(files)
    _check(files, timestamps, format, out, tuple(FORMATS))
    pipe = given(rate=rate, channels=channels, form=samples)
    if stream:
        check_source(files)
        _check_stream(timestamps, format, out, batch, clips)
        check_pipe(files[0], pipe)
    else:
        _check_files(files, pipe)
    asked = given(
        language=language, task=task, beam_size=beams, patience=patience, best_of=best_of,
        length_penalty=length_penalty, initial_prompt=prompt,
        temperature=_numbers(temperature, "--temperature"),
        clip_timestamps=_numbers(clips, "--clips"), compression_ratio_threshold=compression,
        logprob_threshold=logprob, no_speech_threshold=no_speech,
        suppress_tokens=_ids(suppress),
    )  # fmt: skip
    asked |= {
        "condition_on_previous_text": not forget, "carry_initial_prompt": carry_prompt,
        "without_timestamps": timestamps == "none", "seed": seed,
    }  # fmt: skip
    options = TranscribeOptions(**asked)
    wide = dtype if dtype == INT8 else pick_dtype(dtype, INT8)
    if not stream:
        _check_lone(files)
    pipeline = open_speech(model, device=device, dtype=wide, tokenizer=tokenizer)
    vocabulary = pipeline.listener.vocabulary
    vocabulary.start(None if language is None else vocabulary.language(language), task)
    if stream:
        live(files[0], pipeline, asked, pipe, as_json=format == "json")
        return
    how = {"words": timestamps == "word", "batch": batch}
    _work(files, pipeline, options, format, out, how)


def _all_in(files: Sequence[str]) -> list[str]:
    """Files as they are, and of a folder all its recordings."""
    from allformer.sound.folder import sound_files

    out: list[str] = []
    for name in files:
        folder = name and Path(name).is_dir()
        out += map(str, sound_files(name, name="FILE")) if folder else [name]
    return out


def _work(
    files: Sequence[str],
    pipeline: Any,
    options: Any,
    format: str | None,
    out: Path | None,
    how: dict[str, Any],
) -> None:
    """All files; one that cannot be read does not keep the others waiting."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    faults = 0
    for name in files:
        try:
            _one(name, pipeline, options, format, out, how, several=len(files) > 1)
        except AllformerError as error:
            if len(files) == 1:
                raise
            told = str(error)
            say(f"left out: {told if name and name in told else f'{name}: {told}'}")
            faults += 1
    if faults:
        raise AllformerError(f"{faults} of {len(files)} files are left out; see above")


def _one(
    name: str,
    pipeline: Any,
    options: Any,
    format: str | None,
    out: Path | None,
    how: dict[str, Any],
    several: bool,
) -> None:
    """One file: segments as they come on a terminal, else the whole at the end."""
    from allformer.speech.formats import clock, written
    from allformer.tasks.transcribe import transcribe_one

    shown = out is None and format is None and sys.stdout.isatty()
    if several and out is None:
        print(f"==> {name} <==", flush=True)

    def show(segment: Any) -> None:
        if segment.text.strip():
            print(f"[{clock(segment.start)} → {clock(segment.end)}] {segment.text.strip()}")

    with _bar(Path(name).name, shown) as progress:
        found = transcribe_one(
            pipeline, name, options, progress=progress, heard=show if shown else None, **how
        )
    if shown:
        return
    text = written(found, format or "txt")
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    file = out / f"{Path(name).stem}.{format or 'txt'}"
    file.write_text(text, encoding="utf-8")
    say(f"{file}: {clock(found.duration)} of {found.language}, {_counted(len(found.segments))}")


def _counted(segments: int) -> str:
    return f"{segments} segment" if segments == 1 else f"{segments} segments"


@contextmanager
def _bar(name: str, live: bool) -> Iterator[Callable[[float, float], None] | None]:
    """A bar of seconds for a long recording, unless its segments are seen themselves."""
    from allformer.train.progress import Progress

    if live:
        yield None
        return
    bars: list[Progress] = []

    def update(done: float, total: float) -> None:
        if total > SHORT and not bars:
            bars.append(Progress(round(total), what=name, unit="second"))
        for bar in bars:
            bar.update(round(done))

    try:
        yield update
    finally:
        for bar in bars:
            bar.close()


def _check(
    files: Sequence[str],
    timestamps: str,
    format: str | None,
    out: Path | None,
    formats: Sequence[str],
) -> None:
    """Refuse what cannot be, before anything is opened."""
    if timestamps not in TIMES:
        raise AllformerError(f"--timestamps {timestamps} is not known; try {' or '.join(TIMES)}")
    if format is not None and format not in formats:
        raise AllformerError(f"--format {format} is not known; try {', '.join(formats)}")
    if timestamps == "none" and format in ("srt", "vtt", "tsv"):
        raise AllformerError(f"--format {format} is made of times; leave out --timestamps none")
    if out is None and len(files) > 1 and format not in (None, "txt"):
        raise AllformerError(f"--format {format} of several files needs a folder; give --out")
    if out is not None:
        writable_directory(out)
        stems = [Path(name).stem for name in files]
        twice = next((stem for stem in stems if stems.count(stem) > 1), None)
        if twice is not None:
            raise AllformerError(
                f"two files would be written as {twice}; transcribe them into folders of their own"
            )


def _check_files(files: Sequence[str], pipe: dict[str, Any]) -> None:
    """Recordings are files, and say themselves how they are made."""
    for name, value in pipe.items():
        raise AllformerError(f"--{PIPE[name]} {value} is for --stream -; leave it out")
    if "-" in files:
        raise AllformerError(
            "- is no file: a recording is read twice or in parts; save it and give its name, or "
            "give raw samples with --stream -"
        )
    if "" in files:
        raise AllformerError("a FILE has an empty name; check what the shell made of it")


def _check_lone(files: Sequence[str]) -> None:
    """A recording that cannot be read is told before minutes go into opening the model; of several
    the others are to be had."""
    from allformer.sound import describe

    if len(files) == 1:
        describe(files[0])


def _check_stream(
    timestamps: str, format: str | None, out: Path | None, batch: int | None, clips: str | None
) -> None:
    """What needs the whole recording cannot be had while it comes."""
    if format not in (None, "txt", "json"):
        raise AllformerError(f"--format {format} with --stream: try txt, or json, a line an update")
    for name, value in (("--out", out), ("--batch", batch), ("--clips", clips)):
        if value is not None:
            raise AllformerError(f"{name} {value} needs a whole recording; leave out --stream")
    if timestamps == "none":
        raise AllformerError("--timestamps none with --stream: its words have times; leave it out")


def _numbers(text: str | None, flag: str) -> tuple[float, ...] | None:
    """`0,0.2` → (0.0, 0.2)"""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise AllformerError(f"{flag} {text} must be numbers with commas between") from None


def _ids(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise AllformerError(
            f"--suppress {text} must be ids of tokens with commas between; -1 is usual"
        ) from None
