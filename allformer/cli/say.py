"""Text while it is being written, and how fast: what `allformer generate` shows of typed prompts.

The text goes to standard output and nothing else does; tokens per second are told beside it.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from allformer.cli.common import say
from allformer.cli.lines import Source
from allformer.tasks.pace import Pace
from allformer.tasks.stream import Stream
from allformer.tasks.texts import generate


def out(text: str) -> None:
    """At once, on standard output."""
    sys.stdout.write(text)
    sys.stdout.flush()


class Teller:
    """Writes one text after the other: `Teller(pipeline, options).tell("Once upon a time")`.

    `shown` is what was seen of the last one, also where it was broken off.
    """

    def __init__(self, pipeline: Any, options: dict[str, Any], *, quiet: bool = False) -> None:
        self.pipeline, self.options = pipeline, options
        self.write = (lambda text: None) if quiet else out
        self.shown = ""

    def tell(self, prompt: Any, pace: Pace) -> str:
        """What the model writes after a prompt, or to a conversation, shown bit by bit; then the
        line ends, also where it was broken off."""
        stops = self.options.get("stop_strings") or ()
        stream = Stream(self.pipeline.tokenizer, self.write, stops)
        with _warned_below(lambda: bool(stream.text)):
            try:
                [text] = generate(
                    self.pipeline, [prompt], streamer=stream, pace=pace, **self.options
                )
            except BaseException:
                if stream.text:
                    self.write("\n")
                raise
            finally:
                self.shown = stream.text
            self.write("\n")
        assert isinstance(text, str)
        return text


@contextmanager
def _warned_below(begun: Callable[[], bool]) -> Iterator[None]:
    """Inside, a warning that comes when a line has begun waits for its end."""
    tell, waiting = warnings.showwarning, list[Any]()

    def hear(*told: Any, **more: Any) -> None:
        if begun():
            waiting.append((told, more))
        else:
            tell(*told, **more)

    warnings.showwarning = hear
    try:
        yield
    finally:
        warnings.showwarning = tell
        for told, more in waiting:
            tell(*told, **more)


def say_texts(pipeline: Any, source: Source, options: dict[str, Any], as_json: bool) -> None:
    """Each typed text, and at the end how fast; a person who types on is told each time."""
    teller, total = Teller(pipeline, options, quiet=as_json), Pace()
    for line in source.lines:
        pace = Pace() if as_json or source.live else total
        prompt = line.rstrip("\r\n")
        text = teller.tell(prompt, pace)
        if as_json:
            record = {"prompt": prompt, "text": text, **pace.to_dict()}
            print(json.dumps(record, ensure_ascii=False), flush=True)
        elif source.live:
            say(str(pace))
    if total.new:
        say(str(total))
