"""`allformer transcribe --stream`: speech while it is being said, from a pipe or a microphone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from allformer.cli.common import say
from allformer.errors import AllformerError

MICROPHONE = "microphone"
PIPE = {"rate": "rate", "channels": "channels", "form": "samples"}  # `from_pipe`'s names → flags
_WIDE = 100  # characters of a line, if no sentence ends before


def live(
    source: str, pipeline: Any, options: dict[str, Any], pipe: dict[str, Any], as_json: bool
) -> None:
    """Listen until the sound is over, or somebody presses Ctrl-C."""
    from allformer.tasks.transcribe_live import transcribe_live

    updates = transcribe_live(_until_stopped(_pieces(source, pipe)), pipeline, **options)
    if as_json:
        _tell(updates)
    elif sys.stdout.isatty():
        _show(updates)
    else:
        lines = Lines(lambda line: print(line, flush=True))
        for update in updates:
            lines.add(update.settled)
        lines.end()


def check_source(files: Sequence[str]) -> None:
    """Refuse what is no stream: "-" is standard input, "microphone:2" the second device."""
    if len(files) > 1 or files[0].partition(":")[0] not in ("-", MICROPHONE):
        raise AllformerError(
            f"--stream {' '.join(files)}: a stream has one source; give - for raw samples on "
            f"standard input, or {MICROPHONE} (or {MICROPHONE}:NUMBER); a file is read as it is, "
            f"without --stream"
        )


def check_pipe(source: str, pipe: dict[str, Any]) -> None:
    """Refuse samples that are not known, and what a microphone is not asked."""
    from allformer.speech.pieces import FORMATS

    if pipe.get("form", "s16") not in FORMATS:
        raise AllformerError(f"--samples {pipe['form']} is not known; try {' or '.join(FORMATS)}")
    if source != "-":
        for name, value in pipe.items():
            raise AllformerError(f"--{PIPE[name]} {value} is for --stream -; leave it out")


def _pieces(source: str, pipe: dict[str, Any]) -> Iterator[Any]:
    """Where the sound comes from."""
    from allformer.speech.pieces import from_microphone, from_pipe

    if source == "-":
        return from_pipe(sys.stdin.buffer, **pipe)
    say("Listening; Ctrl-C ends it.")
    device = source.partition(":")[2]
    return from_microphone(device=int(device) if device.isdigit() else device or None)


def _until_stopped(pieces: Iterator[Any]) -> Iterator[Any]:
    """Ctrl-C ends the sound, and what was heard is still written down."""
    try:
        yield from pieces
    except KeyboardInterrupt:
        return


class Lines:
    """Settled words into lines: up to the end of a sentence, or about a line's width."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write, self.words = write, list[Any]()

    @property
    def text(self) -> str:
        """The line so far."""
        return "".join(word.word for word in self.words).strip()

    def add(self, words: Iterable[Any]) -> None:
        """Words that are settled; whole lines are written."""
        from allformer.speech.word_times import SENTENCE_ENDS

        for word in words:
            self.words.append(word)
            if word.word.strip()[-1:] in SENTENCE_ENDS or len(self.text) >= _WIDE:
                self.end()

    def end(self) -> None:
        """The line is over."""
        from allformer.speech.formats import clock

        if self.text:
            start, end = clock(self.words[0].start), clock(self.words[-1].end)
            self.write(f"[{start} → {end}] {self.text}")
        self.words = []


def _tell(updates: Iterable[Any]) -> None:
    """An object a line: what is settled, and what is guessed."""
    for update in updates:
        told = {
            "seconds": round(update.seconds, 2),
            "settled": [asdict(word) for word in update.settled],
            "pending": update.guess,
        }
        print(json.dumps(told, ensure_ascii=False), flush=True)


def _show(updates: Iterable[Any]) -> None:
    """On a terminal: whole lines stay; below them the line that grows, its guess dimmed."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as view:
        lines = Lines(lambda line: console.print(Text(line)))
        for update in updates:
            lines.add(update.settled)
            guess = update.guess if lines.text else update.guess.lstrip()
            view.update(Text.assemble(lines.text, (guess, "dim italic")), refresh=True)
        lines.end()
