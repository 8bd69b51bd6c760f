"""Sound: read from files in blocks, resampled, turned into log-mel spectrograms.

from allformer.sound import log_mel, read

wave = read("talk.mp3")          # 16 kHz, one channel: samples
log_mel(wave, bins=80)           # what Whisper reads: 80 bins, 100 frames a second
"""

from __future__ import annotations

from allformer.sound.mel import log_mel, mel_filters
from allformer.sound.processor import SoundProcessor, load_processor
from allformer.sound.read import blocks, describe, read
from allformer.sound.resample import resample
from allformer.sound.spectrogram import Spectrogram
from allformer.sound.voice import voices
from allformer.sound.write import write

__all__ = [
    "SoundProcessor",
    "Spectrogram",
    "blocks",
    "describe",
    "load_processor",
    "log_mel",
    "mel_filters",
    "read",
    "resample",
    "voices",
    "write",
]
