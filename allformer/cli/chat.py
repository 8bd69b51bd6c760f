"""A conversation at the keyboard: `allformer generate MODEL --chat`.

The model sees all that was said, in its chat template; of that it reads only what is new. Ctrl-C
stops an answer, or clears the line that is being typed, and ends nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from allformer.cli.common import say
from allformer.cli.lines import Source
from allformer.cli.say import Teller, out
from allformer.core.model import DecoderOnlyModel
from allformer.errors import AllformerError, LengthError
from allformer.generate.prefix import Prefix
from allformer.tasks.pace import Pace

SIGN = "> "  # it is the person's turn
COMMANDS = {
    "/new": "forget what was said and begin again",
    "/undo": "take the last question back, with its answer",
    "/bye": "end; Ctrl-D does too",
    "/help": "these lines",
}
_ENDS = "Ctrl-D or /bye ends the conversation"


class Conversation:
    """What was said, and what to answer: `Conversation(pipeline, options).ask("Who is he?")`."""

    def __init__(self, pipeline: Any, options: dict[str, Any]) -> None:
        options = dict(options)
        system = options.pop("system", None)
        self.before = [] if system is None else [{"role": "system", "content": system}]
        self.said: list[dict[str, str]] = []
        # An encoder reads all anew each time, and so does who computes in eight bits, or turns
        # tokens by the longest text of a call.
        model = pipeline.model
        steady = isinstance(model, DecoderOnlyModel) and model.config.decoder.steady
        if steady and "dtype" not in options:
            options["prefix"] = Prefix()
        self.teller = Teller(pipeline, options)

    def ask(self, question: str) -> None:
        """Show the answer and remember both; a question that got none is not remembered."""
        self.said.append({"role": "user", "content": question})
        pace, answer = Pace(), ""
        try:
            answer = self.teller.tell([*self.before, *self.said], pace)
            say(str(pace))
        except KeyboardInterrupt:
            answer = self.teller.shown
            if not answer:
                out("\n")  # below the ^C that the terminal shows
            say(f"stopped; {_ENDS}")
        except AllformerError as error:
            say(f"allformer: {error}" + (" (or /new)" if isinstance(error, LengthError) else ""))
        if answer:
            self.said.append({"role": "assistant", "content": answer})
        else:
            self.said.pop()

    def undo(self) -> None:
        """As if the last question had not been asked."""
        del self.said[-2:]


def converse(pipeline: Any, source: Source, options: dict[str, Any]) -> None:
    """Ask and answer until the person ends it; a model that cannot is refused before a question."""
    hello = [{"role": "user", "content": "?"}]
    pipeline.tokenizer.apply_chat_template(hello, True, chat_template=options.get("chat_template"))
    say(f"{', '.join(COMMANDS)}; Ctrl-C stops an answer")
    talk = Conversation(pipeline, options)
    for line in _typed(source):
        command = line.strip()
        if command == "/bye":
            return
        if command == "/new":
            talk.said.clear()
        elif command == "/undo":
            talk.undo()
        elif command == "/help":
            for name, what in COMMANDS.items():
                say(f"{name:6}{what}")
        elif command:
            talk.ask(line)


def _typed(source: Source) -> Iterator[str]:
    """What a person types, line by line, after a sign that it is their turn."""
    lines = iter(source.lines)
    while True:
        try:
            line = _edited() if _at_terminal() else _plain(lines)
        except KeyboardInterrupt:
            say(f"\n{_ENDS}")
            continue
        if line is None:
            say("")  # Ctrl-D leaves the cursor behind the sign
            return
        yield line.rstrip("\r\n")


def _at_terminal() -> bool:
    """Whether a real keyboard and screen are there, so that a line can be edited."""
    mine = sys.stdin is sys.__stdin__ and sys.stdout is sys.__stdout__
    return mine and sys.stdin.isatty() and sys.stdout.isatty()


def _edited() -> str | None:
    """A line with readline's keys and history: Backspace takes a wide character whole."""
    with suppress(ImportError):
        import readline  # noqa: F401  (input takes it up)
    try:
        return input(SIGN)
    except EOFError:
        return None


def _plain(lines: Iterator[str]) -> str | None:
    print(SIGN, end="", file=sys.stderr, flush=True)
    return next(lines, None)
