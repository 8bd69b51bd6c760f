"""A transcript as a file: plain text, subtitles (srt, vtt), a table (tsv), JSON.

    written(transcript, "srt")

Byte for byte what openai-whisper writes, but for JSON, which is indented and has the duration too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from allformer.errors import ConfigError
from allformer.speech.result import Segment, Transcript


class Cue(NamedTuple):
    """A subtitle: from when to when, in seconds, and what."""

    start: float
    end: float
    text: str


def written(transcript: Transcript, format: str) -> str:
    """The whole file: `written(transcript, "vtt")`."""
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is not known; give one of {', '.join(FORMATS)}")
    return FORMATS[format](transcript)


def clock(seconds: float, *, hours: bool = False, point: str = ".") -> str:
    """`clock(3725.5)` → 01:02:05.500; hours only where there are some, or asked for."""
    left, thousandths = divmod(round(seconds * 1000), 1000)
    left, second = divmod(left, 60)
    hour, minute = divmod(left, 60)
    head = f"{hour:02}:" if hours or hour else ""
    return f"{head}{minute:02}:{second:02}{point}{thousandths:03}"


def cues(segments: Iterable[Segment]) -> Iterator[Cue]:
    """A subtitle for each segment; where words have times, from the first to the last of them."""
    segments = list(segments)
    timed = bool(segments) and segments[0].words is not None
    for segment in segments:
        if not timed:
            yield Cue(segment.start, segment.end, segment.text.strip().replace("-->", "->"))
        elif segment.said:
            text = "".join(word.word for word in segment.said).strip()
            yield Cue(segment.said[0].start, segment.said[-1].end, text)


def _txt(transcript: Transcript) -> str:
    return "".join(f"{segment.text.strip()}\n" for segment in transcript.segments)


def _srt(transcript: Transcript) -> str:
    out = []
    for number, cue in enumerate(cues(transcript.segments), 1):
        start, end = (clock(x, hours=True, point=",") for x in (cue.start, cue.end))
        out.append(f"{number}\n{start} --> {end}\n{cue.text}\n\n")
    return "".join(out)


def _vtt(transcript: Transcript) -> str:
    told = (
        f"{clock(cue.start)} --> {clock(cue.end)}\n{cue.text}\n\n"
        for cue in cues(transcript.segments)
    )
    return "WEBVTT\n\n" + "".join(told)


def _tsv(transcript: Transcript) -> str:
    """Milliseconds as whole numbers, which no program reads wrongly."""
    lines = [
        f"{round(1000 * x.start)}\t{round(1000 * x.end)}\t{x.text.strip().replace(chr(9), ' ')}\n"
        for x in transcript.segments
    ]
    return "start\tend\ttext\n" + "".join(lines)


def _json(transcript: Transcript) -> str:
    return json.dumps(transcript.to_dict(), ensure_ascii=False, indent=2) + "\n"


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "txt": _txt, "srt": _srt, "vtt": _vtt, "tsv": _tsv, "json": _json,
}  # fmt: skip
