"""When each word of a window is said: read from where the decoder looks while it writes.

    words = WordTimer(listener, language="en")
    Transcriber(listener, sound, options, words)        # segments come with words
    [timings] = words.align([tokens], memory, [frames])  # of the text of one window

The decoder reads the text once more, all at once; the scores of its cross-attention are listened to
by their taps (`core/taps.py`), which changes no number. The rules are openai-whisper's.

Legend: A windows, H heads, T tokens, S vectors of the encoder (20 ms each), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.precision import widen
from allformer.core.taps import listen
from allformer.speech.alignment_heads import Heads, alignment_heads
from allformer.speech.listener import Listener
from allformer.speech.result import Segment, Word
from allformer.speech.split import UNSPACED, split
from allformer.speech.window import Window
from allformer.speech.word_times import (
    CLOSING,
    OPENING,
    Timing,
    fit_segment,
    join_punctuation,
    shorten_at_sentences,
    time_words,
    token_times,
    usual_length,
)

FRAMES = 100  # of sound in a second; the encoder makes one vector of two


class WordTimer:
    """Word times for one model and language, in the form that `windows.Transcriber` asks for.

    >>> WordTimer(listener, "zh", heads="large-v2")

    `heads` are the pairs (layer, head) that follow the sound, or the published model whose they
    are; None: what is known of the model. Signs of `opening` join the word after them, those of
    `closing` the one before.
    """

    def __init__(
        self,
        listener: Listener,
        language: str | None = None,
        task: str = "transcribe",
        *,
        heads: Heads | str | None = None,
        opening: str = OPENING,
        closing: str = CLOSING,
    ) -> None:
        self.listener = listener
        vocabulary = listener.vocabulary
        self.start = vocabulary.start(language, task)
        self.spaced = not vocabulary.multilingual or (language or "en") not in UNSPACED
        self.heads = alignment_heads(listener.model, heads)
        self.opening, self.closing = opening, closing

    def __call__(self, segments: list[Segment], window: Window, last: float) -> list[Segment]:
        """The segments of one window with their words; starts and ends follow the words, where
        those are nearer to the truth. `last`: when the last word before ended, in seconds."""
        if not segments:
            return []
        end = self.listener.vocabulary.end
        text = [token for segment in segments for token in segment.tokens if token < end]
        [timings] = self.align([text], window.memory, [window.size])
        return self.share(segments, timings, last)

    def share(
        self, segments: Sequence[Segment], timings: list[Timing], last: float
    ) -> list[Segment]:
        """The words of a window among its segments, in the order of their tokens."""
        usual = usual_length(timings)
        shorten_at_sentences(timings, usual)
        join_punctuation(timings, self.opening, self.closing)
        end = self.listener.vocabulary.end
        out = []
        waiting = iter(timings)
        for segment in segments:
            left = sum(token < end for token in segment.tokens)
            mine: list[Timing] = []
            while left > 0 and (one := next(waiting, None)) is not None:
                mine.append(one)
                left -= len(one.tokens)
            words = _rounded(mine, segment.seek / FRAMES)
            start, stop = fit_segment(words, segment.start, segment.end, last, usual)
            last = stop if words else last
            said = tuple(Word(w.word, w.start, w.end, w.probability) for w in words)
            out.append(replace(segment, start=start, end=stop, words=said))
        return out

    def align(
        self, texts: Sequence[Sequence[int]], memory: Tensor, frames: Sequence[int]
    ) -> list[list[Timing]]:
        """The words of each window's text and when they are said, from the window's beginning on.

        Texts are tokens without timestamps; `memory` A S dim is what the encoder made of the
        windows, of which so many `frames` of 10 ms are sound. All are read in one pass.
        """
        end, first = self.listener.vocabulary.end, len(self.start)
        rows = [[*self.start, self.listener.vocabulary.untimed, *text, end] for text in texts]
        hidden, scores = self._read(rows, memory)
        out: list[list[Timing]] = []
        for row, text in enumerate(texts):
            words = split([*text, end], self._spell, end, self.spaced)
            if len(words) < 2 or frames[row] < 2:  # nothing is said, or heard
                out.append([])
                continue
            seen = scores[row, :, : len(rows[row]), : frames[row] // 2]
            sure = self._sureness(hidden[row, first:], text)
            out.append(time_words(words, token_times(seen, first), sure))
        return out

    @torch.inference_mode()
    def _read(self, rows: Sequence[Sequence[int]], memory: Tensor) -> tuple[Tensor, Tensor]:
        """States A T dim, and the scores of the heads that follow the sound, A H T S."""
        model, device = self.listener.model, self.listener.device
        end = self.listener.vocabulary.end
        ids = pad_sequence([torch.tensor(row) for row in rows], True, float(end)).to(device)
        found: dict[str, Tensor] = {}
        names = {f"decoder.{layer}.cross.scores" for layer, _ in self.heads}

        def keep(name: str, x: Tensor) -> None:
            if name in names:
                found[name] = x

        cache = model.new_cache()
        side = Side(cache.grid(ids.shape[0], ids.shape[1], None), {"input_ids": ids}, ids)
        across = Grid(memory.shape[0], memory.shape[1], None)
        with listen(keep):
            x = model.decoder.source(side, self.listener.dtype)
            hidden = model.decoder(x, side.layout, memory=memory, across=across, cache=cache)
        heads = [found[f"decoder.{layer}.cross.scores"][:, head] for layer, head in self.heads]
        return hidden, torch.stack(heads, 1)

    @torch.inference_mode()
    def _sureness(self, hidden: Tensor, text: Sequence[int]) -> list[float]:
        """The probability of each token among words; hidden: T dim, from the one before it on."""
        logits = self.listener.model.logits(hidden[: len(text)])  # T V
        chances = widen(logits)[:, : self.listener.vocabulary.end].softmax(-1)
        which = torch.tensor(text, device=chances.device)[:, None]
        sure: list[float] = chances.gather(1, which)[:, 0].tolist()
        return sure

    def _spell(self, tokens: list[int]) -> str:
        return self.listener.vocabulary.tokenizer.decode(tokens, skip_special_tokens=False)


def _rounded(timings: Sequence[Timing], offset: float) -> list[Timing]:
    """What is left of them as words, from the recording's beginning on, to 10 ms."""
    return [
        replace(one, start=round(offset + one.start, 2), end=round(offset + one.end, 2))
        for one in timings
        if one.word
    ]
