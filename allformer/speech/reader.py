"""One look at a short stretch of sound: its words and when they are said, for a `Stream`.

read = WindowReader(listener, bins=80, options=TranscribeOptions(language="en"))
read(wave, "what was said before")               # wave: 16 kHz samples, 30 s at most
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from allformer.sound.mel import HOP, RATE, log_mel
from allformer.speech.align import WordTimer
from allformer.speech.fallback import decode_with_fallback, is_silence
from allformer.speech.language import detect_language
from allformer.speech.listener import Listener
from allformer.speech.options import TranscribeOptions
from allformer.speech.window import FRAMES
from allformer.speech.word_times import (
    Timing,
    join_punctuation,
    shorten_at_sentences,
    usual_length,
)


class WindowReader:
    """What a `Stream` reads with. `bins` are those of the model's spectrogram. Without a language
    that of the first speech is taken."""

    def __init__(self, listener: Listener, bins: int, options: TranscribeOptions) -> None:
        self.listener, self.bins, self.options = listener, bins, options
        self.timer: WordTimer | None = None
        self.generator = torch.Generator(listener.device).manual_seed(options.seed)

    def __call__(self, wave: Tensor, before: str) -> list[Timing]:
        """The words of `wave`, and when they are said, in seconds from its beginning on."""
        mel = log_mel(wave, self.bins, padding=30 * RATE)[:, :FRAMES]
        memory = self.listener.encode(mel[None])
        timer = self.timer = self.timer or self._timer(memory)
        prompt = self.listener.vocabulary.encode(before) if before.strip() else []
        decoded = decode_with_fallback(self.listener, memory, self.options, prompt, self.generator)
        if is_silence(decoded, self.options):
            return []
        text = [token for token in decoded.tokens if token < self.listener.vocabulary.end]
        [timings] = timer.align([text], memory, [min(FRAMES, wave.shape[0] // HOP)])
        shorten_at_sentences(timings, usual_length(timings))
        join_punctuation(timings, timer.opening, timer.closing)
        return [one for one in timings if one.word]

    def _timer(self, memory: Tensor) -> WordTimer:
        """Once the language is known."""
        vocabulary, asked = self.listener.vocabulary, self.options.language
        if asked is None and vocabulary.multilingual:
            [chances] = detect_language(self.listener, memory)
            asked = max(chances, key=chances.__getitem__)
        self.options = replace(self.options, language=vocabulary.language(asked or "en"))
        return WordTimer(self.listener, self.options.language, self.options.task)
