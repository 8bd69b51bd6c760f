"""Text while it is being written: a streamer for `generate`.

generate(pipeline, "Once upon a time", streamer=Stream(pipeline.tokenizer, print))
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from allformer.text.tokenizer import Tokenizer

_LONG, _KEPT = 64, 16  # ids that are spelt again at each step, and how many are kept of them


class Stream:
    """Calls `write` with each new bit of text; half a character waits for its other half."""

    def __init__(self, tokenizer: Tokenizer, write: Callable[[str], object]) -> None:
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] | None = None  # None: the prompt has not come yet
        self.shown = ""

    def put(self, value: Tensor) -> None:
        """The prompt, then the new tokens."""
        ids = [int(i) for i in value.flatten().tolist()]
        if self.ids is None:
            self._restart(ids)
            return
        self.ids += ids
        text = self.tokenizer.decode(self.ids)
        if text.endswith("\ufffd"):
            return
        self._say(text)
        if len(self.ids) > _LONG:
            self._restart(self.ids)

    def end(self) -> None:
        """What still waits."""
        if self.ids is not None:
            self._say(self.tokenizer.decode(self.ids))
        self.ids = None

    def _say(self, text: str) -> None:
        if len(text) > len(self.shown):
            self.write(text[len(self.shown) :])
            self.shown = text

    def _restart(self, ids: list[int]) -> None:
        self.ids = ids[-_KEPT:]
        self.shown = self.tokenizer.decode(self.ids)
