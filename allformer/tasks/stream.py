"""Text while it is being written: a streamer for `generate`.

generate(pipeline, "Once upon a time", streamer=Stream(pipeline.tokenizer, print))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from allformer.errors import ConfigError
from allformer.tasks.ends import Ends
from allformer.text.ids import CLEANED
from allformer.text.tokenizer import Tokenizer

_LONG, _KEPT = 64, 16  # ids that are spelt again at each step, and how many are kept of them
_HALF = "\ufffd"  # what stands for bytes that are no character, or none yet


class Stream:
    """Calls `write` with each new bit of text, never with half a character.

    What may become one of the strings in `stop` waits until that is clear; such a string ends the
    text, and neither it nor what follows is shown. `text` is all that was.
    """

    def __init__(
        self, tokenizer: Tokenizer, write: Callable[[str], object], stop: Iterable[str] = ()
    ) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.ends = Ends(stop)
        # Decoding may close a space up when it sees what follows, which cannot be taken back.
        self.open = Ends(CLEANED if tokenizer.settings.clean_up else ())
        self.ids: list[int] | None = None  # None: the prompt has not come yet
        self.seen = 0  # characters of the text of `ids` that were shown, or were there before
        self.text = ""

    def put(self, value: Tensor) -> None:
        """The prompt, then the new tokens."""
        if value.ndim == 2 and len(value) > 1:
            raise ConfigError(
                f"a stream shows one text, not {len(value)} side by side; give one prompt, and "
                f"num_return_sequences=1"
            )
        ids = [int(i) for i in value.flatten().tolist()]
        if self.ids is None:
            self._begin(ids[-max(_KEPT, self.ends.longest) :])
            return
        self.ids += ids
        text = self.tokenizer.decode(self.ids)
        whole = text.rstrip(_HALF)
        self._say(text, len(whole) - self.open.held(whole))
        if len(self.ids) > _LONG and self.seen == len(text):
            self._shorten()

    def end(self) -> None:
        """What still waits."""
        if self.ids is not None:
            text = self.tokenizer.decode(self.ids)
            self._say(text, len(text), last=True)
        self.ids = None

    def _say(self, text: str, until: int, last: bool = False) -> None:
        """Show what is certain of the first `until` characters."""
        end = self.ends.find(text[:until], self.seen)
        if end >= 0:
            until = end  # and it stays there: what follows does not move it
        elif not last:
            until -= self.ends.held(text[:until])
        if until > self.seen:
            new = text[self.seen : until]
            self.seen, self.text = until, self.text + new
            self.write(new)

    def _begin(self, ids: list[int]) -> None:
        self.ids, self.text = ids, ""
        self.seen = len(self.tokenizer.decode(ids))

    def _shorten(self) -> None:
        """Spell no more than the last ids from now on; their first must not be half a character."""
        assert self.ids is not None
        for count in range(_KEPT, len(self.ids)):
            text = self.tokenizer.decode(self.ids[-count:])
            if not text.startswith(_HALF):
                self.ids, self.seen = self.ids[-count:], len(text)
                return
